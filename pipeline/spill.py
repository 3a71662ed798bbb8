"""The exchange on one machine: runs in files that all workers see.

In:  portions of the corpus.
Out: for each portion an index that names its runs, written last; finished portions are kept.

Only names pass through Beam. Its local runner holds whatever passes through it in memory, and at
most 2 GiB of it.
"""

import json
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import lru_cache

from artifacts.errors import IntegrityError
from artifacts.filesystem import naming_full_disk, replace_durably, temporary_beside
from pipeline.buckets import BucketRange
from pipeline.engine.beam import DoFn, ParDo, PCollection, Pipeline
from pipeline.engine.graph import spread
from pipeline.engine.meter import Meter
from pipeline.runs import RunCounts, dropped_path, open_batches, write_run
from pipeline.sketch import EMPTY, Sketch, sketch_of
from pipeline.tokenise import Job, Tokeniser
from pipeline.work import MEGABYTE, Portion


@dataclass(frozen=True)
class _Index:
    """What has become of one portion."""

    runs: tuple[str, ...]
    counts: RunCounts


@dataclass(frozen=True)
class SpillFiles:
    """Runs of portions in a local directory."""

    job: Job
    directory: str
    portions: tuple[str, ...]
    """Names of all portions."""

    def unfinished(self, work: Sequence[Portion]) -> list[Portion]:
        """The portions without an index."""
        return [portion for portion in work if _read_index(self.directory, portion.name) is None]

    def graph(self, pipeline: Pipeline, work: list[Portion], meter: Meter) -> PCollection[str]:
        """Portions become runs; the portions' names come out."""
        write = ParDo(_WriteRuns(self, meter))
        names: PCollection[str] = spread(pipeline, work) | "WriteRuns" >> write
        return names

    def finish(self) -> None:
        """Nothing: every portion is finished by itself."""

    def counts(self) -> RunCounts:
        """What all portions held."""
        return sum((index.counts for index in _indexes(self)), RunCounts())

    def sketch(self, split: int) -> Sketch:
        """The smallest digests of all runs."""
        return sum((sketch_of(open_batches(path)[split]) for path in _paths(self)), EMPTY)

    @contextmanager
    def runs(self, digests: BucketRange) -> Iterator[Sequence[str]]:
        """All runs: each holds a little of every range."""
        yield _paths(self)

    @contextmanager
    def dropped(self) -> Iterator[Iterator[str]]:
        """The lists beside the runs."""
        yield (dropped_path(path) for path in _paths(self))


class _WriteRuns(DoFn):
    """A portion becomes runs and an index; its name comes out."""

    def __init__(self, spill: SpillFiles, meter: Meter) -> None:
        self._spill = spill
        self._meter = meter

    def setup(self) -> None:
        """Build the tokenizer, once a worker."""
        self._tokeniser = Tokeniser(self._spill.job)

    def process(self, portion: Portion) -> Iterator[str]:
        """Write the portion's runs, then its index."""
        directory, splits, name = self._spill.directory, self._spill.job.splits, portion.name
        runs: list[str] = []
        counts = RunCounts()
        with naming_full_disk(directory):
            for table in self._tokeniser.tables(portion):
                runs.append(f"{name}-{len(runs)}.arrow")
                counts += write_run(os.path.join(directory, runs[-1]), table, splits=splits)
            _write_index(directory, name, _Index(tuple(runs), counts))
        self._meter.report(portion.size / MEGABYTE, documents=counts.documents)
        yield name


@lru_cache(maxsize=2)
def _indexes(spill: SpillFiles) -> tuple[_Index, ...]:
    """The indexes of all portions; kept, because every bucket asks for them."""
    found = [_read_index(spill.directory, name) for name in spill.portions]
    if None in found:
        missing = spill.portions[found.index(None)]
        raise IntegrityError(
            f"{os.path.join(spill.directory, missing)}.json: not there after the job; "
            "was the workspace changed meanwhile? run the stage again"
        )
    return tuple(index for index in found if index)


@lru_cache(maxsize=2)
def _paths(spill: SpillFiles) -> tuple[str, ...]:
    names = (name for index in _indexes(spill) for name in index.runs)
    return tuple(os.path.join(spill.directory, name) for name in names)


def _read_index(directory: str, name: str) -> _Index | None:
    try:
        with open(os.path.join(directory, f"{name}.json"), "rb") as file:
            table = json.load(file)
    except (FileNotFoundError, ValueError):
        return None
    return _Index(tuple(table["runs"]), RunCounts(**table["counts"]))


def _write_index(directory: str, name: str, index: _Index) -> None:
    path = os.path.join(directory, f"{name}.json")
    with temporary_beside(path) as temporary:
        with open(temporary, "w") as file:
            json.dump(asdict(index), file)
        replace_durably(temporary, path)
