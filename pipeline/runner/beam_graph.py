"""A job as a Beam graph.

In:  a job's steps (pipeline/runner/graph.py).
Out: the same steps in a Beam pipeline.

The local runner is Beam's FnApiRunner, named explicitly (pipeline/runner/local_runner.py):
`DirectRunner` would first try to download another runner. Every other name is a Beam runner
(pipeline/runner/engine_job.py).
"""

from collections.abc import Iterable, Sequence
from typing import Any

from pipeline.runner.beam import (
    DoFn,
    FlatMap,
    GroupByKey,
    Impulse,
    Map,
    ParDo,
    PCollection,
    Pipeline,
    PTransform,
)
from pipeline.runner.graph import Collection, Step, Worker


def add_job(
    job: Collection[Any],
    pipeline: Pipeline,
    *before: Step,
    start: PTransform[Any, Any] | None = None,
) -> None:
    """Add the job's steps to an empty pipeline, and something that consumes their end.

    `start` makes the first element; `Impulse`, unless an engine does without.

    A worker that dies in a step whose output nobody reads would go unnoticed by the runner.
    """
    steps = (*before, *job.steps, Step("Finished", "map", _finished), Step("Consume", "group"))
    items: PCollection[Any] = pipeline | "Start" >> (start or Impulse())
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
