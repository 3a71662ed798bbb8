"""`cloze run`: the whole job, executed with Prefect in this process.

In:  a configuration.
Out: the run's record; on a terminal, where the report lies.
"""

from importlib import import_module
from typing import Annotated

from cyclopts import Parameter

from artifacts import filesystem
from artifacts.progress import clock, say
from cloze.answer import Answer
from cloze.execution.console import watching
from cloze.options import WANTED, ConfigPath, Wanted
from flows.config import MachineConfig, RunConfig
from flows.executor import execute
from flows.plan import plan
from flows.prefect.server import ServerLost, prefect_server
from flows.record import RunRecord
from flows.report.terminal import read_lines
from flows.workspace import refuse_if_locked, writable_workspace

WITHOUT_PREFECT = "Do the same without Prefect: no server to watch it."


def run(
    config: ConfigPath,
    /,
    *,
    wanted: Wanted = WANTED,
    without_prefect: Annotated[bool, Parameter(negative="", help=WITHOUT_PREFECT)] = False,
) -> Answer:
    """Execute every stage of `config`; what is there already is reused."""
    configuration, machine = wanted.run(config), wanted.machine()
    _preflight(configuration, machine)
    with watching():
        if without_prefect:
            record = execute(configuration, machine)
        else:
            record = _with_prefect(configuration, machine)
    return Answer(record.model_dump(mode="json"), _words(record, machine), wanted.json)


def _preflight(run: RunConfig, machine: MachineConfig) -> None:
    """Find what is wrong with corpus or workspace before anything is started."""
    space = writable_workspace(machine.workspace)
    refuse_if_locked(space.local)
    plan(run, workspace=space)


def _with_prefect(run: RunConfig, machine: MachineConfig) -> RunRecord:
    space = writable_workspace(machine.workspace)
    with prefect_server(space, meanwhile=_import_prefect) as server:
        # only now: Prefect reads its settings when it is imported
        from flows.prefect.flows import end_to_end
        from flows.prefect.tracking import reporting_to

        try:
            with reporting_to(server):
                return RunRecord.model_validate(end_to_end(run, machine))
        except ServerLost as error:
            say(f"warning: {error}: going on without it")
            return execute(run, machine)


def _import_prefect() -> None:
    import_module("flows.prefect.flows")


def _words(record: RunRecord, machine: MachineConfig) -> str:
    made = [stage for stage, found in record.stages.items() if found.state == "made"]
    reused = len(record.stages) - len(made)
    folder = filesystem.join(machine.workspace, record.name)
    memory = f", peak memory {record.peak_memory / 2**30:.2f} GiB" if record.peak_memory else ""
    work_done = f"{len(made)} stages made, {reused} reused in {clock(record.seconds or 0)}{memory}"
    figures = read_lines(filesystem.join(folder, "summary.json"))
    report = f"report: {filesystem.join(folder, 'report.html')}"
    return "\n".join([*figures, work_done, report])
