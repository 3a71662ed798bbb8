import itertools
from collections import Counter

import numpy as np
import pytest

from cloze.model.data.shards import Examples
from cloze.model.evaluation.language_model import (
    MaskedTokens,
    evaluate_ngram,
    evaluate_unigram,
    majority_share,
    masked_tokens,
)
from cloze.model.evaluation.ngram import NOTHING, NgramModel, TokenStream

V = 12


def stream(documents: list[list[int]]) -> TokenStream:
    first = np.concatenate([[True] + [False] * (len(d) - 1) for d in documents])
    return TokenStream(np.concatenate([np.array(d, np.int64) for d in documents]), first)


@pytest.fixture(scope="module")
def documents() -> list[list[int]]:
    rng = np.random.default_rng(0)
    return [rng.integers(5, V, rng.integers(1, 30)).tolist() for _ in range(30)]


def frequencies(documents: list[list[int]]) -> np.ndarray:
    return np.bincount(np.concatenate(documents).astype(np.int64), minlength=V)


def by_hand(documents: list[list[int]], left: int, right: int) -> np.ndarray:
    """The same model, written as its description with Python's counters."""
    after, before, between = {}, {}, {}
    for document in documents:
        for a, b in itertools.pairwise(document):
            after.setdefault(a, Counter())[b] += 1
            before.setdefault(b, Counter())[a] += 1
        for a, w, b in zip(document, document[1:], document[2:], strict=False):
            between.setdefault((a, b), Counter())[w] += 1
    unigram = (frequencies(documents) + 1) / (frequencies(documents) + 1).sum()

    def witten_bell(counts: Counter | None, back: np.ndarray) -> np.ndarray:
        if not counts:
            return back
        seen = np.array([counts[word] for word in range(V)], float)
        kinds = len(counts)
        return (seen + kinds * back) / (seen.sum() + kinds)

    sides = []
    if left != NOTHING:
        sides.append(witten_bell(after.get(left), unigram))
    if right != NOTHING:
        sides.append(witten_bell(before.get(right), unigram))
    back = np.mean(sides, axis=0) if sides else unigram
    pair = between.get((left, right)) if len(sides) == 2 else None
    return witten_bell(pair, back)


def test_probabilities_are_those_of_the_definition(documents: list[list[int]]) -> None:
    model = NgramModel(stream(documents), frequencies(documents))
    contexts = [(a, b) for a in (NOTHING, *range(4, V)) for b in (NOTHING, *range(4, V))]
    left, right = np.array(contexts).T
    found = model.probabilities(left, right)
    expected = np.stack([by_hand(documents, a, b) for a, b in contexts])
    np.testing.assert_allclose(found, expected, rtol=2e-6)
    np.testing.assert_allclose(found.sum(1), 1.0, rtol=1e-6)


def test_counting_only_what_is_asked_changes_nothing(documents: list[list[int]]) -> None:
    left, right = np.array([5, 6, NOTHING]), np.array([7, 8, 9])
    whole = NgramModel(stream(documents), frequencies(documents))
    part = NgramModel(stream(documents), frequencies(documents), contexts=[(left, right)])
    np.testing.assert_array_equal(whole.probabilities(left, right), part.probabilities(left, right))


def test_no_neighbour_reaches_over_the_end_of_a_document() -> None:
    documents = [[5, 6], [7, 8]]
    model = NgramModel(stream(documents), frequencies(documents))
    after_6 = model.probabilities(np.array([6]), np.array([NOTHING]))[0]
    np.testing.assert_allclose(after_6, model.unigram_V)


def test_special_tokens_beside_a_mask_tell_nothing() -> None:
    examples = Examples(
        lengths=np.array([6, 5]),
        input_ids=np.array([2, 4, 6, 4, 4, 3, 2, 4, 3, 7, 3], np.uint16),
        segment_a_lengths=np.array([6, 3]),
        masked_counts=np.array([3, 1]),
        masked_lm_positions=np.array([1, 3, 4, 1]),
        masked_lm_ids=np.array([5, 7, 8, 9], np.uint16),
        next_sentence_labels=np.array([-1, 0]),
        document_counts=np.array([1, 1]),
        document_lengths=np.array([6, 5]),
    )
    masked = masked_tokens(examples, frozenset(range(5)))
    assert masked.left.tolist() == [NOTHING, 6, NOTHING, NOTHING]
    assert masked.right.tolist() == [6, NOTHING, NOTHING, NOTHING]
    assert masked.words.tolist() == [5, 7, 8, 9]


def test_loss_and_accuracy_are_means_over_the_positions(documents: list[list[int]]) -> None:
    model = NgramModel(stream(documents), frequencies(documents))
    masked = MaskedTokens(np.array([5, 6, NOTHING]), np.array([7, 8, 9]), np.array([6, 9, 10]))
    rows = model.probabilities(masked.left, masked.right)
    found = evaluate_ngram(model, masked)
    picked = rows[np.arange(3), masked.words]
    assert found.mlm_loss == pytest.approx(float(-np.log(picked).mean()), rel=1e-6)
    assert found.mlm_accuracy == float((rows.argmax(1) == masked.words).mean())
    unigram = evaluate_unigram(model.unigram_V, masked)
    assert unigram.mlm_loss == pytest.approx(
        float(-np.log(model.unigram_V[masked.words]).mean()), rel=1e-6
    )


def test_the_majoritys_share_is_of_the_examples_with_a_label() -> None:
    assert majority_share(np.array([0, 1, 1, -1])) == pytest.approx(2 / 3)
    assert majority_share(np.array([-1, -1])) is None
