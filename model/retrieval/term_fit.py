"""Term vectors of a collection, in closed form: vectors alone find what BM25 finds.

In:  the tokens of all passages, and the passages' vectors.
Out: `TermVectors`.

A term's vector is the one whose products with the passages' vectors are nearest to the scores that
BM25 gives the term in each (ridge regression), so the sum over the terms of a question ranks
passages nearly as BM25 does. Nothing is trained: gradient descent would have to move each of the
collection's words by itself, and sees most of them a few times. A term also has a direction of its
own, by chance, in which texts that share it meet, though the passage came after the fit.
"""

import string
from collections.abc import Collection

import numpy as np
import numpy.typing as npt
import scipy.sparse
import torch

from cloze.artifacts.errors import UsageError
from cloze.artifacts.tokenizer import SubwordTokenizer
from cloze.model.hugging_face.term_vectors import TermVectors
from cloze.model.retrieval.passage_index import Vectors
from cloze.model.tasks.features import Ragged

SATURATION, LENGTHS = 1.5, 0.75
"""BM25's k1 and b, as in the index of words."""

SHRINKAGE = 0.1
"""Of the ridge, in units of the mean eigenvalue of the passages' scatter. 0.03 to 0.3 are as good
on three collections; without any, directions in which passages hardly differ would be longest."""

OWN = 4.0
"""Length of a term's own direction, in units of what is fitted for terms of a single passage. With
2 as much is won on known passages, and less on later ones (benchmarks/results/later_passages.json).
"""

MARKS = string.punctuation + "¿¡«»„“”‘’–—…·।॥。、，？！：；（）「」『』《》؟،؛"
"""Questions end in one that passages may not have; it says nothing of what they are about."""

# P passages, K terms, S special tokens, H width, N pairs of a term and a passage that has it


def fitted_terms(
    tokens: Ragged, vectors_PH: Vectors, *, special: Collection[int], weight: float
) -> TermVectors:
    """`tokens`: of each passage; those that are `special` are no terms."""
    term_of_T = tokens.values.astype(np.int64)
    passage_of_T = np.repeat(np.arange(len(tokens)), tokens.lengths)
    is_term_T = ~np.isin(term_of_T, [*special])
    ids_K, term_of_T = np.unique(term_of_T[is_term_T], return_inverse=True)
    if not len(ids_K):
        raise UsageError("the passages have no words, so there are no vectors of words")
    scores_KP = bm25_scores(term_of_T, passage_of_T[is_term_T], shape=(len(ids_K), len(tokens)))
    rarities_K = rarity(np.diff(scores_KP.indptr), len(tokens))
    centred_PH = (vectors_PH - vectors_PH.mean(0)).astype(np.float64)
    scatter_HH = centred_PH.T @ centred_PH
    width = len(scatter_HH)
    ridge = max(SHRINKAGE * np.trace(scatter_HH) / width, 1e-6)
    # The mean score of a term takes no part, as centred vectors cannot have it.
    solved_HP = np.linalg.solve(scatter_HH + ridge * np.eye(width), centred_PH.T)
    vectors_KH = (scores_KP @ solved_HP.T).astype(np.float32)
    unknown = float(rarity(np.array(0), len(tokens)))
    rarest_K = rarities_K == rarities_K.max()
    length = OWN * np.median(np.linalg.norm(vectors_KH[rarest_K], axis=1)) / unknown
    own_KH = np.random.default_rng(0).standard_normal(vectors_KH.shape)
    own_KH /= np.linalg.norm(own_KH, axis=1, keepdims=True)
    vectors_KH += (length * rarities_K[:, None] * own_KH).astype(np.float32)
    # Special tokens are as known as they are common: they change nothing.
    zeros_SH = np.zeros((len(special), width), np.float32)
    ids_K = np.concatenate([ids_K, np.array([*special], np.int64)])
    vectors_KH = np.concatenate([vectors_KH, zeros_SH])
    rarities_K = np.concatenate([rarities_K, zeros_SH[:, 0]]).astype(np.float32)
    order_K = np.argsort(ids_K)
    return TermVectors(
        torch.from_numpy(ids_K[order_K]),
        torch.from_numpy(vectors_KH[order_K]),
        torch.from_numpy(rarities_K[order_K]),
        weight,
        rarity=unknown,
    )


def no_terms(tokenizer: SubwordTokenizer) -> frozenset[int]:
    """Tokens that say nothing of a text: special ones, and marks of punctuation."""
    alone = tokenizer.encode_all([f"{before}{mark}" for mark in MARKS for before in ("", " ")])
    return tokenizer.special_ids | {tokens[0] for tokens in alone if len(tokens) == 1}


def rarity(having_K: npt.NDArray[np.int64], passages: int) -> npt.NDArray[np.float64]:
    """[K] the logarithm by which a term counts, from how many passages have it."""
    found_K: npt.NDArray[np.float64] = np.log1p((passages - having_K + 0.5) / (having_K + 0.5))
    return found_K


def bm25_scores(
    terms_T: npt.NDArray[np.int64], passages_T: npt.NDArray[np.int64], *, shape: tuple[int, int]
) -> scipy.sparse.csr_array:
    """[K, P] what each term scores in each passage, from the terms of all passages (Lucene's)."""
    terms, passages = shape
    pairs_N, counts_N = np.unique(terms_T * passages + passages_T, return_counts=True)
    term_N, passage_N = np.divmod(pairs_N, passages)
    length_P = np.bincount(passages_T, minlength=passages)
    rarity_K = rarity(np.bincount(term_N, minlength=terms), passages)
    relative_N = length_P[passage_N] / length_P.mean()
    saturated_N = counts_N / (counts_N + SATURATION * (1 - LENGTHS + LENGTHS * relative_N))
    scores_N = rarity_K[term_N] * saturated_N
    return scipy.sparse.csr_array((scores_N, (term_N, passage_N)), shape=shape)
