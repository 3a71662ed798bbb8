"""What the documentation says is shown by a test is shown by one that is there."""

import csv
import re
from pathlib import Path

import pytest

from cloze.command import COMMANDS
from tests.conftest import PROJECT

PAGES = sorted((PROJECT / "docs").glob("*.md"))
TESTS = {
    path.relative_to(PROJECT).with_suffix("").as_posix(): path.read_text("utf-8")
    for path in (PROJECT / "tests").rglob("test_*.py")
}


def source_of(file: str) -> str:
    """The one test file that documentation calls `file`: its name, after folders if need be."""
    *folders, name = file.split("/")
    suffix = "/" + "/".join([*folders, f"test_{name}"])
    found = [path for path in TESTS if path.endswith(suffix)]
    assert len(found) == 1, f"`{file}::…` names {found or 'no file'}; put its folder before it"
    return TESTS[found[0]]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_every_test_that_is_named_exists(page: Path) -> None:
    text, everything = page.read_text("utf-8"), "".join(TESTS.values())
    anywhere = {f"{name}(": everything for name in re.findall(r"`(test_\w+)`", text)}
    in_files = [
        (f"test_{name}(", source_of(file))
        for file, name in re.findall(r"`([a-z][\w/]*)::([a-z]\w+)`", text)
    ]
    named = [*anywhere.items(), *in_files]
    assert [name for name, source in named if f"def {name}" not in source] == []


def test_every_command_is_on_its_page_as_in_its_help() -> None:
    page = (PROJECT / "docs" / "commands.md").read_text("utf-8")
    rows = {f"| `{example}` | {summary} |" for _, summary, example in COMMANDS.values()}
    assert rows == {line for line in page.splitlines() if line.startswith("| `")}


def test_every_fault_is_shown_by_a_test() -> None:
    lines = (PROJECT / "docs" / "faults.md").read_text("utf-8").splitlines()
    rows = [line for line in lines if line.startswith("| ") and not line.startswith("| promise |")]
    assert len(rows) >= 38
    assert [row for row in rows if "::" not in row] == []


def test_the_ways_through_the_code_name_functions_that_are_there() -> None:
    """Each line of a listing: a module, and functions called one after another (→ or ;)."""
    page = (PROJECT / "docs" / "architecture.md").read_text("utf-8")
    ways = page.partition("## Four ways through the code")[2].partition("\n## ")[0]
    listings = ways.split("```")[1::2]
    assert len(listings) == 4
    defined = {
        name
        for package in ("artifacts", "pipeline", "model", "flows", "cloze")
        for path in (PROJECT / package).rglob("*.py")
        for name in re.findall(r"(?:def|class) (\w+)", path.read_text("utf-8"))
    }
    for line in (line for listing in listings for line in listing.splitlines()):
        path = re.search(r"([a-z_]+/[a-z_/]+\.py)\s+(\S.*)", line)
        chain = re.split(r"\s{2,}", path.group(2))[0] if path else line.strip()
        assert not path or (PROJECT / path.group(1)).exists(), line
        steps = re.findall(r"(?:→|;|^)\s*([A-Z]?\w+(?:\.\w+)?)(?= |$)", chain) if path else []
        assert [step for step in steps if step.rpartition(".")[2] not in defined] == [], line


def test_the_questions_about_the_documentation_name_its_pages() -> None:
    asked = (PROJECT / "benchmarks" / "search" / "docs_questions.csv").read_text("utf-8")
    with_answers = [*csv.DictReader(asked.splitlines())]
    assert len(with_answers) >= 20
    for row in with_answers:
        pages = [*(PROJECT / "docs").rglob(row["file"])]
        assert pages, row
        assert any(row["answer"] in page.read_text("utf-8") for page in pages), row
