"""Fixtures: the command, and a configuration for a small folder of text."""

import signal
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from cloze.command import exit_code

CONFIG = """
name = "try"

[[corpus.sources]]
reader = "text"
path = "texts"
"""


@dataclass(frozen=True)
class Done:
    """The result of a command."""

    returncode: int
    stdout: str
    stderr: str


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a configuration and some text, the command's working directory."""
    (tmp_path / "texts").mkdir()
    (tmp_path / "texts" / "one.txt").write_text("The first document.\n")
    (tmp_path / "try.toml").write_text(CONFIG)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def cloze(folder: Path, capfd: pytest.CaptureFixture[str]) -> Iterator[Callable[..., Done]]:
    """Run `cloze …` in that folder; fails on a traceback."""
    before = signal.getsignal(signal.SIGTERM)

    def call(*arguments: str) -> Done:
        code = exit_code(list(arguments))
        captured = capfd.readouterr()
        assert "Traceback" not in captured.err + captured.out
        return Done(code, captured.out, captured.err)

    yield call
    signal.signal(signal.SIGTERM, before)
