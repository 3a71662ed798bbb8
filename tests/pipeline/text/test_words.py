"""Words and lines are counted as written down, and the same with and without a C compiler."""

from dataclasses import asdict
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cloze.pipeline.readers.documents import DocumentBlock, pack
from cloze.pipeline.text import words
from cloze.pipeline.text.cleaning import clean
from cloze.pipeline.text.words import cut_words, measure_lines, measure_words


def block_of(*texts: str) -> DocumentBlock:
    (block,) = pack(enumerate(text.encode() for text in texts))
    return clean(block, line_break="paragraph")[0]


def counts(block: DocumentBlock, *, n_grams: bool = True) -> list[Any]:
    found = [
        asdict(measure_words(block, n_grams=n_grams)),
        asdict(measure_lines(block, short_characters=5)),
    ]
    return [
        {name: value.tolist() for name, value in values.items() if not isinstance(value, dict)}
        | {
            f"{name} {n}": one.tolist()
            for name, value in values.items()
            if isinstance(value, dict)
            for n, one in value.items()
        }
        for values in found
    ]


def plainly(block: DocumentBlock, **options: Any) -> list[Any]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(words, "words_library", lambda: None)
        return counts(block, **options)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("I don't know.", "I do n't know ."),
        ("Well-known (U.S.) cars, e.g. O'Brien's", "Well - known ( U.S. ) cars , e.g. O'Brien 's"),
        ("3.5 and 1,000 at 5km or $5, 10%", "3.5 and 1,000 at 5 km or $ 5 , 10 %"),
        ("“Quoted” ... 'so'… a...b", "“ Quoted ” ... ' so ' … a ... b"),
        ("he'll, they’re; cannot", "he 'll , they ’re ; can not"),
        (
            "http://a-b.org/x-y, www.a-b.com me@a-b.de.",
            "http://a-b.org/x-y , www.a-b.com me@a-b.de .",
        ),
        ("USA. A. Mr. B end.Next 1990-95 x--y", "USA . A. Mr. B end . Next 1990 - 95 x -- y"),
        ("中文字。กิน", "中 文 字 。 กิ น"),
        ("C++ 10+ #1 a_b 😀x", "C++ 10 + # 1 a_b 😀 x"),
    ],
)
def test_words_are_cut_like_this(text: str, expected: str) -> None:
    assert " ".join(cut_words(text)) == expected


def test_what_is_counted_of_words() -> None:
    found = measure_words(block_of("One, two - 3!", "", "中文 字"))
    assert found.tokens.tolist() == [6, 0, 1]  # three ideographs are one word and a half
    assert found.words.tolist() == [3, 0, 1]
    assert found.with_letters.tolist() == [2, 0, 1]
    assert found.characters.tolist() == [7, 0, 3]


def test_an_n_gram_has_as_many_ideographs_as_n_words() -> None:
    """Five words are ten ideographs."""
    found = measure_words(block_of("天地玄黄宇宙洪荒日月" * 2, "天地玄黄宇宙洪荒日" * 2))
    assert found.duplicated[5].tolist() == [10, 0]


def test_what_is_counted_of_lines() -> None:
    found = measure_lines(block_of("One.\nTwo\nOne.\nÜber", ""), short_characters=3)
    assert {name: value.tolist() for name, value in asdict(found).items()} == {
        "lines": [4, 0],
        "duplicates": [1, 0],
        "duplicated_characters": [4, 0],
        "terminated": [2, 0],
        "short": [1, 0],
        "characters": [15, 0],
    }


def test_without_n_grams_the_rest_is_the_same() -> None:
    block = block_of("a b c a b c a b c", "x")
    whole, without = counts(block), counts(block, n_grams=False)
    assert {name: value for name, value in whole[0].items() if " " not in name}.items() <= (
        without[0].items()
    )
    assert not np.any([value for name, value in without[0].items() if " " in name])
    assert plainly(block, n_grams=False) == without


ALPHABET = "abB19.,-+'’:/…()@$%#sSkm中ภิ้é“\u00a0 \n"


@settings(max_examples=300, deadline=None)
@given(st.lists(st.text(ALPHABET, max_size=40).map(lambda one: one * 2), min_size=1, max_size=4))
def test_with_and_without_a_compiler_the_same_is_counted(texts: list[str]) -> None:
    if words.words_library() is None:
        pytest.skip("no compiler")
    block = block_of(*texts)
    assert counts(block) == plainly(block)


def test_a_long_document_is_counted_the_same_without_a_compiler() -> None:
    rng = np.random.default_rng(0)
    vocabulary = np.array(
        ["the", "cat's", "well-known", "U.S.", "3,5", "“no”", "中文", "(a", "b)."]
    )
    text = " ".join(vocabulary[rng.integers(len(vocabulary), size=4000)])
    block = block_of(text, text[:500], "\n".join(text.split("b).")))
    assert counts(block) == plainly(block)
