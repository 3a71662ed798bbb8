"""Running a Beam graph: here, or on an engine named in the machine file.

In:  a function that builds a linear graph ending in one collection, and where to run it.
Out: nothing; the graph's products are the files its functions have put into the artifact.

`local` is Beam's FnApiRunner, named explicitly: `DirectRunner` would first try to download another
runner. Every other name is a Beam runner, and its options are passed through as they are.
"""

import tempfile
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from artifacts.progress import Progress
from pipeline.config import PipelineMachine
from pipeline.runner.beam import (
    FlatMap,
    GroupByKey,
    Impulse,
    Map,
    PCollection,
    Pipeline,
    PipelineOptions,
    PipelineState,
)
from pipeline.runner.errors import JobFailed
from pipeline.runner.local import run_inline, run_supervised
from pipeline.runner.work_queue import Crew, ReportReader

LONGEST_DIRECTORY = 70
"""Bytes."""

Build = Callable[[Pipeline, Crew], PCollection[Any]]
"""Adds the job to a pipeline. Everything it puts into the graph must be importable and picklable;
whatever does work calls `Crew.report` once per finished piece, seconds apart at most."""


def run_graph(
    build: Build, *, machine: PipelineMachine, options: Sequence[str], progress: Progress
) -> None:
    """Run the graph that `build` adds to an empty pipeline, to its end.

    Local jobs report through `progress`, fail if nothing is reported for `machine.stall_timeout`
    seconds, and leave no process behind, however they end. `JobFailed` says what went wrong; an
    error of our own that a worker raised is raised here again.
    """
    if machine.runner != "local":
        _run_on_engine(build, machine=machine, options=options)
        return
    inline = machine.worker_mode == "inline"
    with tempfile.TemporaryDirectory(prefix="cloze-job-", dir=_short_directory()) as scratch:
        crew = Crew(scratch, workers=1 if inline else machine.workers)
        open(crew.reports, "wb").close()
        reader = ReportReader(crew.reports, progress)

        def fill(pipeline: Pipeline) -> None:
            consume(build, pipeline, crew)

        if inline:
            run_inline(fill, options=options, reader=reader)
        else:
            run_supervised(fill, machine=machine, options=options, reader=reader, scratch=scratch)


def spread(pipeline: Pipeline, pieces: Sequence[Any], crew: Crew) -> PCollection[Any]:
    """The `pieces` of work as a collection, shared out among all workers."""
    every = pipeline | "Start" >> Impulse() | "Pieces" >> Map(_instead, list(pieces))
    return share_out(every, crew, label="Share")


def share_out(every: PCollection[Any], crew: Crew, *, label: str) -> PCollection[Any]:
    """The pieces of work in a collection's only element, a list, shared out among all workers.

    On this machine every worker is dealt all of them and takes one after another of those that
    nobody has taken: who is slower, or has met a larger piece, takes fewer. Elsewhere the engine
    sees to that. (`Create` and `Reshuffle` would be twenty steps of a graph instead of three, and
    each costs 10 ms of processor time before the first worker begins.)
    """
    shared_out: PCollection[Any] = (
        every
        | f"{label}:Deal" >> FlatMap(_hands, crew).with_output_types(tuple[int, Any])
        | f"{label}:Spread" >> GroupByKey()
        | f"{label}:Take" >> FlatMap(_take, crew, label).with_output_types(Any)
    )
    return shared_out


def gather(results: PCollection[Any], *, label: str) -> PCollection[Any]:
    """All elements as one list, in any order, as soon as the last of them is there."""
    gathered: PCollection[Any] = (
        results
        | f"{label}:Key" >> Map(_keyed).with_output_types(tuple[int, Any])
        | f"{label}:Gather" >> GroupByKey()
        | f"{label}:List" >> Map(_listed)
    )
    return gathered


def consume(build: Build, pipeline: Pipeline, crew: Crew) -> None:
    """Add the graph and something that consumes its end.

    A worker that dies in a step whose output nobody reads would go unnoticed by the runner.
    """
    _ = (
        build(pipeline, crew)
        | "Finished" >> Map(_finished).with_output_types(tuple[int, int])
        | "Consume" >> GroupByKey()
    )


def _short_directory() -> str:
    """For temporary files; a socket's address has 107 bytes at most."""
    return tempfile.gettempdir() if len(tempfile.gettempdir()) < LONGEST_DIRECTORY else "/tmp"


def _instead(_: bytes, value: Any) -> Any:
    return value


def _hands(pieces: list[Any], crew: Crew) -> Iterable[tuple[int, list[Any]]]:
    hands = [pieces] * crew.workers if crew.directory else [[piece] for piece in pieces]
    return enumerate(hands)


def _take(hand: tuple[int, Iterable[list[Any]]], crew: Crew, label: str) -> Iterable[Any]:
    (pieces,) = hand[1]
    return crew.claim(pieces, label=label) if crew.directory else pieces


def _keyed(element: Any) -> tuple[int, Any]:
    return 0, element


def _listed(keyed: tuple[int, Iterable[Any]]) -> list[Any]:
    return list(keyed[1])


def _finished(_: Any) -> tuple[int, int]:
    return 0, 0


def _run_on_engine(build: Build, *, machine: PipelineMachine, options: Sequence[str]) -> None:
    flags = [f"--runner={machine.runner}", *options]
    pipeline = Pipeline(options=PipelineOptions(flags))
    consume(build, pipeline, Crew())
    state = pipeline.run().wait_until_finish()
    if state is None:  # what Dataflow's runner gives for --dry_run
        raise JobFailed(f"{machine.runner}: the graph was translated; a dry run submits nothing")
    if state != PipelineState.DONE:
        raise JobFailed(
            f"{machine.runner}: the job ended as {state}; its own log says why; "
            "finished parts are kept, the same command goes on"
        )
