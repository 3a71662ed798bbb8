"""A job as a Beam graph, and engines elsewhere that run it.

In:  a job's steps (pipeline/runner/graph.py).
Out: the same steps in a Beam pipeline.

The local runner is Beam's FnApiRunner, named explicitly (pipeline/runner/local_runner.py):
`DirectRunner` would first try to download another runner. Every other name is a Beam runner.
"""

from collections.abc import Iterable, Sequence
from typing import Any

from artifacts.progress import say
from pipeline.config.stage_tables import PipelineMachine
from pipeline.runner.beam import (
    DoFn,
    FlatMap,
    GroupByKey,
    Impulse,
    Map,
    ParDo,
    PCollection,
    Pipeline,
    PipelineOptions,
    PipelineState,
    PTransform,
)
from pipeline.runner.graph import Collection, Step, Worker
from pipeline.runner.job_errors import JobFailed


def add_job(job: Collection[Any], pipeline: Pipeline) -> None:
    """Add the job's steps to an empty pipeline, and something that consumes their end.

    A worker that dies in a step whose output nobody reads would go unnoticed by the runner.
    """
    steps = (*job.steps, Step("Finished", "map", _finished), Step("Consume", "group"))
    items: PCollection[Any] = pipeline | "Start" >> Impulse()
    for number, step in enumerate(steps):
        following = steps[number + 1 : number + 2]
        items = items | step.label >> _transform(step, [after.kind for after in following])


def _transform(step: Step, following: Sequence[str]) -> PTransform[Any, Any]:
    """One step for Beam; of what is grouped next it must know that they are pairs."""
    if step.function is None:
        return GroupByKey()
    transform: PTransform[Any, Any]
    if isinstance(step.function, Worker):
        transform = ParDo(_Calls(step.function))
    else:
        transform = Map(step.function) if step.kind == "map" else FlatMap(step.function)
    transform.with_output_types(tuple[int, Any] if "group" in following else Any)
    return transform


class _Calls(DoFn):
    """A `Worker` as Beam wants it."""

    def __init__(self, worker: Worker[Any, Any]) -> None:
        self._worker = worker

    def setup(self) -> None:
        """Once a worker."""
        self._worker.setup()

    def process(self, item: Any) -> Iterable[Any]:
        """One item."""
        return self._worker(item)


def _finished(_: object) -> tuple[int, int]:
    return 0, 0


def run_on_engine(
    job: Collection[Any], *, machine: PipelineMachine, options: Sequence[str]
) -> None:
    """Have the Beam runner that the machine file names run the job to its end.

    The job is cancelled if this process is interrupted or terminated.
    """
    pipeline = Pipeline(options=PipelineOptions([f"--runner={machine.runner}", *options]))
    add_job(job, pipeline)
    result = pipeline.run()
    try:
        state = result.wait_until_finish()
    except BaseException:  # SIGTERM, Ctrl-C: nobody waits for the job, and it would run on and cost
        say(f"{machine.runner}: cancelling the job")
        result.cancel()
        raise
    if state is None:  # what Dataflow's runner gives for --dry_run
        raise JobFailed(f"{machine.runner}: the graph was translated; a dry run submits nothing")
    if state != PipelineState.DONE:
        raise JobFailed(
            f"{machine.runner}: the job ended as {state}; its own log says why; "
            "finished parts are kept, the same command goes on"
        )
