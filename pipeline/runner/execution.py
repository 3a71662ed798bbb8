"""Running a job, on this machine or on the engine that the machine file names.

In:  a stage's table; a function that builds the job.
Out: the files that the job's functions put into the artifact. Also the local directory for working
     files: on the artifact's own disk, so that finishing a file is a rename.

Beam runs the job with local (`local`) or remote workers; Beam options are passed through. Small
jobs run in this process, one task after another, without importing Beam, which is half of a
program's start-up time. Every way runs the same functions and produces the same bytes.
"""

import math
import os
import signal
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain
from typing import Any

from cloze.artifacts import filesystem
from cloze.artifacts.config import parse
from cloze.artifacts.errors import ClozeError
from cloze.artifacts.progress import Progress, say
from cloze.artifacts.runtime.temporary import temporaries_of_libraries, temporary_directory
from cloze.artifacts.stage import StageTable
from cloze.artifacts.store import WORK, finished_files
from cloze.pipeline.config.settings import PipelineMachine
from cloze.pipeline.readers.input_shards import InputShard
from cloze.pipeline.runner.graph import (
    Build,
    LastCollection,
    ReportReader,
    WorkQueue,
    for_each,
    job_error,
    stalled,
)

INLINE_MEGABYTES = 16.0
"""Up to here `worker_mode = "auto"` starts no workers: starting them with Beam takes most of a
second, in which one process finishes as much."""

LONGEST_DIRECTORY = 70
"""Bytes of the temporary directory's name; a Unix socket's address has 107 at most, of which the
job's folder and the socket's name take 34."""

POLL_SECONDS = 0.5


@dataclass(frozen=True)
class Runner:
    """Runs the jobs of a stage."""

    machine: PipelineMachine
    """Where they run."""
    options: Sequence[str]
    """Beam options."""
    output: str
    """The unfinished artifact, where the job of a remote engine is recorded."""

    @classmethod
    def of(cls, table: StageTable, options: Sequence[str]) -> "Runner":
        """The runner for the stage of `table`."""
        machine = parse(PipelineMachine, table.machine, source=f"stage {table.stage}, machine")
        return cls(machine, options, table.output)

    @property
    def is_local(self) -> bool:
        """Whether the workers are on this machine."""
        return self.machine.runner == "local"

    def run(self, build: Build, progress: Progress, *, megabytes: float | None = None) -> None:
        """Run the job that `build` describes to completion.

        It reads `megabytes`, by default the total of `progress`. Local jobs report through
        `progress` and leave no process behind, however they end. Unless `worker_mode` is `inline`,
        a job that reports nothing for `machine.stall_timeout` seconds is stopped. Raises
        `JobFailed`, or the `ClozeError` that a worker raised; an option unknown to Beam is a
        `UsageError`.
        """
        machine, options = self.machine, self.options
        if not self.is_local:
            from cloze.pipeline.runner.engine_job import run_on_engine  # imports Beam

            with temporaries_of_libraries():  # Beam's, and of the services that it starts
                run_on_engine(
                    build, machine=machine, options=options, progress=progress, output=self.output
                )
            return
        if options:
            from cloze.pipeline.runner.beam import refuse_unknown

            refuse_unknown(options)
        size = progress.total if megabytes is None else megabytes
        alone = machine.workers == 1 or size <= INLINE_MEGABYTES
        inline = machine.worker_mode == "inline" or (machine.worker_mode == "auto" and alone)
        with temporary_directory(scratch_parent()) as scratch:
            queue = WorkQueue(scratch, workers=1 if inline else machine.workers)
            # Made before any worker reports, so that reading it never fails.
            open(queue.reports, "wb").close()
            reader = ReportReader(queue.reports, progress)
            job = build(queue)
            if inline:
                watched = machine.worker_mode == "auto"  # nobody hurries a person with a debugger
                run_inline(job, reader, machine.stall_timeout if watched else math.inf)
                return
            from cloze.pipeline.runner.local_runner import run_supervised

            run_supervised(job, machine=machine, options=options, reader=reader, scratch=scratch)

    def finish(
        self,
        shards: Sequence[InputShard],
        make: Callable[..., object],
        *,
        name_of: Callable[[InputShard], str],
        progress: str,
        label: str,
    ) -> None:
        """Make the file of each shard that no earlier attempt has left in the artifact.

        `name_of` names it there; `make` is called with a shard, and with the queue as `queue`;
        `progress` is shown before the megabytes, `label` names the step.
        """
        finished = finished_files(self.output, list(map(name_of, shards)))
        missing = [shard for shard in shards if name_of(shard) not in finished]
        if missing:
            total = sum(shard.megabytes for shard in missing)
            self.run(
                for_each(missing, make, label=label), Progress(progress, total=total, unit="MB")
            )


def scratch_parent() -> str:
    """The temporary directory, or /tmp where its name would make a socket's address too long."""
    directory = tempfile.gettempdir()
    return directory if len(os.fsencode(directory)) < LONGEST_DIRECTORY else "/tmp"


def run_inline(job: LastCollection, reader: ReportReader, stall_timeout: float) -> None:
    """Run in this process, one task after another."""
    with polling(reader, stall_timeout=stall_timeout):
        try:
            items: Iterable[Any] = [None]
            for step in job.steps:
                # grouping in memory: the inline form is for small inputs
                if step.function is None:
                    groups: dict[Any, list[Any]] = {}
                    for key, value in items:
                        groups.setdefault(key, []).append(value)
                    items = groups.items()
                else:
                    # lazily, so that each task passes through all steps up to the next group before
                    # another begins
                    items = chain.from_iterable(map(step.ready(), items))
            for _ in items:
                pass
        except ClozeError:
            raise
        except Exception as error:  # any exception in a step is the job's failure
            say("".join(traceback.format_exception(error)))
            raise job_error(type(error).__name__, str(error)) from error


@contextmanager
def polling(reader: ReportReader, *, stall_timeout: float) -> Iterator[None]:
    """Poll from a thread while the body runs a job in this process.

    If nothing is reported for `stall_timeout` seconds, the process sends itself SIGTERM.
    """
    finished = threading.Event()

    def poll() -> None:
        alive_at = time.monotonic()
        while not finished.wait(POLL_SECONDS):
            if reader.poll():
                alive_at = time.monotonic()
            elif time.monotonic() - alive_at > stall_timeout:
                say(f"error: {stalled(stall_timeout)}")
                # An exception raised here would end this thread alone; a signal reaches the job,
                # wherever it is.
                os.kill(os.getpid(), signal.SIGTERM)
                return

    thread = threading.Thread(target=poll, name="progress", daemon=True)
    thread.start()
    try:
        yield
    finally:
        finished.set()
        thread.join()
        # what was reported since the last poll
        reader.poll()


@contextmanager
def work_directory(output: str, *, workers_here: bool) -> Iterator[str]:
    """The stage's local work directory, inside a local `output`, where a resumed run finds it.

    For a remote `output` it is a temporary directory, or "" if the workers are remote, too.
    """
    if filesystem.is_local(output):
        work = filesystem.local_path(filesystem.join(output, WORK))
        os.makedirs(work, exist_ok=True)
        yield work
    elif workers_here:
        with temporary_directory() as work:
            yield work
    else:
        yield ""
