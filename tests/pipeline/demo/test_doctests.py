import pytest

from pipeline.demo.docstring_text import split_examples

TEXT = """Before it.

>>> import numpy as np
>>> from numpy import mean
>>> for row in table:
...     print(row)
...
first
>>> mean(table)
0.5
After the last output without a gap.

Then more.
    >>> indented.call(name)

>>> x = [[1.5, 2.25], [3.125, 4.0]]
"""


def test_statements_are_told_from_prose_and_from_what_they_print() -> None:
    found = [
        (kind, [line for line in lines if line]) for kind, lines in split_examples(TEXT.split("\n"))
    ]
    assert found == [
        (False, ["Before it."]),
        (True, ["for row in table: print(row)", "mean(table)"]),
        (False, ["Then more."]),
        (True, ["indented.call(name)"]),
        (False, []),
        (True, []),
        (False, []),
    ]


@pytest.mark.parametrize("lines", [[], [""], ["text"], ["... no prompt before it"]])
def test_without_a_prompt_all_is_prose(lines: list[str]) -> None:
    assert list(split_examples(lines)) == [(False, lines)]


def test_long_statements_are_data() -> None:
    assert list(split_examples([">>> f(" + "word, " * 100 + ")"]))[1] == (True, [])
