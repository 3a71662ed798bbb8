"""The executor: runs the stages of a run in order and reuses the artifacts that already exist.

In:  the plan of a run.
Out: the run's record, rewritten after every stage, and an error if the run fails. A finished run of
     this name with other settings is kept under another.

    execute → Executor.ensure → Jobs.run → launcher.start ⇒ supervisor ⇒ the stage's program

`execute` runs the stages one after another; the Prefect flows drive the same `Executor` with each
stage as a task (flows/prefect/tracking.py).
"""

import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from socket import gethostname

from pydantic import ValidationError

from cloze.artifacts import filesystem
from cloze.artifacts.config import flat
from cloze.artifacts.errors import ClozeError, IntegrityError, UsageError
from cloze.artifacts.manifest import MANIFEST_NAME
from cloze.artifacts.progress import clock, say
from cloze.artifacts.stage import StageTable, write_stage_table
from cloze.artifacts.store import Artifact
from cloze.flows.config import ReportConfig, ReportStage, RunConfig
from cloze.flows.events import PROGRESS, emit
from cloze.flows.expected import load_per_core
from cloze.flows.inventory import Found, look_up, remove_damage
from cloze.flows.job import JobResult, Jobs, StageFailed, is_worth_retrying, program_argv
from cloze.flows.locks import Holder, holder_of, leased, leased_on_store, locked
from cloze.flows.plan import Plan
from cloze.flows.stages import Stage
from cloze.flows.workspace import (
    ADAPTED,
    RunRecord,
    RunState,
    StageRecord,
    Workspace,
    find_record,
    keep_under_number,
    show_report,
    utc_now,
    writable_workspace,
    write_record,
)


def execute(plan: Plan, *, options: Sequence[str] = ()) -> RunRecord:
    """Execute `plan` stage by stage; reuse existing artifacts.

    `options` are passed to Beam in every pipeline stage, or to DeepSpeed's launcher.
    """
    return run_stages(Executor(plan, options=options))


def run_stages(executor: "Executor") -> RunRecord:
    """Execute the plan of `executor` stage by stage; returns the run's record."""
    jobs = executor.machine.jobs
    with executor.running():
        for stage in executor.plan.stages:
            # A stage that was killed is tried again; one that failed would fail again.
            for retries_left in reversed(range(jobs.retries + 1)):
                try:
                    executor.ensure(stage)
                    break
                except StageFailed as error:
                    if not retries_left or not is_worth_retrying(stage, error):
                        raise
                time.sleep(jobs.retry_delay)
    return executor.record


class Executor:
    """A plan in execution, and the record of the run."""

    def __init__(self, plan: Plan, *, options: Sequence[str] = ()) -> None:
        self.plan = plan
        self.run = plan.run
        self.machine = plan.machine
        self.options = tuple(options)
        self.space = writable_workspace(plan.machine.workspace)
        self.jobs = Jobs(plan.machine)
        self.record = RunRecord(
            name=plan.run.name,
            state="running",
            config=plan.run.model_dump(mode="json"),
            machine=plan.machine.model_dump(mode="json"),
            host=gethostname(),
            started_at=utc_now(),
        )
        self._previous: RunRecord | None = None

    @contextmanager
    def running(self) -> Iterator[None]:
        """Hold the lock of the run's name, and record how the run ended."""
        with locked(self.space.local, run=self.run.name), closing(self.jobs):
            # we hold the lock, so any program still running was left behind by a killed run
            left = (self.space.local / self.run.name).glob("jobs/*/job.json")
            self.jobs.end_left(file.parent for file in left)
            for name in self.plan.stages:
                emit(name, "waiting", logger=PROGRESS)
            started = time.monotonic()
            # A damaged record must not stop the run that replaces it.
            try:
                self._previous = find_record(self.space, self.run.name)
            except UsageError as error:
                say(f"warning: {error}; writing a new one")
            if self._previous:
                keep_replaced(self._previous, self.run, self.space)
            write_record(self.record, self.space)
            try:
                yield
                self._take_over_decision()
                # finished artifacts of stages that were not requested belong to the run too
                for stage in self.plan.others:
                    is_ready = self.plan.is_ready(stage)
                    if is_ready and (found := look_up(self.plan.table(stage)).artifact):
                        self._enter(stage, found)
            except ClozeError as error:
                self._end("failed", started, failure=str(error))
                raise
            except BaseException as error:
                self._end("interrupted", started, failure=type(error).__name__)
                raise
            self._end("finished", started)
            if report := self.plan.finished.get("report"):
                show_report(report, self.space, self.run.name)

    def ensure(self, name: str) -> None:
        """Reuse or make the artifact of the stage called `name`."""
        stage = self.plan.stages[name]
        if name == ReportStage.stage:
            self._take_over_decision()
        table = self.plan.table(stage)
        write_stage_table(table, self.table_file(name))
        # Held from looking until the artifact is entered, so that no other run makes it meanwhile.
        with self._leased(name, table) as found:
            if found.artifact:
                return self._enter(stage, found.artifact)
            # Only a stage that runs reads the data, so only now it must be what was planned.
            self.plan.confirm(stage)
            if found.damage:
                emit(name, "warning", f"{found.damage}; making it again")
                remove_damage(table.output, found)
            folder = self.space.job_folder(self.run.name, name)
            with self.plan.announced.watching(name):
                result = self.jobs.run(self._argv(stage), key=table.key, folder=folder)
            made = self.space.store.find(name, table.key)
            if made is None:
                raise IntegrityError(
                    f"{table.output}: stage {name} exited with code 0 but wrote no "
                    f"{MANIFEST_NAME}; its program must end with commit()"
                )
            self._enter(stage, made, result)

    @contextmanager
    def _leased(self, name: str, table: StageTable) -> Iterator[Found]:
        """Yield what the store holds under `table`'s key, and keep other runs from making it."""
        local, root, run = self.space.local, self.space.root, self.run.name
        artifact = f"{name}-{table.key}"

        def tell(text: str) -> None:
            emit(name, "output", text)

        def waiting(holder: Holder) -> None:
            tell(f"waiting for {holder}, which is making it")

        with leased(local, artifact, run=run, waiting=waiting) as killed:
            # a killed run's job may still be alive; a restarted run has already ended its own
            if killed and killed.run != run and not holder_of(local / killed.run):
                tell(f"taking over from {killed}, which was killed")
                self.jobs.outlast(self.space.job_folder(killed.run, name), host=killed.host)
            # On a disk the lock is enough; on an object store, another machine may hold the lease.
            found = look_up(table)
            if found.artifact or filesystem.is_local(root):
                yield found
                return
            with leased_on_store(root, artifact, run=run, local=local, waiting=waiting) as silent:
                if silent:
                    tell(f"taking over from {silent}, which stopped responding")
                yield look_up(table)

    def table_file(self, stage: str) -> Path:
        """The file from which a stage's program reads its table."""
        return self.space.local / self.run.name / "stages" / f"{stage}.json"

    def _argv(self, stage: Stage) -> tuple[str, ...]:
        """The command of `stage`; Beam's options are passed to every pipeline stage."""
        # Options of the command line are for the last stage, or for all pipeline stages if that is
        # one.
        last = list(self.plan.stages.values())[-1]
        # The last stage is the one that was asked for; those before it run because it needs them.
        has_options = stage.name == last.name or (stage.is_pipeline and last.is_pipeline)
        options = self.options if has_options else ()
        if stage.is_pipeline:
            # `[pipeline.options]` as arguments of Beam's command line; a list repeats its option
            of_machine = [
                f"--{name}" if one is True else f"--{name}={one}"
                for name, value in self.machine.pipeline.options.items()
                for one in (value if isinstance(value, tuple) else (value,))
                if one is not False
            ]
            options = (*of_machine, *options)
        file = str(self.table_file(stage.name))
        return program_argv(stage.config, file, machine=self.machine, options=options)

    def _enter(self, stage: Stage, artifact: Artifact, result: JobResult | None = None) -> None:
        """Add the finished artifact of `stage` to the record."""
        self.plan.finish(stage.name, artifact)
        key = artifact.manifest.key
        earlier = self._previous.stages.get(stage.name) if self._previous else None
        # What a reused artifact has cost is known if an earlier run of this name recorded it.
        cost = result or (earlier if earlier and earlier.key == key else None)
        entry = StageRecord(
            key=key,
            digest=artifact.digest,
            state="made" if result else "reused",
            argv=("python", *self._argv(stage)[1:]),
            seconds=cost.seconds if cost else None,
            peak_memory=cost.peak_memory if cost else None,
            load=load_per_core() if result else earlier.load if earlier and cost else None,
            processor=artifact.manifest.versions.get("processor", ""),
        )
        # a reused artifact's memory is not part of this run's
        peaks = [self.record.peak_memory, result.peak_memory if result else None]
        self._update_record(
            stages={**self.record.stages, stage.name: entry},
            peak_memory=max((peak for peak in peaks if peak), default=None),
        )
        took = f" in {clock(result.seconds)}" if result else ""
        emit(stage.name, entry.state, f"{artifact.digest[:12]}{took}")
        late = self.plan.announced.correction(stage.name, result.seconds) if result else ""
        if late:
            emit(stage.name, "output", late)

    def _take_over_decision(self) -> None:
        """Keep what `cloze adapt` decided of this very encoder, which the run's name stands for."""
        earlier, now = self._previous.stages if self._previous else {}, self.record.stages
        trained = [stages["finetune"].digest for stages in (earlier, now) if "finetune" in stages]
        if ADAPTED not in earlier or ADAPTED in now or len(trained) < 2 or len({*trained}) > 1:
            return
        entry = earlier[ADAPTED]
        kept = self.space.store.find(ADAPTED, entry.key)
        if kept and kept.digest == entry.digest:
            self.plan.finish(ADAPTED, kept)
            reused = entry.model_copy(update={"state": "reused"})
            self._update_record(stages={**now, ADAPTED: reused})

    def _end(self, state: RunState, started: float, *, failure: str = "") -> None:
        seconds = round(time.monotonic() - started, 3)
        self._update_record(state=state, failure=failure, seconds=seconds, finished_at=utc_now())

    def _update_record(self, **fields: object) -> None:
        self.record = self.record.model_copy(update=fields)
        write_record(self.record, self.space)


def keep_replaced(record: RunRecord, run: RunConfig, space: Workspace) -> None:
    """Keep a finished run that `run` is about to replace with other settings, under a number."""
    if record.state != "finished":
        return
    try:
        settings = RunConfig.model_validate(record.config)
    except ValidationError:  # written by an earlier version
        changes = ["of an earlier version"]
    else:
        # Another presentation of the same figures replaces nothing.
        old, new = (
            flat(one.model_copy(update={"report": ReportConfig()}).model_dump(mode="json"))
            for one in (settings, run)
        )
        changes = [place for place in old | new if old.get(place) != new.get(place)]
    if not changes:
        return
    kept = keep_under_number(record, space)
    shown = ", ".join(changes[:3]) + (", …" if len(changes) > 3 else "")
    say(f"run {record.name} had other settings ({shown}); it is kept as {kept}")
    if changes == ["pretrain.steps"]:
        say(
            "training starts from scratch; to continue the earlier run instead: --set "
            f"name=NAME --set pretrain.continue_from={kept}"
        )


def write_tables(plan: Plan) -> list[Path]:
    """Write the tables of the stages to run that could start now, and return their files.

    Pass them to the stages' programs with `sbatch`, `kubectl` or by hand.
    """
    executor, written = Executor(plan), []
    for name in plan.to_run:
        if plan.is_ready(plan.stages[name]):
            write_stage_table(plan.table(plan.stages[name]), executor.table_file(name))
            written.append(executor.table_file(name))
    return written
