from pipeline.demo.pair_task import LABELS, pairs, stems
from pipeline.demo.python_source import Docstring, docstrings, parse

MODULE = docstrings(
    parse(b'''
def add_edge(graph, u, v):
    """Add an edge to the graph."""
def remove_edge(graph, u, v):
    """Remove an edge from the graph."""
def draw(canvas, colour):
    """Paint everything there is."""
def no_parameters():
    """There is nothing to choose."""
def short(x):
    """Too short."""
class Graph:
    def __len__(self, x):
        """The number of all nodes."""
''')
)


def test_every_function_gives_one_true_and_one_wrong_pair_with_the_same_summary() -> None:
    found = list(pairs(MODULE, seed=1))
    assert len(found) == 3
    for true, wrong in found:
        assert (true.label, wrong.label) == LABELS
        assert true.text_a == wrong.text_a
        assert true.text_b != wrong.text_b
    assert found[0][0].text_b == "add_edge(graph, u, v)"


def test_the_wrong_signature_shares_as_many_words_as_the_true_one_where_possible() -> None:
    wrong = {true.text_b: wrong.text_b for true, wrong in pairs(MODULE, seed=1)}
    assert wrong["add_edge(graph, u, v)"] == "remove_edge(graph, u, v)"
    assert wrong["remove_edge(graph, u, v)"] == "add_edge(graph, u, v)"


def test_functions_with_equal_signatures_are_no_alternatives() -> None:
    twins = [
        Docstring("A.fit", "function", "Fit the first of the models.", ("x", "y")),
        Docstring("B.fit", "function", "Fit the second of the models.", ("x", "y")),
    ]
    assert list(pairs(twins, seed=1)) == []


def test_the_same_seed_gives_the_same_pairs() -> None:
    assert list(pairs(MODULE, seed=7)) == list(pairs(MODULE, seed=7))


def test_words_are_compared_without_endings_and_names_taken_apart() -> None:
    assert stems("addWeightedEdges(from_json)") == stems("Adding weight edge from JSON")
    assert stems("a of x1") == frozenset()
