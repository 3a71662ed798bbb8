"""A job on a Dask cluster, through Beam's own runner for it.

In:  a graph for Beam (pipeline/runner/beam_graph.py), and Beam's options for Dask.
Out: `DaskResult`, a job whose state can be polled.

Dask only divides a partition when it groups, and it groups into as many partitions as there were
before. Beam's runner does not know `Impulse`, and so a graph begins with an element for each
partition, all but the first of which are dropped.

All that is gathered lies in the workers' memory, and on their own disks beyond it. The results of a
worker that dies are lost; Dask computes them again, from the texts if it must.
"""

from collections.abc import Iterable, Sequence
from typing import Any

from artifacts.errors import ClozeError, UsageError
from pipeline.runner.beam import Create, Pipeline, PipelineOptions, PipelineResult, PipelineState
from pipeline.runner.graph import Step
from pipeline.runner.job_errors import JobFailed, job_error

DASK_RUNNER = "apache_beam.runners.dask.dask_runner.DaskRunner"
"""Beam has no shorter name for it."""

PARTITIONS = 32
"""If `dask_npartitions` says nothing. Up to here one step of tasks groups them all; then two do."""


class DaskResult(PipelineResult):
    """Beam's result of a Dask job always says RUNNING; this one asks the tasks instead."""

    def __init__(self, submitted: Any) -> None:
        super().__init__(PipelineState.RUNNING)  # type: ignore[no-untyped-call]
        self._client: Any = submitted.client
        self._futures: Any = submitted.futures

    @property
    def state(self) -> str:
        """Of Beam's names."""
        found = {future.status for future in self._futures}
        for status, state in (
            ("error", PipelineState.FAILED),
            ("cancelled", PipelineState.CANCELLED),  # by someone else, or the scheduler is gone
            ("lost", PipelineState.CANCELLED),
            ("pending", PipelineState.RUNNING),
        ):
            if status in found:
                return str(state)
        return str(PipelineState.DONE)

    def cancel(self) -> str:
        """Forget the tasks; those that have begun end, and their results are discarded."""
        self._client.cancel(self._futures, force=True)
        self._client.close()
        return str(PipelineState.CANCELLED)

    def metrics(self) -> Any:
        """Beam counts nothing on Dask."""
        raise NotImplementedError

    def error(self) -> ClozeError:
        """Why the job has not done its work."""
        for future in self._futures:
            if future.status == "error":
                error = future.exception()
                if isinstance(error, ClozeError):
                    return error
                return job_error(type(error).__name__, str(error))
        return JobFailed(
            "DaskRunner: the scheduler has dropped the job; its log says why; finished parts are "
            "kept, the same command goes on"
        )


def begin_on_dask(options: Sequence[str]) -> tuple[Create, Step]:
    """What starts the graph, an element for each partition, and the step that keeps one."""
    try:
        from apache_beam.runners.dask.dask_runner import DaskOptions
    except ImportError as error:
        raise UsageError("DaskRunner: Dask is missing; pip install 'cloze[dask]'") from error
    asked = PipelineOptions(list(options)).view_as(DaskOptions)
    if not (asked.address or asked.scheduler_file):
        raise UsageError(
            "DaskRunner: no scheduler is named; set dask_client_address in [pipeline.options]"
        )
    if asked.partition_size:
        raise UsageError("dask_partition_size: say how many partitions there are, dask_npartitions")
    elements = range(asked.npartitions or PARTITIONS)
    return Create(elements), Step("First", "flat_map", _first)


def submit_to_dask(pipeline: Pipeline) -> DaskResult:
    """Give the whole graph to the scheduler."""
    try:
        return DaskResult(pipeline.run())
    except OSError as error:  # Dask's of a scheduler that is not there
        raise JobFailed(
            f"DaskRunner: {error}; start the scheduler, or correct dask_client_address in "
            "[pipeline.options]"
        ) from error


def _first(element: int) -> Iterable[None]:
    return [None] if element == 0 else []
