"""Filters drop what they say, count each document under one reason, and are off by default."""

import numpy as np

from pipeline.cleaning import clean
from pipeline.config import CleaningConfig
from pipeline.filters import Reason, filter_documents
from pipeline.readers.documents import pack

PROSE = "A few plain words of prose.\nAnd a second line of it."


def reasons(*documents: bytes | str, **options: float) -> list[str]:
    raw = [text.encode() if isinstance(text, str) else text for text in documents]
    (block,) = pack(enumerate(raw))
    found = filter_documents(clean(block, line_break="paragraph"), CleaningConfig(**options))
    assert found.dtype == np.uint8
    return [Reason(reason).name.lower() for reason in found]


def test_by_default_only_what_is_no_text_is_dropped() -> None:
    elf = b"\x7fELF\x02\x01\x01" + bytes(range(128, 256)) * 3
    jpeg = b"\xff\xd8\xff\xe0JFIF" + bytes(range(200, 256)) * 5
    assert reasons(
        PROSE, "", " \n ", elf, jpeg, "# # # ... ..", "x", b"one \xff in many words"
    ) == [
        "kept",
        "empty",
        "empty",
        "not_text",
        "not_text",
        "kept",
        "kept",
        "kept",
    ]


def test_the_share_of_invalid_bytes_is_of_characters() -> None:
    text = "é" * 95 + "\ufffd" * 5
    assert reasons(text, max_replacement_share=0.05) == ["kept"]
    assert reasons(text, max_replacement_share=0.049) == ["not_text"]


def test_short_documents() -> None:
    assert reasons(PROSE, PROSE + " x", min_words=13) == ["short", "kept"]


def test_symbols_are_hashes_and_ellipses() -> None:
    few, many = "word " * 19 + "#", "word " * 8 + "# …"
    dots = "more... " * 5
    options = {"max_symbol_to_word_ratio": 0.1}
    assert reasons(few, many, dots, PROSE, **options) == ["kept", "symbols", "symbols", "kept"]


def test_words_with_letters() -> None:
    numbers, mixed = "1 2 3 4 five", "1a 2b 3c 4d 5"
    options = {"min_alphabetic_share": 0.8}
    assert reasons(numbers, mixed, PROSE, "число 中文", **options) == [
        "few_letters",
        "kept",
        "kept",
        "kept",
    ]


def test_the_first_reason_that_holds_is_given() -> None:
    options = {"min_words": 3, "max_symbol_to_word_ratio": 0.1, "min_alphabetic_share": 0.8}
    assert reasons("# 1", b"\xff\xfe", "", **options) == ["short", "not_text", "empty"]
