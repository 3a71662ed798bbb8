"""A sample of the training documents, drawn by digest.

In:  the portions of the corpus.
Out: the texts of the documents whose digests come first in an order of their own, until there
     are enough bytes: the same documents however the corpus is cut, each once, no held-out one.

A worker keeps the candidates of its portion, those below a limit that the size of the corpus
suggests; the launcher then takes the first of all candidates. Only if the limit proves too low, a
second round is needed.
"""

import os
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from artifacts import filesystem
from artifacts.filesystem import naming_full_disk
from artifacts.rng import UInt64s, document_streams, stream_seed
from artifacts.tables import TOKEN_DIGEST_BYTES
from pipeline.config import CleaningConfig, CorpusConfig
from pipeline.duplicates.drop_list import DropList
from pipeline.readers.documents import Offsets
from pipeline.shuffle.input_shards import Portion
from pipeline.shuffle.splits import (
    HELDOUT_SPLIT,
    TRAIN_SPLIT,
    assign_splits,
    digest_bytes,
    halves,
)
from pipeline.text.filters import Reason
from pipeline.text.texts import TextBlock, read_texts

SCHEMA = pa.schema(
    [
        pa.field("rank", pa.uint64()),
        pa.field("document_digest", pa.binary(TOKEN_DIGEST_BYTES)),
        pa.field("trains", pa.bool_()),
        pa.field("text", pa.large_binary()),
    ]
)


@dataclass(frozen=True)
class Sampling:
    """What decides who is a candidate."""

    corpus: CorpusConfig
    cleaning: CleaningConfig
    seed: int
    limit: int
    """Documents with a rank below it are candidates; 2**64 takes all."""


def sample_limit(wanted_bytes: int, corpus_bytes: int) -> int:
    """A limit with room: compressed files hold more text than bytes, markup less."""
    share = 4 * wanted_bytes / max(corpus_bytes, 1)
    return 1 << 64 if share >= 1 else int(share * 2.0**64)


def write_candidates(path: str, portion: Portion, sampling: Sampling) -> int:
    """Write the candidates of a portion, to a path or URL; returns how many documents it holds."""
    documents = 0
    beside = filesystem.local_path(os.path.dirname(path)) if filesystem.is_local(path) else None
    with tempfile.TemporaryDirectory(dir=beside) as scratch, naming_full_disk(scratch):
        local = os.path.join(scratch, "candidates.arrow")
        with pa.OSFile(local, "wb") as sink, pa.ipc.new_file(sink, SCHEMA) as writer:
            for block in read_texts(portion, corpus=sampling.corpus, cleaning=sampling.cleaning):
                documents += len(block.reasons_D)
                writer.write_batch(_candidates(block, sampling, source=portion.source))
        filesystem.put_file(local, path)
    return documents


def ranks_of(digests_D2: UInt64s, *, seed: int) -> UInt64s:
    """Each document's place in the order of sampling; equal documents have equal ranks."""
    return document_streams(digests_D2, stream_seed(seed, "vocabulary"))


def draw_sample(paths: Sequence[str], *, wanted_bytes: int, drop_list: DropList) -> Iterator[bytes]:
    """The sample's texts from the files of candidates, joined to a text for each file."""
    tables = [_read(path) for path in paths]
    chosen = _first(pa.concat_tables(tables), wanted_bytes, drop_list)
    start = 0
    for table in tables:
        mine = chosen[(chosen >= start) & (chosen < start + len(table))] - start
        start += len(table)
        yield b"".join(table["text"].take(pa.array(np.sort(mine))).to_pylist())


def candidate_bytes(paths: Sequence[str]) -> int:
    """Text of all candidates."""
    lengths = (pc.binary_length(_read(path)["text"]) for path in paths)
    return sum(pc.sum(length).as_py() or 0 for length in lengths)


def _candidates(block: TextBlock, sampling: Sampling, *, source: int) -> pa.RecordBatch:
    """Training documents below the limit with their text, documents of held-out sources without."""
    keys_D2 = halves(block.digests)
    splits = assign_splits(keys_D2, source=source, corpus=sampling.corpus, seed=sampling.seed)
    ranks = ranks_of(keys_D2, seed=sampling.seed)
    wanted = (block.reasons_D == Reason.KEPT) & (splits != HELDOUT_SPLIT)
    if sampling.limit < 1 << 64:
        wanted &= ranks < np.uint64(sampling.limit)
    which = np.flatnonzero(wanted)
    trains = splits[which] == TRAIN_SPLIT
    starts = block.ends_D - np.diff(block.ends_D, prepend=0)
    bounds = zip(starts[which].tolist(), block.ends_D[which].tolist(), trains.tolist(), strict=True)
    raw = block.text.tobytes()
    texts = [raw[start:end] if train else b"" for start, end, train in bounds]
    digests = [digest.tobytes() for digest in block.digests[which]]
    return pa.RecordBatch.from_arrays(
        [
            pa.array(ranks[which]),
            pa.array(digests, SCHEMA.field("document_digest").type),
            pa.array(trains),
            pa.array(texts, pa.large_binary()),
        ],
        schema=SCHEMA,
    )


def _first(candidates: pa.Table, wanted_bytes: int, drop_list: DropList) -> Offsets:
    """The rows of the sample: in order of rank until there are enough bytes, at least one."""
    identity = halves(digest_bytes(candidates["document_digest"]))
    ranks, trains = candidates["rank"].to_numpy(), candidates["trains"].to_numpy()
    order = np.lexsort((trains, identity[:, 1], identity[:, 0], ranks))  # held-out ones first
    sorted_D2 = identity[order]
    first = np.ones(len(order), dtype=np.bool_)
    first[1:] = np.any(sorted_D2[1:] != sorted_D2[:-1], axis=1)
    once = order[first & trains[order] & ~drop_list.holds(sorted_D2)]
    sizes = pc.binary_length(candidates["text"]).to_numpy()[once]
    before = np.cumsum(sizes) - sizes
    sample: Offsets = once[before < wanted_bytes]
    return sample


def _read(path: str) -> pa.Table:
    with pa.memory_map(path) as file:
        return pa.ipc.open_file(file).read_all()
