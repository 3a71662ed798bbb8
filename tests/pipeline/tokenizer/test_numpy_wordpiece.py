"""The parts of the NumPy WordPiece: an exact hash table, and longest match as in `tokenizers`."""

import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from artifacts.tokenizer import SPECIAL_TOKENS, WordPieceTokenizer
from pipeline.tokenizer import numpy_wordpiece
from pipeline.tokenizer.numpy_wordpiece import LongestMatch, WordTable
from pipeline.tokenizer.pre_tokens import keys_of_words, words_of_keys

KEYS = st.lists(st.binary(min_size=1, max_size=16).filter(lambda w: b"\0" not in w), unique=True)


@given(kept=KEYS, others=KEYS)
def test_words_are_found_with_their_values(kept: list[bytes], others: list[bytes]) -> None:
    table = WordTable(width=2, slots=256)
    table.insert(keys_of_words(kept, 2), np.arange(1, len(kept) + 1, dtype=np.uint64))
    assert table.find(keys_of_words(kept, 2)).tolist() == list(range(1, len(kept) + 1))
    strangers = [word for word in others if word not in kept]
    assert not table.find(keys_of_words(strangers, 2)).any()


@given(KEYS)
def test_keys_are_the_words(words: list[bytes]) -> None:
    assert words_of_keys(keys_of_words(words, 2)) == words


@pytest.mark.parametrize("width", [1, 2])
def test_a_full_table_forgets_but_never_lies(width: int) -> None:
    rng = random.Random(4)
    words = list(
        {rng.randbytes(rng.randint(1, 8 * width)).replace(b"\0", b"x") for _ in range(3000)}
    )
    table = WordTable(width=width, slots=1024)
    keys = keys_of_words(words, width)
    table.insert(keys, np.arange(1, len(words) + 1, dtype=np.uint64))
    found = table.find(keys)
    right = np.arange(1, len(words) + 1)
    assert np.all((found == right) | (found == 0))
    assert 900 < np.count_nonzero(found) == table.count <= 1024


def test_words_that_meet_in_one_slot_are_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(numpy_wordpiece, "_MULTIPLIER_1", np.uint64(0))  # all collide in slot 0
    words = [f"w{number}".encode() for number in range(12)]
    table = WordTable(width=1, slots=64)
    table.insert(keys_of_words(words, 1), np.arange(1, 13, dtype=np.uint64))
    assert sorted(table.find(keys_of_words(words, 1)).tolist()) == list(range(1, 13))
    assert not table.find(keys_of_words([b"other"], 1)).any()


def test_cleared_tables_are_empty() -> None:
    table = WordTable(width=1, slots=64)
    keys = keys_of_words([b"word"], 1)
    table.insert(keys, np.array([7], dtype=np.uint64))
    table.clear()
    assert table.count == 0
    assert table.find(keys).tolist() == [0]


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
    monkeypatch.setattr(numpy_wordpiece, "_FEW_WORDS", few)
    words = ["a", "ab", "abab", "b", "babababab", "aababababa", "abdab", "c", "ca", "a" * 16]
    assert cut(words) == [TOKENIZER.encode(word) for word in words]


def test_a_vocabulary_without_inner_pieces_knows_whole_words() -> None:
    tokenizer = WordPieceTokenizer((*SPECIAL_TOKENS, "whole"), lowercase=True)
    raw = [b"whole", b"wholes"]
    ids, counts = LongestMatch(tokenizer).split(keys_of_words(raw, 2), np.array([5, 6]))
    assert ids.tolist() == [5, tokenizer.unk_id]
    assert counts.tolist() == [1, 1]
