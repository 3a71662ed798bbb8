"""From start and end logits to an answer (SQuAD; reference: run_squad.py:722-914).

In:  logits of one chunk's tokens; the chunks of one question.
Out: `Answer`: the best span's text, and by how much "no answer" beats it.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Float32 = NDArray[np.float32]
Int64 = NDArray[np.int64]


@dataclass(frozen=True)
class ChunkSpans:
    """Valid spans of one chunk, in tokens of the question's text."""

    first: Int64
    last: Int64
    score: Float32
    null_score: float


@dataclass(frozen=True)
class Answer:
    """What a model says to one question."""

    first: int
    """First token of the best span in the text; -1: there is none."""

    last: int
    """Its last token."""

    margin: float
    """Null score minus the best span's: above the threshold the answer is ""."""


def chunk_spans(
    logits_S2: Float32,
    starts_allowed_S: NDArray[np.bool_],
    *,
    text: tuple[int, int, int],
    limits: tuple[int, int],
) -> ChunkSpans:
    """The spans among the `n_best` starts and ends of a chunk.

    `text`: place of the text's first token in the sequence, its number of tokens, and which token
    of the whole text the first one is. `limits`: n_best, longest answer.
    """
    offset, length, base = text
    n_best, longest = limits
    starts = np.argsort(-logits_S2[:, 0], kind="stable")[:n_best] - offset
    ends = np.argsort(-logits_S2[:, 1], kind="stable")[:n_best] - offset
    starts = starts[(starts >= 0) & (starts < length)]
    starts = starts[starts_allowed_S[starts]]
    ends = ends[(ends >= 0) & (ends < length)]
    first, last = np.repeat(starts, len(ends)), np.tile(ends, len(starts))
    valid = (first <= last) & (last - first < longest)
    first, last = first[valid], last[valid]
    score = logits_S2[first + offset, 0] + logits_S2[last + offset, 1]
    null = float(logits_S2[0, 0] + logits_S2[0, 1])
    return ChunkSpans(first + base, last + base, score, null)


def best_answer(chunks: list[ChunkSpans]) -> Answer:
    """The best span of all chunks, against the least null score of any chunk."""
    null = min(chunk.null_score for chunk in chunks)
    scores = np.concatenate([chunk.score for chunk in chunks])
    if not len(scores):
        return Answer(-1, -1, float("inf"))
    best = int(scores.argmax())
    first = np.concatenate([chunk.first for chunk in chunks])
    last = np.concatenate([chunk.last for chunk in chunks])
    return Answer(int(first[best]), int(last[best]), null - float(scores[best]))
