"""Sorted runs: an input shard's documents, tokenised and sorted by digest.

In:  an input shard; later, the rows of a bucket from all runs.
Out: tables of tokenised documents of bounded size, each sorted by digest and deduplicated, with the
     documents dropped so far and counts; the distinct documents of a bucket, and the others.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from artifacts.arrays import (
    Int64s,
    digest_array,
    digest_bytes,
    digest_halves,
    is_first_of_equals,
    list_array,
    offsets,
)
from artifacts.store import open_artifact
from artifacts.tables import TOKEN_DIGEST_BYTES, id_type
from artifacts.tokenizer import read_tokenizer_json
from pipeline.readers.input_shards import InputShard
from pipeline.shuffle.buckets import TokensJob
from pipeline.text.cleaning import LINE_FEED
from pipeline.text.duplicates import read_drop_list
from pipeline.text.filters import Reason, Reasons
from pipeline.text.splits import assign_splits
from pipeline.text.texts import TextBlock, read_texts
from pipeline.tokenizer.byte_level import with_spaces
from pipeline.tokenizer.wordpiece import form_for

# S sentences, D documents
KEY = "key"
"""Column with the first half of the digest as an integer, which sorts like the digest."""

IDENTITY = ("key", "document_digest", "source", "file", "position")
"""Columns that identify a document, and decide which of two equal ones comes first."""

PASSING = ("split", "reason", "damaged", "converted")
"""Columns needed only until a run is written."""

RUN_TOKENS = 1 << 24
"""Approximate number of tokens in a run, which a worker holds in memory, sorts and writes."""


ROWS_SCHEMA = pa.schema(
    [
        pa.field("document_digest", pa.binary(TOKEN_DIGEST_BYTES)),
        pa.field("source", pa.uint16()),
        pa.field("file", pa.uint32()),
        pa.field("position", pa.int64()),
        pa.field("reason", pa.uint8()),
    ]
)
"""Schema of the intermediate lists, which refer to files and reasons by number."""


def document_schema(vocabulary_size: int) -> pa.Schema:
    """Columns of tokenised documents."""
    return pa.schema(
        [
            pa.field(KEY, pa.uint64()),
            pa.field("document_digest", pa.binary(TOKEN_DIGEST_BYTES)),
            pa.field("source", pa.uint16()),
            pa.field("file", pa.uint32()),
            pa.field("position", pa.int64()),
            pa.field("text_bytes", pa.uint32()),
            pa.field("token_ids", pa.list_(id_type(vocabulary_size))),
            pa.field("sentence_lengths", pa.list_(pa.uint32())),
            pa.field("split", pa.uint8()),
            pa.field("reason", pa.uint8()),
            pa.field("damaged", pa.bool_()),
            pa.field("converted", pa.bool_()),
        ]
    )


class ShardTokenizer:
    """One worker's tokenizer, applied to input shards."""

    def __init__(self, job: TokensJob) -> None:
        self._stage = job.stage
        tokenizer = read_tokenizer_json(open_artifact(job.vocabulary).path("tokenizer.json"))
        self._form, self._spaces_count = form_for(tokenizer), tokenizer.spaces_count
        self._schema = document_schema(tokenizer.size)

    def tables(self, shard: InputShard) -> Iterator[pa.Table]:
        """The shard's documents in one or more tables of about `RUN_TOKENS` tokens."""
        waiting: list[pa.RecordBatch] = []
        tokens = 0
        corpus, cleaning = self._stage.corpus, self._stage.cleaning
        for block in read_texts(shard, corpus=corpus, cleaning=cleaning):
            batch = self.documents(block)
            if waiting and tokens + len(batch["token_ids"].values) > RUN_TOKENS:
                yield pa.Table.from_batches(waiting, self._schema)
                waiting, tokens = [], 0
            waiting.append(batch)
            tokens += len(batch["token_ids"].values)
        yield pa.Table.from_batches(waiting, self._schema)

    def documents(self, block: TextBlock) -> pa.RecordBatch:
        """The documents of a block, as rows of `document_schema`."""
        ends_S = np.flatnonzero(block.text == LINE_FEED) + 1
        sentences_D = np.searchsorted(ends_S, block.ends_D, side="right")
        text = block.text
        if self._spaces_count:
            text, ends_S = with_spaces(text, ends_S, block.ends_D)
        ids, token_ends_S = self._form.encode(text.tobytes(), ends_S)
        lengths_S = np.diff(token_ends_S, prepend=0)
        kept_S = lengths_S > 0  # the tokenizer drops some characters, so a sentence may be empty
        token_ends_D = np.concatenate(([0], token_ends_S))[sentences_D]
        reasons_D = block.reasons_D.copy()
        without_D = np.diff(token_ends_D, prepend=0) == 0
        reasons_D[without_D & (reasons_D == Reason.KEPT)] = Reason.NO_TOKENS
        splits_D = assign_splits(
            block.digests_D2, source=block.source, corpus=self._stage.corpus, seed=self._stage.seed
        )
        sentences_before_S1 = offsets(kept_S.astype(np.int64))
        columns = [
            pa.array(block.digests_D2[:, 0]),
            digest_array(block.digests),
            pa.array(np.full(len(block.digests), block.source, dtype=np.uint16)),
            pa.array(block.files_D),
            pa.array(block.positions_D),
            pa.array(np.diff(block.ends_D, prepend=0).astype(np.uint32)),
            list_array(ids, token_ends_D),
            list_array(lengths_S[kept_S].astype(np.uint32), sentences_before_S1[sentences_D]),
            pa.array(splits_D),
            pa.array(reasons_D),
            pa.array(block.damaged_D),
            pa.array(block.converted_D),
        ]
        return pa.RecordBatch.from_arrays(columns, schema=self._schema)


@dataclass(frozen=True)
class DocumentCounts:
    """Counts of documents read, which can be added up."""

    documents: int = 0
    damaged: int = 0
    """Documents with bytes that are not UTF-8, kept or not."""
    converted: int = 0
    """Documents from files detected to be in another encoding."""
    dropped: dict[str, int] = field(default_factory=dict)
    """Documents dropped so far, by reason."""

    def __add__(self, other: "DocumentCounts") -> "DocumentCounts":
        dropped = Counter(self.dropped) + Counter(other.dropped)
        return DocumentCounts(
            self.documents + other.documents,
            self.damaged + other.damaged,
            self.converted + other.converted,
            dict(dropped),
        )


@dataclass(frozen=True)
class SortedRun:
    """Documents sorted by digest and deduplicated within each split; and those dropped."""

    by_split: tuple[pa.Table, ...]
    """The kept rows of each split, without the `PASSING` columns."""
    dropped: pa.Table
    """Rows of `ROWS_SCHEMA`."""
    counts: DocumentCounts
    """Counts over all documents of the run."""


def dropped_rows(documents: pa.Table, which: Int64s, reasons: Reasons) -> pa.Table:
    """The rows `which` of `documents` as an intermediate list."""
    names = [name for name in ROWS_SCHEMA.names if name != "reason"]
    rows = documents.select(names).take(pa.array(which))
    return rows.append_column("reason", pa.array(reasons)).cast(ROWS_SCHEMA)


def sort_run(documents: pa.Table, *, splits: int) -> SortedRun:
    """Sort and deduplicate documents of `document_schema`."""
    documents = documents.combine_chunks()
    digests_D2 = digest_halves(digest_bytes(documents["document_digest"]))
    splits_D = documents["split"].to_numpy()
    names = [documents[name].to_numpy() for name in ("position", "file", "source")]
    order = np.lexsort((*names, splits_D, digests_D2[:, 1], digests_D2[:, 0]))
    reasons_D = documents["reason"].to_numpy().copy()
    # Equal texts are dropped for equal reasons, so either the first is kept or none.
    equal = ~is_first_of_equals(digests_D2[order])
    equal[1:] &= splits_D[order[1:]] == splits_D[order[:-1]]
    repeated = order[equal]
    reasons_D[repeated[reasons_D[repeated] == Reason.KEPT]] = Reason.DUPLICATE
    kept = order[reasons_D[order] == Reason.KEPT]
    lost = order[reasons_D[order] != Reason.KEPT]
    rows = documents.drop_columns(list(PASSING))
    by_split = tuple(rows.take(pa.array(kept[splits_D[kept] == split])) for split in range(splits))
    counts = Counter(Reason(reason).name.lower() for reason in reasons_D[lost].tolist())
    damaged, converted = (pc.sum(documents[name]).as_py() or 0 for name in PASSING[2:])
    return SortedRun(
        by_split,
        dropped_rows(documents, lost, reasons_D[lost]),
        DocumentCounts(len(documents), damaged, converted, dict(counts)),
    )


def deduplicate(
    own: pa.Table, stronger: Sequence[pa.Table], *, drop_list: str
) -> tuple[pa.Table, pa.Table]:
    """A bucket's documents sorted by digest, each once; and the dropped ones.

    own: the bucket's rows, in any order. stronger: for each split that takes precedence over this
    one, strongest first, the identities of the rows in the same range of digests. drop_list: the
    directory of a drop list, or empty.
    """
    identity = pa.concat_tables([*stronger, own.select(IDENTITY)]).combine_chunks()
    strength = np.repeat(np.arange(len(stronger) + 1), [*map(len, stronger), len(own)])
    digests_D2 = digest_halves(digest_bytes(identity["document_digest"]))
    names = [identity[name].to_numpy() for name in ("position", "file", "source")]
    order = np.lexsort((*names, strength, digests_D2[:, 1], digests_D2[:, 0]))
    # the first of equal documents wins
    first = is_first_of_equals(digests_D2[order])
    winners = order[np.maximum.accumulate(np.where(first, np.arange(len(order)), 0))]
    reasons = np.full(len(order), Reason.KEPT, dtype=np.uint8)
    reasons[read_drop_list(drop_list).holds(digests_D2[order])] = Reason.DROP_LIST
    reasons[winners != order] = Reason.DUPLICATE
    reasons[strength[winners] < strength[order]] = Reason.HELD_OUT
    ours = strength[order] == len(stronger)
    kept: Int64s = order[ours & (reasons == Reason.KEPT)] - (len(identity) - len(own))
    lost = ours & (reasons != Reason.KEPT)
    return own.take(pa.array(kept)), dropped_rows(identity, order[lost], reasons[lost])
