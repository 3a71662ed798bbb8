"""Modules of distributions, docstrings and symbols are found without importing anything."""

import gc
from importlib import metadata
from pathlib import Path

import pytest

from cloze.artifacts.errors import IntegrityError, UsageError
from cloze.demo.packages import (
    Docstring,
    builtin_symbols,
    definitions,
    docstrings,
    merged_symbols,
    module_files,
    record,
    symbols_of,
    syntax_tree,
    trees,
)
from tests.pipeline.installed import install, use


def test_modules_are_sorted_and_of_the_distribution_alone() -> None:
    found = module_files("joblib")
    names = [module.name for module in found]
    assert names == sorted(names)
    assert "joblib/parallel.py" in names
    assert all(name.startswith("joblib/") for name in names)


def test_tests_copies_of_other_projects_and_generated_files_do_not_count() -> None:
    names = [module.name for name in ("joblib", "scipy", "numpy") for module in module_files(name)]
    parts = [part for name in names for part in name.split("/")]
    recorded = [str(file) for file in metadata.distribution("joblib").files or []]
    assert any(name.startswith("joblib/test/") for name in recorded)
    assert any(name.startswith("joblib/externals/") for name in recorded)
    assert not {"test", "tests", "externals", "__pycache__", "version.py"} & set(parts)
    assert not any(part.startswith("test_") and part.endswith(".py") for part in parts)


def test_names_do_not_say_where_it_is_installed() -> None:
    assert not any(module.name.startswith(("/", "..")) for module in module_files("joblib"))


def test_recorded_sizes_are_those_on_disk() -> None:
    for module in module_files("joblib"):
        assert module.size == len(module.path.read_bytes())


def test_a_package_that_is_not_installed_is_named_with_the_remedy() -> None:
    with pytest.raises(UsageError, match="no_such_package: not installed here.*pip install"):
        module_files("no_such_package")


def test_a_distribution_without_modules_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    use(monkeypatch, install(tmp_path, "compiled-only", {"compiled.so": b""}))
    with pytest.raises(UsageError, match="compiled-only 1.0: its record names no Python module"):
        module_files("compiled-only")


def test_a_distribution_without_a_record_is_named_with_the_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    use(monkeypatch, install(tmp_path, "legacy", {"legacy/a.py": '"""What it does."""'}))
    information = tmp_path / "legacy-1.0.dist-info"
    (information / "RECORD").unlink()
    (information / "METADATA").rename(information / "PKG-INFO")
    (information / "SOURCES.txt").write_text("a.py\n")
    information.rename(tmp_path / "legacy-1.0.egg-info")
    for read in (record, module_files):
        with pytest.raises(UsageError, match="legacy 1.0: .* --use-pep517 legacy"):
            read("legacy")


def test_a_file_that_has_vanished_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    use(monkeypatch, install(tmp_path, "broken", {"broken/a.py": "", "broken/b.py": ""}))
    (tmp_path / "broken" / "b.py").unlink()
    with pytest.raises(IntegrityError, match="broken/b.py: missing.*--force-reinstall broken"):
        list(trees("broken"))


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
    return docstrings(syntax_tree(source))


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
        syntax_tree(source)


def test_nothing_is_executed() -> None:
    assert [one.text for one in of(b'"""Doc."""\nraise SystemExit(1)\n')] == ["Doc."]


def test_encoding_declared_in_the_source_is_respected() -> None:
    assert of('# coding: latin-1\n"""Zürich"""'.encode("latin-1"))[0].text == "Zürich"


def test_the_cyclic_collector_is_running_afterwards() -> None:
    syntax_tree(b"x = 1")
    assert gc.isenabled()
    with pytest.raises(SyntaxError):
        syntax_tree(b"(")
    assert gc.isenabled()


def test_definitions_are_found_in_blocks_and_classes() -> None:
    names = [node.name for node in definitions(syntax_tree(MODULE).body)]
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
    found = symbols_of(syntax_tree(DEFINITIONS))
    assert found.types == {"Graph", "View"}
    assert found.exceptions == {"GraphError"}
    assert found.functions == {"add_edge", "nodes"}


def test_python_brings_its_exceptions_and_nothing_else() -> None:
    found = builtin_symbols()
    assert {"ValueError", "DeprecationWarning", "Exception"} <= found.exceptions
    assert not found.types | found.functions


def test_merging_is_the_union() -> None:
    parts = [symbols_of(syntax_tree(b"class A: ...")), symbols_of(syntax_tree(b"def b(): ..."))]
    both = merged_symbols(parts)
    assert both.types == {"A"}
    assert both.functions == {"b"}
    assert "KeyError" in both.exceptions
