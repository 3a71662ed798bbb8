"""`cloze run`: every stage of a run, from documents to the report.

In:  a configuration.
Out: the run's record; for people the headline figures and the path of the report.
"""

from importlib import import_module
from typing import Annotated

from cyclopts import Parameter

from artifacts import filesystem
from artifacts.progress import clock, say
from cloze.answer import Answer
from cloze.execution.console import watching
from cloze.execution.preflight import refuse_contradictions
from cloze.options import TARGET, ConfigPath, Target
from flows.config import MachineConfig, RunConfig
from flows.executor import execute
from flows.plan import plan
from flows.prefect.server import ServerLost, prefect_server
from flows.record import RunRecord
from flows.report.terminal import read_lines
from flows.workspace import locked, writable_workspace

GIB = 1 << 30

WithoutPrefect = Annotated[
    bool,
    Parameter(negative="", show_default=False, help="Run without a Prefect server to watch it on."),
]


def run(
    config: ConfigPath,
    /,
    *,
    target: Target = TARGET,
    without_prefect: WithoutPrefect = False,
) -> Answer:
    """Execute every stage of `config`; existing artifacts are reused."""
    configuration, machine = target.run(config), target.machine()
    space = writable_workspace(machine.workspace)
    with locked(space.local, run=configuration.name), watching():
        plan(configuration, workspace=space)  # finds what is missing before anything is started
        refuse_contradictions(configuration, machine)
        if without_prefect:
            record = execute(configuration, machine)
        else:
            record = _run_with_prefect(configuration, machine)
    made = [stage for stage, found in record.stages.items() if found.state == "made"]
    memory = f", peak memory {record.peak_memory / GIB:.2f} GiB" if record.peak_memory else ""
    folder = filesystem.join(machine.workspace, record.name)
    lines = [
        *read_lines(filesystem.join(folder, "summary.json")),
        f"{len(made)} stages made, {len(record.stages) - len(made)} reused "
        f"in {clock(record.seconds or 0)}{memory}",
        f"report: {filesystem.join(folder, 'report.html')}",
    ]
    return Answer(record.model_dump(mode="json"), "\n".join(lines), target.json)


def _run_with_prefect(run: RunConfig, machine: MachineConfig) -> RunRecord:
    space = writable_workspace(machine.workspace)
    server_starting = prefect_server(space, meanwhile=lambda: import_module("flows.prefect.flows"))
    try:
        with server_starting as server:
            # only now: Prefect reads its settings when it is imported
            from flows.prefect.flows import end_to_end
            from flows.prefect.tracking import reporting_to

            with reporting_to(server):
                return RunRecord.model_validate(end_to_end(run, machine))
    except ServerLost as error:
        say(f"warning: {error}: continuing without it")
        return execute(run, machine)
