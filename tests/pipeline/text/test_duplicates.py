"""Shingles agree with plain Python; bands find the candidates; the dropped have a kept equal."""

import random
import re

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloze.artifacts.arrays import Bytes, Offsets
from cloze.pipeline.config.settings import NearDuplicatesConfig
from cloze.pipeline.text import duplicates
from cloze.pipeline.text.duplicates import (
    Shingles,
    ShingleSets,
    band_keys,
    bands_for,
    duplicates_library,
    find_words,
    kept_for,
    range_hashes,
    sharing,
    shingles,
    token_windows,
)

AnyArray = npt.NDArray[np.generic]

THRESHOLD = 0.8
TEXT = st.text(alphabet="abAB .,-\n9é東’—", max_size=40)


def sets_of(documents: list[set[int]]) -> ShingleSets:
    """Documents as sets of shingles, which are integers below 2**32."""
    numbers = [number for number, values in enumerate(documents) for _ in values]
    hashes = [value << 32 for values in documents for value in values]
    found = Shingles(np.array(hashes, dtype=np.uint64), np.array(numbers, dtype=np.int64))
    return ShingleSets.of(found, len(documents))


def similarity(one: set[int], other: set[int]) -> float:
    return len(one & other) / len(one | other)


def compared_with_all_kept(documents: list[set[int]]) -> list[int]:
    """The reference for `kept_for` in plain Python."""
    found: list[int] = []
    for number, values in enumerate(documents):
        kept = [other for other in range(number) if found[other] == other]
        alike = [other for other in kept if similarity(values, documents[other]) >= THRESHOLD]
        found.append(alike[0] if alike else number)
    return found


def in_one_group(documents: list[set[int]]) -> list[int]:
    numbers = np.arange(len(documents))
    sets = sets_of(documents)
    found = kept_for(numbers, np.zeros_like(numbers), sets, threshold=THRESHOLD)
    return [int(number) for number in found]


@given(st.lists(st.sets(st.integers(0, 11), min_size=1), min_size=1, max_size=12))
def test_a_document_is_dropped_exactly_if_it_nearly_equals_one_that_is_kept(
    documents: list[set[int]],
) -> None:
    assert in_one_group(documents) == compared_with_all_kept(documents)


def test_likeness_is_not_passed_on() -> None:
    first, second, third = (set(range(start, start + 100)) for start in (0, 10, 20))
    assert similarity(first, second) > THRESHOLD > similarity(first, third)
    assert in_one_group([first, second, third]) == [0, 0, 2]


@pytest.mark.parametrize("threshold", [0.1, 0.3, 0.5, 0.7, 0.8, 0.9, 0.95])
@pytest.mark.parametrize("permutations", [64, 128, 256])
def test_two_at_the_threshold_agree_in_a_band_almost_surely(
    threshold: float, permutations: int
) -> None:
    bands = bands_for(NearDuplicatesConfig(threshold=threshold, permutations=permutations))
    assert bands.count * bands.width <= permutations
    assert 1 - (1 - threshold**bands.width) ** bands.count >= 0.99


def test_as_many_pairs_agree_in_a_band_as_their_similarity_says() -> None:
    rng = random.Random(7)
    bands = bands_for(NearDuplicatesConfig())
    for shared, size in ((200, 225), (60, 68), (300, 450), (60, 120)):  # 0.8, 0.79, 0.5, 0.33
        agree = 0
        for _ in range(100):
            values = rng.sample(range(1 << 32), 2 * size - shared)
            pair = [set(values[:size]), set(values[size - shared :])]
            one, other = band_keys(sets_of(pair), bands)
            agree += bool(np.any(one == other))
        likeness = shared / (2 * size - shared)
        expected = 1 - (1 - likeness**bands.width) ** bands.count
        deviation = (expected * (1 - expected) / 100) ** 0.5
        assert abs(agree / 100 - expected) < 4 * deviation + 0.01


def test_of_a_crowd_those_that_agree_most_are_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(duplicates, "MAX_COMPARISONS", 3)
    crowd = [set(range(number * 100, number * 100 + 100)) for number in range(50)]
    documents = [*crowd, crowd[30] - {3000}]
    numbers = np.arange(len(documents))
    candidates = np.concatenate(
        (numbers, [30, 50])
    )  # all in one group, two of them also in another
    groups = np.concatenate((np.zeros_like(numbers), [1, 1]))
    found = kept_for(candidates, groups, sets_of(documents), threshold=THRESHOLD)
    assert found.tolist() == [*range(50), 30]


def test_a_key_of_nothing_is_shared_by_nobody() -> None:
    members, groups = sharing(np.array([0, 7, 0, 5, 7, 9, 5, 7], dtype=np.uint64))
    assert sorted(zip(groups.tolist(), members.tolist(), strict=True)) == [
        (0, 3),
        (0, 6),
        (1, 1),
        (1, 4),
        (1, 7),
    ]


def plain_shingles(documents: list[str], words: int) -> list[tuple[int, tuple[str, ...]]]:
    found = []
    for number, document in enumerate(documents):
        every = re.findall("[0-9a-zé]+|東", document.replace("A", "a").replace("B", "b"))
        for at in range(len(every)):
            for stop in range(at + 1, len(every) + 1):
                # an ideograph counts as half a word
                if sum(1.0 - 0.5 * (word == "東") for word in every[at:stop]) >= words:
                    found.append((number, tuple(every[at:stop])))
                    break
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


@given(
    st.lists(st.text(alphabet="aB .,\u0301\n9é東กำ。、ー😀ू한ß—", max_size=60)), st.integers(1, 7)
)
def test_the_kernel_makes_what_numpy_makes(texts: list[str], words: int) -> None:
    lines = [f"{text}\n".encode() for text in texts]
    raw = np.frombuffer(b"".join(lines), dtype=np.uint8)
    ends = np.cumsum([len(line) for line in lines], dtype=np.int64)
    if duplicates_library() is None:
        pytest.skip("there is no compiler")
    with pytest.MonkeyPatch.context() as patch:
        by_kernel = everything_made(raw, ends, words)
        patch.setattr(duplicates, "duplicates_library", lambda: None)
        by_numpy = everything_made(raw, ends, words)
    for ours, theirs in zip(by_kernel, by_numpy, strict=True):
        assert ours.dtype == theirs.dtype
        assert ours.tolist() == theirs.tolist()


def everything_made(raw: Bytes, ends: Offsets, words: int) -> list[AnyArray]:
    found = shingles(raw, ends, words=words)
    sets = ShingleSets.of(found, len(ends))
    keys = band_keys(sets, bands_for(NearDuplicatesConfig()))
    exact = token_windows(raw, ends, tokens=words)
    at = find_words(raw)
    hashes = range_hashes(raw, *at[:2])
    return [*vars(found).values(), *vars(sets).values(), keys, *exact, *at, hashes]
