"""The table of words finds what was put in, nothing else, and never takes one word for another."""

import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.tokenizer import hash_table as wordtable
from pipeline.tokenizer.hash_table import WordTable
from pipeline.tokenizer.pre_tokens import keys_of_words, words_of_keys

WORDS = st.lists(st.binary(min_size=1, max_size=16).filter(lambda w: b"\0" not in w), unique=True)


@given(kept=WORDS, others=WORDS)
def test_words_are_found_with_their_values(kept: list[bytes], others: list[bytes]) -> None:
    table = WordTable(width=2, slots=256)
    table.insert(keys_of_words(kept, 2), np.arange(1, len(kept) + 1, dtype=np.uint64))
    assert table.find(keys_of_words(kept, 2)).tolist() == list(range(1, len(kept) + 1))
    strangers = [word for word in others if word not in kept]
    assert not table.find(keys_of_words(strangers, 2)).any()


@given(WORDS)
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
    monkeypatch.setattr(wordtable, "_MULTIPLIER_1", np.uint64(0))  # all meet in slot 0
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
