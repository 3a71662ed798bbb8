"""What a worker of stage `unwanted` finds out about each document by itself.

In:  a portion of the corpus.
Out: one Arrow file: for each document that is not dropped anyway its digest, how much it is
     preferred, whether it overlaps with evaluation data, its bands (near_duplicates.py).
"""

import os
import tempfile
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from artifacts.filesystem import naming_full_disk
from artifacts.rng import UInt64s
from artifacts.store import put_file
from artifacts.tables import TOKEN_DIGEST_BYTES
from pipeline.config import UnwantedStage
from pipeline.duplicates.evaluation_text import evaluation_passages, overlapping
from pipeline.duplicates.near_duplicates import band_keys, bands_for
from pipeline.duplicates.shingles import passages
from pipeline.runner.work_queue import Crew
from pipeline.shuffle.input_shards import MEGABYTE, Portion
from pipeline.shuffle.splits import HELDOUT_SPLIT, assign_splits, halves, split_names
from pipeline.shuffle.tokenise import WORK
from pipeline.text.filters import Reason
from pipeline.text.texts import TextBlock, read_texts


@dataclass(frozen=True)
class Search:
    """What all workers of the stage share."""

    stage: UnwantedStage
    output: str
    """The unfinished artifact."""

    @property
    def schema(self) -> pa.Schema:
        """Of the files of candidates."""
        return pa.schema(
            [
                pa.field("document_digest", pa.binary(TOKEN_DIGEST_BYTES)),
                pa.field("preference", pa.uint16()),
                pa.field("source", pa.uint16()),
                pa.field("overlaps", pa.bool_()),
                pa.field("bands", pa.list_(pa.uint64(), self.bands)),
            ]
        )

    @property
    def bands(self) -> int:
        """Bands of each document; one, of nothing, if near-duplicates are not looked for."""
        near = self.stage.unwanted.near_duplicates
        return bands_for(near).count if near else 1


def candidates_name(portion: Portion) -> str:
    """The file of a portion's candidates, within the artifact."""
    return f"{WORK}/{portion.name}.arrow"


def write_candidates(portion: Portion, *, search: Search, crew: Crew) -> str:
    """Put a portion's candidates into the artifact; returns their file's name."""
    documents = 0
    stage = search.stage
    with tempfile.TemporaryDirectory() as scratch, naming_full_disk(scratch):
        path = os.path.join(scratch, "candidates.arrow")
        with pa.OSFile(path, "wb") as sink, pa.ipc.new_file(sink, search.schema) as writer:
            for block in read_texts(portion, corpus=stage.corpus, cleaning=stage.cleaning):
                documents += len(block.ends_D)
                writer.write_batch(_candidates(block, search, source=portion.source))
        put_file(search.output, path, name=candidates_name(portion))
    crew.report(MB=portion.size / MEGABYTE, documents=documents)
    return candidates_name(portion)


def _candidates(block: TextBlock, search: Search, *, source: int) -> pa.RecordBatch:
    kept = np.flatnonzero(block.reasons_D == Reason.KEPT)
    keys_DB = _bands(block, search)[kept]
    digests = [digest.tobytes() for digest in block.digests[kept]]
    schema = search.schema
    return pa.RecordBatch.from_arrays(
        [
            pa.array(digests, schema.field("document_digest").type),
            pa.array(_preferences(block, search.stage, source=source)[kept]),
            pa.array(np.full(len(kept), source, dtype=np.uint16)),
            pa.array(_overlaps(block, search)[kept]),
            pa.FixedSizeListArray.from_arrays(
                pa.array(keys_DB.ravel()), type=schema.field("bands").type
            ),
        ],
        schema=schema,
    )


def _bands(block: TextBlock, search: Search) -> UInt64s:
    """(D, B): the keys of each document's bands."""
    near = search.stage.unwanted.near_duplicates
    if near is None:
        return np.zeros((len(block.ends_D), search.bands), dtype=np.uint64)
    found = passages(block.text, block.ends_D, words=near.words)
    return band_keys(found, len(block.ends_D), near)


def _overlaps(block: TextBlock, search: Search) -> npt.NDArray[np.bool_]:
    overlap = search.stage.unwanted.overlap
    if overlap is None:
        return np.zeros(len(block.ends_D), dtype=np.bool_)
    found = passages(block.text, block.ends_D, words=overlap.words)
    return overlapping(found, len(block.ends_D), evaluation_passages(overlap))


def _preferences(block: TextBlock, stage: UnwantedStage, *, source: int) -> npt.NDArray[np.uint16]:
    """A smaller number for documents that rather stay: those held out, first the named."""
    digests_D2 = halves(block.digests)
    splits_D = assign_splits(digests_D2, source=source, corpus=stage.corpus, seed=stage.seed)
    count, splits_D = len(split_names(stage.corpus)), splits_D.astype(np.uint16)
    named = splits_D > HELDOUT_SPLIT
    return np.where(named, splits_D - HELDOUT_SPLIT - 1, count - 1 - splits_D).astype(np.uint16)
