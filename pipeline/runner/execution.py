"""Running a job: here, or on an engine that the machine file names.

In:  a function that describes the job, and a machine.
Out: nothing; the job's products are the files that its functions have put into the artifact.

Beam runs it, with workers here (`local`) or elsewhere; its options are passed through as they are.
Where starting workers would not pay, the steps run in this process, one task after another, and
Beam is not even imported: that is half of each program's start-up. The same functions make the same
bytes.
"""

import math
import tempfile
import traceback
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from artifacts.errors import ClozeError
from artifacts.progress import Progress, say
from pipeline.config.stage_tables import PipelineMachine
from pipeline.runner.graph import Build, Collection, Step, Worker
from pipeline.runner.job_errors import job_error
from pipeline.runner.work_queue import ReportReader, WorkQueue, polling

INLINE_MEGABYTES = 16.0
"""Up to here `worker_mode = "auto"` starts no workers: with Beam that takes most of a second, in
which one process finishes as much."""

LONGEST_DIRECTORY = 70
"""Bytes of the temporary directory's name; a socket's address has 107 at most."""


def run_graph(
    build: Build,
    *,
    machine: PipelineMachine,
    options: Sequence[str],
    progress: Progress,
    megabytes: float = math.inf,
    output: str = "",
) -> None:
    """Run the job that `build` describes to its end; it reads `megabytes`.

    `output` is the unfinished artifact, where the job of an engine elsewhere is written down.

    Local jobs report through `progress` and leave no process behind, however they end; unless
    `worker_mode` is `inline`, they end if nothing is reported for `machine.stall_timeout` seconds.
    `JobFailed` says what went wrong; an error of our own that a worker raised is raised here again.
    An option that Beam does not know is a `UsageError`.
    """
    if machine.runner != "local":
        from pipeline.runner.engine_job import run_on_engine  # Beam, only where it runs the job

        run_on_engine(build, machine=machine, options=options, progress=progress, output=output)
        return
    if options:
        from pipeline.runner.beam import refuse_unknown

        refuse_unknown(options)
    alone = machine.workers == 1 or megabytes <= INLINE_MEGABYTES
    inline = machine.worker_mode == "inline" or (machine.worker_mode == "auto" and alone)
    short = len(tempfile.gettempdir()) < LONGEST_DIRECTORY
    directory = tempfile.gettempdir() if short else "/tmp"
    with tempfile.TemporaryDirectory(prefix="cloze-job-", dir=directory) as scratch:
        queue = WorkQueue(scratch, workers=1 if inline else machine.workers)
        open(queue.reports, "wb").close()
        reader = ReportReader(queue.reports, progress)
        job = build(queue)
        if inline:
            watched = machine.worker_mode == "auto"  # a person with a debugger may take any time
            _run_inline(job, reader, machine.stall_timeout if watched else math.inf)
            return
        from pipeline.runner.local_runner import run_supervised

        run_supervised(job, machine=machine, options=options, reader=reader, scratch=scratch)


def _run_inline(job: Collection[Any], reader: ReportReader, stall_timeout: float) -> None:
    """Run in this process, one task after another: small inputs, one worker, debuggers."""
    items: Iterable[Any] = [None]
    for step in job.steps:
        items = _applied(step, items)
    with polling(reader, stall_timeout=stall_timeout):
        try:
            for _ in items:
                pass
        except ClozeError:
            raise
        except Exception as error:  # whatever the code of a step raises is the job's failure
            say("".join(traceback.format_exception(error)))
            raise job_error(type(error).__name__, str(error)) from error


def _applied(step: Step, items: Iterable[Any]) -> Iterator[Any]:
    """What a step makes of items, each as soon as it is asked for."""
    if step.function is None:
        groups: dict[Any, list[Any]] = {}
        for key, value in items:
            groups.setdefault(key, []).append(value)
        yield from groups.items()
        return
    if isinstance(step.function, Worker):
        step.function.setup()
    for item in items:
        made = step.function(item)
        if step.kind == "map":
            yield made
        else:
            yield from made
