"""Docstrings are reduced to prose, and their examples to statements."""

import pytest

from cloze.demo.docstring_text import (
    CODE_BEGIN,
    CODE_END,
    paragraphs,
    split_examples,
    without_markup,
)

NUMPY_STYLE = """Compute the mean
along an axis.

Parameters
----------
axis : {int, None}, optional
    Axis along which the
    means are computed.
out : ndarray
    Where to put it:

    * either an array
      of the right shape
    * or None

Returns
-------
ndarray
    The mean.

Raises
------
ValueError
    If the axis is wrong.

See Also
--------
average : Weighted average.

Notes
-----
It is a sum divided by a count.

.. math::

    m = \\frac{1}{n} \\sum x

.. note::

    Beware of overflow in this place.

.. versionadded:: 1.7.0

References
----------
.. [1] Somebody, "Something about means", 1999.

Examples
--------
A doctest follows the words::

    some(code)

>>> a = np.array([[1, 2], [3, 4]])
>>> np.mean(a)
2.5

The end has been reached.
"""

GOOGLE_STYLE = """Fetch rows from a table.

Args:
    table: The table that
        is read.
    keys (list of str): The keys.

Returns:
    A dict of rows.

Example:
    ```python
    fetch(table)
    ```
"""


def test_numpy_style_keeps_prose_and_parameter_lines_and_nothing_else() -> None:
    assert paragraphs(NUMPY_STYLE) == [
        "Compute the mean along an axis.",
        "Parameters",
        "axis : {int, None}, optional",
        "Axis along which the means are computed.",
        "out : ndarray",
        "Where to put it:",
        "either an array of the right shape",
        "or None",
        "Returns",
        "The mean.",
        "Raises",
        "If the axis is wrong.",
        "Notes",
        "It is a sum divided by a count.",
        "Beware of overflow in this place.",
        "Examples",
        "A doctest follows the words:",
        "The end has been reached.",
    ]


def test_the_statements_of_examples_are_paragraphs_where_wanted() -> None:
    plain, with_examples = paragraphs(NUMPY_STYLE), paragraphs(NUMPY_STYLE, examples=True)
    assert [text for text in with_examples if text not in plain] == ["np.mean(a)"]
    assert with_examples[-2:] == ["np.mean(a)", "The end has been reached."]


def test_google_style_gives_one_paragraph_for_each_argument() -> None:
    assert paragraphs(GOOGLE_STYLE) == [
        "Fetch rows from a table.",
        "Args",
        "table: The table that is read.",
        "keys (list of str): The keys.",
        "Returns",
        "A dict of rows.",
    ]


def test_field_lists_become_parameter_lines() -> None:
    text = "Do it.\n\n:param int count: how many\n:returns: the result of it\n:rtype: str or None"
    assert paragraphs(text) == [
        "Do it.",
        "count : how many",
        "the result of it",
        "str or None",
    ]


@pytest.mark.parametrize(
    "table",
    [
        "====  =====\nname  value\n====  =====\na     1\n====  =====",
        "+---+---+\n| a | b |\n+---+---+",
        "| a | b |\n|---|---|\n| 1 | 2 |",
    ],
)
def test_tables_are_left_out(table: str) -> None:
    assert paragraphs(f"The table:\n\n{table}\n\nAfter the table.") == [
        "The table:",
        "After the table.",
    ]


def test_a_heading_without_anything_below_it_goes() -> None:
    text = "Do it.\n\nParameters\n----------\n\nReturns\n-------\nint\n\nExamples\n--------\n>>> 1"
    assert paragraphs(text) == ["Do it."]


def test_titles_stay_and_their_underlines_go() -> None:
    text = "A longer title\n==============\n\nSome text here."
    assert paragraphs(text) == ["A longer title", "Some text here."]


def test_code_without_any_mark_is_known_by_its_signs() -> None:
    assert paragraphs("Text first.\n\nx[0] += {1: (a, b)}; y = f(x)[-1] % 3 == 0") == [
        "Text first."
    ]


def test_an_unclosed_fence_ends_with_the_docstring() -> None:
    assert paragraphs("Before it.\n\n```\nnever closed\n") == ["Before it."]


@pytest.mark.parametrize("text", ["", "\n", "word", "-----", ">>> 1", "..", "::"])
def test_nothing_readable_gives_nothing(text: str) -> None:
    assert paragraphs(text) == []


def test_no_paragraph_holds_a_line_break() -> None:
    for paragraph in paragraphs(NUMPY_STYLE + GOOGLE_STYLE):
        assert "\n" not in paragraph
        assert paragraph == paragraph.strip()


EXAMPLES = """Before it.

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
        (kind, [line for line in lines if line])
        for kind, lines in split_examples(EXAMPLES.split("\n"))
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


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("the `axis` of ``x``", "the axis of x"),
        ("see :func:`~numpy.linalg.norm` there", "see norm there"),
        ("see :py:meth:`Graph.add_edge` there", "see Graph.add_edge there"),
        ("`the guide <https://example.org>`_ says", "the guide says"),
        ("**bold** and *emphasised* words", "bold and emphasised words"),
        ("takes *args and **kwargs", "takes *args and **kwargs"),
        ("2*x*y stays", "2*x*y stays"),
        ("as shown [1]_ and [CIT2002]_.", "as shown and."),
        ("cost is $O(n^2)$ here", "cost is O(n^2) here"),
        (r"an angle :math:`\alpha_{i}`", "an angle alpha_i"),
        ("a |Quantity| object", "a Quantity object"),
        ("a C{Feature} is a L{nltk.Feature}", "a Feature is a nltk.Feature"),
        ("spaces   and\ttabs", "spaces and tabs"),
        ("an `unclosed quote", "an `unclosed quote"),
    ],
)
def test_markup_goes_and_text_stays(given: str, expected: str) -> None:
    assert without_markup(given) == expected


def test_code_is_marked_on_demand() -> None:
    marked = without_markup("If `axis` is ``None``", mark_code=True)
    assert marked == f"If {CODE_BEGIN}axis{CODE_END} is {CODE_BEGIN}None{CODE_END}"
