"""Filters drop the right documents, count each under one reason, and are off by default."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from cloze.pipeline.config.settings import CleaningConfig
from cloze.pipeline.readers.documents import pack
from cloze.pipeline.text.cleaning import clean
from cloze.pipeline.text.filters import RULES, Reason, filter_documents

PROSE = "A few plain words of prose.\nAnd a second line of it."


def reasons(*documents: bytes | str, **options: float) -> list[str]:
    raw = [text.encode() if isinstance(text, str) else text for text in documents]
    (block,) = pack(enumerate(raw))
    found = filter_documents(*clean(block, line_break="paragraph"), CleaningConfig(**options))
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


def test_every_rule_is_off_by_default() -> None:
    assert not any(getattr(CleaningConfig(), setting) for _, setting, _ in RULES)


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


def test_long_documents() -> None:
    assert reasons(PROSE, PROSE + " x", max_words=12) == ["kept", "long"]


def test_the_mean_length_of_words_is_in_characters() -> None:
    short, long, wide = "a b c ab", "internationalisation of", "éé éé"
    assert reasons(short, PROSE, min_mean_word_length=3) == ["word_length", "kept"]
    assert reasons(long, PROSE, max_mean_word_length=10) == ["word_length", "kept"]
    assert reasons(wide, max_mean_word_length=2) == ["kept"]
    assert reasons(wide, max_mean_word_length=1.9) == ["word_length"]


def test_lines_that_begin_with_a_bullet() -> None:
    lists = ["- a\n- b\nc - d", "• a\n• b\n- c", "* a\nb", "— a\n… b"]
    assert reasons(*lists, PROSE, max_bullet_line_share=0.6) == [
        "bullets",
        "bullets",
        "kept",
        "kept",
        "kept",
    ]


def test_lines_that_end_with_an_ellipsis() -> None:
    teasers = ["Read ...\nOn …\nNo.", "Not ... here\nNor … here", "a...", "…", "x"]
    assert reasons(*teasers, max_ellipsis_line_share=0.3) == [
        "ellipses",
        "kept",
        "ellipses",
        "ellipses",
        "kept",
    ]


def test_stop_words_are_different_whole_words_in_any_case() -> None:
    texts = ["The cat (of all).", "the the the", "then bees often", "HAVE\nwith", "thé bé"]
    assert reasons(*texts, min_stop_words=2) == [
        "kept",
        "few_stop_words",
        "few_stop_words",
        "kept",
        "few_stop_words",
    ]


def test_code_and_placeholders() -> None:
    options = {"drop_curly_brackets": True, "drop_lorem_ipsum": True}
    texts = ["if (x) { y }", "a } b", "Lorem Ipsum dolor", "lorem\nipsum", PROSE]
    assert reasons(*texts, **options) == ["curly_bracket", "kept", "lorem_ipsum", "kept", "kept"]


@settings(max_examples=60)
@given(st.lists(st.text("ab the.…-•*#{é\n ", max_size=12), min_size=1, max_size=5))
def test_a_document_is_judged_by_itself(texts: list[str]) -> None:
    options = {setting: 1 for _, setting, _ in RULES if setting != "max_words"}
    assert reasons(*texts, **options) == [reasons(text, **options)[0] for text in texts]


def test_the_first_reason_that_holds_is_given() -> None:
    options = {"min_words": 3, "max_symbol_to_word_ratio": 0.1, "min_alphabetic_share": 0.8}
    assert reasons("# 1", b"\xff\xfe", "", **options) == ["short", "not_text", "empty"]
