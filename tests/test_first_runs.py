"""The first sessions of the documentation, typed as they stand there.

Each session is one shell in a folder with the project's configurations and documentation; of its
output every line that the page shows must be there, in its order, whatever its numbers are.
"""

import os
import re
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.conftest import PROJECT

PAGE = (PROJECT / "docs" / "first_runs.md").read_text("utf-8")
SECONDS = 1200
SHORTER = {"--minutes 5": "--minutes 0.5"}
"""What is typed otherwise: nobody waits for these minutes."""

DEMO = {"Evaluate a classifier from a table": "configs/smoke.toml"}
"""Sessions that begin with the encoder of `make demo`, here with that of another run."""


@dataclass(frozen=True)
class Session:
    """One section of the page."""

    title: str
    script: str
    """Its blocks of commands, one after another."""
    shown: tuple[str, ...]
    """The lines of its blocks of output."""


def sessions() -> list[Session]:
    found = []
    for section in PAGE.split("\n## ")[1:]:
        title, _, text = section.partition("\n")
        typed: list[str] = []
        shown: list[str] = []
        before, *parts = re.split(r"^```\n", text, flags=re.M)
        for block, after in zip(parts[::2], parts[1::2], strict=True):
            if before:
                typed.append(block)
            else:  # it follows another block at once, whose output it is
                shown += block.splitlines()
            before = after
        found.append(Session(title, "\n".join(typed), tuple(shown)))
    return found


def pattern_of(line: str) -> str:
    """A regular expression for a line: any numbers for its numbers, anything for an ellipsis.

    What is counted may be one or several, `1 step` or `3 steps`.
    """
    words = re.escape(re.sub(r"\s+", " ", line.strip())).replace("\\ ", r"\s+")
    words = re.sub(r"…", ".*", words)
    return re.sub(
        r"\d[\d,:]*(?:\\\.\d+)*(?:(\\s\+[a-z]+?)s?\b)?",
        lambda found: r"[\d,.:]+" + (f"{found[1]}s?" if found[1] else ""),
        words,
    )


MINUTES_LONG = "Search a folder"
"""It trains a sentence encoder of 23 M parameters."""


@pytest.mark.slow
@pytest.mark.parametrize(
    "session",
    [
        pytest.param(one, marks=[pytest.mark.long] if one.title == MINUTES_LONG else [])
        for one in sessions()
    ],
    ids=lambda session: session.title,
)
def test_a_session_of_the_documentation_prints_what_it_shows(
    session: Session, tmp_path: Path
) -> None:
    for name in ("docs", "configs"):
        (tmp_path / name).symlink_to(PROJECT / name)
    script = re.sub(r"^pip install .*$", "", session.script, flags=re.M)
    for long, short in SHORTER.items():
        script = script.replace(long, short)
    if session.title in DEMO:
        script = f"cloze run {DEMO[session.title]} --set name=demo\n{script}"
    path = os.pathsep.join((str(PROJECT / ".venv" / "bin"), os.environ["PATH"]))
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", script],
        cwd=tmp_path,
        env={**os.environ, "PATH": path},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    printed = re.sub(r"[ \t]+", " ", done.stdout)
    # Verdicts are another encoder's, or another number of minutes'.
    cut = " ± " if session.title in DEMO else "the trained encoder"
    lines = [line.partition(cut)[0] for line in session.shown]
    for line in filter(lambda line: line.strip(" …"), lines):
        assert re.search(pattern_of(line), printed), f"{line}\nnot in\n{done.stdout}"


def test_every_session_has_commands_and_output() -> None:
    found = sessions()
    assert len(found) == 7
    assert all(session.script and session.shown for session in found)
    (search, *_) = found
    assert search.script.splitlines()[-1] == "cloze adapt $MODEL docs --minutes 5"
