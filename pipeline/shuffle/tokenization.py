"""The first half of stage `tokens`: the documents of an input shard, tokenised.

In:  an input shard.
Out: tables of documents with their tokens (pipeline/shuffle/sorted_runs.py), of bounded size.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from artifacts.arrays import digest_array, list_array, offsets
from artifacts.store import open_artifact
from artifacts.tokenizer import read_tokenizer_json
from pipeline.config.stage_tables import TokensStage
from pipeline.readers.documents import InputShard
from pipeline.shuffle.sorted_runs import RUN_TOKENS, document_schema
from pipeline.text.cleaning import LINE_FEED
from pipeline.text.filters import Reason
from pipeline.text.texts import TextBlock, assign_splits, read_texts, split_names
from pipeline.tokenizer.byte_level import with_spaces
from pipeline.tokenizer.wordpiece import form_for


@dataclass(frozen=True)
class TokensJob:
    """What all workers of the stage share."""

    stage: TokensStage
    vocabulary: str
    """Directory of the vocabulary artifact."""
    output: str
    """The unfinished artifact."""
    scratch: str
    """Local directory on the disk of the artifact; empty: one of the worker's own."""
    vocabulary_size: int
    """Number of word-pieces."""
    unk_id: int
    """Id of [UNK]."""
    tokenizer_files: tuple[str, ...]
    """Names of the vocabulary's files that go along with the tokens."""

    @property
    def splits(self) -> int:
        """Number of splits."""
        return len(split_names(self.stage.corpus))


class ShardTokenizer:
    """A worker's own tokenizer, applied to input shards."""

    def __init__(self, job: TokensJob) -> None:
        self._stage = job.stage
        tokenizer = read_tokenizer_json(open_artifact(job.vocabulary).path("tokenizer.json"))
        self._form, self._spaces_count = form_for(tokenizer), tokenizer.spaces_count
        self._schema = document_schema(tokenizer.size)

    def tables(self, shard: InputShard) -> Iterator[pa.Table]:
        """The shard's documents in tables of about `RUN_TOKENS` tokens, at least one."""
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
        # S sentences, D documents
        ends_S = np.flatnonzero(block.text == LINE_FEED) + 1
        sentences_D = np.searchsorted(ends_S, block.ends_D, side="right")
        text = block.text
        if self._spaces_count:
            text, ends_S = with_spaces(text, ends_S, block.ends_D)
        ids, token_ends_S = self._form.encode(text.tobytes(), ends_S)
        lengths_S = np.diff(token_ends_S, prepend=0)
        kept_S = lengths_S > 0  # others have nothing but characters the tokenizer leaves out
        token_ends_D = np.concatenate(([0], token_ends_S))[sentences_D]
        reasons_D = block.reasons_D.copy()
        without_D = np.diff(token_ends_D, prepend=0) == 0
        reasons_D[without_D & (reasons_D == Reason.KEPT)] = Reason.NO_TOKENS
        splits_D = assign_splits(block, corpus=self._stage.corpus, seed=self._stage.seed)
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
