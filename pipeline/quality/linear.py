"""A linear model of words and pairs of words, made from a few hundred labelled documents.

In:  labelled documents.
Out: a logistic model of a label that is 0 or 1, or a linear one of other numbers; its file; scores.

A document is a vector of square roots of the shares of its words, and of its pairs of words, so
that its length makes no difference; beside these the shares of marks, digits, line breaks, capitals
and of words that few labelled documents have, which tell lists and other languages from prose. The
strength of the ridge is chosen by cross-validation, whose scores of documents that were left out
also say how well the model separates. With fewer documents than features, coefficients of documents
are solved for instead (the dual form).
"""

import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import scipy.sparse
import scipy.special
import scipy.stats

from cloze.artifacts.arrays import Int64s, Mask
from cloze.pipeline.quality.features import KINDS, Floats, find_words
from cloze.pipeline.quality.labelled import Labelled
from cloze.pipeline.readers.documents import DocumentBlock

BUCKETS = 1 << 19
"""Of words, and as many of pairs: with some hundred documents hardly any two words share one."""

RARE = 2
"""Words in fewer labelled documents count as unknown, also to the documents that have them."""

RIDGES = tuple(10.0**power for power in range(-6, 2))
FOLDS, ITERATIONS = 5, 30
BIAS = 10.0
"""Square of the value of the feature that is the same for all documents."""

LEAST_WEIGHT = 1e-3
"""Of a document about which there is no doubt any more."""

SHAPE_WEIGHT = 0.3
"""Of each measure of shape, in standard deviations, beside words whose vectors have length 1."""

LARGEST_SHAPE = 3.0
"""Standard deviations from the labelled documents beyond which nothing changes."""

# D documents, F features, S measures of shape


@dataclass(frozen=True)
class LinearModel:
    """weights_F by feature: words, pairs, measures of shape; the latter's means and deviations."""

    weights_F: Floats
    is_known: Int64s
    """(BUCKETS,) 1 for words of at least `RARE` labelled documents."""
    means_S: Floats
    deviations_S: Floats
    bias: float
    is_logistic: bool
    ridge: float
    separation: float
    """Of documents left out in turn: the area under the ROC curve, or the rank correlation."""

    def score(self, block: DocumentBlock) -> tuple[Floats, Int64s, Int64s]:
        """The score of each document; its words with letters, and how many of these are known."""
        raw = _Features.of(block)
        text_D, known_D = raw.known(self.is_known)
        shapes_DS = self._scaled(raw.shapes(text_D, known_D))
        found_D = self.bias + (shapes_DS * self.weights_F[2 * BUCKETS :]).sum(axis=1)
        # A sparse product: each entry of a document times its weight, summed by document.
        for part, first in ((raw.words, 0), (raw.pairs, BUCKETS)):
            of_part_D = np.bincount(
                part.documents, part.roots * self.weights_F[first + part.buckets], len(found_D)
            )
            found_D += of_part_D
        scores_D = scipy.special.expit(found_D) if self.is_logistic else found_D
        return scores_D, text_D, known_D

    def _scaled(self, shapes_DS: Floats) -> Floats:
        return _scaled(shapes_DS, self.means_S, self.deviations_S)

    def table(self) -> pa.Table:
        """The model as a table, to be written beside the scores."""
        known = np.zeros(len(self.weights_F), dtype=np.int64)
        known[:BUCKETS] = self.is_known
        # A million features, of which some hundred documents have a few thousand.
        places = np.flatnonzero((self.weights_F != 0) | (known != 0))
        facts = {
            "bias": self.bias,
            "is_logistic": int(self.is_logistic),
            "ridge": self.ridge,
            "separation": self.separation,
            **{f"mean {number}": value for number, value in enumerate(self.means_S.tolist())},
            **{f"dev {number}": value for number, value in enumerate(self.deviations_S.tolist())},
        }
        columns = {
            "feature": pa.array(places),
            "weight": pa.array(self.weights_F[places]),
            "is_known": pa.array(known[places]),
        }
        # `repr` gives the digits with which a float is read back exactly.
        metadata = {name: repr(float(value)) for name, value in facts.items()}
        return pa.table(columns).replace_schema_metadata(metadata)

    @classmethod
    def of_table(cls, table: pa.Table) -> "LinearModel":
        """The model that `table` has written."""
        metadata = table.schema.metadata
        facts = {name.decode(): float(value) for name, value in metadata.items()}
        shapes = range(_SHAPES)
        places = table["feature"].to_numpy()
        weights_F = np.zeros(2 * BUCKETS + _SHAPES)
        weights_F[places] = table["weight"].to_numpy()
        is_known = np.zeros(BUCKETS, dtype=np.int64)
        words = places < BUCKETS
        is_known[places[words]] = table["is_known"].to_numpy()[words]
        return cls(
            weights_F,
            is_known,
            np.array([facts[f"mean {number}"] for number in shapes]),
            np.array([facts[f"dev {number}"] for number in shapes]),
            facts["bias"],
            bool(facts["is_logistic"]),
            facts["ridge"],
            facts["separation"],
        )


_SHAPES = KINDS + 2


class _RootShares(NamedTuple):
    """The square root of the share that a bucket has of a document's words, where it is not 0."""

    documents: Int64s
    buckets: Int64s
    roots: Floats

    @classmethod
    def of(cls, documents: Int64s, buckets: Int64s, count: int) -> "_RootShares":
        """From the document and bucket of each word, of `count` documents."""
        # One number per entry, so that sorting brings equal ones together.
        keys = documents * BUCKETS + buckets
        # half as wide, where they fit, which is sorted in half the time
        keys = np.sort(keys.astype(np.uint32) if count * BUCKETS < 1 << 32 else keys)
        starts = np.flatnonzero(np.concatenate(([len(keys) > 0], keys[1:] != keys[:-1])))
        times = np.diff(starts, append=len(keys))
        distinct = keys[starts].astype(np.int64)
        totals = np.bincount(documents, minlength=count)
        of = distinct // BUCKETS
        return cls(of, distinct % BUCKETS, np.sqrt(times / totals[of]))


@dataclass(frozen=True)
class _Features:
    """The words and pairs of D documents by bucket, and how many of each kind there are."""

    words: _RootShares
    pairs: _RootShares
    documents_W: Int64s
    buckets_W: Int64s
    is_text_W: Mask
    kinds_DK: Int64s

    @classmethod
    def of(cls, block: DocumentBlock) -> "_Features":
        words, count = find_words(block), len(block.ends)
        hashes, first = words.pairs
        pairs = (hashes % np.uint64(BUCKETS)).astype(np.int64)
        buckets_W = words.buckets(BUCKETS)
        return cls(
            _RootShares.of(words.documents_W, buckets_W, count),
            _RootShares.of(words.documents_W[first], pairs, count),
            *(words.documents_W, buckets_W, words.is_text_W, words.kinds_DK),
        )

    def known(self, is_known: Int64s) -> tuple[Int64s, Int64s]:
        """The words with letters of each document, and how many of these are known."""
        count = len(self.kinds_DK)
        documents, buckets = self.documents_W[self.is_text_W], self.buckets_W[self.is_text_W]
        known = documents[is_known[buckets] > 0]
        return np.bincount(documents, minlength=count), np.bincount(known, minlength=count)

    def shapes(self, text_D: Int64s, known_D: Int64s) -> Floats:
        """(D, S): the share of each kind, that of unknown words, and the length."""
        # A document without any word has shares of 0.
        tokens_D = np.maximum(np.bincount(self.documents_W, minlength=len(text_D)), 1)
        shares_DK = np.sqrt(self.kinds_DK / tokens_D[:, None])
        return np.column_stack((shares_DK, 1.0 - known_D / np.maximum(text_D, 1), np.log(tokens_D)))


def _scaled(shapes_DS: Floats, means_S: Floats, deviations_S: Floats) -> Floats:
    scaled_DS = np.clip((shapes_DS - means_S) / deviations_S, -LARGEST_SHAPE, LARGEST_SHAPE)
    return SHAPE_WEIGHT * scaled_DS


def make_linear_model(labelled: Labelled) -> LinearModel:
    """Fit the model to labelled documents."""
    raw, labels_D = _Features.of(labelled.block), labelled.labels_D
    count = len(labels_D)
    # in how many documents each word is
    is_known = (np.bincount(raw.words.buckets, minlength=BUCKETS) >= RARE).astype(np.int64)
    shapes_DS = raw.shapes(*raw.known(is_known))
    means_S, deviations_S = shapes_DS.mean(axis=0), np.maximum(shapes_DS.std(axis=0), 1e-6)
    parts = [
        scipy.sparse.csr_matrix((part.roots, (part.documents, part.buckets)), (count, BUCKETS))
        for part in (raw.words, raw.pairs)
    ]
    scaled = scipy.sparse.csr_matrix(_scaled(shapes_DS, means_S, deviations_S))
    matrix = scipy.sparse.hstack([*parts, scaled], format="csr")
    # The bias is the weight of one more feature, which is the same for all documents.
    products_DD = np.asarray((matrix @ matrix.T).todense()) + BIAS
    logistic = labelled.is_classes
    # Documents are in the order of their digests, so this is a fair draw.
    folds_D = np.arange(count) % FOLDS
    left_out = {ridge: np.zeros(count) for ridge in RIDGES}
    for ridge, found_D in left_out.items():
        for fold in range(FOLDS):
            inside, outside = np.flatnonzero(folds_D != fold), np.flatnonzero(folds_D == fold)
            some = products_DD[np.ix_(inside, inside)]
            solved = _solve(some, labels_D[inside], ridge, logistic=logistic)
            found_D[outside] = _times(products_DD[np.ix_(outside, inside)], solved)
    losses = {ridge: _loss(found, labels_D, logistic=logistic) for ridge, found in left_out.items()}
    ridge = min(losses, key=losses.__getitem__)
    solved = _solve(products_DD, labels_D, ridge, logistic=logistic)
    # rounded, so that the order in which a processor's cores add makes no difference
    weights_F = np.round(np.asarray(matrix.T @ solved), 5)
    separation = _separation(left_out[ridge], labels_D, logistic=logistic)
    return LinearModel(
        *(weights_F, is_known, means_S, deviations_S, round(BIAS * float(solved.sum()), 5)),
        is_logistic=logistic,
        ridge=ridge,
        separation=separation,
    )


def _times(products: Floats, vector: Floats) -> Floats:
    # Not by BLAS, whose threads add in an order of their own, and wait for each other where the
    # machine is busy.
    result: Floats = np.einsum("ij,j->i", products, vector)
    return result


def _solve(products: Floats, labels: Floats, ridge: float, *, logistic: bool) -> Floats:
    """The coefficients of documents, by iteratively reweighted least squares."""
    count = len(labels)
    solved = np.zeros(count)
    for _ in range(ITERATIONS if logistic else 1):
        found = _times(products, solved)
        chance = scipy.special.expit(found) if logistic else found
        weights = np.maximum(chance * (1 - chance), LEAST_WEIGHT) if logistic else np.ones(count)
        # A step of Newton's is a ridge regression on the labels that the linear part implies.
        wanted = found + (labels - chance) / weights
        step = _solve_ridge(products, ridge * count / weights, wanted, solved)
        moved = float(np.abs(step - solved).max())
        solved = step
        if moved < 1e-6 * max(float(np.abs(solved).max()), 1.0):
            break
    return solved


def _solve_ridge(products: Floats, ridges: Floats, wanted: Floats, start: Floats) -> Floats:
    """Solve (products + diagonal of ridges) x = wanted by conjugate gradients."""
    solved, diagonal = start.copy(), np.diagonal(products) + ridges
    # Preconditioned by the diagonal: ridges of documents beyond doubt are large, and would slow it
    # down.
    rest = wanted - _times(products, solved) - ridges * solved
    direction = rest / diagonal
    size = float((rest * direction).sum())
    # A relative residual of 1e-8, measured as the preconditioner does.
    enough = 1e-16 * float((wanted * wanted / diagonal).sum())
    # In exact arithmetic as many steps as unknowns suffice; twice as many allow for rounding.
    for _ in range(2 * len(wanted)):
        if size <= enough:
            break
        turned = _times(products, direction) + ridges * direction
        far = size / float((direction * turned).sum())
        solved += far * direction
        rest -= far * turned
        scaled = rest / diagonal
        # Each direction is conjugate to those before, so that no step undoes another.
        size, before = float((rest * scaled).sum()), size
        direction = scaled + size / before * direction
    return solved


def _loss(found: Floats, labels: Floats, *, logistic: bool) -> float:
    if not logistic:
        return float(np.mean((found - labels) ** 2))
    return float(np.mean(np.logaddexp(0.0, np.where(labels > 0, -found, found))))


def _separation(found: Floats, labels: Floats, *, logistic: bool) -> float:
    if logistic:
        return area_under_curve(found, labels > 0)
    correlation = scipy.stats.spearmanr(found, labels).statistic
    return float(correlation) if math.isfinite(correlation) else 0.0


def area_under_curve(scores: Floats, is_good: Mask) -> float:
    """The chance that a good document has a higher score than another one; ties count half."""
    ranks = scipy.stats.rankdata(scores)
    good, other = int(is_good.sum()), int((~is_good).sum())
    return float((ranks[is_good].sum() - good * (good + 1) / 2) / max(good * other, 1))
