"""Filters drop the right documents, count each under one reason, and are off by default."""

import sys
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cloze.artifacts.errors import UsageError
from cloze.pipeline.config.presets import LANGUAGES, PRESETS
from cloze.pipeline.config.settings import CleaningConfig
from cloze.pipeline.readers.documents import pack
from cloze.pipeline.text.cleaning import clean
from cloze.pipeline.text.filters import RULES, Reason, filter_documents
from cloze.pipeline.text.line_rules import LINE_RULES

PROSE = "A few plain words of prose.\nAnd a second line of it."


def reasons(*documents: bytes | str, **options: Any) -> list[str]:
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
    assert not any(getattr(CleaningConfig(), rule.setting) for rule in RULES)


def test_the_share_of_invalid_bytes_is_of_characters() -> None:
    text = "é" * 95 + "\ufffd" * 5
    assert reasons(text, max_replacement_share=0.05) == ["kept"]
    assert reasons(text, max_replacement_share=0.049) == ["not_text"]


def test_short_documents() -> None:
    assert reasons(PROSE, PROSE + " x", min_words=13) == ["short", "kept"]


def test_symbols_are_hashes_or_ellipses() -> None:
    """Gopher: "for either the hash symbol or the ellipsis"."""
    few, many = "word " * 19 + "#", "word " * 8 + "# #"
    dots = "more... " * 5
    both = "word " * 8 + "# …"
    assert reasons(both, "a " * 20 + ".........", max_symbol_to_word_ratio=0.1) == [
        "kept",
        "symbols",
    ]
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


def test_lines_that_came_earlier_in_the_document() -> None:
    """Three of five lines come again, with 9 of 24 characters."""
    text = "one\none\none\ntwelve chars\none"
    assert reasons(text, PROSE, max_duplicate_line_share=0.59) == ["duplicate_lines", "kept"]
    assert reasons(text, max_duplicate_line_share=0.6) == ["kept"]
    assert reasons(text, max_duplicate_line_text=0.32) == ["duplicate_lines"]  # 9 / 28
    assert reasons(text, max_duplicate_line_text=0.33) == ["kept"]
    assert reasons(text, max_repeated_line_text=0.37) == ["duplicate_lines"]  # 9 / 24
    assert reasons(text, max_repeated_line_text=0.38) == ["kept"]


def test_the_most_frequent_n_gram() -> None:
    text = (
        "a b c d a b e a b f"  # 19 characters; "a b" three times is 9, "a b c" and "a b c d" once
    )
    for n, characters in ((2, 9), (3, 5), (4, 7)):
        setting, share = f"max_top_{n}_gram_text", characters / 19
        assert reasons(text, **{setting: share - 0.01}) == ["top_n_gram"], n
        assert reasons(text, **{setting: share}) == ["kept"], n


def test_n_grams_that_came_earlier_in_the_document() -> None:
    """Ten words, then the first n of them once more: they are n of the characters."""
    words = ["a", "b", "c", "d", "e", "f", "g", "h", "i", "j"]
    for n in range(5, 11):
        text = " ".join([*words, "x", *words[:n]])
        setting, share = f"max_duplicate_{n}_gram_text", n / len(text)
        assert reasons(text, **{setting: share - 0.001}) == ["duplicate_n_grams"], n
        assert reasons(text, **{setting: share}) == ["kept"], n
        longer = f"max_duplicate_{n + 1}_gram_text"
        assert n == 10 or reasons(text, **{longer: 0.001}) == ["kept"], n


def test_n_grams_that_overlap_are_counted_once() -> None:
    # "a" 20 times: n-grams of five at 1 (new), then at 2, 7 and 12 for 15 characters of 39
    assert reasons("a " * 20, max_duplicate_5_gram_text=15 / 39) == ["kept"]
    assert reasons("a " * 20, max_duplicate_5_gram_text=14 / 39) == ["duplicate_n_grams"]


def test_lines_that_end_like_a_sentence_in_any_script() -> None:
    texts = ["One.\nTwo\nThree", "一。\n二\n三", "एक।\nदो\nतीन", "One,\nTwo\nThree", 'One."\nTwo']
    assert reasons(*texts, min_terminated_line_share=0.3) == [
        *(["kept"] * 3),
        *(["unterminated_lines"] * 2),
    ]


def test_short_lines() -> None:
    long = "é" * 31
    texts = ["a\nb\n" + long, "a\n" + long, "é" * 30]
    assert reasons(*texts, max_short_line_share=0.6) == ["short_lines", "kept", "short_lines"]
    assert reasons("a\nb\n" + long, max_short_line_share=0.6, short_line=31) == ["short_lines"]


def test_line_breaks_per_word() -> None:
    assert reasons("a\nb\nc", "a b c\nd e f g", max_line_break_share=0.3) == ["line_breaks", "kept"]
    assert reasons("a\nb\nc", max_line_break_share=0.67) == ["kept"]  # two to three


def test_blocked_words_are_whole_words_in_any_case() -> None:
    texts = ["It is Foul.", "It is foulness.", "foul", "an Ugly\nthing", "An ugly thing.", "ÄH!"]
    assert reasons(*texts, blocked_words=("foul", "ugly thing", "äh")) == [
        *("blocked_word", "kept", "blocked_word", "kept", "blocked_word", "blocked_word")
    ]


ENGLISH = "The committee met on Tuesday and decided that the bridge would be repaired this year. "
GERMAN = "Der Ausschuss hat am Dienstag beschlossen, dass die Brücke in diesem Jahr saniert wird. "


def test_languages() -> None:
    pytest.importorskip("pycld2")
    texts = [ENGLISH, GERMAN, ENGLISH * 2 + GERMAN, "7 8 9", "x \ufdd0 y"]
    assert reasons(*texts, languages=("en",)) == [
        *("kept", "language", "kept", "language", "language")
    ]
    assert reasons(*texts[:3], languages=("en",), min_language_share=0.9)[2] == "language"
    assert reasons(*texts[:3], languages=("en", "de")) == ["kept"] * 3


def test_the_languages_are_those_that_the_library_tells() -> None:
    pycld2 = pytest.importorskip("pycld2")
    named = dict(pycld2.LANGUAGES)
    codes = {named[name] for name in pycld2.DETECTED_LANGUAGES}
    ours = {"iw": "he", "jw": "jv", "zh-Hant": "zh"}
    assert {ours.get(code, code) for code in codes if code[:3] != "xx-"} - LANGUAGES == {"zzp"}
    assert {ours.get(code, code) for code in codes} >= LANGUAGES


def test_without_the_extra_a_language_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pycld2", None)
    with pytest.raises(UsageError, match="install the extra `language`, or remove"):
        reasons(ENGLISH, languages=("en",))


def test_a_preset_has_the_published_thresholds_and_a_setting_beside_it_wins() -> None:
    gopher = CleaningConfig(presets=("gopher", "fineweb"), max_words=0, max_top_2_gram_text=0.25)
    assert (gopher.min_words, gopher.max_duplicate_10_gram_text) == (50, 0.1)
    assert (gopher.max_words, gopher.max_top_2_gram_text) == (0, 0.25)
    assert gopher.min_terminated_line_share == 0.12
    again = CleaningConfig.model_validate(gopher.model_dump(mode="json"))
    assert again == gopher
    settings_of_rules = {rule.setting for rule in (*RULES, *LINE_RULES)} | {"remove_citations"}
    assert {name for preset in PRESETS.values() for name in preset} == settings_of_rules - {
        *("blocked_words", "languages")
    }


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"presets": ("gofer",)}, "unknown preset; expected gopher, c4, fineweb"),
        ({"presets": (1,)}, "presets"),
        ({"max_duplicate_line_share": 1.5}, "less than or equal to 1"),
        ({"max_top_2_gram_text": -0.1}, "greater than or equal to 0"),
        ({"languages": ("english",)}, "unknown language; expected an ISO 639 code"),
        ({"mask": ("name",)}, "'mail', 'ip', 'phone' or 'card'"),
        ({"min_words": 50, "max_words": 10}, "every document would be dropped; raise one"),
        ({"blocked_words": ("",)}, "a word is empty"),
        ({"max_quintuple": 1}, "max_quintuple"),
    ],
)
def test_settings_that_make_no_sense_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        CleaningConfig(**options)


@settings(max_examples=60)
@given(st.lists(st.text("ab the.…-•*#{é\n ", max_size=12), min_size=1, max_size=5))
def test_a_document_is_judged_by_itself(texts: list[str]) -> None:
    options = {
        rule.setting: 1
        for rule in RULES
        if rule.setting not in ("max_words", "max_mean_word_length", "blocked_words", "languages")
    }
    assert reasons(*texts, **options) == [reasons(text, **options)[0] for text in texts]


def test_the_first_reason_that_holds_is_given() -> None:
    options = {"min_words": 3, "max_symbol_to_word_ratio": 0.1, "min_alphabetic_share": 0.8}
    assert reasons("# 1", b"\xff\xfe", "", **options) == ["short", "not_text", "empty"]
