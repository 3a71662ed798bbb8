"""Stage `boilerplate`: what recurs in the documents of a source.

In:  the corpus.
Out: `lines.arrow`: for each line to remove its key, the documents that lose it, how many lines and
     bytes that makes, and the beginning of its text. Where spans are to go that came earlier, also
     `repeats.arrow`, the keys by which they are found, and `spans.arrow`, the texts that go. The
     rules are in pipeline/text/recurring.py.

    python -P -m cloze.pipeline.boilerplate --config TABLE.json [engine options]

Lines are counted first. Then, in what is left without them, the keys of all spans; at last the
workers go through the documents once more and note what goes, since spans overlap and only their
union can be counted. Each time they write sorted runs, which the launcher merges a range of keys at
a time (pipeline/recurring_runs.py), so memory does not grow with the corpus; on disk, spans of
tokens take 16 bytes for each token until the stage ends. Stages that read documents map the keys.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from cloze.artifacts.arrays import Mask, Offsets
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
    open_file,
    put_local_file,
    scratch_directory,
)
from cloze.artifacts.tables import (
    LINES_NAME,
    LINES_SCHEMA,
    REPEATS_NAME,
    SPAN_KINDS,
    SPANS_NAME,
    SPANS_SCHEMA,
)
from cloze.pipeline.config.settings import BoilerplateConfig, BoilerplateStage, SourceConfig
from cloze.pipeline.readers.documents import DocumentBlock
from cloze.pipeline.readers.input_shards import CorpusFiles, InputShard
from cloze.pipeline.recurring_runs import (
    COUNTS_SCHEMA,
    KEYS_SCHEMA,
    Limits,
    RunsWriter,
    recurring_keys,
    write_keys,
    write_list,
)
from cloze.pipeline.runner.execution import Runner
from cloze.pipeline.runner.graph import WorkQueue
from cloze.pipeline.text.account import parts_account
from cloze.pipeline.text.duplicates import range_hashes
from cloze.pipeline.text.recurring import (
    ALWAYS_KEPT,
    NO_KEYS,
    Boilerplate,
    Lines,
    find_lines,
    find_spans,
    keys_of_source,
    repeated_bytes,
    without_recurring_lines,
)
from cloze.pipeline.text.texts import abbreviations_of, read_paragraphs

TEXT_BYTES = 300
"""Bytes of the text of a line or span that are kept to show it."""

SHOWN = 5
"""Lines, and spans, of each source in the stage's account; `cloze inspect` shows all."""

WARNED_SHARE, REFUSED_SHARE = 0.5, 0.99
"""Shares of a source's text that boilerplate rarely has, and that leaves nothing to train on."""

CAME_EARLIER = Limits(min_documents=2, kept_documents=1)
"""When a span goes that is in several documents."""

ALL_OF_THEM = Limits(min_documents=1, kept_documents=0)
"""For a count of what goes in any case."""

# L lines of a block, R ranges of bytes


@dataclass(frozen=True)
class Search:
    """The search, as all workers of the stage share it."""

    stage: BoilerplateStage
    output: str
    """The unfinished artifact."""

    def config(self, shard: InputShard) -> BoilerplateConfig:
        """The settings for a shard's source."""
        config = self.stage.corpus.sources[shard.source].boilerplate
        assert config  # only such shards are tasks
        return config

    def listed(self, shard: InputShard, *names: str, scratch: str) -> Boilerplate:
        """What the finished lists name for the source of a shard, without keys of other lists."""
        found = {
            entry.name: keys_of_source(open_file(self.output, entry, scratch=scratch), shard.source)
            for entry in all_finished(self.output, names)
        }
        return Boilerplate(
            found.get(LINES_NAME, NO_KEYS),
            found.get(REPEATS_NAME, NO_KEYS),
            self.config(shard),
            abbreviations_of(shard.source, self.stage.corpus),
        )


def make_line_list(table: StageTable, options: list[str]) -> Artifact:
    """Run the stage: list the lines that recur, then the spans that came earlier."""
    stage = parse(BoilerplateStage, table.config, source="stage boilerplate")
    if not stage.corpus.has_boilerplate:
        raise UsageError(
            "corpus.sources: none asks for boilerplate to be removed; set boilerplate = {} in one"
        )
    search, runner = Search(stage, table.output), Runner.of(table, options)
    files = CorpusFiles(stage.corpus, table.output)
    shards = [shard for shard in files.shards() if stage.corpus.sources[shard.source].boilerplate]
    sources = {
        number: FoundInSource(source, number)
        for number, source in enumerate(stage.corpus.sources)
        if source.boilerplate
    }
    with scratch_directory(table.output) as scratch, naming_full_disk(scratch):
        steps = Steps(search, runner, shards, sources, scratch)
        entries = [steps.list_lines()]
        if any(one.config.spans for one in sources.values()):
            entries += [steps.list_repeats(), steps.list_spans()]
    files.require_unchanged()
    for one in sources.values():
        one.say_account()
    statistics = {str(number): one.statistics for number, one in sources.items()}
    artifact = commit(table, entries, statistics={"sources": statistics})
    clear_work(table.output)
    return artifact


def runs_name(shard: InputShard, of: str = "lines") -> str:
    """The name of a shard's runs within the artifact."""
    return f"{WORK}/{shard.name}.{of}.arrow"


@dataclass(frozen=True)
class Steps:
    """The steps of the stage: in each the workers write runs, and the launcher a list."""

    search: Search
    runner: Runner
    shards: Sequence[InputShard]
    sources: "dict[int, FoundInSource]"
    scratch: str

    def list_lines(self) -> FileEntry:
        """Write the lines that recur."""
        shards = [shard for shard in self.shards if self.search.config(shard).lines]
        entries = self._runs("lines", write_line_runs, shards)
        found = (
            one.recurring(self._recurring(entries[number], one.limits, number))
            for number, one in self.sources.items()
        )
        return self._put(LINES_NAME, lambda path: write_list(chain(*found), path, LINES_SCHEMA))

    def list_repeats(self) -> FileEntry:
        """Write the keys of spans that are in several documents."""
        entries = self._runs("repeats", write_span_runs, self._with_spans)
        found = (
            self._recurring(of_source, CAME_EARLIER, number)
            for number, of_source in entries.items()
        )
        return self._put(
            REPEATS_NAME, lambda path: write_keys(chain(*found), path, scratch=self.scratch)
        )

    def list_spans(self) -> FileEntry:
        """Write the texts that go because they came earlier."""
        entries = self._runs("spans", write_removed_spans, self._with_spans)
        found = (
            self.sources[number].removed(self._recurring(of_source, ALL_OF_THEM, number))
            for number, of_source in entries.items()
        )
        return self._put(SPANS_NAME, lambda path: write_list(chain(*found), path, SPANS_SCHEMA))

    @property
    def _with_spans(self) -> list[InputShard]:
        return [shard for shard in self.shards if self.search.config(shard).spans]

    def _runs(
        self, of: str, write: Callable[..., object], shards: Sequence[InputShard]
    ) -> dict[int, list[FileEntry]]:
        """Have the runs of every shard written; their files by source."""
        name_of = partial(runs_name, of=of)
        self.runner.finish(
            shards,
            partial(write, search=self.search),
            name_of=name_of,
            progress="boilerplate",
            label=f"Count {of}",
        )
        # A line recurs within its source: the same footer may be boilerplate in one and rare in
        # another.
        entries: dict[int, list[FileEntry]] = {number: [] for number in self.sources}
        written = all_finished(self.search.output, list(map(name_of, shards)))
        for shard, entry in zip(shards, written, strict=True):
            entries[shard.source].append(entry)
        for number, of_source in entries.items():
            self.sources[number].add(of_source)
        return entries

    def _recurring(
        self, entries: Sequence[FileEntry], limits: Limits, number: int
    ) -> Iterator[pa.RecordBatch]:
        return recurring_keys(
            entries, limits, source=number, output=self.search.output, scratch=self.scratch
        )

    def _put(self, name: str, write: Callable[[str], int]) -> FileEntry:
        path = f"{self.scratch}/{name}"
        rows = write(path)
        return put_local_file(self.search.output, path, name=name, rows=rows)


def write_line_runs(shard: InputShard, *, search: Search, queue: WorkQueue) -> str:
    """Write a shard's lines into the artifact as sorted runs; returns the name of their file."""
    config = search.config(shard)
    documents = lines = size = 0
    with temporary_directory() as scratch, naming_full_disk(scratch):
        path = f"{scratch}/lines.arrow"
        limits = Limits(config.min_documents, config.kept_documents)
        with RunsWriter(path, COUNTS_SCHEMA, limits) as writer:
            for block in read_paragraphs(shard, corpus=search.stage.corpus):
                writer.add(*_line_columns(block, found := find_lines(block, config)))
                documents += _documents(block)
                lines, size = lines + len(found.ends_L), size + len(block.text)
        put_local_file(
            *(search.output, path),
            name=runs_name(shard),
            rows=writer.rows,
            statistics={"documents": documents, "lines": lines, "bytes": size},
        )
    queue.report(MB=shard.megabytes, documents=documents)
    return runs_name(shard)


def _documents(block: DocumentBlock) -> int:
    return int(np.count_nonzero(np.diff(block.ends, prepend=0)))


def _line_columns(block: DocumentBlock, lines: Lines) -> list[pa.Array]:
    """A row for each line that may recur."""
    # Others have too few words, even with their neighbours, so no list can name them.
    which = np.flatnonzero(lines.keys_L != ALWAYS_KEPT)
    # What is keyed may be a line, or several that stand together; its text goes from the first to
    # the last of them.
    starts = lines.starts_L[lines.firsts_L[which]]
    stops = lines.ends_L[lines.lasts_L[which]] - 1
    sizes = (lines.ends_L - lines.starts_L)[which]
    return [
        pa.array(lines.keys_L[which]),
        pa.array(lines.ranks_L[which]),
        pa.array(np.ones(len(which), dtype=np.int64)),
        pa.array(sizes),
        _beginnings(block, starts, stops),
    ]


def _beginnings(block: DocumentBlock, starts: Offsets, stops: Offsets) -> pa.StringArray:
    """The first `TEXT_BYTES` of each range."""
    raw = block.text.tobytes()
    bounds = zip(starts.tolist(), np.minimum(stops, starts + TEXT_BYTES).tolist(), strict=True)
    # a character may be cut at the end
    texts = [raw[start:stop].decode("utf-8", "ignore") for start, stop in bounds]
    return pa.array(texts, pa.string())


def write_span_runs(shard: InputShard, *, search: Search, queue: WorkQueue) -> str:
    """Write the keys of a shard's spans into the artifact as sorted runs; returns their file."""
    with temporary_directory() as scratch, naming_full_disk(scratch):
        path = f"{scratch}/repeats.arrow"
        listed = search.listed(shard, LINES_NAME, scratch=scratch)
        with RunsWriter(path, KEYS_SCHEMA, CAME_EARLIER) as writer:
            for block in read_paragraphs(shard, corpus=search.stage.corpus):
                left = without_recurring_lines(block, listed)
                for spans in find_spans(left, listed.config, listed.abbreviations).values():
                    writer.add(spans.keys_P, spans.ranks_P)
        name = runs_name(shard, "repeats")
        put_local_file(search.output, path, name=name, rows=writer.rows)
    queue.report(MB=shard.megabytes)
    return name


def write_removed_spans(shard: InputShard, *, search: Search, queue: WorkQueue) -> str:
    """Write the texts that go from a shard into the artifact as sorted runs; returns their file."""
    documents = size = 0
    sums = Counter[str]()
    with temporary_directory() as scratch, naming_full_disk(scratch):
        path = f"{scratch}/spans.arrow"
        listed = search.listed(shard, LINES_NAME, REPEATS_NAME, scratch=scratch)
        with RunsWriter(path, COUNTS_SCHEMA, ALL_OF_THEM) as writer:
            for block in read_paragraphs(shard, corpus=search.stage.corpus):
                documents, size = documents + _documents(block), size + len(block.text)
                left = without_recurring_lines(block, listed)
                for kind, gone in repeated_bytes(left, listed).items():
                    columns = _span_columns(left, gone, kind)
                    writer.add(*columns)
                    sums[f"{kind}_spans"] += len(columns[0])
                    sums[f"{kind}_bytes"] += int(np.count_nonzero(gone))
        statistics = dict(sums)
        if not listed.config.lines:  # else they are counted with the lines
            statistics |= {"documents": documents, "lines": 0, "bytes": size}
        name = runs_name(shard, "spans")
        put_local_file(search.output, path, name=name, rows=writer.rows, statistics=statistics)
    queue.report(MB=shard.megabytes)
    return name


def _span_columns(block: DocumentBlock, gone: Mask, kind: str) -> list[pa.Array]:
    """A row for each range of bytes that are `gone`."""
    edges = np.flatnonzero(np.diff(gone, prepend=False, append=False))
    starts_R, stops_R = edges[::2], edges[1::2]
    # The last bit of a key is the place of the kind among all.
    keys_R = range_hashes(block.text, starts_R, stops_R) & np.uint64(~1 & (1 << 64) - 1)
    count = len(starts_R)
    return [
        pa.array(keys_R | np.uint64(SPAN_KINDS.index(kind))),
        pa.array(np.zeros(count, dtype=np.uint64)),  # as of one document: all of them go
        pa.array(np.ones(count, dtype=np.int64)),
        pa.array(stops_R - starts_R),
        _beginnings(block, starts_R, stops_R),
    ]


class FoundInSource:
    """What is removed from one source, counted as it is found."""

    def __init__(self, source: SourceConfig, number: int) -> None:
        assert source.boilerplate
        self.config, self._source, self._number = source.boilerplate, source, number
        self._name = f"corpus.sources.{number} ({source.path or ', '.join(source.packages)})"
        kinds = [kind for kind in SPAN_KINDS if getattr(self.config, kind)]
        names = ("documents", "lines", "bytes", "recurring", "removed_lines", "removed_bytes")
        of_spans = (f"{kind}_{what}" for kind in kinds for what in ("spans", "bytes"))
        self.statistics = dict.fromkeys((*names, *of_spans), 0)
        """Documents, lines and bytes read; recurring lines, and lines and bytes removed; of each
        kind of spans how many are removed, and their bytes."""
        self._top: dict[str, list[tuple[int, int, str]]] = {}

    @property
    def limits(self) -> Limits:
        """When a line recurs, and who keeps it."""
        return Limits(self.config.min_documents, self.config.kept_documents)

    def add(self, entries: Iterable[FileEntry]) -> None:
        """Add the counts of some files."""
        for entry in entries:
            for name, value in entry.statistics.items():
                self.statistics[name] += value

    def recurring(self, found: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """The same recurring lines, counted."""
        for listed in found:
            self.statistics["recurring"] += len(listed)
            for name in ("removed_lines", "removed_bytes"):
                self.statistics[name] += pc.sum(listed[name]).as_py() or 0
            self._note("lines", listed)
            yield listed

    def removed(self, found: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Removed spans as rows of `SPANS_SCHEMA`."""
        for listed in found:
            self._note("spans", listed)
            last_bits = (listed["key"].to_numpy() & np.uint64(1)).tolist()
            columns = [
                listed["source"],
                pa.array([SPAN_KINDS[bit] for bit in last_bits], pa.string()),
                *(listed[name] for name in ("key", "removed_lines", "removed_bytes", "text")),
            ]
            yield pa.RecordBatch.from_arrays(columns, schema=SPANS_SCHEMA)

    def _note(self, what: str, listed: pa.RecordBatch) -> None:
        """Keep those that take the most text, to show them."""
        largest = pa.Table.from_batches([listed]).sort_by([("removed_bytes", "descending")])
        shown = largest.slice(0, SHOWN)
        columns = (shown[name].to_pylist() for name in ("removed_bytes", "removed_lines", "text"))
        top = [*self._top.get(what, []), *zip(*columns, strict=True)]
        self._top[what] = sorted(top, reverse=True)[:SHOWN]

    def say_account(self) -> None:
        """Say what will be removed; raises `UsageError` if it is all of the source."""
        found, config = self.statistics, self.config
        whole = max(found["bytes"], 1)
        read = {"documents": found["documents"], "size": found["bytes"]}
        # Before the counts: of parts of one document, what recurs "in ten documents" may be one.
        if warning := parts_account(self._number, self._source, **read):
            say(f"warning: boilerplate: {warning}; each part counts as a document")
        if config.lines:
            say(
                f"boilerplate: {self._name}: {found['recurring']:,} lines recur in "
                f"{config.min_documents} or more of {found['documents']:,} documents; "
                f"{found['removed_lines']:,} of {found['lines']:,} lines, "
                f"{found['removed_bytes'] / whole:.1%} of the text, are removed from all documents "
                f"but {config.kept_documents}"
            )
            self._show("lines")
        for kind in SPAN_KINDS:
            if getattr(config, kind):
                say(
                    f"boilerplate: {self._name}: {found[f'{kind}_spans']:,} spans, "
                    f"{found[f'{kind}_bytes'] / whole:.1%} of the text, are removed because the "
                    f"same {getattr(config, kind)} {kind} came earlier"
                )
        self._show("spans")
        self._judge(sum(found.get(f"{kind}_bytes", 0) for kind in (*SPAN_KINDS, "removed")) / whole)

    def _show(self, what: str) -> None:
        for _, times, text in self._top.get(what, []):
            say(f"boilerplate:   {times:,} × {' | '.join(text.splitlines())[:120]!r}")

    def _judge(self, share: float) -> None:
        """Warn, or raise `UsageError`, if so much of the source's text is removed."""
        config = self.config
        recurs = f"recurs in {config.min_documents} or more documents" * config.lines
        earlier = "came earlier" * config.spans
        settings = [
            f"raise boilerplate.min_documents (now {config.min_documents}) or min_words (now "
            f"{config.min_words}) of this source"
        ] * config.lines
        settings += [
            f"raise or leave out boilerplate.{kind} (now {getattr(config, kind)})"
            for kind in SPAN_KINDS
            if getattr(config, kind)
        ]
        remedy = f"{', or '.join(settings)}, or remove boilerplate from it"
        if share > REFUSED_SHARE:
            raise UsageError(
                f"{self._name}: {share:.2%} of its text "
                f"{' or '.join(filter(None, (recurs, earlier)))}, so nothing to train on would be "
                f"left; {remedy}"
            )
        if share > WARNED_SHARE:
            say(
                f"warning: boilerplate: {self._name}: {share:.0%} of its text is removed, more "
                f"than boilerplate usually has; if it is not boilerplate, {remedy}"
            )


if __name__ == "__main__":
    run_program(make_line_list)
