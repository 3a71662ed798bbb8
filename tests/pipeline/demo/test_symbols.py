from pipeline.demo.python_source import builtin_symbols, merged, parse, symbols_of

MODULE = b"""
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
    found = symbols_of(parse(MODULE))
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
