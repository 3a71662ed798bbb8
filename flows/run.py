"""Works off the chain of one run, with or without Prefect.

In:  a run's configuration and a machine's.
Out: the run's record. Every stage is ensured in order; whatever happens, the record says so.

`step` is where Prefect comes in: it is called with a stage's name and the function that ensures it.
"""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from artifacts import filesystem
from artifacts.errors import ClozeError
from artifacts.progress import clock
from artifacts.stage import StageTable
from artifacts.store import Artifact
from flows.config import JobsConfig, MachineConfig, RunConfig
from flows.ensure import Outcome, ensure, look_up
from flows.events import tell, tell_waiting
from flows.launchers.argv import program_argv
from flows.launchers.choice import launcher_for
from flows.launchers.local import local_job
from flows.launchers.watch import JobResult, StageFailed, run_job
from flows.listener import Listener
from flows.lock import locked
from flows.record import (
    RunRecord,
    RunState,
    StageRecord,
    find_record,
    record_path,
    utc_now,
    write_record,
)
from flows.stages import Stage, chain, stage_table, up_to
from flows.workspace import Workspace, writable_workspace

Step = Callable[[str, Callable[[], Outcome]], Outcome]
"""Runs the function that ensures the named stage."""

PUBLISHED = ("report.html", "summary.json")
"""Files of the report that are copied into the run's folder."""


def directly(jobs: JobsConfig) -> Step:
    """The step without Prefect: here and now, and once more if the stage was killed."""

    def step(stage: str, function: Callable[[], Outcome]) -> Outcome:
        left = jobs.retries
        while True:
            try:
                return function()
            except StageFailed as error:
                if not left or not worth_retrying(stage, error):
                    raise
            left -= 1
            time.sleep(jobs.retry_delay)

    return step


def worth_retrying(stage: str, error: object) -> bool:
    """Whether `stage` was killed, and says so; one that failed by itself would fail again."""
    again = isinstance(error, StageFailed) and error.retryable
    if again:
        tell(stage, "warned", f"{error}; trying again")
    return again


def work(
    run: RunConfig,
    machine: MachineConfig,
    *,
    wanted: tuple[str, ...] = (),
    options: Sequence[str] = (),
    step: Step | None = None,
) -> RunRecord:
    """Make everything `wanted` (all by default) and what it needs, and nothing that is there.

    `options` go to the engine of the last stage.
    """
    step = step or directly(machine.jobs)
    stages = up_to(chain(run), wanted) if wanted else chain(run)
    space = writable_workspace(machine.workspace)
    with locked(space.local, run=run.name):
        end_leftovers(space, grace=machine.jobs.grace)
        bench = Bench(run, machine, space, tuple(options), last=stages[-1].name)
        for stage in stages:
            tell_waiting(stage.name)
        with bench.recorded():
            for stage in stages:
                bench.finish(stage, step(stage.name, bench.task(stage)))
            for stage in chain(run):
                bench.adopt(stage)
        bench.publish()
    return bench.record


@dataclass
class Bench:
    """What lies on the table while a run is worked off."""

    run: RunConfig
    machine: MachineConfig
    space: Workspace
    options: tuple[str, ...]
    last: str
    finished: dict[str, Artifact] = field(default_factory=dict)
    record: RunRecord = field(init=False)
    _earlier: RunRecord | None = field(init=False)

    def __post_init__(self) -> None:
        self._earlier = find_record(self.space, self.run.name)
        self.record = RunRecord(
            name=self.run.name,
            state="running",
            config=self.run.model_dump(mode="json"),
            machine=self.machine.model_dump(mode="json"),
            started_at=utc_now(),
        )

    def task(self, stage: Stage) -> Callable[[], Outcome]:
        """A function that ensures `stage`."""
        return lambda: self.ensure(stage)

    def ensure(self, stage: Stage) -> Outcome:
        """Reuse or make the artifact of `stage`."""

        def run_program(table: StageTable, file: Path) -> JobResult:
            return self.run_program(stage, file)

        table, file = self.table(stage), self.table_file(stage)
        return ensure(table, store=self.space.store, file=file, run_program=run_program)

    def table(self, stage: Stage) -> StageTable:
        """The stage table, whose inputs must be finished."""
        machine = self.machine_table(stage)
        table = stage_table(stage, self.finished, store=self.space.store, machine=machine)
        if machine.get("checkpoints") != "" or filesystem.is_local(self.space.root):
            return table
        # checkpoints cannot lie on an object store: they lie beside the logs, by the key
        checkpoints = str(self.space.local / "checkpoints" / table.key[:16])
        return table.model_copy(update={"machine": {**machine, "checkpoints": checkpoints}})

    def run_program(self, stage: Stage, file: Path) -> JobResult:
        """Run the program of `stage` and listen to it."""
        argv = self.argv(stage)
        tell(stage.name, "running", " ".join(argv))
        try:
            return run_job(
                argv,
                job=self.space.job_folder(self.run.name, stage.name),
                launcher=launcher_for(stage.name, self.machine),
                on_line=Listener(stage.name),
                stall_timeout=self.machine.jobs.stall_timeout,
            )
        except ClozeError as error:
            tell(stage.name, "failed", str(error))
            raise

    def adopt(self, stage: Stage) -> None:
        """Enter a stage that was not asked for, if its artifact is there all the same."""
        if stage.name in self.finished or not self.finished.keys() >= set(stage.inputs.values()):
            return
        found = look_up(self.table(stage))
        if found.artifact:
            self.finish(stage, Outcome(found.artifact, "reused"))

    def finish(self, stage: Stage, outcome: Outcome) -> None:
        """Write down that `stage` is finished."""
        self.finished[stage.name] = outcome.artifact
        made = self._stage_record(stage, outcome)
        peaks = [made.peak_memory, self.record.peak_memory] if outcome.result else []
        self.record = self.record.model_copy(
            update={
                "stages": {**self.record.stages, stage.name: made},
                "peak_memory": max(filter(None, peaks), default=self.record.peak_memory),
            }
        )
        write_record(self.record, self.space)
        took = f" in {clock(outcome.result.seconds)}" if outcome.result else ""
        tell(stage.name, outcome.state, f"{outcome.artifact.digest[:12]}{took}")

    @contextmanager
    def recorded(self) -> Iterator[None]:
        """The record says how it ended, whatever happens inside."""
        started = time.monotonic()
        self.note(state="running")
        try:
            yield
        except ClozeError as error:
            self.note(state="failed", failure=str(error), **_ended(started))
            raise
        except BaseException as error:
            self.note(state="interrupted", failure=type(error).__name__, **_ended(started))
            raise
        self.note(state="finished", **_ended(started))

    def note(self, *, state: RunState, **facts: Any) -> None:
        """Change the record and write it."""
        self.record = self.record.model_copy(update={"state": state, **facts})
        write_record(self.record, self.space)

    def publish(self) -> None:
        """Copy the report's files to where people look for them."""
        report = self.finished.get("report")
        for entry in report.manifest.files if report else ():
            if report and entry.name in PUBLISHED:
                path = filesystem.join(self.space.run_folder(self.run.name), entry.name)
                filesystem.write_bytes(path, report.read_bytes(entry.name))

    def argv(self, stage: Stage) -> tuple[str, ...]:
        """What starts the program of `stage`."""
        options = self.options if stage.name == self.last else ()
        file = str(self.table_file(stage))
        return program_argv(stage.config, file, machine=self.machine, options=options)

    def table_file(self, stage: Stage) -> Path:
        """Where the table of `stage` lies for its program."""
        return self.space.local / self.run.name / "stages" / f"{stage.name}.json"

    def machine_table(self, stage: Stage) -> Mapping[str, Any]:
        """The part of the machine's configuration that a stage's program sees."""
        if stage.name == "report":
            return {"record": record_path(self.space, self.run.name)}
        is_pipeline = stage.config.program.startswith("pipeline.")
        machine = self.machine.pipeline if is_pipeline else self.machine.training
        return machine.model_dump(mode="json")

    def _stage_record(self, stage: Stage, outcome: Outcome) -> StageRecord:
        artifact = outcome.artifact
        earlier = self._earlier.stages.get(stage.name) if self._earlier else None
        known = earlier if earlier and earlier.key == artifact.manifest.key else None
        return StageRecord(
            key=artifact.manifest.key,
            digest=artifact.digest,
            directory=artifact.directory,
            state=outcome.state,
            argv=self.argv(stage),
            **_effort(outcome.result or known),
        )


def end_leftovers(space: Workspace, *, grace: float) -> None:
    """End programs that a killed run has left in this workspace; we hold its lock."""
    for file in space.local.glob("*/jobs/*/job.json"):
        job = local_job(file.parent)
        if job and job.keeper.alive:
            tell(file.parent.name, "said", f"ending process {job.keeper.pid} of an earlier run")
            job.keeper.end(grace=grace + 10.0)


def _ended(started: float) -> dict[str, Any]:
    return {"seconds": round(time.monotonic() - started, 3), "finished_at": utc_now()}


def _effort(source: JobResult | StageRecord | None) -> dict[str, Any]:
    if source is None:
        return {}
    return {"seconds": source.seconds, "peak_memory": source.peak_memory}
