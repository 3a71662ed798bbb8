"""How documents get from the portions they come from to the buckets they belong to.

In:  portions of the corpus.
Out: runs, and for each group of buckets those that hold a part of it.

`Exchange` says what the stage needs of it; there are two. On one machine every portion becomes runs
on the local disk and a bucket reads its slice of each (local_spill.py). On many machines the
documents go through the runner's own shuffle (beam_group_by_key.py). The buckets are the same.
"""

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol, runtime_checkable

from pipeline.runner.beam import PCollection, Pipeline
from pipeline.runner.work_queue import Crew
from pipeline.shuffle.buckets import BucketRange
from pipeline.shuffle.cardinality import Sketch
from pipeline.shuffle.input_shards import Portion
from pipeline.shuffle.sorted_runs import RunCounts


@runtime_checkable  # Beam looks at the types of what its functions are given
class Exchange(Protocol):
    """The way from portions to buckets."""

    def unfinished(self, work: Sequence[Portion]) -> list[Portion]:
        """The portions that an earlier attempt has not brought into runs."""

    def graph(self, pipeline: Pipeline, work: list[Portion], crew: Crew) -> PCollection[Any]:
        """Bring portions into runs."""

    def finish(self, results: Sequence[Any]) -> None:
        """Called with all that came out of `graph`, once it has."""

    def counts(self) -> RunCounts:
        """What all portions held."""

    def sketch(self, split: int) -> Sketch:
        """The beginning of a split."""

    def runs(self, digests: BucketRange) -> AbstractContextManager[Sequence[str]]:
        """Local paths of the runs that may hold documents of a range of digests."""

    def dropped(self) -> AbstractContextManager[Iterator[str]]:
        """Local paths of the lists of dropped documents."""
