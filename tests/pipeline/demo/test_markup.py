import pytest

from pipeline.demo.docstring_text import CODE_BEGIN, CODE_END, without_markup


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
