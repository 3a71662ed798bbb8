"""Files and folders that a user may not read or write: one line that names them, or left out."""

import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.cloze.conftest import CONFIG
from tests.cloze.tiny_model import write_model

Cloze = Callable[..., Any]

NOBODY = 65534


@contextmanager
def without_privileges() -> Iterator[None]:
    """As an ordinary user: modes do not bind root."""
    if os.geteuid():
        yield
        return
    os.setegid(NOBODY)
    os.seteuid(NOBODY)
    try:
        yield
    finally:
        os.seteuid(0)
        os.setegid(0)


@pytest.fixture
def folder(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The command's working directory, which is not in pytest's own, closed one."""
    with tempfile.TemporaryDirectory() as made:
        (Path(made) / "try.toml").write_text(CONFIG)
        monkeypatch.chdir(made)
        yield Path(made)
        monkeypatch.undo()


@pytest.fixture
def place(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of everybody's, with a model and texts."""
    write_model(folder / "encoder")
    (folder / "texts").mkdir()
    (folder / "texts" / "one.txt").write_text("The first document.\n")
    (folder / "texts" / "two.txt").write_text("Names a b.\n")
    (folder / "texts" / "below").mkdir()
    (folder / "texts" / "below" / "three.txt").write_text("Of the list.\n")
    (folder / "closed").mkdir()
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder / "cache"))
    opened(folder)
    return folder


def opened(folder: Path) -> None:
    """Everybody may read and write everything."""
    for path in (folder, *folder.rglob("*")):
        path.chmod(0o777 if path.is_dir() else 0o666)


SEARCH = ("search", "encoder", "texts", "names")
EMBED = ("embed", "encoder", "texts", "--passages", "9")


@pytest.mark.parametrize("arguments", [SEARCH, EMBED], ids=["search", "embed"])
def test_a_file_that_may_not_be_read_is_left_out_and_said(
    cloze: Cloze, place: Path, arguments: tuple[str, ...]
) -> None:
    cloze(*arguments)  # imports what root alone may import
    shutil.rmtree(place / "runs", ignore_errors=True)
    opened(place)
    (place / "texts" / "two.txt").chmod(0)
    with without_privileges():
        done = cloze(*arguments)
    assert done.returncode == 0, done.stderr
    assert "two.txt" in done.stderr
    assert "not readable" in done.stderr
    assert "Of the list." in done.stdout
    assert "Names a b." not in done.stdout


@pytest.mark.parametrize(
    ("closed", "arguments"),
    [
        ("texts/below", SEARCH),
        ("texts/below", EMBED),
        ("texts/below", ("init", "texts")),
        ("texts/below", ("plan", "try.toml")),
        ("texts/two.txt", ("plan", "try.toml")),
        ("texts/two.txt", ("embed", "encoder", "texts/two.txt")),
        ("encoder/model.safetensors", ("embed", "encoder", "a")),
        ("encoder/config.json", ("embed", "encoder", "a")),
        ("encoder/vocab.txt", ("fill-mask", "encoder", "a [MASK]")),
        ("encoder", ("embed", "encoder", "a")),
        ("encoder/model.safetensors", ("export", "encoder", "out")),
        ("encoder/model.safetensors", ("import", "encoder")),
        ("try.toml", ("plan", "try.toml")),
        ("closed", ("export", "encoder", "closed/out")),
        ("closed", ("export", "encoder", "closed")),
        ("closed", ("embed", "encoder", "a", "--output", "closed/v.npy")),
        ("closed", (*SEARCH, "--workspace", "closed/runs")),
        ("closed", ("import", "encoder", "--workspace", "closed/runs")),
        ("closed", ("init", "texts", "--output", "closed/new.toml")),
        ("closed", ("runs", "--workspace", "closed/runs")),
        ("closed", ("gc", "--delete", "--workspace", "closed/runs")),
    ],
    ids=lambda value: value if isinstance(value, str) else " ".join(value[:1]),
)
def test_what_may_not_be_read_or_written_is_named_in_one_line(
    cloze: Cloze, place: Path, closed: str, arguments: tuple[str, ...]
) -> None:
    cloze(*arguments)  # imports what root alone may import
    for made in ("closed", "out", "runs"):
        shutil.rmtree(place / made, ignore_errors=True)
    (place / "closed").mkdir()
    opened(place)
    (place / closed).chmod(0)
    try:
        with without_privileges():
            done = cloze(*arguments)
    finally:
        (place / closed).chmod(0o777)
    assert done.returncode in (1, 2), done.stdout
    (line,) = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    assert Path(closed).name in line
    assert not [*place.rglob("*.partial"), *place.rglob(".tmp-*")]
