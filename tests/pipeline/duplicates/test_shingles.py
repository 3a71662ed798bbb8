"""Vectorised shingles agree with plain Python."""

import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.duplicates.shingles import shingles

TEXT = st.text(alphabet="abAB .,-\n9é東’—", max_size=40)


def plain_shingles(documents: list[str], words: int) -> list[tuple[int, tuple[str, ...]]]:
    found = []
    for number, document in enumerate(documents):
        every = re.findall("[0-9a-zé東]+", document.replace("A", "a").replace("B", "b"))
        found += [(number, tuple(every[at : at + words])) for at in range(len(every) - words + 1)]
    return found


@pytest.mark.parametrize("words", [1, 2, 3])
@given(st.lists(TEXT, max_size=6))
def test_passages_are_equal_where_their_words_are(words: int, texts: list[str]) -> None:
    lines = [f"{text}\n" for text in texts]
    raw = np.frombuffer("".join(lines).encode(), dtype=np.uint8)
    ends = np.cumsum([len(line.encode()) for line in lines], dtype=np.int64)
    found = shingles(raw, ends, words=words)
    expected = plain_shingles(lines, words)
    assert found.documents_P.tolist() == [document for document, _ in expected]
    by_words = {passage: number for number, (_, passage) in enumerate(expected)}
    same = [by_words[passage] for _, passage in expected]
    assert found.hashes_P.tolist() == found.hashes_P[same].tolist()
    assert len(set(found.hashes_P.tolist())) == len(by_words)
