"""BM25 over passages: stems, stopwords, scripts without spaces, and the scores of bm25s."""

from pathlib import Path

import bm25s
import numpy as np
import pytest

from cloze.artifacts.errors import UsageError
from cloze.model.retrieval.lexical_index import (
    FILES,
    LexicalIndex,
    analyzer,
    write_lexical_index,
)
from cloze.pipeline.text.scripts import search_terms


def index_of(folder: Path, texts: list[str], language: str) -> LexicalIndex:
    assert write_lexical_index(folder, texts, language=language) == len(texts)
    return LexicalIndex({name: str(folder / name) for name in FILES}, language=language)


def test_stems_meet_and_stopwords_do_not_count(tmp_path: Path) -> None:
    texts = ["The gardens were owned by her.", "Of the and with.", "A garden owner."]
    index = index_of(tmp_path, texts, "english")
    scores = index.scores("Who owns the garden?")
    assert scores[1] == 0
    assert scores[0] > 0
    assert scores[2] > 0
    assert index.scores("who is the of").tolist() == [0, 0, 0]
    assert index.scores("").tolist() == [0, 0, 0]
    assert index.scores("unheard-of").tolist() == [0, 0, 0]


def test_scores_equal_those_of_the_library_from_terms(tmp_path: Path) -> None:
    texts = ["a list of names", "names of names of a list", "other words", ""]
    index = index_of(tmp_path, texts, "none")
    theirs = bm25s.BM25(backend="numpy")
    theirs.index([search_terms(text) for text in texts], show_progress=False)
    expected = theirs.get_scores(search_terms("names list"))
    assert np.array_equal(index.scores("names list"), expected)
    in_memory = LexicalIndex.of(texts, language="none")
    assert np.array_equal(in_memory.scores("names list"), expected)
    assert in_memory.scores("unheard").tolist() == [0] * 4
    opened = bm25s.BM25.load(tmp_path, mmap=True)
    assert np.array_equal(opened.get_scores(search_terms("names list")), expected)


def test_scripts_without_spaces_are_found_by_pairs_of_characters(tmp_path: Path) -> None:
    texts = ["東京都の庭園は広い。", "京都の寺は古い。", "大阪の城は高い。"]
    scores = index_of(tmp_path, texts, "none").scores("東京の庭園")
    assert scores.argmax() == 0
    assert scores[2] == 0


def test_passages_without_any_term_have_no_score(tmp_path: Path) -> None:
    assert index_of(tmp_path, ["!", "?"], "english").scores("a").tolist() == [0, 0]


def test_a_language_without_a_stemmer_is_named_with_those_that_have_one() -> None:
    with pytest.raises(UsageError, match=r"language 'klingon': no stemmer .* english.*, none"):
        analyzer("klingon")


def test_german_stems_and_stopwords_are_german() -> None:
    assert analyzer("german")("Die Gärten und der Garten") == analyzer("german")("Gärten Garten")
