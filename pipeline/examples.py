"""Stage `examples`: masked MLM/NSP examples from tokens, bucket by bucket.

In:  a tokens artifact.
Out: `{split}-{length}-{bucket}.arrow` (artifacts/tables.py), with one record batch per copy; the
     tokenizer.

    python -P -m cloze.pipeline.examples --config TABLE.json [engine options]

No shuffle is needed: the buckets of the tokens artifact are random shares of the corpus already.
Buckets finished by an interrupted attempt are kept.

Each copy has random numbers of its own and is shuffled with them; nothing depends on which worker
makes it, or when. A copy is made in blocks of a few thousand examples, so that a block fits into
the cache and memory does not grow with the bucket. With `pack_documents`, an example holds segments
of several documents.

If the sources have names, every example is of one of them: its documents are paired and packed
among themselves, and the rows of a copy are grouped by name. So training can mix the sources in any
shares, knowing from the manifest alone which rows are whose.
"""

import os
import re
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from cloze.artifacts.arrays import Int64s, Mask, TokenIds, list_array, offsets_of
from cloze.artifacts.config import parse
from cloze.artifacts.errors import IntegrityError, UsageError
from cloze.artifacts.filesystem import naming_full_disk
from cloze.artifacts.manifest import FileEntry
from cloze.artifacts.progress import Progress, say
from cloze.artifacts.results import TRAIN
from cloze.artifacts.rng import draw, stream_seed
from cloze.artifacts.runtime.program import run_program
from cloze.artifacts.runtime.temporary import temporary_directory
from cloze.artifacts.stage import StageTable
from cloze.artifacts.store import (
    Artifact,
    all_finished,
    commit,
    finished_files,
    open_file,
    open_input,
    put_bytes,
    put_local_file,
    scratch_directory,
)
from cloze.artifacts.tables import DOCUMENT_LENGTHS_FIELD, examples_name, examples_schema
from cloze.artifacts.tokenizer import CONTINUATION, SubwordTokenizer, read_tokenizer_json
from cloze.pipeline.config.settings import ExamplesConfig, ExamplesStage, distinct
from cloze.pipeline.mlm.masking import Block, MaskingRule, Masks, mask_tokens
from cloze.pipeline.mlm.pairing import (
    MASKS,
    ORDER,
    Documents,
    PairingRule,
    Pairs,
    pair_segments,
    read_bucket,
)
from cloze.pipeline.mlm.statistics import (
    ExampleStatistics,
    alarms,
    count_examples,
    examples_summary,
    source_alarms,
)
from cloze.pipeline.readers.documents import MEGABYTE
from cloze.pipeline.runner.execution import Runner
from cloze.pipeline.runner.graph import WorkQueue, for_each

TOKENS_NAME = re.compile(r".+-\d{5,}\.arrow")

BLOCK_ROWS = 2048

# N examples of one document each (segments to pack); E packed examples; M masked tokens


@dataclass(frozen=True)
class ExamplesRecipe:
    """The settings that determine the examples of every bucket."""

    seed: int
    """The run's seed."""
    config: ExamplesConfig
    """The stage's configuration."""
    cls_id: int
    """Id of [CLS]."""
    sep_id: int
    """Id of [SEP]."""
    mask_id: int
    """Id of [MASK]."""
    vocabulary_size: int
    """Number of word-pieces."""
    continuation_V: Mask
    """Which of them continue a word."""
    names: tuple[str, ...] = ()
    """The name of each source, by its index; empty if sources are not told apart."""

    def groups_of(self, documents: Documents) -> list[Int64s | None]:
        """The documents of each distinct name; one group of all if sources are not told apart."""
        if not self.names:
            return [None]
        assert documents.sources_D is not None
        names = distinct(self.names)
        group_of_source = np.array([names.index(name) for name in self.names])
        group_D = group_of_source[documents.sources_D]
        return [np.flatnonzero(group_D == group) for group in range(len(names))]


class Copy(NamedTuple):
    """One copy of the examples of a bucket."""

    batch: pa.RecordBatch
    """The examples, grouped by the name of their source."""
    statistics: ExampleStatistics
    """Their counts."""
    rows_G: Int64s
    """The number of examples of each name."""
    tokens_G: Int64s
    """Their tokens."""


Bucket = tuple[FileEntry, dict[int, str]]
"""A tokens file, and the names of the examples files to make from it, by sequence length."""


def make_examples(table: StageTable, options: list[str]) -> Artifact:
    """Run the stage: keep finished files, make the rest, write the manifest."""
    stage = parse(ExamplesStage, table.config, source="stage examples")
    runner = Runner.of(table, options)
    tokens = open_input(table, "tokens")
    tokenizer = read_tokenizer_json(tokens.path("tokenizer.json"))
    buckets = list(buckets_of(tokens, stage.examples))
    names = [name for _, names in buckets for name in names.values()]
    finished = finished_files(table.output, names)
    if finished:
        say(f"examples: {len(finished)} of {len(names)} files are finished already")
    left = [
        (entry, {length: name for length, name in names.items() if name not in finished})
        for entry, names in buckets
    ]
    unfinished = [(entry, names) for entry, names in left if names]
    if stage.examples.masking.unit == "whole_word" and not marks_words(tokenizer):
        say(
            "warning: examples: examples.masking.unit is whole_word, but this tokenizer does not "
            "mark where words begin, so every token is masked as a word of its own; use unit = "
            "'token', which says so, or a tokenizer that does"
        )
    if unfinished:
        total = sum(entry.size for entry, _ in unfinished) / MEGABYTE
        with scratch_directory(table.output) as scratch:
            # The launcher's scratch folder is of use only to workers that see its disk.
            places = ExamplesPlaces(
                tokens.directory, table.output, scratch if runner.is_local else ""
            )
            recipe = recipe_of(stage, tokenizer)
            write = partial(write_examples, recipe=recipe, places=places)
            job = for_each(unfinished, write, label="WriteExamples")
            runner.run(job, Progress("examples", total=total, unit="MB"))
    entries = all_finished(table.output, names)
    # Whatever is made from the examples needs no other artifact for their words.
    copied = [
        put_bytes(table.output, tokens.read_bytes(name), name=name) for name in tokenizer.files()
    ]
    # Warnings are about training text alone; held-out splits are too small to tell.
    every = [ExampleStatistics.read(entry) for entry in entries if _is_of_training(entry)]
    text = tokens.manifest.statistics.get("splits", {}).get(TRAIN)
    if text and every:
        passes = stage.examples.copies * len(stage.examples.max_seq_lengths)
        room = max(stage.examples.max_seq_lengths)
        counts = sum(every, ExampleStatistics())
        for alarm in alarms(counts, text, passes=passes, room=room):
            say(f"warning: examples: {alarm}")
    statistics = {
        "tokenizer_digest": tokenizer.digest,
        "vocabulary_size": tokenizer.size,
        "splits": examples_summary(entries),
    }
    if stage.names:
        names = distinct(stage.names)
        statistics["sources"] = names
        for warning in source_alarms(names, entries, stage.examples):
            say(f"warning: examples: {warning}")
    return commit(table, [*entries, *copied], statistics=statistics)


def _is_of_training(entry: FileEntry) -> bool:
    return bool(entry.statistics["split"] == TRAIN)


def marks_words(tokenizer: SubwordTokenizer) -> bool:
    """Whether its vocabulary tells beginnings of words from continuations."""
    return any(word.startswith(CONTINUATION) for word in tokenizer.vocabulary)


def recipe_of(stage: ExamplesStage, tokenizer: SubwordTokenizer) -> ExamplesRecipe:
    """The settings common to all buckets."""
    return ExamplesRecipe(
        seed=stage.seed,
        config=stage.examples,
        cls_id=tokenizer.cls_id,
        sep_id=tokenizer.sep_id,
        mask_id=tokenizer.mask_id,
        vocabulary_size=tokenizer.size,
        continuation_V=np.array([word.startswith(CONTINUATION) for word in tokenizer.vocabulary]),
        names=stage.names,
    )


def buckets_of(tokens: Artifact, config: ExamplesConfig) -> Iterator[Bucket]:
    """Every tokens file, as a task."""
    for entry in tokens.manifest.files:
        if TOKENS_NAME.fullmatch(entry.name):
            split, number = _split_and_number(entry)
            lengths = config.max_seq_lengths
            names = {length: examples_name(split, length, number) for length in lengths}
            yield entry.model_copy(update={"statistics": {}}), names


def _split_and_number(entry: FileEntry) -> tuple[str, int]:
    split, _, number = entry.name.removesuffix(".arrow").rpartition("-")
    return split, int(number)


@dataclass(frozen=True)
class ExamplesPlaces:
    """Where workers read and write."""

    tokens: str
    """Directory of the tokens artifact."""
    output: str
    """Directory of the examples artifact."""
    scratch: str = ""
    """A local directory shared with the launcher; if empty, a worker uses its own."""


def write_examples(
    bucket: Bucket, *, recipe: ExamplesRecipe, places: ExamplesPlaces, queue: WorkQueue
) -> str:
    """Make the bucket's files and put them into the output; returns the name of the tokens file.

    Held-out splits get one copy, since only one is read.
    """
    entry, names = bucket
    split, number = _split_and_number(entry)
    copies = recipe.config.copies if split == TRAIN else 1
    schema = examples_schema(recipe.vocabulary_size, packed=recipe.config.pack_documents)
    masking = recipe.config.masking.of(split)
    recipe = replace(recipe, config=recipe.config.model_copy(update={"masking": masking}))
    # A directory of the launcher on the artifact's disk makes putting a file a rename.
    with temporary_directory(places.scratch) as here, naming_full_disk(here):
        documents = read_bucket(open_file(places.tokens, entry, scratch=here))
        if recipe.names and documents.sources_D is None:
            raise IntegrityError(
                f"{places.tokens}: {entry.name} does not say which source its documents are of, "
                "but examples are to be told apart by source; run the tokens stage again"
            )
        documents_G = [len(own_D) for own_D in recipe.groups_of(documents) if own_D is not None]
        for length, name in names.items():
            path = os.path.join(here, name)
            made = copies_of(documents, recipe, max_seq_length=length, copies=copies)
            counts, rows, tokens_written = [], [], []
            with pa.OSFile(path, "wb") as sink, pa.ipc.new_file(sink, schema) as writer:
                for copy in made:
                    writer.write_batch(copy.batch)
                    counts.append(copy.statistics)
                    rows.append(copy.rows_G.tolist())
                    tokens_written.append(copy.tokens_G)
            total = sum(counts, ExampleStatistics())
            facts = {
                "split": split,
                "max_seq_length": length,
                "bucket": number,
                "copies": [copy.rows for copy in counts],
                **asdict(total),
            }
            if recipe.names:
                facts["source_rows"] = rows
                facts["source_tokens"] = np.sum(tokens_written, axis=0).tolist()
                facts["source_documents"] = documents_G
            put_local_file(places.output, path, name=name, rows=total.rows, statistics=facts)
    queue.report(MB=entry.size / MEGABYTE, documents=documents.count)
    return entry.name


def copies_of(
    documents: Documents, recipe: ExamplesRecipe, *, max_seq_length: int, copies: int
) -> Iterator[Copy]:
    """The copies of the examples of one file."""
    config = recipe.config
    pairing = PairingRule(max_seq_length, config.short_seq_prob, config.second_segment)
    masking = MaskingRule(
        config=config.masking,
        max_seq_length=max_seq_length,
        mask_id=recipe.mask_id,
        vocabulary_size=recipe.vocabulary_size,
        continuation_V=recipe.continuation_V,
    )
    # append [CLS] and [SEP] to the bucket's ids, where `framed_pairs` takes them from
    frame = np.array([recipe.cls_id, recipe.sep_id], dtype=documents.token_ids_T.dtype)
    framed_ids = np.concatenate([documents.token_ids_T, frame])
    groups = recipe.groups_of(documents)
    for copy in range(copies):
        # One stream of random numbers per length and copy, whatever the bucket.
        start = stream_seed(recipe.seed, "examples", max_seq_length, copy)
        ordered: list[Pairs] = []
        counts: list[Int64s] = []
        for own_D in groups:
            pairs = pair_segments(documents, rule=pairing, start=start, own_D=own_D)
            # Shuffled before masking, so that an example's place says nothing about its document.
            shuffled = pairs.rows(np.argsort(draw(pairs.stream_N, ORDER), kind="stable"))
            counts_E = np.ones(shuffled.count, dtype=np.int64)
            if config.pack_documents:
                # Two special tokens frame a segment, [CLS] and [SEP].
                order_N, counts_E = fill_examples(shuffled.a_length_N + 2, max_seq_length)
                shuffled = shuffled.rows(order_N)
            ordered.append(shuffled)
            counts.append(counts_E)
        every = ordered[0] if len(ordered) == 1 else Pairs.joined(ordered)
        # Arrow's lists have 32-bit offsets; three special tokens at most.
        if int((every.a_length_N + every.b_length_N + 3).sum()) >= 1 << 31:
            raise UsageError(
                f"a bucket yields more than {1 << 31:,} tokens, more than an Arrow list can hold; "
                "raise the number of buckets of the tokens stage"
            )
        batch, masks = _record_batch(every, framed_ids, rule=masking)
        if config.pack_documents:
            batch = packed_rows(batch, np.concatenate(counts))
        rows_G = np.array([len(counts_E) for counts_E in counts], dtype=np.int64)
        ends_N1 = batch.column("input_ids").offsets.to_numpy().astype(np.int64)
        yield Copy(
            batch,
            count_examples(batch, every.cut_N, masks, max_seq_length=max_seq_length),
            rows_G,
            np.diff(ends_N1[offsets_of(rows_G)]),
        )


def _record_batch(
    pairs: Pairs, framed_ids: TokenIds, *, rule: MaskingRule
) -> tuple[pa.RecordBatch, list[Masks]]:
    """The masked examples of one copy, and the masks of each block."""
    streams_N = draw(pairs.stream_N, MASKS)
    # so that an empty bucket has arrays of the right types
    nothing = np.zeros(0, dtype=np.int64)
    ids, lengths = [framed_ids[:0]], [nothing]
    masked: list[Masks] = []
    for begin in range(0, pairs.count, BLOCK_ROWS):
        rows = slice(begin, begin + BLOCK_ROWS)
        block = framed_pairs(pairs, rows, framed_ids)
        masked.append(mask_tokens(block, streams_N[rows], rule=rule))
        ids.append(block.input_ids)
        lengths.append(block.lengths_N)
    lengths_N = np.concatenate(lengths)
    masked_ends_N = np.cumsum(np.concatenate([nothing, *(part.counts_N for part in masked)]))
    positions_M = [np.zeros(0, dtype=np.uint16), *(part.positions_M for part in masked)]
    original_M = [framed_ids[:0], *(part.original_ids_M for part in masked)]
    schema = examples_schema(rule.vocabulary_size)
    columns = [
        list_array(np.concatenate(ids), np.cumsum(lengths_N), schema.field(0).type),
        # [CLS] and the first [SEP] belong to A.
        pa.array((pairs.a_length_N + 2).astype(np.uint16)),
        list_array(np.concatenate(positions_M), masked_ends_N, schema.field(2).type),
        list_array(np.concatenate(original_M), masked_ends_N, schema.field(3).type),
        pa.array(pairs.label_N),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=schema), masked


def framed_pairs(pairs: Pairs, rows: slice, framed_ids: TokenIds) -> Block:
    """Assemble [CLS] A [SEP] B [SEP], or [CLS] A [SEP] where there is no B."""
    # Every example is five pieces, each a run of consecutive ids in `framed_ids`: [CLS], A, [SEP],
    # B, [SEP]; without B, the last two are empty. So all examples of a block are one gather, and a
    # table of lengths and a table of first places say everything.
    a_length_N, b_length_N = pairs.a_length_N[rows], pairs.b_length_N[rows]
    cls_place = len(framed_ids) - 2
    pieces_N5 = np.ones((len(a_length_N), 5), dtype=np.int64)
    pieces_N5[:, 1] = a_length_N
    pieces_N5[:, 3] = b_length_N
    pieces_N5[:, 4] = b_length_N > 0
    sources_N5 = np.full_like(pieces_N5, cls_place + 1)
    sources_N5[:, 0] = cls_place
    sources_N5[:, 1] = pairs.a_start_N[rows]
    sources_N5[:, 3] = pairs.b_start_N[rows]
    piece_ends = np.cumsum(pieces_N5.ravel())
    # Within a piece, place in the result and place of the source advance together, so their
    # distance, the shift, is repeated for each of its tokens: source = own place + shift.
    shifts = sources_N5.ravel() - piece_ends + pieces_N5.ravel()
    places = np.repeat(shifts, pieces_N5.ravel())
    places += np.arange(len(places))
    return Block(
        input_ids=framed_ids.take(places, mode="clip"),
        offsets_N1=np.concatenate([[0], piece_ends[4::5]]),
        a_length_N=a_length_N,
        b_length_N=b_length_N,
    )


def fill_examples(lengths_N: Int64s, max_seq_length: int) -> tuple[Int64s, Int64s]:
    """Pack segments into examples: their order, (N,), and the number per example, (E,).

    Best-fit decreasing (Johnson 1974; Krell et al. 2022 for BERT): longest first, each segment goes
    to the example with the least sufficient room. Segments are not cut, so a document that fits
    into an example is never split; short segments fill the room that long ones leave. An example
    takes the place of its longest segment, so random order stays random.
    """
    # Invariant: bit r of `rooms` is set if and only if some example has room for exactly r more
    # tokens.
    longest_first_N = np.argsort(-lengths_N, kind="stable")
    example_of: list[int] = []
    examples_with_room: list[list[int]] = [[] for _ in range(max_seq_length + 1)]
    # an integer as the set of free lengths: after a shift, its lowest set bit is the best fit
    rooms = 0
    examples = 0
    for length in lengths_N[longest_first_N].tolist():
        enough = rooms >> length
        if enough:
            room = length + (enough & -enough).bit_length() - 1
            example = examples_with_room[room].pop()
            if not examples_with_room[room]:
                # that was the last example with this room
                rooms ^= 1 << room
        else:
            room, example = max_seq_length, examples
            examples += 1
        example_of.append(example)
        left = room - length
        if not examples_with_room[left]:
            # The first example with this room sets its bit.
            rooms |= 1 << left
        examples_with_room[left].append(example)
    # Longest first is an order that no training should see. An example's first segment is its
    # longest, and segments come in random order: the rank of that segment's row is the example's
    # place.
    example_N = np.array(example_of, dtype=np.int64)
    _, first_E = np.unique(example_N, return_index=True)
    rank_E = np.argsort(np.argsort(longest_first_N[first_E]))
    rank_N = rank_E[example_N]
    return longest_first_N[np.argsort(rank_N, kind="stable")], np.bincount(rank_N)


def packed_rows(batch: pa.RecordBatch, counts_E: Int64s) -> pa.RecordBatch:
    """Merge `counts_E` consecutive rows into one each, and add the document lengths."""
    rows_E1 = offsets_of(counts_E)
    ids, positions, originals = (batch.column(index) for index in (0, 2, 3))
    starts_N1, masked_starts_N1 = (lists.offsets.to_numpy() for lists in (ids, positions))
    # The rows already lie one after another, so ids stay where they are, and a merged row is only a
    # matter of which ends count. Masked positions count from the start of a row, so those of a
    # document advance by the lengths of the documents before it in its example.
    starts_E1 = starts_N1[rows_E1]
    before_N = starts_N1[:-1] - np.repeat(starts_E1[:-1], counts_E)
    moved_M = positions.values.to_numpy() + np.repeat(before_N, np.diff(masked_starts_N1))
    masked_ends_E = masked_starts_N1[rows_E1[1:]]
    schema = batch.schema.append(DOCUMENT_LENGTHS_FIELD)
    columns = [
        list_array(ids.values.to_numpy(), starts_E1[1:], ids.type),
        pa.array(np.diff(starts_E1).astype(np.uint16)),
        list_array(moved_M.astype(np.uint16), masked_ends_E, positions.type),
        list_array(originals.values.to_numpy(), masked_ends_E, originals.type),
        batch.column(4).take(pa.array(rows_E1[:-1])),
        list_array(np.diff(starts_N1).astype(np.uint32), rows_E1[1:], schema.field(5).type),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


if __name__ == "__main__":
    run_program(make_examples)
