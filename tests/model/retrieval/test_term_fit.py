"""Vectors of terms: what is fitted, and what they do to the vector of a text."""

import numpy as np
import pytest
import torch
from torch.nn import functional

from cloze.artifacts.errors import IntegrityError, UsageError
from cloze.artifacts.tokenizer import SPECIAL_TOKENS, WordPieceTokenizer
from cloze.model.hugging_face.term_vectors import TermVectors
from cloze.model.retrieval import term_fit
from cloze.model.retrieval.lexical_index import LexicalIndex
from cloze.model.retrieval.term_fit import bm25_scores, fitted_terms, no_terms
from cloze.model.tasks.features import Sequences, ragged

PASSAGES = ("red blue red", "blue green green one", "one", "red one two two two two")
WORDS = sorted({word for passage in PASSAGES for word in passage.split()})
TOKENS = ragged([[0, *(1 + WORDS.index(word) for word in text.split())] for text in PASSAGES])
"""With 0 before each passage, as [CLS]."""


def sequences(*lists: list[int]) -> Sequences:
    found = ragged(lists)
    return Sequences(found, found.lengths)


def test_scores_of_terms_are_those_of_the_index_of_words() -> None:
    index = LexicalIndex.of(PASSAGES, language="none")
    words = [WORDS.index(word) for passage in PASSAGES for word in passage.split()]
    places = [place for place, passage in enumerate(PASSAGES) for _ in passage.split()]
    found = bm25_scores(np.array(words), np.array(places), shape=(len(WORDS), len(PASSAGES)))
    expected = np.stack([index.scores(word) for word in WORDS])
    np.testing.assert_allclose(found.toarray(), expected, rtol=1e-5)


def test_products_with_few_passages_are_the_scores_of_their_terms(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(term_fit, "SHRINKAGE", 1e-9)
    monkeypatch.setattr(term_fit, "OWN", 0.0)
    vectors_PH = np.random.default_rng(0).normal(size=(4, 8)).astype(np.float32)
    terms = fitted_terms(TOKENS, vectors_PH, special=[0], weight=1.0)
    assert terms.ids_K.tolist() == list(range(1 + len(WORDS)))
    # the special token changes nothing
    assert not terms.vectors_KD[0].any()
    assert terms.rarities_K[0] == 0
    index = LexicalIndex.of(PASSAGES, language="none")
    for word, vector_H in zip(WORDS, terms.vectors_KD[1:].numpy(), strict=True):
        scores_P = index.scores(word)
        products_P = (vectors_PH - vectors_PH.mean(0)) @ vector_H
        np.testing.assert_allclose(products_P, scores_P - scores_P.mean(), atol=1e-4)


def test_later_texts_meet_in_the_terms_that_they_share() -> None:
    draw = np.random.default_rng(0)
    tokens = ragged([[0, *(1 + draw.choice(40, 5, replace=False))] for _ in range(60)])
    vectors_PH = draw.normal(size=(60, 64)).astype(np.float32)
    terms = fitted_terms(tokens, vectors_PH, special=[0], weight=1.0)
    # In a ring, each with a term of the one before.
    texts = sequences(*([0, 1 + one, 1 + (one + 1) % 40] for one in range(40)))
    given_BH = functional.normalize(torch.from_numpy(draw.normal(size=(40, 64))).float(), dim=1)
    moved_BH = terms(given_BH, texts.batch(np.arange(40)))
    gained_BB = moved_BH @ moved_BH.T - given_BH @ given_BH.T
    assert gained_BB.diagonal(1).mean() > 0.15
    assert abs(gained_BB.diagonal(2).mean()) < 0.05


def test_marks_of_punctuation_are_no_terms() -> None:
    words = ("what", "?", ",", "##s", "a")
    tokenizer = WordPieceTokenizer((*SPECIAL_TOKENS, *words), lowercase=True)
    assert {tokenizer.vocabulary[one] for one in no_terms(tokenizer)} == {*SPECIAL_TOKENS, "?", ","}


def test_passages_without_terms_are_refused() -> None:
    with pytest.raises(UsageError, match="the passages have no words"):
        fitted_terms(ragged([[0], [0]]), np.eye(2, dtype=np.float32), special=[0], weight=1.0)


def terms_of(ids: list[int], *, rarities: list[float], rarity: float = 1.0) -> TermVectors:
    vectors_KD = torch.eye(len(ids))[:, -2:]
    return TermVectors(torch.tensor(ids), vectors_KD, torch.tensor(rarities), 0.5, rarity)


def test_a_term_counts_once_however_often_a_text_has_it() -> None:
    terms = terms_of([0, 3, 7], rarities=[0.0, 1.0, 1.0])
    texts = sequences([0, 3], [0, 3, 3, 3], [0], [7, 3])
    given_BD = torch.tensor([[2.0, 0.0]] * 4)
    moved_BD = terms(given_BD, texts.batch(np.arange(4)))
    assert torch.equal(moved_BD[0], moved_BD[1])
    # without a term, the text's own vector
    assert moved_BD[2].tolist() == [1.0, 0.0]
    half = 0.5 / 2**0.5
    expected = torch.nn.functional.normalize(torch.tensor([1 + half, half]), dim=0)
    torch.testing.assert_close(moved_BD[3], expected)
    torch.testing.assert_close(moved_BD.norm(dim=1), torch.ones(4))


def test_a_text_moves_less_the_more_of_its_rare_terms_are_unknown() -> None:
    terms = terms_of([0, 3, 7], rarities=[0.0, 0.1, 2.0], rarity=3.0)
    texts = sequences([0, 7], [0, 7, 9], [0, 7, 9, 9, 11], [0, 3, 9], [9, 11])
    moved_BD = terms(torch.tensor([[1.0, 0.0]] * 5), texts.batch(np.arange(5)))
    added_B = [(one / one[0])[1].item() for one in moved_BD]
    # Term 7 has the second direction to itself.
    shares = (1.0, 4 / (4 + 9), 4 / (4 + 2 * 9))
    assert added_B[:3] == pytest.approx([0.5 * share**2 for share in shares], abs=1e-6)
    # A common word alone moves a text about something new next to nothing.
    assert moved_BD[3].tolist() == pytest.approx([1.0, 0.0], abs=1e-5)
    assert moved_BD[4].tolist() == [1.0, 0.0]


@pytest.mark.parametrize(
    ("settings", "ids", "message"),
    [
        ({"rarity": 1.0}, [1, 2], "weight None, rarity 1.0"),
        ({"weight": 0.5}, [1, 2], "adapt again if an earlier version made it"),
        ({"weight": 0.5, "rarity": 1.0}, [2, 1], "the ids ascending"),
        ({"weight": 0.5, "rarity": 1.0}, [1], "1 ids, 2 vectors and 2 rarities"),
    ],
)
def test_files_that_are_no_terms_are_refused(
    settings: dict[str, float], ids: list[int], message: str
) -> None:
    tensors = {"ids": torch.tensor(ids), "vectors": torch.eye(2), "rarities": torch.ones(2)}
    with pytest.raises(IntegrityError, match=message):
        TermVectors.of({**settings}, tensors, where="encoder/3_TermVectors")
