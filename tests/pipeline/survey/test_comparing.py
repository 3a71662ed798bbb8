"""What differs between two texts."""

import hypothesis.strategies as st
from hypothesis import given

from cloze.pipeline.survey.comparing import compared

WORDS = st.lists(st.sampled_from(["a", "b", "<br>", "one", "two"]), max_size=30)


def test_what_is_gone_and_what_is_new_is_marked() -> None:
    assert compared("one <br>two   three\n", "one two four\n") == (
        ("same", "one "),
        ("gone", "<br>two three\n"),
        ("new", "two four\n"),
    )


def test_white_space_alone_is_no_difference() -> None:
    assert compared("one\ntwo  three", "one two\tthree") == (("same", "one two three "),)


def test_long_passages_that_are_equal_are_shortened() -> None:
    text = " ".join(f"word{at}" for at in range(200))
    pieces = compared(f"{text} x", f"{text} y")
    assert [kind for kind, _ in pieces] == ["same", "left_out", "same", "gone", "new"]
    assert int(pieces[1][1]) == len(text) + 1 - len(pieces[0][1]) - len(pieces[2][1])
    assert compared(text, text, shorten=False) == (("same", text + " "),)


@given(WORDS, WORDS)
def test_both_texts_can_be_read_from_the_pieces(before: list[str], after: list[str]) -> None:
    pieces = compared(" ".join(before), " ".join(after), shorten=False)
    old = "".join(text for kind, text in pieces if kind in ("same", "gone"))
    new = "".join(text for kind, text in pieces if kind in ("same", "new"))
    assert (old.split(), new.split()) == (before, after)
