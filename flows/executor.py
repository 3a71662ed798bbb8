"""The executor: makes the artifacts of a run's stages in order, and reuses those that are there.

In:  a run's configuration and a machine's.
Out: the run's record, rewritten after every stage, and an error if the run fails.

    execute → Executor.ensure → run_job → launcher.start ⇒ supervisor ⇒ the stage's program

`execute` calls the stages one after another; the Prefect flows drive the same `Executor` with every
stage as a task (flows/prefect/tracking.py).
"""

import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from socket import gethostname

from pydantic import ValidationError

from artifacts import filesystem
from artifacts.config import flat
from artifacts.errors import ClozeError, IntegrityError, UsageError
from artifacts.manifest import MANIFEST_NAME
from artifacts.progress import clock, say
from artifacts.stage import StageTable, write_stage_table
from artifacts.store import Artifact
from flows.config import MachineConfig, ReportConfig, RunConfig
from flows.events import PROGRESS, emit
from flows.job import JobResult, StageFailed, launcher_for, program_argv, run_job
from flows.launchers.local import LocalJob
from flows.launchers.warm import WarmProcess
from flows.locks.on_disk import Holder, holder_of, leased, locked
from flows.locks.on_store import leased_on_store
from flows.record import (
    REPORT_FILES,
    RunRecord,
    RunState,
    StageRecord,
    begin_attempt,
    end_attempt,
    find_record,
    keep_record,
    record_path,
    utc_now,
    write_record,
)
from flows.reuse import Found, look_up, remove_damage
from flows.stages import Stage, chain, stage_table, up_to
from flows.workspace import writable_workspace

SUPERVISOR_SECONDS = 10.0
"""Beyond a program's own grace: time for its supervisor to notice and to end what is left."""


def execute(
    run: RunConfig,
    machine: MachineConfig,
    *,
    wanted: Sequence[str] = (),
    options: Sequence[str] = (),
) -> RunRecord:
    """Make the `wanted` stages (all by default) and what they need; reuse what is there.

    `options` go to the engine: to Beam in every stage of the pipeline, or to DeepSpeed's launcher.
    """
    executor = Executor(run, machine, wanted=wanted, options=options)
    with executor.running():
        for stage in executor.stages:
            _ensure(stage, executor, retries=machine.jobs.retries)
    return executor.record


def _ensure(stage: str, executor: "Executor", *, retries: int) -> None:
    """Reuse or make the artifact of one stage; retry as long as its program is killed."""
    for left in reversed(range(retries + 1)):
        try:
            return executor.ensure(stage)
        except StageFailed as error:
            if not left or not is_worth_retrying(stage, error):
                raise
        time.sleep(executor.machine.jobs.retry_delay)


def is_worth_retrying(stage: str, error: object) -> bool:
    """Whether `stage` was killed (which is logged); one that failed by itself would fail again."""
    killed = isinstance(error, StageFailed) and error.retryable
    if killed:
        emit(stage, "warning", f"{error}; trying again")
    return killed


class Executor:
    """One run in progress: its stages, the artifacts finished so far, and its record."""

    def __init__(
        self,
        run: RunConfig,
        machine: MachineConfig,
        *,
        wanted: Sequence[str] = (),
        options: Sequence[str] = (),
    ) -> None:
        self.run = run
        self.machine = machine
        self.options = tuple(options)
        self.space = writable_workspace(machine.workspace)
        stages = chain(run)
        executed = up_to(stages, wanted) if wanted else stages
        self.stages = {stage.name: stage for stage in executed}
        self.others = [stage for stage in stages if stage.name not in self.stages]
        self.finished: dict[str, Artifact] = {}
        self.warm = WarmProcess()
        self.record = RunRecord(
            name=run.name,
            state="running",
            config=run.model_dump(mode="json"),
            machine=machine.model_dump(mode="json"),
            host=gethostname(),
            started_at=utc_now(),
        )
        self._previous: RunRecord | None = None

    @contextmanager
    def running(self) -> Iterator[None]:
        """Hold the workspace's lock; afterwards the record says how the run ended."""
        with locked(self.space.local, run=self.run.name), closing(self.warm):
            self._end_leftover_jobs()
            for name in self.stages:
                emit(name, "waiting", logger=PROGRESS)
            started = time.monotonic()
            try:
                self._previous = find_record(self.space, self.run.name)
            except UsageError as error:
                say(f"warning: {error}; it is written anew")
            self._keep_previous()
            write_record(self.record, self.space)
            try:
                yield
                # those not asked for belong to the run as well, if their artifacts exist
                for stage in self.others:
                    has_inputs = self.finished.keys() >= set(stage.inputs.values())
                    if has_inputs and (found := look_up(self.table(stage)).artifact):
                        self._enter(stage, found)
            except ClozeError as error:
                self._end("failed", started, failure=str(error))
                raise
            except BaseException as error:
                self._end("interrupted", started, failure=type(error).__name__)
                raise
            self._end("finished", started)
            if report := self.finished.get("report"):
                written = {entry.name for entry in report.manifest.files}
                for name in sorted(written.intersection(REPORT_FILES)):
                    path = filesystem.join(self.space.run_folder(self.run.name), name)
                    filesystem.write_bytes(path, report.read_bytes(name))

    def _keep_previous(self) -> None:
        """Keep a finished run of this name whose settings differ: its results may be wanted."""
        previous = self._previous
        if previous is None or previous.state != "finished":
            return
        try:
            settings = RunConfig.model_validate(previous.config)
        except ValidationError:  # an earlier version's
            changes = ["of an earlier version"]
        else:
            no_report = {"report": ReportConfig()}
            one, other = (
                flat(run.model_copy(update=no_report).model_dump(mode="json"))
                for run in (settings, self.run)
            )
            changes = [place for place in one | other if one.get(place) != other.get(place)]
        if changes:
            kept = keep_record(previous, self.space)
            shown = ", ".join(changes[:3]) + (", …" if len(changes) > 3 else "")
            say(f"run {previous.name} had other settings ({shown}); it is kept as {kept}")
            if changes == ["pretrain.steps"]:
                say(
                    "its training begins anew; to go on from its end instead: --set "
                    f"name=NAME --set pretrain.continue_from={kept}"
                )

    def ensure(self, name: str) -> None:
        """Reuse or make the artifact of the stage called `name`."""
        stage = self.stages[name]
        table, file = self.table(stage), self.table_file(name)
        write_stage_table(table, file)
        with self._leased(name, table) as found:
            if found.artifact:
                return self._enter(stage, found.artifact)
            if found.damage:
                emit(name, "warning", f"{found.damage}; made again")
                remove_damage(table.output, found)
            if not stage.is_pipeline:
                self.warm.close()  # training needs the memory
            argv, folder = self._argv(stage), self.space.job_folder(self.run.name, name)
            emit(name, "running", " ".join(argv))
            attempts, result = begin_attempt(folder, table.key), None
            try:
                result = run_job(
                    argv,
                    folder=folder,
                    launcher=launcher_for(name, self.machine, warm=self.warm),
                    stall_timeout=self.machine.jobs.stall_timeout,
                )
            except ClozeError as error:
                emit(name, "failed", str(error))
                raise
            finally:
                seconds = end_attempt(folder, attempts, finished=result is not None)
            made = self.space.store.find(name, table.key)
            if made is None:
                raise IntegrityError(
                    f"{table.output}: stage {name} ended well but left no {MANIFEST_NAME}; "
                    "its program must end with commit()"
                )
            self._enter(stage, made, replace(result, seconds=max(seconds, result.seconds)))

    @contextmanager
    def _leased(self, name: str, table: StageTable) -> Iterator[Found]:
        """What the store holds under `table`'s key, while no other run makes it."""
        local, root, run = self.space.local, self.space.root, self.run.name
        artifact = f"{name}-{table.key}"

        def waiting(holder: Holder) -> None:
            emit(name, "output", f"waits for {holder}, which makes it")

        with leased(local, artifact, run=run, waiting=waiting) as killed:
            # a killed run's job may live on; a run that was started again has ended its own
            if killed and killed.run != run and not holder_of(local / killed.run):
                emit(name, "output", f"takes over from {killed}, which was killed")
                if killed.host == gethostname():
                    launcher = launcher_for(name, self.machine, warm=self.warm)
                    launcher.cancel(self.space.job_folder(killed.run, name))
                else:  # its supervisor, on another host, takes at most this long
                    time.sleep(self.machine.jobs.grace + SUPERVISOR_SECONDS)
            found = look_up(table)
            if found.artifact or filesystem.is_local(root):
                yield found
                return
            with leased_on_store(root, artifact, run=run, local=local, waiting=waiting) as silent:
                if silent:
                    emit(name, "output", f"takes over from {silent}, which fell silent")
                yield look_up(table)

    def table(self, stage: Stage) -> StageTable:
        """The table of `stage`, whose inputs must be finished."""
        if stage.name == "report":
            machine = {"record": record_path(self.space, self.run.name)}
        elif stage.is_pipeline:
            machine = self.machine.pipeline.model_dump(mode="json")
        else:
            machine = self.machine.training.model_dump(mode="json")
        table = stage_table(stage, self.finished, store=self.space.store, machine=machine)
        if machine.get("checkpoints") != "" or filesystem.is_local(self.space.root):
            return table
        # checkpoints cannot lie on an object store: they lie beside the logs
        checkpoints = str(self.space.local / "checkpoints")
        return table.model_copy(update={"machine": {**machine, "checkpoints": checkpoints}})

    def table_file(self, stage: str) -> Path:
        """The file through which a stage's program receives its table."""
        return self.space.local / self.run.name / "stages" / f"{stage}.json"

    def _end_leftover_jobs(self) -> None:
        """End the programs that a killed run of this name left behind; we hold its lock."""
        for file in (self.space.local / self.run.name).glob("jobs/*/job.json"):
            job = LocalJob.read(file.parent)
            if job and job.supervisor.alive:
                ended = f"ending process {job.supervisor.pid} of an earlier run"
                emit(file.parent.name, "output", ended)
                job.supervisor.end(grace=self.machine.jobs.grace + SUPERVISOR_SECONDS)

    def _argv(self, stage: Stage) -> tuple[str, ...]:
        """What starts the program of `stage`; an engine's options reach all stages it runs."""
        last = list(self.stages.values())[-1]
        has_options = stage.name == last.name or (stage.is_pipeline and last.is_pipeline)
        options = self.options if has_options else ()
        if stage.is_pipeline:
            # `[pipeline.options]` as Beam's command line has them; a list repeats its option
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
        """Enter the finished artifact of `stage` into the record."""
        self.finished[stage.name] = artifact
        key = artifact.manifest.key
        earlier = self._previous.stages.get(stage.name) if self._previous else None
        cost = result or (earlier if earlier and earlier.key == key else None)
        entry = StageRecord(
            key=key,
            digest=artifact.digest,
            state="made" if result else "reused",
            argv=("python", *self._argv(stage)[1:]),
            seconds=cost.seconds if cost else None,
            peak_memory=cost.peak_memory if cost else None,
        )
        self.record = self.record.with_stage(stage.name, entry)
        write_record(self.record, self.space)
        took = f" in {clock(result.seconds)}" if result else ""
        emit(stage.name, entry.state, f"{artifact.digest[:12]}{took}")

    def _end(self, state: RunState, started: float, *, failure: str = "") -> None:
        ended = {"seconds": round(time.monotonic() - started, 3), "finished_at": utc_now()}
        update = {"state": state, "failure": failure, **ended}
        self.record = self.record.model_copy(update=update)
        write_record(self.record, self.space)


def write_tables(run: RunConfig, machine: MachineConfig) -> list[Path]:
    """Write the tables of the stages that could start now; their files.

    They are what `sbatch`, `kubectl` or a person gives to a stage's program.
    """
    executor = Executor(run, machine)
    written = []
    for name, stage in executor.stages.items():
        if not executor.finished.keys() >= set(stage.inputs.values()):
            continue
        table = executor.table(stage)
        found = look_up(table).artifact
        if found:
            executor.finished[name] = found
        else:
            write_stage_table(table, executor.table_file(name))
            written.append(executor.table_file(name))
    return written
