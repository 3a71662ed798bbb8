"""Stage `scores`: a score of quality for every document, by which `cleaning.keep` drops some.

In:  the corpus; labelled documents, good text, or a fine-tuned model; the list of recurring lines.
Out: `scores.arrow` and `counts.arrow` (artifacts/tables.py); the model, if it was made here.

    python -P -m cloze.pipeline.scores --config TABLE.json [engine options]

Documents that rules drop are not scored. The workers score every document by itself and write one
file per input shard, sorted by digest; the launcher merges a range of digests at a time. A worker
holds the scores of a shard, the launcher a range of rows; all else is on disk. For the likelihood
ratio, words are counted before, by shards of the corpus and of good text alike: the counts of a
shard and their sum have the same size for any corpus. Which documents are kept is decided where
they are read, so another threshold needs no other scores.
"""

import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pydantic import JsonValue

from cloze.artifacts import filesystem
from cloze.artifacts.arrays import digest_array, digest_bytes, digest_halves, is_first_of_equals
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
    put_bytes,
    put_local_file,
    scratch_directory,
)
from cloze.artifacts.tables import (
    SCORE_COUNTS_NAME,
    SCORE_COUNTS_SCHEMA,
    SCORES_NAME,
    SCORES_SCHEMA,
)
from cloze.pipeline.config.made_lists import with_made_lists
from cloze.pipeline.config.settings import CleaningConfig, CorpusConfig, ScoresStage
from cloze.pipeline.quality.features import find_words
from cloze.pipeline.quality.labelled import read_labelled
from cloze.pipeline.quality.linear import make_linear_model
from cloze.pipeline.quality.ngrams import SIZE, WORDS, NgramCounts, NgramRatio, in_buckets
from cloze.pipeline.quality.scorers import LEAST_KNOWN, open_scorer, way_of
from cloze.pipeline.readers.input_shards import CorpusFiles, InputShard
from cloze.pipeline.runner.execution import Runner
from cloze.pipeline.runner.graph import WorkQueue
from cloze.pipeline.shuffle.merged_runs import of_equal_size, ranges_of_keys
from cloze.pipeline.text.filters import Reason
from cloze.pipeline.text.splits import drawn_documents
from cloze.pipeline.text.texts import read_states, why_none_is_left

MODEL_NAME = "model.arrow"

DIGITS = 4
"""Of a score, after the point: what is beyond them depends on a processor's rounding."""

SHARES = (90, 75, 50, 25, 10)
"""Percentages whose least scores are said, so that a threshold can be chosen."""

REMEDIES = {
    "labelled": "label some documents of this source too",
    "good": "add good text in its language, or give the source a run of its own",
    "model": "use a model of its language",
}
"""What to do about a source whose words a scorer does not know."""

COUNTS_SCHEMA = pa.schema([pa.field("bucket", pa.uint32()), pa.field("count", pa.int64())])
"""How often the words and pairs in each bucket occur in a shard."""

# D documents of a block, N rows of all shards in a range of digests


def make_scores(table: StageTable, options: list[str]) -> Artifact:
    """Run the stage: make the model if one is wanted, score every shard, merge the scores."""
    stage = with_made_lists(parse(ScoresStage, table.config, source="stage scores"), table)
    runner = Runner.of(table, options)
    files = CorpusFiles(stage.corpus, table.output)
    shards = files.shards()
    made, about = _make_model(stage, runner, shards)
    model = ""
    if made is not None:
        put_bytes(table.output, _ipc_bytes(made), name=f"{WORK}/{MODEL_NAME}", rows=len(made))
        (entry,) = all_finished(table.output, [f"{WORK}/{MODEL_NAME}"])
        model = filesystem.join(table.output, entry.stored_name)
    # The model travels as a file in the artifact's folder: workers may be on other machines, and a
    # pickled model of millions of buckets would be sent with every shard.
    score = partial(write_scores, stage=stage, model=model, output=table.output)
    runner.finish(shards, score, name_of=scores_name, progress="scores", label="Score")
    # Before the merge: the key names the files as they were when the run was planned.
    files.require_unchanged()
    entries = all_finished(table.output, list(map(scores_name, shards)))
    totals: Counter[str] = Counter()
    with scratch_directory(table.output) as scratch, naming_full_disk(scratch):
        path = os.path.join(scratch, SCORES_NAME)
        # Digests are ascending over all shards, so the rows can be written as they are merged, and
        # only counts by score are held.
        counts = _Counts()
        with pa.OSFile(path, "wb") as sink, pa.ipc.new_file(sink, SCORES_SCHEMA) as writer:
            for batch in of_equal_size(_merged(entries, table.output, scratch), SCORES_SCHEMA):
                writer.write_batch(batch)
                counts.add(batch)
                totals["documents"] += len(batch)
        if not totals["documents"]:
            why = why_none_is_left(stage.corpus, stage.cleaning)
            raise UsageError(f"corpus: no document to score{f': {why}' if why else ''}")
        written = [put_local_file(table.output, path, name=SCORES_NAME, rows=totals["documents"])]
    by_score = counts.table()
    written.append(
        put_bytes(table.output, _ipc_bytes(by_score), name=SCORE_COUNTS_NAME, rows=len(by_score))
    )
    if made is not None:
        written.append(put_bytes(table.output, _ipc_bytes(made), name=MODEL_NAME, rows=len(made)))
    sources = _by_source(stage, entries, shards, counts)
    for line in _account(stage, sources):
        say(line)
    statistics: dict[str, JsonValue] = {"sources": {str(n): of for n, of in sources.items()}}
    artifact = commit(table, written, statistics={**statistics, **about})
    clear_work(table.output)
    return artifact


def scores_name(shard: InputShard) -> str:
    """The name of a shard's scores within the artifact."""
    return f"{WORK}/{shard.name}.scores.arrow"


def write_scores(
    shard: InputShard, *, stage: ScoresStage, model: str, output: str, queue: WorkQueue
) -> str:
    """Write a shard's scores into the artifact; returns the name of their file."""
    scorer, corpus = open_scorer(stage.quality, model), stage.corpus
    words = known = read = 0
    batches = []
    for states in read_states(shard, corpus=corpus, cleaning=stage.cleaning):
        block, text = states.texts, states.paragraphs
        read += len(block.ends_D)
        kept_D = block.reasons_D == Reason.KEPT
        if not kept_D.any():
            continue
        scores_D, words_D, known_D = scorer.score(text)
        words, known = words + int(words_D[kept_D].sum()), known + int(known_D[kept_D].sum())
        # Held-out documents are scored too, but do not count: a threshold that is chosen by their
        # scores would have seen what it is judged on.
        held_out_D = drawn_documents(block.digests_D2, share=corpus.heldout_share, seed=stage.seed)
        # A source may be held out whole.
        held_out_D |= bool(corpus.sources[block.source].heldout)
        columns = [
            digest_array(block.digests),
            pa.array(np.full(len(kept_D), block.source, dtype=np.uint16)),
            pa.array(np.round(scores_D, DIGITS).astype(np.float32)),
            pa.array(held_out_D),
        ]
        whole = pa.RecordBatch.from_arrays(columns, schema=SCORES_SCHEMA)
        batches.append(whole.filter(pa.array(kept_D)))
    # Sorted runs can be merged a range of digests at a time, whatever the size of the corpus.
    table = pa.Table.from_batches(batches, SCORES_SCHEMA).sort_by("document_digest")
    with temporary_directory() as scratch, naming_full_disk(scratch):
        path = os.path.join(scratch, "scores.arrow")
        with pa.OSFile(path, "wb") as sink, pa.ipc.new_file(sink, SCORES_SCHEMA) as writer:
            writer.write_table(table.combine_chunks())
        put_local_file(
            *(output, path),
            name=scores_name(shard),
            rows=len(table),
            statistics={"words": words, "known": known, "documents": read},
        )
    queue.report(MB=shard.megabytes, documents=read)
    return scores_name(shard)


def _make_model(
    stage: ScoresStage, runner: Runner, shards: Sequence[InputShard]
) -> tuple[pa.Table | None, dict[str, JsonValue]]:
    """The model that is made here, if any, and what is to be said about it."""
    config = stage.quality
    if way_of(config) == "labelled":
        labelled = read_labelled(config)
        model = make_linear_model(labelled)
        count, what = len(labelled.labels_D), "area under the ROC curve"
        if not model.is_logistic:
            what = "rank correlation with the labels"
        say(
            f"scores: a model of {count:,} labelled documents; {what}, of documents left out in "
            f"turn: {model.separation:.3f}"
        )
        facts: dict[str, JsonValue] = {"documents": count, "separation": round(model.separation, 4)}
        return model.table(), {"labelled": facts}
    if way_of(config) == "good":
        good = CorpusConfig(sources=config.good, abbreviations=stage.corpus.abbreviations)
        # A folder of its own: what is left there of another attempt is compared with the state of
        # these files, not of the corpus.
        good_files = CorpusFiles(good, filesystem.join(runner.output, f"{WORK}/good"))
        good_shards = good_files.shards()
        every = _counted(shards, runner, CountedText("all", stage.corpus, stage.cleaning))
        of_good = _counted(good_shards, runner, CountedText("good", good, CleaningConfig()))
        good_files.require_unchanged()
        total = int(of_good.counts[:WORDS].sum())
        if not total:
            raise UsageError("quality.good: no text in its sources; check their paths and readers")
        say(f"scores: two bigram models, of {total:,} words of good text and of all text")
        return NgramRatio(of_good, every).table(), {"good_words": total}
    return None, {}


@dataclass(frozen=True)
class CountedText:
    """One of the two texts whose words are compared."""

    name: Literal["all", "good"]
    """Distinguishes the files of its counts."""
    corpus: CorpusConfig
    """Its documents."""
    cleaning: CleaningConfig
    """What is counted of them."""

    def counts_name(self, shard: InputShard) -> str:
        """The name of the file with the counts of `shard`."""
        return f"{WORK}/{shard.name}.{self.name}.arrow"


def _counted(shards: Sequence[InputShard], runner: Runner, text: CountedText) -> NgramCounts:
    """Count the words and pairs in the shards of a corpus."""
    count, name_of = partial(write_counts, text=text, output=runner.output), text.counts_name
    runner.finish(shards, count, name_of=name_of, progress="scores", label=f"Count {text.name}")
    counts = np.zeros(SIZE, dtype=np.int64)
    with scratch_directory(runner.output) as scratch:
        for entry in all_finished(runner.output, list(map(name_of, shards))):
            stored = filesystem.join(runner.output, entry.stored_name)
            with (
                filesystem.brought_here(stored, scratch) as path,
                pa.memory_map(path) as file,
            ):
                table = pa.ipc.open_file(file).read_all()
                counts[table["bucket"].to_numpy()] += table["count"].to_numpy()
    return NgramCounts(counts)


def write_counts(shard: InputShard, *, text: CountedText, output: str, queue: WorkQueue) -> str:
    """Write the counts of a shard's words and pairs; returns the name of their file."""
    counts, documents = np.zeros(SIZE, dtype=np.int64), 0
    for states in read_states(shard, corpus=text.corpus, cleaning=text.cleaning):
        block = states.texts
        documents += len(block.ends_D)
        words = find_words(states.paragraphs)
        is_kept_D = block.reasons_D == Reason.KEPT
        words_W, pairs_P, first_P = in_buckets(words)
        kept_W = is_kept_D[words.documents_W]
        counts[:WORDS] += np.bincount(words_W[kept_W], minlength=WORDS)
        # A pair counts where its first word does; both are of the same document.
        counts[WORDS:] += np.bincount(pairs_P[kept_W[first_P]], minlength=SIZE - WORDS)
    # Sparse: a shard has few of the five million buckets.
    buckets = np.flatnonzero(counts)
    columns = [pa.array(buckets.astype(np.uint32)), pa.array(counts[buckets])]
    table = pa.Table.from_arrays(columns, schema=COUNTS_SCHEMA)
    name = text.counts_name(shard)
    put_bytes(output, _ipc_bytes(table), name=name, rows=len(table))
    queue.report(MB=shard.megabytes, documents=documents)
    return name


def _ipc_bytes(table: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table.combine_chunks())
    content: bytes = sink.getvalue().to_pybytes()
    return content


def _merged(entries: Sequence[FileEntry], output: str, scratch: str) -> Iterator[pa.RecordBatch]:
    """The scores of all shards by ascending digest, each once, a range of digests at a time."""
    for runs in ranges_of_keys(entries, _first_halves, output=output, scratch=scratch):
        rows = pa.Table.from_batches(runs, SCORES_SCHEMA)
        halves_N2 = digest_halves(digest_bytes(rows["document_digest"]))
        order = np.lexsort((rows["source"].to_numpy(), halves_N2[:, 1], halves_N2[:, 0]))
        # Of equal documents, whose scores are equal, the first source's.
        once = order[is_first_of_equals(halves_N2[order])]
        yield from rows.take(pa.array(once)).combine_chunks().to_batches()


def _first_halves(run: pa.RecordBatch) -> np.ndarray[tuple[int], np.dtype[np.uint64]]:
    halves_N2 = digest_halves(digest_bytes(pa.chunked_array([run["document_digest"]])))
    return halves_N2[:, 0]


class _Counts:
    """How many documents of each source have each score; those held out do not count.

    Scores are rounded, so there are some thousands of them.
    """

    def __init__(self) -> None:
        self._found: Counter[tuple[int, float]] = Counter()

    def add(self, batch: pa.RecordBatch) -> None:
        """Count the documents of a batch."""
        rows = batch.filter(pc.invert(batch["is_held_out"]))
        keys = zip(rows["source"].to_pylist(), rows["score"].to_pylist(), strict=True)
        self._found.update(keys)

    def table(self) -> pa.Table:
        """Rows of `SCORE_COUNTS_SCHEMA`."""
        rows = sorted((*key, count) for key, count in self._found.items())
        columns = list(zip(*rows, strict=True)) or [(), (), ()]
        arrays = [
            pa.array(values, field.type)
            for values, field in zip(columns, SCORE_COUNTS_SCHEMA, strict=True)
        ]
        return pa.Table.from_arrays(arrays, schema=SCORE_COUNTS_SCHEMA)

    def of_source(self, source: int) -> dict[str, JsonValue]:
        """The documents of a source, and the least score of the best shares of them."""
        found = sorted((score, n) for (number, score), n in self._found.items() if number == source)
        documents = sum(n for _, n in found)
        least: dict[str, JsonValue] = {}
        for share in SHARES if documents else ():
            # From the best score down, until the share is full: the score there is the least of the
            # share.
            rest, scores = round(documents * share / 100), iter(reversed(found))
            score, n = next(scores)
            while n < rest:
                score, more = next(scores)
                n += more
            least[f"{share}%"] = round(score, DIGITS)
        return {"documents": documents, "best": least}


def _by_source(
    stage: ScoresStage,
    entries: Sequence[FileEntry],
    shards: Sequence[InputShard],
    counts: _Counts,
) -> dict[int, dict[str, JsonValue]]:
    """What is said of each source: its documents, their scores, the share of known words."""
    words, known = Counter[int](), Counter[int]()
    for entry, shard in zip(entries, shards, strict=True):
        words[shard.source] += entry.statistics["words"]
        known[shard.source] += entry.statistics["known"]
    return {
        number: {
            **counts.of_source(number),
            "known_words": round(known[number] / words[number], 4) if words[number] else 1.0,
        }
        for number in range(len(stage.corpus.sources))
    }


def _account(stage: ScoresStage, sources: Mapping[int, Mapping[str, JsonValue]]) -> Iterator[str]:
    """A line for each source, and a warning for one whose words the scorer does not know."""
    way = way_of(stage.quality)
    for number, found in sources.items():
        config = stage.corpus.sources[number]
        name = f"corpus.sources.{number} ({config.path or ', '.join(config.packages)})"
        best, known, documents = found["best"], found["known_words"], found["documents"]
        assert isinstance(best, dict) and isinstance(known, float) and isinstance(documents, int)
        least = ", ".join(f"{share} at least {score:g}" for share, score in best.items())
        # Of a held-out source nothing is dropped, so its scores choose no threshold.
        if not config.heldout:
            yield f"scores: {name}: {documents:,} documents; of these the best {least or 'none'}"
        # Held-out or not: of words that it does not know a scorer says nothing.
        if known < LEAST_KNOWN[way]:
            yield (
                f"warning: scores: {name}: quality.{way} knows {known:.0%} of its words, so it was "
                "made for other text, perhaps another language, and its scores mean little; "
                + REMEDIES[way]
            )


if __name__ == "__main__":
    run_program(make_scores)
