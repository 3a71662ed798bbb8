"""Damage of a text is found, and ordinary text is not."""

import numpy as np
import pytest

from cloze.artifacts.arrays import concatenated
from cloze.pipeline.readers.documents import DocumentBlock
from cloze.pipeline.survey.damage import kinds, mended, places


def found(raw: bytes) -> dict[str, list[str]]:
    """What is found in a text, by kind, whether as read or cleaned."""
    block = DocumentBlock(*concatenated([raw]), np.array([0]))
    return {
        kind.name: [raw[a:b].decode("utf-8", "replace") for a, b in places(kind, block).tolist()]
        for kind in kinds()
        if len(places(kind, block))
    }


@pytest.mark.parametrize(
    ("text", "kind", "shown"),
    [
        ("It’s a naïve café.", "Windows-1252", ["’", "ï", "é"]),
        ("naïve café", "Mac OS Roman", ["ï", "é"]),
        ("naïve café", "DOS code page 850", ["ï", "é"]),
        ("привет", "Windows-1251", ["привет"]),
        ("日本語 text", "Windows-1252", ["日本語"]),
    ],
)
def test_utf_8_read_as_another_encoding_is_found_and_mended(
    text: str, kind: str, shown: list[str]
) -> None:
    codec = {"Windows-1252": "cp1252", "Mac OS Roman": "mac_roman"}
    codec |= {"DOS code page 850": "cp850", "Windows-1251": "cp1251"}
    # Browsers and editors read bytes without a meaning as control characters.
    wrong = "".join(
        bytes([byte]).decode(codec[kind], "ignore") or chr(byte) for byte in text.encode()
    )
    passages = found((wrong + "\n").encode())[f"UTF-8 read as {kind}"]
    assert [mended(passage) for passage in passages] == [(one, 1) for one in shown]


def test_what_was_converted_twice_is_known_as_such() -> None:
    once = "é".encode().decode("cp1252")
    twice = once.encode().decode("cp1252")
    assert found(f"caf{twice}\n".encode())["UTF-8 read as Windows-1252"] == [twice]
    assert mended(twice) == ("é", 2)
    assert mended("café") == ("café", 0)


@pytest.mark.parametrize(
    "text",
    [
        "Plain text, with (brackets), <angles> and & in it; a_formula, 3 < 4.",
        "Élève à Noël, «MAÇÃ», LIBERTÉ— cœur ÉÈ…",
        "Марещук Вікторія Анатоліївна; Світлана Матвієнко; «Її» Є",
        "人人生而自由，在尊严和权利上一律平等。 سلامة شخصه כל בני אדם 日本語「テスト」",
        "Übergröße – „Straße“ ±10 °C ½ © Ñandú à € “so”",
    ],
)
def test_ordinary_text_in_many_scripts_is_not_damaged(text: str) -> None:
    assert found(f"{text}\n".encode()) == {}


@pytest.mark.parametrize(
    ("raw", "kind", "passages"),
    [
        ("é ".encode() + b"it\x92s \xf0\x9f\n", "bytes that are not UTF-8", ["\ufffd"] * 3),
        (b"lost \xef\xbf\xbd here\n", "replacement characters", ["\ufffd"]),
        (b"it\xc2\x92s\n", "controls U+0080 to U+009F", ["\x92"]),
        (b"a\x00b\x1bc\n", "other control characters", ["\x00", "\x1b"]),
        ("so\u00adft \u200bx\n".encode(), "invisible characters", ["\u00ad", "\u200b"]),
        ("\uf0b7 item\n".encode(), "private characters", ["\uf0b7"]),
        ("o\ufb03ce\n".encode(), "ligatures", ["\ufb03"]),
        ("cafe\u0301\n".encode(), "letters apart from their accents", ["\u0301"]),
        (b"exam-\nple, 3-\n4\n", "words divided at line ends", ["-\nple"]),
        (b"a &amp; b &eacute;&#8217; AT&T;\n", "HTML entities", ["&amp;", "&eacute;", "&#8217;"]),
        (b"<p>a</p><td>b\n", "HTML pages", ["</p>"]),
        (b"a<br clear=all>b</ref>\n", "stray tags", ["<br clear=all>", "</ref>"]),
        (b"__NOTOC__ [[x|y]] '''b'''\n", "wiki markup", ["__NOTOC__", "[[x|y]]", "'''", "'''"]),
        (b"let formula_12 be\n", "formulas left out", ["formula_12"]),
        (b"Chen (; born) x () [ ]\n", "emptied brackets", ["(; ", "()", "[ ]"]),
    ],
)
def test_each_kind_is_found_where_it_is(raw: bytes, kind: str, passages: list[str]) -> None:
    assert found(raw)[kind] == passages
