"""Static vectors of word-pieces, computed from hand-made corpora."""

from collections import Counter
from math import log
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from threadpoolctl import threadpool_limits

from cloze.artifacts.errors import IntegrityError, UsageError
from cloze.artifacts.stage import InputRef, StageTable
from cloze.artifacts.store import Artifact
from cloze.model import config
from cloze.model.data import word_vectors
from cloze.model.data.documents import training_frequencies
from cloze.model.data.word_vectors import (
    make_word_vectors,
    mutual_information,
    pair_counts,
    read_word_vectors,
    singular_vectors,
)
from tests.model.task_builders import TOKENIZER, tokens_artifact

A, B, C, D = 10, 11, 12, 13
DOCUMENTS = [[A, B, C], [D], [B, A, B, D, D, C, A], [C, B]]


def made(directory: Path, tokens: Artifact, *, width: int = 3, **settings: Any) -> Artifact:
    """The stage's artifact."""
    table = StageTable(
        stage="word_vectors",
        format_version=1,
        config={"width": width, "word_vectors": settings},
        inputs={"tokens": InputRef(digest=tokens.digest, path=tokens.directory)},
        output=str(directory),
    )
    return make_word_vectors(table, [])


def by_hand(documents: list[list[int]], window: int) -> Counter[tuple[int, int]]:
    """How often each word-piece has each neighbour."""
    return Counter(
        (document[at], document[other])
        for document in documents
        for at in range(len(document))
        for other in range(len(document))
        if 0 < abs(at - other) <= window
    )


def counted(tokens: Artifact, window: int) -> Counter[tuple[int, int]]:
    """The same by the stage, with the columns named by their word-pieces."""
    frequencies = training_frequencies(tokens)
    counts, _ = pair_counts(tokens, frequencies, window=window)
    named = np.argsort(-frequencies, kind="stable")
    return Counter(
        {(int(row), int(named[at])): int(counts[row, at]) for row, at in np.argwhere(counts)}
    )


@pytest.mark.parametrize("window", [1, 2, 5])
def test_neighbours_are_counted_to_both_sides_and_within_a_document(
    tmp_path: Path, window: int
) -> None:
    tokens = tokens_artifact(tmp_path / "tokens", DOCUMENTS)
    assert counted(tokens, window) == by_hand(DOCUMENTS, window)
    if window == 1:  # [A B C] and [B A B D D C A] have A beside B three times
        assert counted(tokens, window)[A, B] == 3


def test_only_the_most_frequent_word_pieces_are_contexts_of_a_large_vocabulary(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokens = tokens_artifact(tmp_path / "tokens", DOCUMENTS)
    monkeypatch.setattr(config, "MOST_PAIRS", 2 * TOKENIZER.size + 1)
    # B occurs four times, A three times, as do C and D, which come later in the vocabulary
    expected = {pair: n for pair, n in by_hand(DOCUMENTS, 2).items() if pair[1] in (A, B)}
    assert counted(tokens, 2) == expected


def test_information_is_that_of_the_definition(tmp_path: Path) -> None:
    tokens = tokens_artifact(tmp_path / "tokens", DOCUMENTS)
    pairs = by_hand(DOCUMENTS, 2)
    words, contexts = Counter[int](), Counter[int]()
    for (word, context), count in pairs.items():
        words[word] += count
        contexts[context] += count
    smoothed = {context: count**0.75 for context, count in contexts.items()}
    frequencies = training_frequencies(tokens)
    named = np.argsort(-frequencies, kind="stable").tolist()
    expected = np.zeros((TOKENIZER.size, TOKENIZER.size))
    for (word, context), count in pairs.items():
        chance = smoothed[context] / sum(smoothed.values())
        value = log(count / (words[word] * chance))
        expected[word, named.index(context)] = max(value, 0.0)
    counts, _ = pair_counts(tokens, frequencies, window=2)
    np.testing.assert_allclose(mutual_information(counts), expected, rtol=1e-6, atol=1e-7)
    assert expected.any()


def test_vectors_are_the_largest_singular_ones_by_the_roots_of_their_values() -> None:
    rng = np.random.default_rng(0)
    matrix = (rng.random((30, 20)) * 0.5 ** np.arange(20)).astype(np.float32)
    matrix[7] = 0.0
    vectors = singular_vectors(matrix.copy(), 5)
    left, values, _ = np.linalg.svd(matrix.astype(np.float64))
    wanted = left[:, :5] * values[:5] @ left[:, :5].T
    # Rotations leave products as they are; the scale is the one that makes the mean square 1.
    scale = 29 * 5 / np.trace(wanted)
    np.testing.assert_allclose(vectors @ vectors.T, scale * wanted, atol=1e-4)
    assert not vectors[7].any()
    assert np.square(vectors[np.arange(30) != 7]).mean() == pytest.approx(1.0)
    # No number of a vector is smaller than the others, as those of the last singular vectors are.
    sizes = np.square(vectors).mean(0)
    assert sizes.max() / sizes.min() < values[0] / values[4] / 3


def corpus(count: int) -> list[list[int]]:
    """Random documents."""
    rng = np.random.default_rng(1)
    return [rng.integers(5, TOKENIZER.size, rng.integers(1, 30)).tolist() for _ in range(count)]


def test_the_same_tokens_give_the_same_bytes_with_any_number_of_threads(tmp_path: Path) -> None:
    tokens = tokens_artifact(tmp_path / "tokens", corpus(300))
    found = []
    for threads in (1, 2):
        with threadpool_limits(threads):
            found.append(made(tmp_path / str(threads), tokens, width=8))
    assert found[0].digest == found[1].digest
    vectors = read_word_vectors(found[0])
    assert vectors.shape == (TOKENIZER.size, 8) and vectors.dtype == np.float32
    frequencies = training_frequencies(tokens)
    assert (vectors.any(1) == (frequencies > 0)).all()
    statistics = found[0].manifest.statistics
    assert statistics["tokens"] == frequencies.sum()
    assert statistics["vectors"] == (frequencies > 0).sum()


def test_alike_words_have_alike_vectors(tmp_path: Path) -> None:
    # E and F are said of the same things, G of others.
    e, f, g = 20, 21, 22
    documents = [[x, 30, 31] for x in (e, f)] * 9 + [[g, 40, 41]] * 9 + [[32, 42, 43]]
    tokens = tokens_artifact(tmp_path / "tokens", documents)
    vectors = read_word_vectors(made(tmp_path / "vectors", tokens, width=8))
    unit = vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-9)
    assert unit[e] @ unit[f] > 0.99
    assert abs(unit[e] @ unit[g]) < 0.1


def test_counting_ends_after_enough_tokens(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tokens = tokens_artifact(tmp_path / "tokens", DOCUMENTS)
    twice = Artifact(tokens.directory, tokens.manifest)
    monkeypatch.setattr(
        word_vectors,
        "training_batches",
        lambda tokens: iter([(np.array([A, B]), np.array([True, False]))] * 3),
    )
    monkeypatch.setattr(word_vectors, "MOST_COUNTED_TOKENS", 3)
    counts, seen = pair_counts(twice, training_frequencies(tokens), window=1)
    assert (seen, int(counts.sum())) == (4, 4)  # whole batches: two of A B


def test_what_has_no_vectors_is_refused(tmp_path: Path) -> None:
    tokens = tokens_artifact(tmp_path / "tokens", DOCUMENTS)
    with pytest.raises(UsageError, match=rf"vectors of {TOKENIZER.size} numbers.*vocabulary\.size"):
        made(tmp_path / "wide", tokens, width=TOKENIZER.size)
    alone = tokens_artifact(tmp_path / "alone", [[A], [B]])
    with pytest.raises(IntegrityError, match=r"no two training tokens stand beside each other"):
        made(tmp_path / "none", alone)
