"""Words cut in lock-step give what the WordPiece model of `tokenizers` gives word by word."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from artifacts.tokenizer import SPECIAL_TOKENS, WordPieceTokenizer
from pipeline.tokenizer import longest_match as greedy
from pipeline.tokenizer.longest_match import LongestMatch
from pipeline.tokenizer.pre_tokens import keys_of_words

PIECES = ("a", "##a", "##b", "ab", "##ab", "aba", "##ba", "##bab", "babababab", "##ababababa", "c")
TOKENIZER = WordPieceTokenizer((*SPECIAL_TOKENS, *PIECES), lowercase=True)
WORDS = st.lists(st.text("abcd", min_size=1, max_size=16), min_size=1, max_size=80)


def cut(words: list[str]) -> list[list[int]]:
    raw = [word.encode() for word in words]
    lengths = np.array([len(word) for word in raw])
    ids, counts = LongestMatch(TOKENIZER).split(keys_of_words(raw, 2), lengths)
    return [part.tolist() for part in np.split(ids, np.cumsum(counts)[:-1])]


@given(WORDS)
@settings(max_examples=200)
def test_the_longest_piece_is_taken_each_time(words: list[str]) -> None:
    assert cut(words) == [TOKENIZER.encode(word) for word in words]


@pytest.mark.parametrize("few", [0, 1000])
def test_with_and_without_the_last_few(few: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(greedy, "_FEW", few)
    words = ["a", "ab", "abab", "b", "babababab", "aababababa", "abdab", "c", "ca", "a" * 16]
    assert cut(words) == [TOKENIZER.encode(word) for word in words]


def test_a_vocabulary_without_inner_pieces_knows_whole_words() -> None:
    tokenizer = WordPieceTokenizer((*SPECIAL_TOKENS, "whole"), lowercase=True)
    raw = [b"whole", b"wholes"]
    ids, counts = LongestMatch(tokenizer).split(keys_of_words(raw, 2), np.array([5, 6]))
    assert ids.tolist() == [5, tokenizer.unk_id]
    assert counts.tolist() == [1, 1]
