"""Stage `boilerplate`: the lines that recur in many documents of a source.

In:  the corpus.
Out: `lines.arrow` (pipeline/text/recurring.py, where the rule is): for each line to remove its key,
     the documents that lose it, how many lines and bytes that makes, and the beginning of its text.

    python -P -m cloze.pipeline.boilerplate --config TABLE.json [engine options]

The workers write the keys of every shard's lines as sorted runs; the launcher then merges a range
of keys at a time. Whether a line recurs, and which documents keep it, follows from the few
smallest ranks of its documents, so a run has at most `min_documents` rows per line besides one for
all the rest, however frequent the line is. A worker holds `RUN_LINES` lines in memory, the launcher
`RANGE_ROWS` rows of runs; all else is on disk. Stages that read documents hold 16 bytes for each
line on the list.
"""

import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from functools import partial
from itertools import chain

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from cloze.artifacts import filesystem
from cloze.artifacts.arrays import Int64s, UInt64s
from cloze.artifacts.config import parse
from cloze.artifacts.errors import UsageError
from cloze.artifacts.filesystem import naming_full_disk
from cloze.artifacts.manifest import FileEntry
from cloze.artifacts.progress import say
from cloze.artifacts.runtime.program import run_program
from cloze.artifacts.runtime.temporary import temporary_directory
from cloze.artifacts.stage import StageTable
from cloze.artifacts.store import (
    WORK,
    Artifact,
    all_finished,
    clear_work,
    commit,
    put_local_file,
    scratch_directory,
)
from cloze.artifacts.tables import LINES_NAME, LINES_SCHEMA
from cloze.pipeline.config.settings import BoilerplateConfig, BoilerplateStage, SourceConfig
from cloze.pipeline.readers.documents import DocumentBlock
from cloze.pipeline.readers.input_shards import CorpusFiles, InputShard
from cloze.pipeline.runner.execution import Runner
from cloze.pipeline.runner.graph import WorkQueue
from cloze.pipeline.text.recurring import (
    ALWAYS_KEPT,
    LAST_RANK,
    Lines,
    find_lines,
)
from cloze.pipeline.text.texts import read_paragraphs

RUN_LINES = 1 << 18
"""Lines in a sorted run, or those of one block if that has more."""

RANGE_ROWS = 1 << 22
"""Approximate number of rows that the launcher merges at a time, at about 60 bytes each."""

BATCH_ROWS = 1 << 16
"""Rows of a record batch of the list."""

TEXT_BYTES = 300
"""Bytes of a line's text that are kept to show it."""

SHOWN_LINES = 5
"""Lines of each source in the stage's account; `cloze inspect` shows all."""

WARNED_SHARE, REFUSED_SHARE = 0.5, 0.99
"""Shares of a source's text that boilerplate rarely has, and that leaves nothing to train on."""

NO_DOCUMENT = np.uint64(LAST_RANK + 1)
"""The rank of a row for all documents beyond the smallest ranks."""

RUNS_SCHEMA = pa.schema(
    [
        pa.field("key", pa.uint64()),
        pa.field("rank", pa.uint64()),
        pa.field("lines", pa.int64()),
        pa.field("bytes", pa.int64()),
        pa.field("text", pa.string()),
    ]
)
"""Sorted runs, each a record batch: by key and rank; the first row of each key has its text."""

# L lines of a run, M those of a document with the same key; N rows of all runs in a range of keys,
# G keys


def make_line_list(table: StageTable, options: list[str]) -> Artifact:
    """Run the stage: count the lines of every shard, then list those that recur."""
    stage = parse(BoilerplateStage, table.config, source="stage boilerplate")
    if not stage.corpus.has_boilerplate:
        raise UsageError(
            "corpus.sources: none asks for boilerplate to be removed; set boilerplate = {} in one"
        )
    files = CorpusFiles(stage.corpus, table.output)
    sources = stage.corpus.sources
    shards = [shard for shard in files.shards() if sources[shard.source].boilerplate]
    count = partial(write_line_runs, stage=stage, output=table.output)
    Runner.of(table, options).finish(
        shards, count, name_of=runs_name, progress="boilerplate", label="Count"
    )
    files.require_unchanged()
    by_source = {
        number: SourceLines(
            all_finished(table.output, [runs_name(s) for s in shards if s.source == number]),
            source,
            number,
        )
        for number, source in enumerate(sources)
        if source.boilerplate
    }
    with scratch_directory(table.output) as scratch, naming_full_disk(scratch):
        path = os.path.join(scratch, LINES_NAME)
        rows = 0
        with pa.OSFile(path, "wb") as sink, pa.ipc.new_file(sink, LINES_SCHEMA) as writer:
            found = (one.recurring(table.output, scratch) for one in by_source.values())
            for batch in _of_equal_size(chain.from_iterable(found)):
                writer.write_batch(batch)
                rows += len(batch)
        for one in by_source.values():
            one.say_account()
        entry = put_local_file(table.output, path, name=LINES_NAME, rows=rows)
    statistics = {str(number): one.statistics for number, one in by_source.items()}
    artifact = commit(table, [entry], statistics={"sources": statistics})
    clear_work(table.output)
    return artifact


def runs_name(shard: InputShard) -> str:
    """The name of a shard's runs within the artifact."""
    return f"{WORK}/{shard.name}.lines.arrow"


def write_line_runs(
    shard: InputShard, *, stage: BoilerplateStage, output: str, queue: WorkQueue
) -> str:
    """Write a shard's lines into the artifact as sorted runs; returns the name of their file."""
    config = stage.corpus.sources[shard.source].boilerplate
    assert config  # only such shards are tasks
    documents = lines = rows = size = 0
    with temporary_directory() as scratch, naming_full_disk(scratch):
        path = os.path.join(scratch, "lines.arrow")
        with pa.OSFile(path, "wb") as sink, pa.ipc.new_file(sink, RUNS_SCHEMA) as writer:
            waiting: list[pa.RecordBatch] = []
            for block in read_paragraphs(shard, corpus=stage.corpus):
                waiting.append(_rows(block, found := find_lines(block, config)))
                documents += int(np.count_nonzero(np.diff(block.ends, prepend=0)))
                lines, size = lines + len(found.ends_L), size + len(block.text)
                if sum(map(len, waiting)) >= RUN_LINES:
                    # Runs are cut by the number of lines, so memory is bounded; which lines are in
                    # which run makes no difference to the result, as the launcher merges all of
                    # them by key.
                    rows += _write_run(waiting, config, writer)
                    waiting = []
            rows += _write_run(waiting, config, writer)
        put_local_file(
            *(output, path),
            name=runs_name(shard),
            rows=rows,
            statistics={"documents": documents, "lines": lines, "bytes": size},
        )
    queue.report(MB=shard.megabytes, documents=documents)
    return runs_name(shard)


def _rows(block: DocumentBlock, lines: Lines) -> pa.RecordBatch:
    """A row for each line that may recur."""
    # Others have too few words, even with their neighbours, so no list can name them.
    which = np.flatnonzero(lines.keys_L != ALWAYS_KEPT)
    # What is keyed may be a line, or several that stand together; its text goes from the first to
    # the last of them.
    starts = lines.starts_L[lines.firsts_L[which]]
    stops = np.minimum(lines.ends_L[lines.lasts_L[which]] - 1, starts + TEXT_BYTES)
    raw = block.text.tobytes()
    bounds = zip(starts.tolist(), stops.tolist(), strict=True)
    # a character may be cut at the end
    texts = [raw[start:stop].decode("utf-8", "ignore") for start, stop in bounds]
    sizes = (lines.ends_L - lines.starts_L)[which]
    columns = [
        pa.array(lines.keys_L[which]),
        pa.array(lines.ranks_L[which]),
        pa.array(np.ones(len(which), dtype=np.int64)),
        pa.array(sizes),
        pa.array(texts, pa.string()),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=RUNS_SCHEMA)


def _write_run(
    waiting: Sequence[pa.RecordBatch],
    config: BoilerplateConfig,
    writer: pa.ipc.RecordBatchFileWriter,
) -> int:
    """Write the lines that wait as one sorted run; returns its number of rows."""
    table = pa.Table.from_batches(waiting, RUNS_SCHEMA).combine_chunks()
    if not len(table):
        return 0
    keys_L, ranks_L = table["key"].to_numpy(), table["rank"].to_numpy()
    # Stable: of a document's equal lines the first stays the first.
    order = np.lexsort((ranks_L, keys_L))
    keys_L, ranks_L = keys_L[order], ranks_L[order].copy()
    # Any other number in front makes the first row a new key; 64 bits wrap around.
    new_key_L = np.diff(keys_L, prepend=keys_L[0] + np.uint64(1)) != 0
    new_document_L = new_key_L | (np.diff(ranks_L, prepend=ranks_L[0]) != 0)
    # How many documents of smaller rank have the same line; those beyond the first few share a row.
    # Documents counted from the run's beginning, minus those before the key, which the running
    # maximum carries along the key's rows.
    documents_L = np.cumsum(new_document_L)
    first_L = np.maximum.accumulate(np.where(new_key_L, documents_L, 0))
    # Of a run's documents the `min_documents` with the smallest ranks keep rows of their own: among
    # those of all runs are the smallest ones of all, which alone decide. The rest is one row of
    # sums.
    is_rest_L = documents_L - first_L >= config.min_documents
    ranks_L[is_rest_L] = NO_DOCUMENT
    # With the rest's ranks made equal, these are the rows to write: one for each document, one for
    # the rest.
    starts_M = np.flatnonzero(new_key_L | (np.diff(ranks_L, prepend=ranks_L[0]) != 0))
    # The text is the same in all rows of a key, but for collisions of 64 bits.
    has_text = pa.array(new_key_L[starts_M])
    texts = pc.if_else(has_text, table["text"].combine_chunks().take(pa.array(order[starts_M])), "")
    counts = (table[name].to_numpy()[order] for name in ("lines", "bytes"))
    columns = [
        *(pa.array(keys_L[starts_M]), pa.array(ranks_L[starts_M])),
        *(pa.array(np.add.reduceat(values, starts_M)) for values in counts),
        texts,
    ]
    writer.write_batch(pa.RecordBatch.from_arrays(columns, schema=RUNS_SCHEMA))
    return len(starts_M)


class SourceLines:
    """The sorted runs of one source, and the account of what is removed from it."""

    def __init__(self, entries: Sequence[FileEntry], source: SourceConfig, number: int) -> None:
        assert source.boilerplate
        self._entries, self._config, self._number = entries, source.boilerplate, number
        self._name = f"corpus.sources.{number} ({source.path or ', '.join(source.packages)})"
        self.statistics = {
            name: sum(entry.statistics[name] for entry in entries)
            for name in ("documents", "lines", "bytes")
        }
        """Documents, lines and bytes read; then recurring lines, and lines and bytes removed."""
        self._top: list[tuple[int, int, str]] = []

    def recurring(self, output: str, scratch: str) -> Iterator[pa.RecordBatch]:
        """The lines that recur, a range of keys at a time, as rows of `LINES_SCHEMA`."""
        totals = dict.fromkeys(("recurring", "removed_lines", "removed_bytes"), 0)
        with ExitStack() as stack:
            runs: list[pa.RecordBatch] = []
            for entry in self._entries:
                stored = filesystem.join(output, entry.stored_name)
                path = stack.enter_context(filesystem.brought_here(stored, scratch))
                file = pa.ipc.open_file(stack.enter_context(pa.memory_map(path)))
                runs += (file.get_batch(index) for index in range(file.num_record_batches))
            # Keys are hashes, so equal ranges of them have about as many rows each.
            parts = sum(map(len, runs)) // RANGE_ROWS + 1
            bounds = [(part << 64) // parts for part in range(1, parts)]
            # Sorted, so a range of keys is a slice of every run: a merge without a heap, in ranges
            # that fit into memory.
            cuts = [
                [0, *np.searchsorted(run["key"], np.array(bounds, dtype=np.uint64)), len(run)]
                for run in runs
            ]
            for part in range(parts):
                slices = [
                    run.slice(cut[part], cut[part + 1] - cut[part])
                    for run, cut in zip(runs, cuts, strict=True)
                ]
                listed = _recurring(list(filter(len, slices)), self._config, self._number)
                totals["recurring"] += len(listed)
                for name in ("removed_lines", "removed_bytes"):
                    totals[name] += pc.sum(listed[name]).as_py() or 0
                self._note(listed)
                yield listed
        self.statistics |= totals

    def _note(self, listed: pa.RecordBatch) -> None:
        """Keep those that take the most text, to show them."""
        largest = pa.Table.from_batches([listed]).sort_by([("removed_bytes", "descending")])
        shown = largest.slice(0, SHOWN_LINES)
        columns = (shown[name].to_pylist() for name in ("removed_bytes", "removed_lines", "text"))
        self._top = sorted([*self._top, *zip(*columns, strict=True)], reverse=True)[:SHOWN_LINES]

    def say_account(self) -> None:
        """Say what will be removed; raises `UsageError` if it is all of the source."""
        found, config = self.statistics, self._config
        share = found["removed_bytes"] / max(found["bytes"], 1)
        say(
            f"boilerplate: {self._name}: {found['recurring']:,} lines recur in "
            f"{config.min_documents} or more of {found['documents']:,} documents; "
            f"{found['removed_lines']:,} of {found['lines']:,} lines, {share:.1%} of the text, are "
            f"removed from all documents but {config.kept_documents}"
        )
        for _, lines, text in self._top:
            say(f"boilerplate:   {lines:,} × {' | '.join(text.splitlines())[:120]!r}")
        remedy = (
            f"raise boilerplate.min_documents (now {config.min_documents}) or min_words (now "
            f"{config.min_words}) of this source, or remove boilerplate from it"
        )
        if share > REFUSED_SHARE:
            raise UsageError(
                f"{self._name}: {share:.2%} of its text recurs in {config.min_documents} or more "
                f"documents, so nothing to train on would be left; {remedy}"
            )
        if share > WARNED_SHARE:
            say(
                f"warning: boilerplate: {self._name}: {share:.0%} of its text is removed, more "
                f"than boilerplate usually has; if it is not boilerplate, {remedy}"
            )


def _of_equal_size(listed: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The same rows, `BATCH_ROWS` at a time: their file must not show the ranges of the search."""
    waiting = pa.Table.from_batches([], LINES_SCHEMA)
    for batch in listed:
        waiting = pa.concat_tables([waiting, pa.Table.from_batches([batch])])
        while len(waiting) >= BATCH_ROWS:
            yield _fresh(waiting.slice(0, BATCH_ROWS))
            waiting = waiting.slice(BATCH_ROWS)
    if len(waiting):
        yield _fresh(waiting)


def _fresh(table: pa.Table) -> pa.RecordBatch:
    """The same rows in buffers of their own: those of slices and of joined chunks differ."""
    columns = [
        pa.array(column.to_pylist() if pa.types.is_string(column.type) else column.to_numpy())
        for column in table.columns
    ]
    return pa.RecordBatch.from_arrays(columns, schema=LINES_SCHEMA)


def _recurring(
    runs: Sequence[pa.RecordBatch], config: BoilerplateConfig, source: int
) -> pa.RecordBatch:
    """The lines that recur among the rows of some runs, all of a range of keys."""
    if not runs:
        return pa.RecordBatch.from_pylist([], schema=LINES_SCHEMA)
    keys_N, ranks_N, lines_N, bytes_N = (
        np.concatenate([run[name].to_numpy() for run in runs])
        for name in ("key", "rank", "lines", "bytes")
    )
    order = np.lexsort((ranks_N, keys_N))
    keys_N, ranks_N, lines_N, bytes_N = (
        column[order] for column in (keys_N, ranks_N, lines_N, bytes_N)
    )
    new_key_N = np.diff(keys_N, prepend=keys_N[0] + np.uint64(1)) != 0
    new_document_N = new_key_N | (np.diff(ranks_N, prepend=ranks_N[0]) != 0)
    # Rows for the rest do not name their documents, and need not: a run that has one has
    # `min_documents` rows beside it, which suffice.
    new_document_N &= ranks_N != NO_DOCUMENT
    starts_G = np.flatnonzero(new_key_N)
    recurs_G = np.add.reduceat(new_document_N.astype(np.int64), starts_G) >= config.min_documents
    # The document after the last one that keeps the line, of those that recur.
    document_rows = np.flatnonzero(new_document_N)
    first_G = np.searchsorted(document_rows, starts_G[recurs_G])
    # The documents of smallest rank keep the line. A rank is a hash of the document, so which ones
    # they are depends on their content alone, not on files or workers.
    first_removed_G = ranks_N[document_rows[first_G + config.kept_documents]]
    group_N = np.cumsum(new_key_N) - 1
    limit_G = np.zeros(len(starts_G), dtype=np.uint64)
    limit_G[recurs_G] = first_removed_G
    # The rest has the largest rank, so it loses the line.
    loses_N = ranks_N >= limit_G[group_N]

    def sums(values_N: Int64s) -> Int64s:
        found: Int64s = np.add.reduceat(values_N, starts_G)[recurs_G]
        return found

    columns = [
        pa.array(np.full(len(first_removed_G), source, dtype=np.uint16)),
        pa.array(keys_N[starts_G[recurs_G]]),
        pa.array(first_removed_G),
        pa.array(sums(lines_N)),
        pa.array(sums(lines_N * loses_N)),
        pa.array(sums(bytes_N * loses_N)),
        _texts(runs, order[starts_G[recurs_G]]),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=LINES_SCHEMA)


def _texts(runs: Sequence[pa.RecordBatch], rows: Int64s) -> pa.StringArray:
    """The texts in these rows, numbered over all runs."""
    begins = np.cumsum([0, *map(len, runs)])
    run_of = np.searchsorted(begins, rows, side="right") - 1
    places: UInt64s = rows - begins[run_of]
    texts = [
        runs[run]["text"][place].as_py()
        for run, place in zip(run_of.tolist(), places.tolist(), strict=True)
    ]
    return pa.array(texts, pa.string())


if __name__ == "__main__":
    run_program(make_line_list)
