"""Configurations: reading, overriding, and error messages with a remedy."""

from pathlib import Path
from typing import Annotated

import pytest
from pydantic import Field

from cloze.artifacts.config import Config, override, parse, read_toml
from cloze.artifacts.errors import UsageError


class Inner(Config):
    steps: int = 3


class Outer(Config):
    pretrain: Inner = Inner()
    tasks: tuple[Inner, ...] = ()
    optional: Inner | None = None
    needed: Annotated[tuple[Inner, ...], Field(min_length=1)] = (Inner(),)


def test_an_unknown_key_names_the_nearest_known_one() -> None:
    with pytest.raises(UsageError, match=r"run.toml: unknown key pretran, did you mean pretrain\?"):
        parse(Outer, {"pretran": {}}, source="run.toml")


@pytest.mark.parametrize(
    "table",
    [{"pretrain": {"stps": 1}}, {"tasks": [{"stps": 1}]}, {"optional": {"stps": 1}}],
    ids=["table", "array", "optional"],
)
def test_an_unknown_key_is_named_at_any_depth(table: dict[str, object]) -> None:
    with pytest.raises(UsageError, match=r"stps, did you mean steps\?"):
        parse(Outer, table, source="run.toml")


def test_an_unknown_key_names_every_field_it_may_mean() -> None:
    class Encoder(Config):
        hidden_act: str = ""
        hidden_size: int = 1
        layers: int = 1

    with pytest.raises(UsageError, match=r"hiden, did you mean hidden_act or hidden_size\?"):
        parse(Encoder, {"hiden": 1}, source="run.toml")


def test_an_unknown_key_of_an_optional_table_in_an_optional_one_lists_those_of_that_table() -> None:
    class Lines(Config):
        ignore_digits: bool = False

    class Source(Config):
        lines: Lines | None = None

    class Corpus(Config):
        sources: tuple[Source, ...] = ()
        extra: Source | None = None

    for table in ({"sources": [{"lines": {"zzzz": 1}}]}, {"extra": {"lines": {"zzzz": 1}}}):
        with pytest.raises(UsageError, match=r"lines.zzzz, known are: ignore_digits$"):
            parse(Corpus, table, source="run.toml")


def test_a_key_like_no_other_lists_the_known_ones() -> None:
    with pytest.raises(UsageError, match="known are: needed, optional, pretrain, tasks"):
        parse(Outer, {"zzzz": 1}, source="run.toml")


def test_a_wrong_type_says_what_was_given() -> None:
    with pytest.raises(UsageError, match="pretrain.steps: .* got 'many'"):
        parse(Outer, {"pretrain": {"steps": "many"}}, source="run.toml")


def test_a_number_too_large_for_an_integer_says_so() -> None:
    with pytest.raises(UsageError, match="pretrain.steps: integers are limited to 64 bits"):
        parse(Outer, {"pretrain": {"steps": 1e20}}, source="run.toml")


def test_all_mistakes_are_named_on_one_line() -> None:
    with pytest.raises(UsageError) as caught:
        parse(Outer, {"pretran": {}, "pretrain": {"steps": "x"}}, source="run.toml")
    assert "pretran" in str(caught.value) and "steps" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_list_is_not_called_empty_because_its_only_part_is_wrong() -> None:
    with pytest.raises(UsageError) as caught:
        parse(Outer, {"needed": [{"steps": "many"}]}, source="run.toml")
    assert str(caught.value).startswith("run.toml: needed.0.steps: ")
    assert "at least 1" not in str(caught.value)


def test_override_sets_nested_values_without_touching_the_original() -> None:
    table = {"tasks": [{"steps": 1}, {"steps": 2}], "name": "demo"}
    changed = override(table, ["tasks.1.steps=7", "pretrain.steps=9", "name=other"])
    assert changed == {
        "tasks": [{"steps": 1}, {"steps": 7}],
        "pretrain": {"steps": 9},
        "name": "other",
    }
    assert table == {"tasks": [{"steps": 1}, {"steps": 2}], "name": "demo"}


@pytest.mark.parametrize(
    ("text", "value"),
    [("true", True), ("0.5", 0.5), ("[1, 2]", [1, 2]), ("'x'", "x"), ("a/b.txt", "a/b.txt")],
)
def test_override_reads_toml_values_and_bare_strings(text: str, value: object) -> None:
    assert override({}, [f"key={text}"]) == {"key": value}


@pytest.mark.parametrize("wrong", ["key", "=1", "tasks.5.steps=1", "name.inner=1"])
def test_override_refuses_what_it_cannot_place(wrong: str) -> None:
    with pytest.raises(UsageError, match="--set"):
        override({"tasks": [], "name": "demo"}, [wrong])


def test_a_missing_or_broken_file_is_a_usage_error(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no such configuration file"):
        read_toml(tmp_path / "none.toml")
    (tmp_path / "broken.toml").write_text("a = [")
    with pytest.raises(UsageError, match="not a TOML file"):
        read_toml(tmp_path / "broken.toml")


class Described(Config):
    rate: float = 0.1
    """Learning rate at the peak.

    Per step.
    """
    inner: Inner = Inner()
    """A table of its own."""
    plain: int = 0


class Heir(Described):
    plain: int = 1
    """Described here alone."""


def test_a_schema_describes_fields_by_the_docstrings_after_them_inherited_ones_too() -> None:
    found = Heir.model_json_schema()["properties"]
    assert {name: field.get("description") for name, field in found.items()} == {
        "rate": "Learning rate at the peak.\n\nPer step.",
        "inner": "A table of its own.",
        "plain": "Described here alone.",
    }
    assert "description" not in Described.model_json_schema()["properties"]["plain"]
