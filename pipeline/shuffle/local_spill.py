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
from typing import Any

from artifacts.errors import IntegrityError
from artifacts.filesystem import naming_full_disk, older_than_this_start, temporary_beside
from pipeline.runner.beam import DoFn, ParDo, PCollection, Pipeline
from pipeline.runner.graph import spread
from pipeline.runner.work_queue import Crew
from pipeline.shuffle.buckets import BucketRange
from pipeline.shuffle.cardinality import EMPTY, Sketch, sketch_of
from pipeline.shuffle.input_shards import MEGABYTE, Portion
from pipeline.shuffle.sorted_runs import RunCounts, dropped_path, open_batches, write_run
from pipeline.shuffle.tokenise import Job, Tokeniser


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
        """The portions without an index.

        What a machine wrote before it went down may be damaged, and is made again.
        """
        return [portion for portion in work if not self._is_finished(portion)]

    def graph(self, pipeline: Pipeline, work: list[Portion], crew: Crew) -> PCollection[str]:
        """Portions become runs; the portions' names come out."""
        write = ParDo(_WriteRuns(self, crew))
        names: PCollection[str] = spread(pipeline, work, crew) | "WriteRuns" >> write
        return names

    def finish(self, results: Sequence[Any]) -> None:
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
        names = (run for index in _indexes(self) if index.counts.dropped for run in index.runs)
        yield (dropped_path(os.path.join(self.directory, name)) for name in names)

    def _is_finished(self, portion: Portion) -> bool:
        if _read_index(self.directory, portion.name) is None:
            return False
        return not older_than_this_start(_index_path(self.directory, portion.name))


class _WriteRuns(DoFn):
    """A portion becomes runs and an index; its name comes out."""

    def __init__(self, spill: SpillFiles, crew: Crew) -> None:
        self._spill = spill
        self._crew = crew

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
        self._crew.report(MB=portion.size / MEGABYTE, documents=counts.documents)
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
        with open(_index_path(directory, name), "rb") as file:
            table = json.load(file)
    except (FileNotFoundError, ValueError):
        return None
    return _Index(tuple(table["runs"]), RunCounts(**table["counts"]))


def _index_path(directory: str, name: str) -> str:
    return os.path.join(directory, f"{name}.json")


def _write_index(directory: str, name: str, index: _Index) -> None:
    path = _index_path(directory, name)
    with temporary_beside(path) as temporary:
        with open(temporary, "w") as file:
            json.dump(asdict(index), file)
        os.replace(temporary, path)
