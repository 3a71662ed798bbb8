"""Running a Beam graph: here, or on an engine named in the machine file.

In:  a function that builds a linear graph ending in one collection, and where to run it.
Out: nothing; the graph's products are the files its functions have put into the artifact.

`local` is Beam's FnApiRunner, named explicitly: `DirectRunner` would first try to download another
runner. Every other name is a Beam runner, and its options are passed through as they are.
"""

import os
import tempfile
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from artifacts.progress import Progress
from pipeline.config import PipelineMachine
from pipeline.engine.beam import (
    FlatMap,
    GroupByKey,
    Impulse,
    Map,
    PCollection,
    Pipeline,
    PipelineOptions,
    PipelineState,
)
from pipeline.engine.errors import JobFailed
from pipeline.engine.local import run_inline, run_supervised
from pipeline.engine.meter import Meter, MeterReader

Build = Callable[[Pipeline, Meter], PCollection[Any]]
"""Adds the job to a pipeline. Everything it puts into the graph must be importable and picklable;
whatever does work calls `Meter.report` once per finished piece, seconds apart at most."""


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
    with tempfile.TemporaryDirectory(prefix="cloze-job-") as scratch:
        meter = Meter(os.path.join(scratch, "meter"))
        log = os.path.join(scratch, "log")
        for path in (meter.path, log):
            open(path, "wb").close()
        reader = MeterReader(meter.path, progress)

        def fill(pipeline: Pipeline) -> None:
            consume(build, pipeline, meter)

        if machine.worker_mode == "inline":
            run_inline(fill, options=options, reader=reader)
        else:
            run_supervised(fill, machine=machine, options=options, reader=reader, log=log)


def spread(pipeline: Pipeline, pieces: Sequence[Any]) -> PCollection[Any]:
    """The `pieces` of work as a collection, spread evenly over all workers.

    The same as `Create` and `Reshuffle` in four steps instead of twenty: each step of a graph costs
    10 ms of processor time before the first worker begins.
    """
    spread_out: PCollection[Any] = (
        pipeline
        | "Start" >> Impulse()
        | "Number" >> FlatMap(_numbered, list(pieces)).with_output_types(tuple[int, Any])
        | "Spread" >> GroupByKey()
        | "Pieces" >> FlatMap(_piece).with_output_types(Any)
    )
    return spread_out


def consume(build: Build, pipeline: Pipeline, meter: Meter) -> None:
    """Add the graph and something that consumes its end.

    A worker that dies in a step whose output nobody reads would go unnoticed by the runner.
    """
    _ = (
        build(pipeline, meter)
        | "Finished" >> Map(_finished).with_output_types(tuple[int, int])
        | "Consume" >> GroupByKey()
    )


def _numbered(_: bytes, pieces: list[Any]) -> Iterable[tuple[int, Any]]:
    return enumerate(pieces)


def _piece(numbered: tuple[int, Iterable[Any]]) -> Iterable[Any]:
    return numbered[1]


def _finished(_: Any) -> tuple[int, int]:
    return 0, 0


def _run_on_engine(build: Build, *, machine: PipelineMachine, options: Sequence[str]) -> None:
    flags = [f"--runner={machine.runner}", *options]
    pipeline = Pipeline(options=PipelineOptions(flags))
    consume(build, pipeline, Meter(""))
    state = pipeline.run().wait_until_finish()
    if state is None:  # what Dataflow's runner gives for --dry_run
        raise JobFailed(f"{machine.runner}: the graph was translated; a dry run submits nothing")
    if state != PipelineState.DONE:
        raise JobFailed(
            f"{machine.runner}: the job ended as {state}; its own log says why; "
            "finished parts are kept, the same command goes on"
        )
