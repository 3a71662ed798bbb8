"""Stage `tokens`: the corpus as token ids, deduplicated and shuffled into buckets.

In:  the corpus; a vocabulary artifact.
Out: `{split}-{bucket}.arrow` (artifacts/tables.py), the tokenizer, token_counts.json;
     as a record, the list of dropped documents.

    python -P -m cloze.pipeline.tokens --config TABLE.json [engine options]

One job in two halves: input shards become runs sorted by digest; ranges of digests, collected from
all runs, become buckets. Finished parts of an interrupted attempt are kept.

The list of dropped documents, with digest, source, path, position and reason of each, contains file
names, so it is a record and not part of the artifact's content, which must not depend on how files
are named. A summary of a few lines gives an example and a remedy for each reason.
"""

import os
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain

import numpy as np
import pyarrow as pa
from pydantic import JsonValue

from cloze.artifacts import filesystem
from cloze.artifacts.arrays import offsets_of
from cloze.artifacts.config import parse
from cloze.artifacts.errors import IntegrityError, UsageError
from cloze.artifacts.manifest import FileEntry
from cloze.artifacts.progress import Progress, say
from cloze.artifacts.results import HELDOUT, TRAIN
from cloze.artifacts.runtime.program import run_program
from cloze.artifacts.runtime.temporary import temporary_directory
from cloze.artifacts.stage import StageTable
from cloze.artifacts.store import (
    WORK,
    Artifact,
    all_finished,
    clear_work,
    commit,
    open_artifact,
    open_input,
    put_bytes,
    put_json,
    put_local_file,
)
from cloze.artifacts.tables import DROPPED_NAME, DROPPED_SCHEMA
from cloze.artifacts.tokenizer import read_tokenizer_json
from cloze.pipeline.config.made_lists import with_made_lists
from cloze.pipeline.config.settings import CorpusConfig, TokensStage
from cloze.pipeline.mlm.statistics import tokens_summary
from cloze.pipeline.readers.input_shards import CorpusFiles, InputShard
from cloze.pipeline.runner.execution import Runner, work_directory
from cloze.pipeline.shuffle.beam_group_by_key import BeamGroupByKey
from cloze.pipeline.shuffle.buckets import (
    Buckets,
    TokensJob,
    bucket_groups,
    division_of,
    dropped_lists,
    occurrences,
    unfinished_groups,
)
from cloze.pipeline.shuffle.local_spill import LocalSpill
from cloze.pipeline.shuffle.sorted_runs import DocumentCounts
from cloze.pipeline.text.account import (
    Dropped,
    edits_account,
    example_of,
    parts_account,
    reasons_account,
    source_account,
)
from cloze.pipeline.text.filters import Reason
from cloze.pipeline.text.texts import why_none_is_left

HELD_OUT_OF_FEW = {
    "tails": "the end of each document is held out, {share:.1%} of its sentences but at least one",
    "smallest": "corpus.heldout_share = {share} draws none of so few documents; the one with the "
    "smallest digest is held out",
    "largest": "corpus.heldout_share = {share} draws all of so few documents; only the one with "
    "the largest digest is used for training",
}
"""Messages for corpora of few documents, by the `Division` rule applied."""

MAX_UNKNOWN_SHARE = 0.005
"""Of the tokens: more [UNK] than this calls for a remedy."""

MAX_HELD_OUT = 0.1
"""Of the tokens: so much may be held out without a word, and twice the share that is asked for."""

_REASONS = pa.array([reason.name.lower() for reason in Reason])

ShuffleBackend = LocalSpill | BeamGroupByKey
"""Brings the documents of input shards into buckets."""


def make_tokens(table: StageTable, options: list[str]) -> Artifact:
    """Run the stage: keep finished parts, make the rest, write the manifest."""
    stage = with_made_lists(parse(TokensStage, table.config, source="stage tokens"), table)
    runner = Runner.of(table, options)
    files = CorpusFiles(stage.corpus, table.output)
    shards = files.shards()
    for warning in files.misread():
        say(f"tokens: {warning}")
    with work_directory(table.output, workers_here=runner.is_local) as scratch:
        job = tokens_job(table, stage, scratch=scratch)
        backend = choose_backend(shards, job=job, runner=runner)
        _run_what_is_missing(shards, backend, job=job, runner=runner)
        # What the key says was read is what was there when planning; a file that has changed since
        # would be in the artifact under the wrong key.
        files.require_unchanged()
        groups = bucket_groups(backend.smallest(), job)
        if not groups:
            if why := why_none_is_left(stage.corpus, stage.cleaning):
                raise UsageError(f"corpus: no document is left: {why}")
            counts = backend.counts()
            reasons = ", ".join(f"{count} {name}" for name, count in sorted(counts.dropped.items()))
            raise UsageError(
                f"corpus: none of its {counts.documents} documents is left "
                f"({reasons or 'it has none'}); check the paths, the reader and [cleaning]"
            )
        artifact = _commit(table, files=files, groups=groups, backend=backend, job=job)
    # Only after the commit: until then, an interrupted attempt goes on from these files.
    clear_work(table.output)
    return artifact


def tokens_job(table: StageTable, stage: TokensStage, *, scratch: str = "") -> TokensJob:
    """The facts that all workers of the stage share."""
    vocabulary = open_input(table, "vocabulary")
    tokenizer = read_tokenizer_json(vocabulary.path("tokenizer.json"))
    if not tokenizer.has_fast_form:
        say("tokens: this tokenizer has no compiled implementation; using `tokenizers`, slower")
    return TokensJob(
        stage=stage,
        vocabulary=vocabulary.directory,
        output=table.output,
        scratch=scratch,
        vocabulary_size=tokenizer.size,
        unk_id=tokenizer.unk_id,
        tokenizer_files=tuple(tokenizer.files()),
    )


def choose_backend(
    shards: Sequence[InputShard], *, job: TokensJob, runner: Runner
) -> ShuffleBackend:
    """Spill files for workers on this machine, the engine's shuffle for workers elsewhere."""
    if runner.is_local:
        return LocalSpill(job, job.scratch, tuple(shard.name for shard in shards))
    return BeamGroupByKey(job, filesystem.join(job.output, WORK), shards=len(shards))


def _run_what_is_missing(
    shards: list[InputShard], backend: ShuffleBackend, *, job: TokensJob, runner: Runner
) -> None:
    """Run the job for what earlier attempts did not finish."""
    missing = backend.unfinished(shards)
    if missing:
        if len(missing) < len(shards):
            say(
                f"tokens: {len(shards) - len(missing)} of {len(shards)} shards are finished already"
            )
        total = sum(shard.megabytes for shard in missing)
        progress = Progress("tokens", total=total, unit="MB")
    else:
        # All shards are done: only buckets are left, so progress counts them instead of megabytes.
        every = bucket_groups(backend.smallest(), job)
        groups = unfinished_groups(every, job)
        done = len(every) - len(groups)
        say(
            f"tokens: all {len(shards)} shards and {done} of {len(every)} groups are finished "
            "already"
        )
        if not groups:
            return
        buckets = sum(len(group.numbers) for group in groups)
        progress = Progress("tokens", total=buckets, unit="buckets")
    megabytes = sum(shard.megabytes for shard in shards)
    runner.run(partial(backend.graph, missing), progress, megabytes=megabytes)


def _commit(
    table: StageTable,
    *,
    files: CorpusFiles,
    groups: list[Buckets],
    backend: ShuffleBackend,
    job: TokensJob,
) -> Artifact:
    """Check that every document is accounted for, say what became of them, and commit."""
    entries = [
        entry
        for group in groups
        for entry in all_finished(job.output, group.names)
        if entry.rows or group.part != "tail"  # documents of one sentence have no tail
    ]
    vocabulary = open_artifact(job.vocabulary)
    copied = [
        put_bytes(job.output, vocabulary.read_bytes(name), name=name)
        for name in job.tokenizer_files
    ]
    by_split: dict[str, list[FileEntry]] = {}
    for entry in entries:
        by_split.setdefault(entry.statistics["split"], []).append(entry)
    rule = division_of(backend.smallest(), job).rule
    if about := _about_division(rule, by_split.keys(), share=job.stage.corpus.heldout_share):
        say(about)
    with temporary_directory(job.scratch) as local:
        lists = chain(backend.dropped(local), dropped_lists(groups, job.output, scratch=local))
        listed, dropped, by_source = put_dropped(lists, files, output=job.output, scratch=local)
    kept = {split: sum(e.rows or 0 for e in found) for split, found in by_split.items()}
    account = Account(backend.counts(), kept, dropped, by_source)
    if rule != "tails":  # there a document is in two splits: its beginning and its end
        account.require_all(job.output)
    for line in (*account.lines(), *account.warnings(job.stage.corpus, files.sizes)):
        say(line)
    splits = {split: tokens_summary(found) for split, found in by_split.items()}
    if TRAIN in splits and (unknown := unknown_tokens(splits[TRAIN])):
        say(unknown)
    # What scores drop says nothing of the draw.
    if not job.stage.cleaning.keep and (uneven := _uneven_draw(splits, job.stage.corpus)):
        say(uneven)
    # Of training text alone: baselines of word frequencies must not have seen what they are scored
    # on.
    counts_V = occurrences([group for group in groups if group.split == TRAIN], job)
    counted = put_json(job.output, counts_V.tolist(), name="token_counts.json")
    return commit(
        table,
        [*entries, *copied, counted],
        records=[listed],
        statistics={
            "tokenizer_digest": vocabulary.manifest.statistics["tokenizer_digest"],
            "vocabulary_size": job.vocabulary_size,
            "splits": splits,
            "documents_read": account.read.documents,
            "damaged_documents": account.read.damaged,
            "dropped": {reason: found.documents for reason, found in dropped.items()},
            **({"edits": edits} if (edits := account.read.edits) else {}),
        },
    )


def _about_division(rule: str, splits: Collection[str], *, share: float) -> str:
    """What to say of how documents were divided, if it is not the usual way."""
    if share and set(splits) == {TRAIN}:
        return (
            "warning: documents of one sentence cannot be split, so there is no held-out text to "
            "evaluate on; add more text, or hold out a source"
        )
    said = HELD_OUT_OF_FEW.get(rule, "")
    return f"tokens: {said.format(share=share)}" if said else ""


def _uneven_draw(splits: Mapping[str, Mapping[str, JsonValue]], corpus: CorpusConfig) -> str:
    """What to say if far more of the text is held out than was asked for; empty if not."""
    drawn = {HELDOUT, *(source.heldout_documents for source in corpus.sources)}
    whole = {source.heldout for source in corpus.sources}
    tokens = {name: int(str(found["tokens"])) for name, found in splits.items()}
    held = sum(count for name, count in tokens.items() if name in drawn - whole)
    share = held / max(held + tokens.get(TRAIN, 0), 1)
    if not corpus.heldout_share or share <= max(2 * corpus.heldout_share, MAX_HELD_OUT):
        return ""
    return (
        f"warning: tokens: {share:.0%} of the tokens are held out, for corpus.heldout_share = "
        f"{corpus.heldout_share:g}: documents are drawn whole, and these are few or of very "
        "different lengths; divide them, hold out a source, or set another seed"
    )


def put_dropped(
    lists: Iterable[str], files: CorpusFiles, *, output: str, scratch: str
) -> tuple[FileEntry, dict[str, Dropped], dict[int, Counter[str]]]:
    """Merge the intermediate lists into one file.

    Returns its entry, the counts by reason, and these by number of the source.

    The lists refer to the files of each source by number.
    """
    counts: Counter[str] = Counter()
    examples: dict[str, str] = {}
    by_source: dict[int, Counter[str]] = {}
    local = os.path.join(scratch, DROPPED_NAME)
    with pa.OSFile(local, "wb") as sink, pa.ipc.new_file(sink, DROPPED_SCHEMA) as writer:
        for listed in _with_names(lists, files.paths):
            writer.write_batch(listed)
            reasons = listed["reason"].to_pylist()
            counts.update(reasons)
            for source, reason in zip(listed["source"].to_pylist(), reasons, strict=True):
                by_source.setdefault(source, Counter())[reason] += 1
            # Only the first of each reason is looked up: to find its line, its file is read up to
            # there.
            for reason in set(reasons) - examples.keys():
                first = reasons.index(reason)
                row = {name: listed[name][first].as_py() for name in ("path", "position", "source")}
                reader = files.readers[row["source"]]
                examples[reason] = example_of(row["path"], row["position"], reader)
    dropped = {reason: Dropped(counts[reason], examples[reason]) for reason in sorted(counts)}
    entry = put_local_file(output, local, name=DROPPED_NAME, rows=counts.total())
    return entry, dropped, by_source


@dataclass(frozen=True)
class Account:
    """What became of the documents read."""

    read: DocumentCounts
    kept: Mapping[str, int]
    """By split."""
    dropped: Mapping[str, Dropped]
    """By reason."""
    by_source: Mapping[int, Counter[str]]
    """Those dropped by the number of their source, and by reason."""

    @property
    def lost(self) -> int:
        """The number of documents dropped."""
        return sum(found.documents for found in self.dropped.values())

    def require_all(self, output: str) -> None:
        """Refuse an artifact in `output` that lacks a document, or has one twice.

        Every document read is kept in some split or dropped for a reason; an engine's shuffle that
        loses or repeats any is caught here.
        """
        kept = sum(self.kept.values())
        if self.read.documents != kept + self.lost:
            raise IntegrityError(
                f"{output}: of {self.read.documents} documents read, {kept} were kept and "
                f"{self.lost} dropped; the engine's shuffle lost or duplicated some, use another "
                "engine"
            )

    def lines(self) -> Iterator[str]:
        """A summary for people."""
        read, left = self.read, self.read.documents - self.lost
        splits = ", ".join(f"{count:,} {split}" for split, count in self.kept.items())
        yield f"tokens: {read.documents:,} documents read, {left:,} kept: {splits}"
        for line in (*reasons_account(self.dropped), *edits_account(read.edits)):
            yield f"tokens: {line}"
        if read.converted:
            yield (
                f"tokens: {read.converted:,} from files in another encoding than UTF-8, detected "
                "from their bytes; if cloze inspect shows wrong characters, convert the files "
                "(iconv)"
            )
        if read.damaged:
            yield (
                f"tokens: {read.damaged:,} with bytes that are not UTF-8; in kept documents they "
                "are replaced by U+FFFD"
            )

    def warnings(self, corpus: CorpusConfig, sizes: Sequence[int]) -> Iterator[str]:
        """What is odd about single sources of `sizes` bytes."""
        for number, config in enumerate(corpus.sources):
            read = self.read.by_source.get(str(number), 0)
            dropped = self.by_source.get(number, Counter())
            found = (
                source_account(number, config, documents=read, dropped=dropped),
                parts_account(number, config, documents=read, size=sizes[number]),
            )
            yield from (f"warning: tokens: {warning}" for warning in found if warning)


def unknown_tokens(summary: Mapping[str, JsonValue]) -> str:
    """What to say about the share of [UNK] in a split, if there is any."""
    count, share = summary["unknown_tokens"], summary["unknown_share"]
    if not isinstance(count, int) or not isinstance(share, float) or not count:
        return ""
    found = f"{share:.2%} of the training tokens are [UNK]"
    if share < MAX_UNKNOWN_SHARE:
        return f"tokens: {found}"
    return (
        f"warning: tokens: {found}: characters outside the vocabulary; learn one from this corpus "
        "(without vocabulary.path), raise vocabulary.size, or drop documents in other scripts"
    )


def _with_names(lists: Iterable[str], files: Sequence[Sequence[str]]) -> Iterator[pa.RecordBatch]:
    """The rows of the intermediate lists, with paths and reasons by name."""
    paths = pa.array([path for of_source in files for path in of_source], pa.string())
    # Files are numbered within their source; this is their number among all.
    first = offsets_of(np.array([len(of_source) for of_source in files]))
    for path in lists:
        with pa.memory_map(path) as file:
            for batch in filter(len, pa.ipc.open_file(file).read_all().to_batches()):
                numbers = first[batch["source"].to_numpy()] + batch["file"].to_numpy()
                columns = [
                    batch["document_digest"],
                    batch["source"],
                    paths.take(pa.array(numbers)),
                    batch["position"],
                    _REASONS.take(batch["reason"]),
                ]
                yield pa.RecordBatch.from_arrays(columns, schema=DROPPED_SCHEMA)


if __name__ == "__main__":
    run_program(make_tokens)
