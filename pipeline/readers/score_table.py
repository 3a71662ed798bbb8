"""The scores of documents, which the stage `scores` has made, by digest.

In:  its artifact; digests of documents.
Out: the score of each, and which documents `cleaning.keep` drops.

The table is read where it lies, through a memory map: a worker holds the first digest of each batch
of it, not the table.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from cloze.artifacts.arrays import Bytes, Mask
from cloze.artifacts.errors import UsageError
from cloze.artifacts.store import open_artifact
from cloze.artifacts.tables import SCORE_COUNTS_NAME, SCORES_NAME, TOKEN_DIGEST_BYTES
from cloze.pipeline.config.keep import Keep
from cloze.pipeline.config.settings import (
    ScoresStage,
)

Float32s = npt.NDArray[np.float32]

# D documents, B batches


@dataclass(frozen=True)
class ScoreTable:
    """The scores of a corpus."""

    directory: str
    batches: tuple[pa.RecordBatch, ...]
    firsts_B: npt.NDArray[np.bytes_]
    """The first digest of each batch."""
    counts: Mapping[int, tuple[Float32s, npt.NDArray[np.int64]]]
    """Of each source the ascending scores of its documents, and how many have each."""

    def find(self, digests_D16: Bytes) -> tuple[Float32s, Mask]:
        """The score of each document, NaN where there is none; and whether it is held out."""
        digests_D = _scalars(digests_D16)
        scores_D = np.full(len(digests_D), np.nan, dtype=np.float32)
        held_out_D = np.zeros(len(digests_D), dtype=np.bool_)
        order = np.argsort(digests_D)
        # The batch that a digest would be in is the last one that begins at or before it.
        places = np.searchsorted(self.firsts_B, digests_D[order], side="right") - 1
        cuts = np.flatnonzero(np.diff(places, prepend=-2, append=len(self.batches)))
        for begin, end in pairwise(cuts.tolist()):
            if places[begin] < 0:
                continue
            batch, which = self.batches[places[begin]], order[begin:end]
            known = _scalars(_batch_digests(batch))
            rows = np.minimum(np.searchsorted(known, digests_D[which]), len(known) - 1)
            found = known[rows] == digests_D[which]
            scores_D[which[found]] = batch["score"].to_numpy()[rows[found]]
            held_out = batch["is_held_out"].to_numpy(zero_copy_only=False)
            held_out_D[which[found]] = held_out[rows[found]]
        return scores_D, held_out_D

    def least(self, source: int, keep: str) -> float:
        """The smallest score of a document of `source` that is kept."""
        wanted = Keep.of(keep)
        if wanted.least is not None:
            return wanted.least
        assert wanted.share is not None
        scores, documents = self.counts.get(source, (np.zeros(0, np.float32), np.zeros(0, int)))
        if not len(scores):
            return 0.0
        # The smallest score from which on there are at least so many documents: equal scores are
        # kept or dropped together, so a few more than the share may be kept.
        from_here = np.cumsum(documents[::-1])[::-1]
        kept = np.flatnonzero(from_here >= round(wanted.share * from_here[0]))
        return float(scores[kept[-1]])

    def drops(self, digests_D16: Bytes, *, source: int, keep: str) -> Mask:
        """Which documents of `source` have too low a score.

        Raises `UsageError` for a document without a score, and if no source would have any left.
        """
        # A threshold above all scores is found out at the first documents, not when all have been
        # dropped.
        self._require_some(keep)
        scores_D, held_out_D = self.find(digests_D16)
        if np.isnan(scores_D).any():
            digest = digests_D16[int(np.argmax(np.isnan(scores_D)))].tobytes().hex()
            raise UsageError(
                f"{self.directory}: no score for document {digest} of corpus.sources.{source}; it "
                "was made of another corpus, or with other rules in [cleaning]: make one with "
                "`cloze scores`, or leave cleaning.scores empty"
            )
        # Rounded as the scores are, or a score of just this value would be below it.
        least = np.float32(self.least(source, keep))
        dropped: Mask = (scores_D < least) & ~held_out_D
        return dropped

    def _require_some(self, keep: str) -> None:
        # Held-out documents would be left, of which the stages would then train on one.
        best = {source: scores[-1] for source, (scores, _) in self.counts.items()}
        if any(score >= np.float32(self.least(source, keep)) for source, score in best.items()):
            return
        found = ", ".join(f"corpus.sources.{source} {score:.4g}" for source, score in best.items())
        raise UsageError(
            f"cleaning.keep = {keep!r}: no document has such a score; the best ones have "
            f'{found or "none"}: lower it, or keep a share, as in "best 50%"'
        )


@lru_cache(maxsize=2)
def read_scores(directory: str) -> ScoreTable:
    """Open the scores of an artifact directory; raises `UsageError` if it holds none."""
    if not directory:
        raise UsageError(
            "cleaning.keep: no scores are given; set cleaning.scores to the artifact that `cloze "
            "scores` makes"
        )
    artifact = open_artifact(directory)
    if artifact.manifest.stage != ScoresStage.stage:
        raise UsageError(
            f"{directory}: made by the stage {artifact.manifest.stage}, expected scores; set "
            "cleaning.scores to the directory of one, or leave it empty"
        )
    batches = _batches(artifact.path(SCORES_NAME))
    # The batches are ascending: their first digests tell in which one a document would be, and the
    # rest of the file stays on disk.
    firsts = [_batch_digests(batch)[:1] for batch in batches]
    counts = pa.Table.from_batches(_batches(artifact.path(SCORE_COUNTS_NAME)))
    columns = [counts[name].to_numpy() for name in ("source", "score", "documents")]
    of_source = {
        number: (columns[1][columns[0] == number], columns[2][columns[0] == number])
        for number in np.unique(columns[0]).tolist()
    }
    return ScoreTable(directory, batches, _scalars(np.concatenate(firsts)), of_source)


def _batches(path: str) -> tuple[pa.RecordBatch, ...]:
    # Not closed: the batches are views of it.
    file = pa.ipc.open_file(pa.memory_map(path))
    return tuple(file.get_batch(index) for index in range(file.num_record_batches))


def _batch_digests(batch: pa.RecordBatch) -> Bytes:
    data = np.frombuffer(batch["document_digest"].buffers()[1], dtype=np.uint8)
    return data[: batch.num_rows * TOKEN_DIGEST_BYTES].reshape(-1, TOKEN_DIGEST_BYTES)


def _scalars(digests_D16: Bytes) -> npt.NDArray[np.bytes_]:
    # Strings of one length: zeros at the end, which NumPy ignores, make no two of them equal.
    rows = np.ascontiguousarray(digests_D16).view(f"S{TOKEN_DIGEST_BYTES}")
    return rows.ravel()
