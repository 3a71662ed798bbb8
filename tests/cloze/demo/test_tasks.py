import pytest

from cloze.demo.packages import Docstring, Symbols, docstrings, merged_symbols, syntax_tree
from cloze.demo.tasks import (
    PAIR_LABELS,
    SENTENCE_WORDS,
    TAGS,
    Scope,
    pairs,
    sentences,
    stems,
    tagged_sentences,
)

OWN = merged_symbols(
    [Symbols(frozenset({"DataFrame", "Graph"}), frozenset({"GraphError"}), frozenset({"mean"}))]
)
ELSEWHERE = merged_symbols(
    [OWN, Symbols(frozenset({"BlockManager"}), frozenset(), frozenset({"add_edge", "run"}))]
)
SCOPE = Scope(frozenset({"axis", "weight", "n_jobs", "x"}), frozenset({"copy"}), OWN, ELSEWHERE)


def tagged(text: str) -> list[str]:
    """Every sentence with its names tagged: `word/TAG`."""
    return [
        " ".join(
            word if tag == "O" else f"{word}/{tag[2:]}"
            for word, tag in zip(sentence.words, sentence.tags, strict=True)
        )
        for sentence in tagged_sentences(text, SCOPE)
    ]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("The sum is taken over the given `axis`.", "axis/PARAM"),
        ("So many workers as ``n_jobs`` says are started.", "n_jobs/PARAM"),
        ("So many workers as n_jobs says are started.", "n_jobs/PARAM"),
        ("A ValueError is raised if nothing is found.", "ValueError/EXC"),
        ("This is faster than calling :func:`mean` on it.", "mean/FUNC"),
        ("This is faster than calling `mean()` on it all.", "mean/FUNC"),
        ("Nodes are added one by one with add_edge here.", "add_edge/FUNC"),
        ("Everything is returned as a DataFrame of its own.", "DataFrame/TYPE"),
        ("It is an instance of pandas.core.BlockManager by now.", "pandas.core.BlockManager/TYPE"),
    ],
)
def test_names_are_tagged_by_what_they_stand_for(text: str, expected: str) -> None:
    (sentence,) = tagged(text)
    assert expected in sentence.split()
    assert sentence.count("/") == 1


@pytest.mark.parametrize(
    "text",
    [
        "Sum over the axis of rotation and then `weight` it.",  # which axis?
        "The value `x` is used where `axis` is given too.",  # a one-letter name gives itself away
        "The array `copy` is given back with `axis` removed.",  # maybe an attribute
        "Every Graph has edges and every edge has a `weight`.",  # the class or a drawing?
    ],
)
def test_sentences_whose_tags_cannot_be_known_are_left_out(text: str) -> None:
    assert tagged(text) == []


def test_a_plain_word_is_no_name_even_where_a_function_is_called_so() -> None:
    (sentence,) = tagged("Compute the mean of it and use run time of `axis` only.")
    assert sentence.count("/") == 1


def test_quoted_values_are_no_names() -> None:
    (sentence,) = tagged("If ``axis='mean'`` is asked for there is nothing to do.")
    assert "mean" in sentence.split()
    assert "axis/PARAM" in sentence.split()


def test_the_text_shows_no_mark_that_gives_a_name_away() -> None:
    (sentence,) = tagged("Take ``axis`` and `weight` of :class:`DataFrame` or mean() of it.")
    assert sentence == "Take axis/PARAM and weight/PARAM of DataFrame/TYPE or mean of it ."


def test_parameter_lines_are_not_text() -> None:
    text = (
        "Parameters\n----------\naxis : int, the axis of all that there is\n    Words about it.\n"
    )
    assert tagged(text) == []
    google = "Args:\n    axis (int): If the `weight` is zero there is no answer.\n"
    assert tagged(google) == ["If the weight/PARAM is zero there is no answer ."]


def test_sentences_are_cut_and_those_without_names_left_out() -> None:
    text = "There are no names in this sentence. But here the `axis` is one of them. Short `axis`."
    assert tagged(text) == ["But here the axis/PARAM is one of them ."]


def test_lengths_keep_to_the_limits() -> None:
    long = "very " * 50
    assert tagged(f"This is {long} long and has an `axis` in it.") == []
    for sentence in tagged_sentences("The sum is taken over the given `axis`.", SCOPE):
        assert len(sentence.words) in SENTENCE_WORDS
        assert len(sentence.words) == len(sentence.tags)
        assert set(sentence.tags) <= set(TAGS)


def test_methods_do_not_settle_names_of_their_class_parameters() -> None:
    tree = syntax_tree(b'''
class Model:
    """A model of it."""
    def __init__(self, penalty): ...
    def fit(self, target):
        """Fit it.

        The value of `penalty` is used as it has been given.

        The values of `target` are used as they have been given.
        """
''')
    found = [" ".join(one.words) for one in sentences(docstrings(tree), OWN, ELSEWHERE)]
    assert found == ["The values of target are used as they have been given ."]


MODULE = docstrings(
    syntax_tree(b'''
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
        assert (true.label, wrong.label) == PAIR_LABELS
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
