"""`cloze run` and `cloze serve`: every stage of a run, from documents to the report.

In:  for `run`, a configuration; seeds and sweeps. For `serve`, a configuration, the default values
     of the server's form.
Out: for `run`, the run's record, or for people the headline figures and the path of the report; for
     several runs, a table of figures: means over the seeds with standard errors. For `serve`, runs
     that are triggered from a Prefect server, until Ctrl-C.
"""

import os
import shlex
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib import import_module
from typing import Annotated

from cyclopts import Parameter

from cloze.answer import Answer, Format, written
from cloze.artifacts import filesystem
from cloze.artifacts.config import with_value
from cloze.artifacts.errors import UsageError
from cloze.artifacts.progress import clock, say
from cloze.artifacts.results import SeedScores
from cloze.artifacts.significance import gap, holm, is_real
from cloze.execution.console import watching
from cloze.execution.preflight import checked_plan
from cloze.flows.config import MachineConfig
from cloze.flows.executor import execute
from cloze.flows.expected import SLOWEST_RATE, Announced, busy_now
from cloze.flows.external_inputs import Digests
from cloze.flows.locks import locked
from cloze.flows.plan import Plan
from cloze.flows.prefect.following import Followed
from cloze.flows.prefect.server import (
    Server,
    ServerLost,
    prefect_server,
    secret_file,
    starting_server,
)
from cloze.flows.report.figures import (
    judged_apart,
    mean_figures,
    read_summary,
    terminal_lines,
)
from cloze.flows.stages import PREPARE
from cloze.flows.variants import SharedData, Variant, shared_data, variants
from cloze.flows.workspace import RunRecord, Workspace, workspace, writable_workspace
from cloze.options import TARGET, ConfigPath, Target

GIB = 1 << 30
WORTH_ANNOUNCING = 120.0
"""Expected seconds from which on a run says how long it will take."""

LAST_SECONDS = 10.0
"""Time for Prefect's page to show how a run ended that was interrupted or failed."""

STALLED_SECONDS = 60.0
"""How long a finished run waits for Prefect's page to show anything more of it. Each call of a
server that was stopped waits for as long, and is tried again."""

WithoutPrefect = Annotated[bool, Parameter(help="Run without starting a Prefect server.")]


def run(
    config: ConfigPath,
    /,
    *,
    seeds: Annotated[list[int] | None, Parameter(consume_multiple=True)] = None,
    sweep: list[str] | None = None,
    weights: str = "",
    format: Format = "text",
    target: Target = TARGET,
    without_prefect: WithoutPrefect = False,
) -> Answer:
    """Execute every stage of `config`, reusing existing artifacts.

    :param seeds: Pre-train with each of these seeds on the same examples: `--seeds 0 1 2`.
    :param sweep: Run once with each value: `--sweep pretrain.optimizer.learning_rate=1e-3,2e-3`.
        Repeatable; runs every combination. Variants with other masks are evaluated on the
        held-out examples of the first, those with other filters on such of the whole corpus.
    :param weights: CSV that leaves training rows out, for the run's only task; a run writes its
        probable label errors so, as label_errors/TASK.csv.
    :param format: Format of the table of several runs; LaTeX needs the package booktabs.
    """
    configuration, machine = target.read(config)
    if weights:
        tasks = configuration.finetune.tasks
        if len(tasks) != 1:
            raise UsageError(
                f"--weights {weights}: the run has {len(tasks)} tasks, expected one; use "
                "--set finetune.tasks.N.weights=FILE for the right one"
            )
        weighted = tasks[0].model_copy(update={"weights": weights})
        configuration = with_value(configuration, "finetune.tasks", (weighted,))
    chosen = variants(configuration, seeds=seeds or (), sweeps=sweep or ())
    # The variants take turns: where time is limited, a machine that slows down does so for all.
    runs = [run for of_seed in zip(*(one.runs for one in chosen), strict=True) for run in of_seed]
    # One memory of digests for all plans, so that data are read once.
    space, digests = writable_workspace(machine.workspace), Digests()
    with locked(space.local, run=configuration.name), watching():
        plans = [checked_plan(one, machine, digests=digests) for one in runs]
        if machine.jobs.launcher == "local":
            _announce(plans[0])
        # All have been checked before: none is refused after hours of another's preparation.
        if data := shared_data(runs, name=configuration.name):
            plans = _sharing(data, machine, digests)
        if without_prefect or not _is_shown(plans):
            records = [execute(plan) for plan in plans]
        else:
            records = _run_with_prefect(plans)
    if seeds or sweep:
        return _table(chosen, space, name=configuration.name, format=format, as_json=target.json)
    (record,) = records
    text = "\n".join(account(record, machine))
    return Answer(record.model_dump(mode="json"), text, target.json)


def account(record: RunRecord, machine: MachineConfig) -> list[str]:
    """The headline figures of a finished run, what it took, and where its report is."""
    made = [stage for stage, found in record.stages.items() if found.state == "made"]
    memory = f", peak memory {record.peak_memory / GIB:.2f} GiB" if record.peak_memory else ""
    summary = read_summary(workspace(machine.workspace), record.name)
    folder = filesystem.join(machine.workspace, record.name)
    return [
        *(terminal_lines(summary) if summary else ()),
        f"{len(made)} stages made, {len(record.stages) - len(made)} reused "
        f"in {clock(record.seconds or 0)}{memory}",
        f"report: {filesystem.join(folder, 'report.html')}",
    ]


def _sharing(data: SharedData, machine: MachineConfig, digests: Digests) -> list[Plan]:
    """The plans of variants that share `data`, which is made now, since the plans name it."""
    for note in data.notes:
        say(note)
    preparation = checked_plan(data.maker, machine, wanted=PREPARE, digests=digests)
    execute(preparation)
    runs = data.given(preparation.finished)
    return [checked_plan(run, machine, digests=digests) for run in runs]


def _announce(plan: Plan) -> None:
    """Log how long a run of some minutes will take: a slow machine should be no surprise.

    Of several seeds or sweeps only the first counts, since the others share its stages. A run that
    is short on any machine does not wait for this one's measurement.
    """
    if sum(each.seconds for each in plan.expected(rate=SLOWEST_RATE)) <= WORTH_ANNOUNCING:
        return
    expected = plan.expected()
    total = sum(each.seconds for each in expected)
    if total > WORTH_ANNOUNCING:
        plan.announced = Announced(expected)
        longest = max(expected, key=lambda each: each.seconds)
        say(
            f"expected on this machine: {clock(total)}, of which {longest.stage} "
            f"{clock(longest.seconds)} ({longest.basis}); `cloze plan` shows every stage"
        )
        if busy := busy_now():
            say(busy)


def _is_shown(plans: Sequence[Plan]) -> bool:
    """Whether Prefect should hear of it: no server is started where nothing is to be made."""
    to_run = any(step.action == "run" for plan in plans for step in plan.steps)
    return to_run or bool(os.environ.get("PREFECT_API_URL"))


def _run_with_prefect(plans: Sequence[Plan]) -> list[RunRecord]:
    """Run the plans as flows of the server that PREFECT_API_URL names, or of one of our own."""
    try:
        if os.environ.get("PREFECT_API_URL"):
            # Somebody may be watching or cancel it, so each stage asks the server first.
            with tracked_by_prefect(plans[0].space, run=plans[0].run.name):
                from cloze.flows.prefect.tracking import execute_as_flow

                return [execute_as_flow(plan) for plan in plans]
        with starting_server(plans[0].space, run=plans[0].run.name) as server:
            return _followed_by_prefect(plans, server)
    except ServerLost as error:
        say(f"warning: {error}: continuing without it")
        return [execute(plan) for plan in plans]  # reuses the stages that have finished


def _followed_by_prefect(plans: Sequence[Plan], server: Server) -> list[RunRecord]:
    """Run the plans, while another thread waits for the server, and follows them as flows."""
    runs = [Followed(plan) for plan in plans]
    answering, stopped = threading.Event(), threading.Event()

    def following() -> None:
        try:
            # Prefect reads its settings on import, which are complete now.
            from cloze.flows.prefect.tracking import execute_as_flow, reporting_to

            while not server.ready():
                if stopped.wait(0.1):
                    return
            answering.set()
            with reporting_to(server.url):
                for one in runs:
                    execute_as_flow(one.plan, one)
        except BaseException as error:
            # A run's own failure is raised where it is executed, and one warning is enough.
            if not stopped.is_set() and not any(one.failure for one in runs):
                reason = str(error) or type(error).__name__
                say(f"warning: Prefect's page is incomplete: {reason}")

    thread = threading.Thread(target=following, name="prefect", daemon=True)
    thread.start()
    try:
        records = [one.execute() for one in runs]
    except BaseException:
        stopped.set()
        thread.join(LAST_SECONDS)
        raise
    # A server that does not start ends the thread by itself.
    while thread.is_alive() and not answering.wait(0.1):
        pass
    shown = -1
    while thread.is_alive() and shown < (now := sum(one.shown for one in runs)):
        shown = now
        thread.join(STALLED_SECONDS)
    if thread.is_alive():  # it ends with this process
        stopped.set()
        say(
            "warning: Prefect's page is incomplete: its server has not answered for "
            f"{STALLED_SECONDS:.0f} s"
        )
    return records


@contextmanager
def tracked_by_prefect(space: Workspace, *, run: str) -> Iterator[None]:
    """Start a Prefect server, to which flows report while in the context.

    Prefect reads its settings on import, so flows are imported within the context.
    """
    server_starting = prefect_server(
        space, run=run, meanwhile=lambda: import_module("cloze.flows.prefect.tracking")
    )
    with server_starting as server:
        from cloze.flows.prefect.tracking import reporting_to

        with reporting_to(server):
            yield


def _table(
    chosen: Sequence[Variant], space: Workspace, *, name: str, format: Format, as_json: bool
) -> Answer:
    """The figures of the variants of the run called `name`, one column each."""
    found = [mean_figures((run.name for run in variant.runs), space) for variant in chosen]
    titles = [variant.title or name for variant in chosen]
    seeds = [str(len(variant.runs)) for variant in chosen]
    rows = [["", *titles], ["seeds", *seeds]]
    real = _real_differences(found)
    for figure in dict.fromkeys(figure for one in found for figure in one):
        cells = []
        for number, scores in enumerate(one.get(figure) for one in found):
            cell = f"{scores.mean:.4g}" if scores else ""
            if scores and scores.standard_error:
                cell += f" ± {scores.standard_error:.2g}"
            cells.append(cell + " *" * ((number, figure) in real))
        rows.append([figure, *cells])
    names = [run.name for variant in chosen for run in variant.runs]
    # The runs of a variant differ only in their seeds, so its first stands for all.
    read = {run: read_summary(space, run) for run in (one.runs[0].name for one in chosen)}
    notes = judged_apart({run: summary for run, summary in read.items() if summary})
    legend = [f"* differs from {titles[0]}: t-test over seeds, corrected for all figures"]
    legend = legend if real else []
    data = [
        {
            "variant": title,
            "runs": [run.name for run in variant.runs],
            "figures": {figure: scores.model_dump(mode="json") for figure, scores in one.items()},
            "differs": [figure for figure in one if (number, figure) in real],
        }
        for number, (title, variant, one) in enumerate(zip(titles, chosen, found, strict=True))
    ]
    if format == "text":
        say(f"each run: cloze compare {' '.join(names)}")
        for line in legend:
            say(line)
    for note in notes:
        say(f"warning: {note}")
    data_of_all = {"variants": data, "notes": notes}
    return Answer(data_of_all, written(rows, format, notes=[*notes, *legend]), as_json)


def _real_differences(found: Sequence[Mapping[str, SeedScores]]) -> set[tuple[int, str]]:
    """The number of a variant and the figure in which it really differs from the first."""
    places, p_values, seeds = [], list[float | None](), []
    for number, one in enumerate(found[1:], 1):
        for figure, scores in one.items():
            if first := found[0].get(figure):
                ours, theirs = (dict(enumerate(each.values)) for each in (scores, first))
                places.append((number, figure))
                p_values.append(gap(ours, theirs).p_value)
                seeds.append(min(len(ours), len(theirs)))
    corrected = zip(places, holm(p_values), seeds, strict=True)
    return {place for place, p_value, count in corrected if is_real(p_value, seeds=count)}


def serve(config: ConfigPath, /, *, port: int = 4200, target: Target = TARGET) -> Answer:
    """Serve the flows.

    :param port: Port of the server, unless PREFECT_API_URL already names one.
    """
    run, machine = target.read(config)
    space = writable_workspace(machine.workspace)
    # inherited by the runs: a user's own `flows/` must not shadow ours
    os.environ["PYTHONSAFEPATH"] = "1"
    elsewhere = os.environ.get("PREFECT_API_URL", "")
    # Before Prefect is imported and its server answers, which may take half a minute.
    if elsewhere:
        say(f"serve {run.name}: asking the server at {elsewhere}")
    else:
        say(f"serve {run.name}: starting a server, which will be at http://127.0.0.1:{port}")
    with prefect_server(space, run=run.name, port=port) as url:
        # imported here because Prefect reads its settings on import
        from cloze.flows.prefect.serving import serve_flows

        def say_ready() -> None:
            page, flow = url.removesuffix("/api"), f"end-to-end/{run.name}"
            if elsewhere:
                say(f"server: {page}")
                say(f"trigger: PREFECT_API_URL={url} prefect deployment run {flow}")
            else:
                secret = shlex.quote(str(secret_file(space)))
                settings = f'PREFECT_API_URL={url} PREFECT_API_AUTH_STRING="$(cat {secret})"'
                say(f"server: {page} (the password is in {secret})")
                say(f"trigger: {settings} prefect deployment run {flow}")

        parameters = {
            "run": run.model_dump(mode="json"),
            "machine": machine.model_dump(mode="json"),
        }
        serve_flows(parameters, name=run.name, on_ready=say_ready)
    return Answer({"server": url}, "", target.json)
