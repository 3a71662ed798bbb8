"""The stage tokens → word vectors: what each word-piece's neighbours say of it, as a program.

In:  a stage table (`python -P -m cloze.model.data.word_vectors --config TABLE`); the training
     split of a `tokens` artifact.
Out: word_vectors.safetensors: `vectors`, float32, one row per word-piece, with a mean square of 1;
     rows of word-pieces that the text lacks, such as [MASK], are zero.

Vectors are those of Levy, Goldberg and Dagan (2015): positive pointwise mutual information with the
word-pieces within a window, and its largest singular vectors, weighted by the roots of their
values. Pre-training that begins with them need not spend its first steps on which words are alike.
"""

import numpy as np
from numpy.typing import NDArray
from pydantic import JsonValue
from safetensors.numpy import load, save
from threadpoolctl import threadpool_limits

from cloze.artifacts.config import parse
from cloze.artifacts.errors import IntegrityError, UsageError
from cloze.artifacts.progress import Progress
from cloze.artifacts.runtime.program import run_program
from cloze.artifacts.stage import StageTable
from cloze.artifacts.store import Artifact, commit, open_input, put_bytes
from cloze.model.config import MOST_COUNTED_TOKENS, WordVectorsStage, contexts_of
from cloze.model.data.documents import training_batches, training_frequencies

NAME = "word_vectors.safetensors"

SMOOTHING = 0.75
"""Power of the frequency of a context (Levy et al. 2015, 3.1): PMI favours rare ones."""

ROWS = 256
"""Rows of the matrix converted at a time."""

Floats = NDArray[np.float32]
Counts = NDArray[np.uint32]
Int64 = NDArray[np.int64]

# V vocabulary, C contexts, H width, T tokens


def make_word_vectors(table: StageTable, engine_options: list[str]) -> Artifact:
    """Run the stage."""
    stage = parse(WordVectorsStage, table.config, source="stage table")
    tokens = open_input(table, "tokens")
    frequencies = training_frequencies(tokens)
    if stage.width >= len(frequencies):
        raise UsageError(
            f"[word_vectors]: vectors of {stage.width} numbers (encoder.hidden_size) for a "
            f"vocabulary of {len(frequencies)}; expected fewer: set a larger vocabulary.size, or "
            "remove the table"
        )
    counts, counted = pair_counts(tokens, frequencies, window=stage.word_vectors.window)
    # One thread: with more, sums are divided otherwise and round otherwise.
    with threadpool_limits(1):
        vectors = singular_vectors(mutual_information(counts), stage.width)
    entry = put_bytes(table.output, save({"vectors": vectors}), name=NAME, rows=len(vectors))
    statistics: dict[str, JsonValue] = {
        "tokenizer_digest": tokens.manifest.statistics["tokenizer_digest"],
        "tokens": counted,
        "vectors": int(vectors.any(1).sum()),
    }
    return commit(table, [entry], statistics=statistics)


def read_word_vectors(artifact: Artifact) -> Floats:
    """[V, H], as described above."""
    vectors: Floats = load(artifact.read_bytes(NAME))["vectors"]
    return vectors


def pair_counts(tokens: Artifact, frequencies: Int64, *, window: int) -> tuple[Counts, int]:
    """[V, C] how often each word-piece has each context within `window`; tokens that were counted.

    Contexts are the most frequent word-pieces, all of them if the matrix is not too large, and
    windows end where documents do. Every document counts once, whatever its weight or share.
    """
    size = len(frequencies)
    contexts = contexts_of(size)
    # The column of a word-piece among the contexts, most frequent first; -1 if it is none.
    column_V = np.full(size, -1)
    column_V[np.argsort(-frequencies, kind="stable")[:contexts]] = np.arange(contexts)
    counts = np.zeros(size * contexts, np.uint32)
    total, counted = int(frequencies.sum()), 0
    progress = Progress("word_vectors", min(total, MOST_COUNTED_TOKENS), unit="tokens")
    for ids, first in training_batches(tokens):
        document = np.cumsum(first)
        columns = column_V[ids]
        for apart in range(1, window + 1):
            # A window does not reach into the next document.
            left = np.flatnonzero(document[apart:] == document[:-apart])
            right = left + apart
            # Both are neighbours of each other.
            for piece, context in ((left, right), (right, left)):
                column = columns[context]
                known = column >= 0
                np.add.at(counts, (ids[piece] * contexts + column)[known], np.uint32(1))
        counted += len(ids)
        progress.advance(len(ids))
        if counted >= MOST_COUNTED_TOKENS:
            break
    if not counts.any():
        raise IntegrityError(
            f"{tokens.directory}: no two training tokens stand beside each other; give the corpus "
            "more text, or remove [word_vectors]"
        )
    return counts.reshape(size, contexts), counted


def mutual_information(counts_VC: Counts) -> Floats:
    """[V, C] positive pointwise mutual information, in the memory of the counts."""
    context_C = counts_VC.sum(0, dtype=np.float64) ** SMOOTHING
    context_C /= context_C.sum()
    matrix_VC = counts_VC.view(np.float32)
    for first in range(0, len(matrix_VC), ROWS):
        rows = slice(first, first + ROWS)
        counts = counts_VC[rows].astype(np.float64)
        expected = counts.sum(1, keepdims=True) * context_C
        # log 1 where a pair is rarer than by chance, or was never seen.
        ratio = np.divide(counts, expected, out=np.ones_like(counts), where=counts > expected)
        matrix_VC[rows] = np.log(ratio)
    return matrix_VC


def singular_vectors(matrix_VC: Floats, width: int) -> Floats:
    """[V, width] left singular vectors by the roots of their values, with a mean square of 1.

    Rotated at random: the optimizer moves all numbers of a vector equally fast, so that the small
    ones, of which the last singular vectors consist, would be lost in the first steps.
    """
    from sklearn.utils.extmath import randomized_svd  # takes longer to import than torch

    left_VH, values_H, _ = randomized_svd(matrix_VC, width, random_state=0)
    drawn = np.random.default_rng(0).standard_normal((width, width))
    rotation_HH, _ = np.linalg.qr(drawn)
    vectors_VH = left_VH * np.sqrt(values_H) @ rotation_HH
    # Rows without a neighbour are zero but for rounding.
    vectors_VH[~matrix_VC.any(1)] = 0.0
    mean_square = np.square(vectors_VH).sum() / np.count_nonzero(vectors_VH)
    vectors: Floats = (vectors_VH / np.sqrt(mean_square)).astype(np.float32)
    return vectors


if __name__ == "__main__":
    run_program(make_word_vectors)
