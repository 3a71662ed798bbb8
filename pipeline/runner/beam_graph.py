"""A job as a Beam graph.

In:  a job's steps (pipeline/runner/graph.py).
Out: the same steps in a Beam pipeline.

The local runner is Beam's FnApiRunner, named explicitly (pipeline/runner/local_runner.py):
`DirectRunner` would first try to download another runner. Every other name is a Beam runner
(pipeline/runner/engine_job.py).
"""

from collections.abc import Iterable
from itertools import zip_longest
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

    `start` makes the first element; by default `Impulse`, which not every engine knows.

    A worker that dies in a step whose output nobody reads would go unnoticed by the runner.
    """
    steps = (*before, *job.steps, Step("Finished", "map", _finished), Step("Consume", "group"))
    items: PCollection[Any] = pipeline | "Start" >> (start or Impulse())
    transform: PTransform[Any, Any]
    for step, following in zip_longest(steps, steps[1:]):
        if step.function is None:
            transform = GroupByKey()
        elif isinstance(step.function, Worker):
            transform = ParDo(_Calls(step.function))
        else:
            transform = Map(step.function) if step.kind == "map" else FlatMap(step.function)
        if step.function:  # Beam must know that what is grouped next are pairs
            is_grouped = following is not None and following.kind == "group"
            transform.with_output_types(tuple[int, Any] if is_grouped else Any)
        items = items | step.label >> transform


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
