"""Tokenised documents: the table that tokenising hands to the shuffle.

In:  an input shard.
Out: tables of bounded size with a row for each document: its token ids, the digest and place that
     identify it, its split, and the reason if it is dropped.
"""

from collections.abc import Iterator

import numpy as np
import pyarrow as pa

from cloze.artifacts.arrays import digest_array, list_array, offsets_of
from cloze.artifacts.store import open_artifact
from cloze.artifacts.tables import TOKEN_DIGEST_BYTES, id_type
from cloze.artifacts.tokenizer import read_tokenizer_json
from cloze.pipeline.config.settings import TokensStage
from cloze.pipeline.readers.input_shards import InputShard
from cloze.pipeline.text.cleaning import LINE_FEED
from cloze.pipeline.text.filters import Reason
from cloze.pipeline.text.splits import assign_splits
from cloze.pipeline.text.texts import EDITS, TextBlock, read_texts
from cloze.pipeline.tokenizer.running_text import RunningText
from cloze.pipeline.tokenizer.wordpiece import form_for

# S sentences, D documents
KEY = "key"
"""Column with the first half of the digest as an integer, which sorts like the digest."""

IDENTITY = ("key", "document_digest", "source", "file", "position")
"""Columns that identify a document, and decide which of two equal ones comes first."""

PASSING = ("split", "reason", "damaged", "converted", "edits")
"""Columns needed only until a run is written."""

RUN_TOKENS = 1 << 24
"""Approximate number of tokens in a run, which a worker holds in memory, sorts and writes."""


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
            pa.field("edits", pa.list_(pa.uint32(), len(EDITS))),
        ]
    )


class ShardTokenizer:
    """One worker's tokenizer, applied to input shards; `vocabulary` is an artifact's directory."""

    def __init__(self, stage: TokensStage, vocabulary: str) -> None:
        self._stage = stage
        tokenizer = read_tokenizer_json(open_artifact(vocabulary).path("tokenizer.json"))
        self._form = form_for(tokenizer)
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
        # Sentences end after line feeds; the number of sentences up to each document's end.
        ends_S = np.flatnonzero(block.text == LINE_FEED) + 1
        sentences_D = np.searchsorted(ends_S, block.ends_D, side="right")
        if isinstance(self._form, RunningText):
            ids, token_ends_S = self._form.encode(block.text, ends_S, block.ends_D, block.glued)
        else:
            ids, token_ends_S = self._form.encode(block.text.tobytes(), ends_S)
        lengths_S = np.diff(token_ends_S, prepend=0)
        kept_S = lengths_S > 0  # the tokenizer drops some characters, so a sentence may be empty
        token_ends_D = np.concatenate(([0], token_ends_S))[sentences_D]
        reasons_D = block.reasons_D.copy()
        # A document without tokens would be an empty row; it is listed as dropped instead.
        without_D = np.diff(token_ends_D, prepend=0) == 0
        reasons_D[without_D & (reasons_D == Reason.KEPT)] = Reason.NO_TOKENS
        splits_D = assign_splits(
            block.digests_D2, source=block.source, corpus=self._stage.corpus, seed=self._stage.seed
        )
        # Sentences that remain before each sentence, and so the bounds of each document's.
        sentences_before_S1 = offsets_of(kept_S.astype(np.int64))
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
            pa.FixedSizeListArray.from_arrays(pa.array(block.edits_DE.ravel()), len(EDITS)),
        ]
        return pa.RecordBatch.from_arrays(columns, schema=self._schema)
