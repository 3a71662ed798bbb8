"""Docstrings and symbols are found in source code without importing it."""

import gc

import pytest

from pipeline.demo.python_source import (
    Docstring,
    builtin_symbols,
    definitions,
    docstrings,
    merged,
    parse,
    symbols_of,
)

MODULE = b'''
"""The module."""

LIMIT = 3
"""How many."""

if True:
    def under_a_condition(x, /, y, *rest, z=1, **options):
        """Found under `if`."""

class Graph(Base):
    """A graph."""

    def __init__(self, data=None):
        pass

    def add_edge(self, u, v):
        """Add an edge.

            It is indented.
        """

    @classmethod
    def of(cls, edges):
        "From edges."

    class Inner:
        """Inside."""

def undocumented(a):
    return "no docstring"

add_newdoc("numpy", "zeros", ("zeros", """zeros(shape)

    Return a new array."""))
'''


def of(source: bytes) -> list[Docstring]:
    return docstrings(parse(source))


def test_docstrings_come_in_the_order_of_the_source_with_their_names() -> None:
    found = [(one.name, one.kind) for one in of(MODULE)]
    assert found == [
        ("", "module"),
        ("", "attribute"),
        ("under_a_condition", "function"),
        ("Graph", "class"),
        ("Graph.add_edge", "function"),
        ("Graph.of", "function"),
        ("Graph.Inner", "class"),
        ("", "attribute"),
    ]


def test_parameters_are_all_kinds_without_the_receiver() -> None:
    found = {one.name: one.parameters for one in of(MODULE) if one.name}
    assert found["under_a_condition"] == ("x", "y", "z", "rest", "options")
    assert found["Graph"] == ("data",)
    assert found["Graph.add_edge"] == ("u", "v")
    assert found["Graph.of"] == ("edges",)
    assert found["Graph.Inner"] == ()


def test_text_is_dedented() -> None:
    texts = {one.name: one.text for one in of(MODULE)}
    assert texts["Graph.add_edge"] == "Add an edge.\n\nIt is indented."


def test_documentation_given_in_a_call_is_found() -> None:
    assert of(MODULE)[-1].text == "zeros(shape)\n\nReturn a new array."


def test_a_string_that_documents_nothing_is_no_docstring() -> None:
    assert of(b"x = 'text with spaces'\nprint('more text')\n") == []
    assert of(b"") == []


@pytest.mark.parametrize("source", [b"def f(:", b"x = \xff", b"print 'old'", b"\x00"])
def test_what_is_no_python_is_an_error(source: bytes) -> None:
    with pytest.raises((SyntaxError, ValueError)):
        parse(source)


def test_nothing_is_executed() -> None:
    assert [one.text for one in of(b'"""Doc."""\nraise SystemExit(1)\n')] == ["Doc."]


def test_encoding_declared_in_the_source_is_respected() -> None:
    assert of('# coding: latin-1\n"""Zürich"""'.encode("latin-1"))[0].text == "Zürich"


def test_the_cyclic_collector_is_running_afterwards() -> None:
    parse(b"x = 1")
    assert gc.isenabled()
    with pytest.raises(SyntaxError):
        parse(b"(")
    assert gc.isenabled()


def test_definitions_are_found_in_blocks_and_classes() -> None:
    names = [node.name for node in definitions(parse(MODULE).body)]
    assert names[:4] == ["under_a_condition", "Graph", "__init__", "add_edge"]
    assert names[-1] == "undocumented"


DEFINITIONS = b"""
class Graph: ...
class GraphError(Exception): ...
def add_edge(): ...
class View:
    def nodes(self): ...
    @property
    def size(self): ...
    @size.setter
    def size(self, value): ...
    @functools.cached_property
    def edges(self): ...
    def __len__(self): ...
"""


def test_classes_exceptions_and_functions_are_told_apart() -> None:
    found = symbols_of(parse(DEFINITIONS))
    assert found.types == {"Graph", "View"}
    assert found.exceptions == {"GraphError"}
    assert found.functions == {"add_edge", "nodes"}


def test_python_brings_its_exceptions_and_nothing_else() -> None:
    found = builtin_symbols()
    assert {"ValueError", "DeprecationWarning", "Exception"} <= found.exceptions
    assert not found.types | found.functions


def test_merging_is_the_union() -> None:
    parts = [symbols_of(parse(b"class A: ...")), symbols_of(parse(b"def b(): ..."))]
    both = merged(parts)
    assert both.types == {"A"}
    assert both.functions == {"b"}
    assert "KeyError" in both.exceptions
