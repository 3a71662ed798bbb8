"""Running a Beam graph: here, or on an engine named in the machine file.

In:  a function that builds a linear graph ending in one collection, and where to run it.
Out: nothing; the graph's products are the files its functions have put into the artifact.

`local` is Beam's FnApiRunner, named explicitly: `DirectRunner` would first try to download another
runner. Every other name is a Beam runner, and its options are passed through as they are.
"""

import math
import tempfile
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

from artifacts.progress import Progress
from pipeline.config.stage_tables import PipelineMachine
from pipeline.runner.beam import (
    FlatMap,
    GroupByKey,
    Impulse,
    Map,
    PCollection,
    Pipeline,
    PipelineOptions,
    PipelineState,
    refuse_unknown,
)
from pipeline.runner.local_runner import JobFailed, run_inline, run_supervised
from pipeline.runner.work_queue import ReportReader, WorkQueue

INLINE_MEGABYTES = 4.0
"""Up to here `worker_mode = "auto"` starts no workers: that takes 0.3 s, and so little is a single
task of theirs anyway."""

LONGEST_DIRECTORY = 70
"""Bytes of the temporary directory's name; a socket's address has 107 at most."""

Task = TypeVar("Task")

Build = Callable[[Pipeline, WorkQueue], PCollection[Task]]
"""Adds the job to a pipeline. Everything it puts into the graph must be importable and picklable;
whatever does work calls `WorkQueue.report` once per finished task, seconds apart at most."""


def run_graph(
    build: Build[Task],
    *,
    machine: PipelineMachine,
    options: Sequence[str],
    progress: Progress,
    megabytes: float = math.inf,
) -> None:
    """Run the graph that `build` adds to an empty pipeline, to its end; it reads `megabytes`.

    Local jobs report through `progress` and leave no process behind, however they end; unless they
    run inline, they fail if nothing is reported for `machine.stall_timeout` seconds. `JobFailed`
    says what went wrong; an error of our own that a worker raised is raised here again. An option
    that Beam does not know is a `UsageError` here, where nobody else could know it.
    """
    if machine.runner != "local":
        _run_on_engine(build, machine=machine, options=options)
        return
    refuse_unknown(options)
    small = machine.worker_mode == "auto" and megabytes <= INLINE_MEGABYTES
    inline = small or machine.worker_mode == "inline"
    short = len(tempfile.gettempdir()) < LONGEST_DIRECTORY
    directory = tempfile.gettempdir() if short else "/tmp"
    with tempfile.TemporaryDirectory(prefix="cloze-job-", dir=directory) as scratch:
        queue = WorkQueue(scratch, workers=1 if inline else machine.workers)
        open(queue.reports, "wb").close()
        reader = ReportReader(queue.reports, progress)

        def fill(pipeline: Pipeline) -> None:
            consume(build, pipeline, queue)

        if inline:
            run_inline(fill, options=options, reader=reader)
        else:
            run_supervised(fill, machine=machine, options=options, reader=reader, scratch=scratch)


def spread(pipeline: Pipeline, tasks: Sequence[Task], queue: WorkQueue) -> PCollection[Task]:
    """The `tasks` as a collection, shared out among all workers."""
    every = pipeline | "Start" >> Impulse() | "Tasks" >> Map(_instead, list(tasks))
    return share_out(every, queue, label="Share")


def share_out(every: PCollection[list[Task]], queue: WorkQueue, *, label: str) -> PCollection[Task]:
    """The tasks in a collection's only element, a list, shared out among all workers.

    On this machine every worker is dealt all of them and takes one after another of those that
    nobody has taken: who is slower, or has met a larger task, takes fewer. Elsewhere the engine
    sees to that. (`Create` and `Reshuffle` would be twenty steps of a graph instead of three, and
    each costs 10 ms of processor time before the first worker begins.)
    """
    shared_out: PCollection[Task] = (
        every
        | f"{label}:Deal" >> FlatMap(_deal, queue).with_output_types(tuple[int, Any])
        | f"{label}:Spread" >> GroupByKey()
        | f"{label}:Take" >> FlatMap(_take, queue, label).with_output_types(Any)
    )
    return shared_out


def gather(results: PCollection[Task], *, label: str) -> PCollection[list[Task]]:
    """All elements as one list, in any order, as soon as the last of them is there."""
    gathered: PCollection[list[Task]] = (
        results
        | f"{label}:Key" >> Map(_keyed).with_output_types(tuple[int, Any])
        | f"{label}:Gather" >> GroupByKey()
        | f"{label}:List" >> Map(_listed)
    )
    return gathered


def consume(build: Build[Task], pipeline: Pipeline, queue: WorkQueue) -> None:
    """Add the graph and something that consumes its end.

    A worker that dies in a step whose output nobody reads would go unnoticed by the runner.
    """
    _ = (
        build(pipeline, queue)
        | "Finished" >> Map(_finished).with_output_types(tuple[int, int])
        | "Consume" >> GroupByKey()
    )


# What the steps above do. Workers import these by name, so they stand by themselves.


def _instead(_: bytes, value: Any) -> Any:
    return value


def _deal(tasks: list[Any], queue: WorkQueue) -> Iterable[tuple[int, list[Any]]]:
    shares = [tasks] * queue.workers if queue.directory else [[task] for task in tasks]
    return enumerate(shares)


def _take(share: tuple[int, Iterable[list[Any]]], queue: WorkQueue, label: str) -> Iterable[Any]:
    (tasks,) = share[1]
    return queue.claim(tasks, label=label) if queue.directory else tasks


def _keyed(element: Any) -> tuple[int, Any]:
    return 0, element


def _listed(keyed: tuple[int, Iterable[Any]]) -> list[Any]:
    return list(keyed[1])


def _finished(_: object) -> tuple[int, int]:
    return 0, 0


def _run_on_engine(build: Build[Task], *, machine: PipelineMachine, options: Sequence[str]) -> None:
    flags = [f"--runner={machine.runner}", *options]
    pipeline = Pipeline(options=PipelineOptions(flags))
    consume(build, pipeline, WorkQueue())
    state = pipeline.run().wait_until_finish()
    if state is None:  # what Dataflow's runner gives for --dry_run
        raise JobFailed(f"{machine.runner}: the graph was translated; a dry run submits nothing")
    if state != PipelineState.DONE:
        raise JobFailed(
            f"{machine.runner}: the job ended as {state}; its own log says why; "
            "finished parts are kept, the same command goes on"
        )
