"""The first half of stage `tokens`: documents of a portion of the corpus, tokenised.

In:  a `Portion` of the corpus.
Out: tables of documents with their tokens (pipeline/shuffle/sorted_runs.py), of bounded size.
"""

import tempfile
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from artifacts.store import open_artifact
from artifacts.tables import TOKEN_DIGEST_BYTES
from artifacts.tokenizer import WordPieceTokenizer, read_tokenizer_json
from pipeline.config import TokensStage
from pipeline.readers.documents import Offsets
from pipeline.shuffle.input_shards import Portion
from pipeline.shuffle.sorted_runs import RUN_TOKENS, document_schema
from pipeline.shuffle.splits import assign_splits, halves, split_names
from pipeline.text.filters import Reason
from pipeline.text.lines import LINE_FEED
from pipeline.text.texts import Digests, TextBlock, read_texts
from pipeline.tokenizer.compiled import form_for

WORK = "work"
"""Folder of what only this stage needs, within the unfinished artifact."""


@dataclass(frozen=True)
class Job:
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

    @property
    def splits(self) -> int:
        """Number of splits."""
        return len(split_names(self.stage.corpus))

    def tokenizer(self) -> WordPieceTokenizer:
        """The tokenizer of the vocabulary artifact."""
        return read_tokenizer(self.vocabulary)


def read_tokenizer(directory: str) -> WordPieceTokenizer:
    """The tokenizer of the vocabulary artifact in `directory`."""
    with tempfile.TemporaryDirectory() as scratch:
        artifact = open_artifact(directory).stage_files(scratch, ["tokenizer.json"])
        return read_tokenizer_json(artifact.path("tokenizer.json"))


class Tokeniser:
    """A worker's own tokenizer, applied to portions of the corpus."""

    def __init__(self, job: Job) -> None:
        self._stage = job.stage
        tokenizer = job.tokenizer()
        self._wordpiece = form_for(tokenizer)
        self._schema = document_schema(tokenizer.size)

    def tables(self, portion: Portion) -> Iterator[pa.Table]:
        """The portion's documents in tables of about `RUN_TOKENS` tokens, at least one."""
        waiting: list[pa.RecordBatch] = []
        tokens = 0
        corpus, cleaning = self._stage.corpus, self._stage.cleaning
        for block in read_texts(portion, corpus=corpus, cleaning=cleaning):
            batch = self._documents(block, source=portion.source)
            if waiting and tokens + len(batch["token_ids"].values) > RUN_TOKENS:
                yield pa.Table.from_batches(waiting, self._schema)
                waiting, tokens = [], 0
            waiting.append(batch)
            tokens += len(batch["token_ids"].values)
        yield pa.Table.from_batches(waiting, self._schema)

    def _documents(self, block: TextBlock, *, source: int) -> pa.RecordBatch:
        """The documents of a block."""
        sentence_ends = np.flatnonzero(block.text == LINE_FEED) + 1
        ids, before = self._wordpiece.encode(block.text.tobytes(), sentence_ends)
        lengths = np.diff(before, prepend=0)
        told = lengths > 0  # sentences of nothing but characters the tokenizer leaves out
        last_sentence = np.searchsorted(sentence_ends, block.ends_D, side="right")
        token_ends = np.concatenate(([0], before))[last_sentence]
        sentence_ends_told = np.concatenate(([0], np.cumsum(told)))[last_sentence]
        reasons_D = block.reasons_D.copy()
        without = np.diff(token_ends, prepend=0) == 0
        reasons_D[without & (reasons_D == Reason.KEPT)] = Reason.NO_TOKENS
        keys_D2 = halves(block.digests)
        columns = [
            pa.array(keys_D2[:, 0]),
            _digests(block.digests),
            pa.array(np.full(len(keys_D2), source, dtype=np.uint16)),
            pa.array(block.files_D),
            pa.array(block.positions_D),
            pa.array(np.diff(block.ends_D, prepend=0).astype(np.uint32)),
            _lists(ids, token_ends),
            _lists(lengths[told].astype(np.uint32), sentence_ends_told),
            pa.array(
                assign_splits(
                    keys_D2, source=source, corpus=self._stage.corpus, seed=self._stage.seed
                )
            ),
            pa.array(reasons_D),
            pa.array(block.damaged_D),
        ]
        return pa.RecordBatch.from_arrays(columns, schema=self._schema)


def _digests(digests: Digests) -> pa.FixedSizeBinaryArray:
    data = pa.py_buffer(digests.tobytes())
    return pa.FixedSizeBinaryArray.from_buffers(
        pa.binary(TOKEN_DIGEST_BYTES), len(digests), [None, data]
    )


def _lists(values: npt.NDArray[np.unsignedinteger], ends: Offsets) -> pa.ListArray:
    offsets = np.concatenate(([0], ends)).astype(np.int32)
    return pa.ListArray.from_arrays(pa.array(offsets), pa.array(values))
