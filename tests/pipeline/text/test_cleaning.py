"""Cleaning a block agrees with a plain implementation applied to each document."""

import html
import re
from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from cloze.pipeline.config.settings import LineBreak
from cloze.pipeline.readers.documents import pack
from cloze.pipeline.text import cleaning
from cloze.pipeline.text.cleaning import (
    FULL_LINES_NEEDED,
    LONG_LINES_ALLOWED,
    SHORT_LINE,
    WRAPPED_WIDTH,
    clean,
)

LINE_ENDS = "\r\x0b\x0c\x85\u2028\u2029"
SPACES = "\t\xa0\u1680\u2000\u2003\u2009\u200a\u202f\u205f\u3000"
INVISIBLE = "\x00\x01\x08\x0e\x1b\x1c\x1f\x7f\x80\x84\x86\x9f\xad\u200b\u200d\u202a\u2066\ufeff"
ALL_INVISIBLE = re.compile(
    "[\x00-\x08\x0e-\x1f\x7f-\x84\x86-\x9f\xad\u200b-\u200f\u202a-\u202e\u2060-\u206f\ufeff]"
)


@pytest.fixture(params=["compiled", "numpy"], scope="module", autouse=True)
def form(request: pytest.FixtureRequest) -> Iterator[None]:
    """Run every test with and without the compiled code."""
    with pytest.MonkeyPatch.context() as patch:
        if request.param == "numpy":
            patch.setattr(cleaning, "cleaning_library", lambda: None)
        elif cleaning.cleaning_library() is None:
            pytest.skip("no gcc here to compile the kernel with")
        yield


def plain_clean(raw: bytes, line_break: LineBreak) -> str:
    """The reference: one document and one step at a time."""
    text = raw.decode("utf-8", "replace").replace("\r\n", "\n")
    text = re.sub(f"[{LINE_ENDS}]", "\n", text)
    text = re.sub(f"[{SPACES}\u2000-\u200a]", " ", text)
    text = ALL_INVISIBLE.sub("", text)
    lines = [line.rstrip(" ") for line in text.split("\n")]
    told = [line for line in lines if line]
    wrapped = (
        line_break == "detect"
        and sum(len(line) > WRAPPED_WIDTH for line in told) <= LONG_LINES_ALLOWED * len(told)
        and sum(len(line) >= SHORT_LINE for line in told) >= FULL_LINES_NEEDED * len(told)
    )
    result = ""
    for number, line in enumerate(lines):
        collapsed = " ".join(line.split(" ")).strip()
        collapsed = re.sub(" +", " ", collapsed)
        if not collapsed:
            continue
        follows = lines[number + 1] if number + 1 < len(lines) else ""
        more = any(lines[number + 1 :])
        joins = wrapped and more and follows and len(line) >= SHORT_LINE
        result += collapsed + (" " if joins else "\n")
    return result


def cleaned(documents: list[bytes], line_break: LineBreak, *, from_html: bool = False) -> list[str]:
    (block,) = pack(enumerate(documents))
    result, _ = clean(block, line_break=line_break, from_html=from_html)
    assert len(result.ends) == len(documents)
    raw = result.text.tobytes()
    starts = [0, *result.ends[:-1].tolist()]
    return [raw[a:b].decode() for a, b in zip(starts, result.ends.tolist(), strict=True)]


ODD = st.sampled_from(
    [*LINE_ENDS, *SPACES, *INVISIBLE, "\r\n", "\n", " ", "a", "é", "中", "😀", "\ufffd", "w" * 63]
)
LINES = st.sampled_from(
    ["w" * 39, "w" * 40, "é" * 45, "x " * 50, "short", "y" * 101, " " * 9 + "i" * 35, ""]
)
DOCUMENT = st.one_of(
    st.lists(ODD, max_size=12).map(lambda parts: "".join(parts).encode()),
    st.lists(LINES, max_size=7).map(lambda lines: "\n".join(lines).encode()),
    st.binary(max_size=12),
)


@given(
    documents=st.lists(DOCUMENT, min_size=1, max_size=5),
    line_break=st.sampled_from(["sentence", "paragraph", "detect"]),
)
@example(documents=[b"\xe2\x80", b"\xa8x"], line_break="paragraph")
@example(documents=[b"a\r", b"\nb"], line_break="paragraph")
@example(documents=[b"\n\n  " + b"w" * 38 + b"\n" + b"v" * 60, b"", b"  x"], line_break="detect")
@settings(max_examples=1000)
def test_each_document_of_a_block_is_cleaned_as_if_alone(
    documents: list[bytes], line_break: LineBreak
) -> None:
    assert cleaned(documents, line_break) == [plain_clean(raw, line_break) for raw in documents]


@pytest.mark.parametrize(
    ("raw", "expected"),
    [
        (b"\xef\xbb\xbffirst", "first\n"),
        (b"a\x00b\x0bc", "ab\nc\n"),
        (b"one\r\ntwo\rthree\n\r\nfour", "one\ntwo\nthree\nfour\n"),
        ("a\u2028b\u2029c\x85d".encode(), "a\nb\nc\nd\n"),
        ("so\xadft\u200b and\xa0hard\u3000wide".encode(), "soft and hard wide\n"),
        (b"bad \xff\xfe byte", "bad \ufffd\ufffd byte\n"),
        (b" \t\n \r\n", ""),
        (b"", ""),
        (b"\xed\xa0\xbd half a pair", "\ufffd\ufffd\ufffd half a pair\n"),
    ],
)
def test_odd_characters(raw: bytes, expected: str) -> None:
    assert cleaned([raw], "paragraph") == [expected]


def test_invalid_bytes_are_counted_by_document() -> None:
    (block,) = pack(enumerate([b"fine", b"\xffbad\xff", "\ufffd".encode(), b"fine"]))
    assert clean(block, line_break="paragraph")[1].tolist() == [0, 2, 1, 0]


def test_a_character_cut_by_a_document_end_is_invalid_in_both() -> None:
    assert cleaned([b"x\xc3", b"\xa9y"], "paragraph") == ["x\ufffd\n", "\ufffdy\n"]


def test_hard_wrapped_books_become_paragraphs() -> None:
    book = (
        "It was the best of times, it was the worst\n"
        "of times, it was an age of wisdom and the\nage.\n"
        "     There were a king with a large jaw and a\nqueen with a plain face, on the throne.\n"
    )
    assert cleaned([book.encode()], "detect")[0].split("\n") == [
        "It was the best of times, it was the worst of times, it was an age of wisdom and the age.",
        "There were a king with a large jaw and a queen with a plain face, on the throne.",
        "",
    ]


def test_one_paragraph_a_line_stays_so() -> None:
    document = "Short title\n" + "A long paragraph goes on and on. " * 10 + "\nAnother one.\n"
    assert cleaned([document.encode()], "detect")[0].count("\n") == 3


@given(
    st.lists(
        st.sampled_from(
            [
                "&amp;",
                "&lt;",
                "&nbsp;",
                "&#233;",
                "&#x4e2d;",
                "&#0;",
                "&#8232;",
                "&no",
                ";",
                "<br>",
                "<br />",
                "<b>",
                " ",
                "x",
                "&copy;",
                "&#xd800;",
                "&notanentity;",
            ]
        ),
        max_size=10,
    )
)
@settings(max_examples=300)
def test_html_remains_become_what_they_mean(parts: list[str]) -> None:
    text = "".join(parts)

    def meaning(match: "re.Match[str]") -> str:
        if match.group().startswith("<"):
            return "\n"
        character = html.unescape(match.group())
        if character.isspace():
            return " "
        return character if character.isprintable() else ""

    expected = re.sub(
        r"<br ?/?>|&(?:[A-Za-z][A-Za-z0-9]{1,30}|#\d{1,7}|#[xX][0-9a-fA-F]{1,6});", meaning, text
    )
    got = cleaned([b"before", text.encode(), b"after"], "paragraph", from_html=True)
    assert got == ["before\n", plain_clean(expected.encode(), "paragraph"), "after\n"]


def test_html_is_left_alone_elsewhere() -> None:
    assert cleaned([b"use &amp; and <br>"], "paragraph") == ["use &amp; and <br>\n"]


def test_cleaning_twice_changes_nothing() -> None:
    raw = "A\u2028 b\r\n\r\n  c  d \xa0e\n".encode()
    (once,) = cleaned([raw], "paragraph")
    assert cleaned([once.encode()], "paragraph") == [once]


def test_empty_blocks_are_possible() -> None:
    (block,) = pack([(0, b"")])
    result, _ = clean(block, line_break="detect")
    assert len(result.text) == 0
    assert result.ends.dtype == np.int64
