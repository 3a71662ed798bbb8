"""Long texts in overlapping chunks (SQuAD; reference: run_squad.py:284-320, 722-754).

In:  lengths of questions and texts in tokens.
Out: which part of which text each sequence holds, and in which chunk each token has most context.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Int64 = NDArray[np.int64]

# N chunks, Q questions, P tokens of all chunks' texts together


@dataclass(frozen=True)
class Chunks:
    """N chunks, those of one question one after another."""

    question: Int64
    """[N] whose text it is."""

    start: Int64
    """[N] first token of the text."""

    length: Int64
    """[N] tokens of the text."""

    def __len__(self) -> int:
        return len(self.question)


def cut_texts(room_Q: Int64, lengths_Q: Int64, *, stride: int) -> Chunks:
    """Chunks of at most `room` tokens, one every `stride`; a text that fits is one chunk."""
    step_Q = np.minimum(stride, room_Q)
    more_Q = np.maximum(0, -(-(lengths_Q - room_Q) // step_Q))
    counts_Q = 1 + more_Q
    question = np.repeat(np.arange(len(room_Q)), counts_Q)
    number = np.arange(len(question)) - np.repeat(np.cumsum(counts_Q) - counts_Q, counts_Q)
    start = number * step_Q[question]
    return Chunks(question, start, np.minimum(room_Q[question], lengths_Q[question] - start))


def max_context(chunks: Chunks, lengths_Q: Int64) -> NDArray[np.bool_]:
    """[P] whether this chunk is where its token has most context on its poorer side.

    Ties go to the first chunk. In hundredths, as the reference adds 0.01 per token of length.
    """
    inside = np.arange(int(chunks.length.sum())) - np.repeat(
        np.cumsum(chunks.length) - chunks.length, chunks.length
    )
    length = np.repeat(chunks.length, chunks.length)
    score = 100 * np.minimum(inside, length - 1 - inside) + length
    first_of_question = np.cumsum(lengths_Q) - lengths_Q
    token = np.repeat(first_of_question[chunks.question] + chunks.start, chunks.length) + inside
    best = np.full(int(lengths_Q.sum()), -1, np.int64)
    np.maximum.at(best, token, score)
    candidates = np.flatnonzero(score == best[token])
    _, first = np.unique(token[candidates], return_index=True)
    chosen = np.zeros(len(token), np.bool_)
    chosen[candidates[first]] = True
    return chosen
