"""What the documentation says is shown by a test is shown by one that is there."""

import re
from pathlib import Path

import pytest

from tests.conftest import PROJECT

PAGES = sorted((PROJECT / "docs").glob("*.md"))
TESTS = {path.stem: path.read_text("utf-8") for path in (PROJECT / "tests").rglob("test_*.py")}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_every_test_that_is_named_exists(page: Path) -> None:
    text, everything = page.read_text("utf-8"), "".join(TESTS.values())
    anywhere = {f"{name}(": everything for name in re.findall(r"`(test_\w+)`", text)}
    in_files = {
        f"test_{name}(": TESTS.get(f"test_{file}", "")
        for file, name in re.findall(r"`(\w+)::(\w+)`", text)
    }
    named = {**anywhere, **in_files}
    assert [name for name, source in named.items() if f"def {name}" not in source] == []


def test_every_fault_is_shown_by_a_test() -> None:
    lines = (PROJECT / "docs" / "faults.md").read_text("utf-8").splitlines()
    rows = [line for line in lines if line.startswith("| ") and not line.startswith("| fault |")]
    assert len(rows) >= 38
    assert [row for row in rows if "::" not in row] == []
