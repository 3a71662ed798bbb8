"""Bytecode is written once after installing, also where the environment forbids it on import."""

import subprocess
import sys
from pathlib import Path

import pytest

from cloze.inspection import bytecode
from tests.conftest import PROJECT
from tests.waiting import PATIENCE


def installed(site: Path, **modules: str) -> None:
    """A copy of this program in `site`, beside the packages `modules`."""
    package = site / "cloze" / "inspection"
    package.mkdir(parents=True)
    for folder in (package.parent, package):
        (folder / "__init__.py").touch()
    source = (PROJECT / "cloze" / "inspection" / "bytecode.py").read_text()
    (package / "bytecode.py").write_text(source)
    for name, text in modules.items():
        (site / name).mkdir()
        (site / name / "__init__.py").write_text(text)


def compiled(site: Path) -> subprocess.CompletedProcess[str]:
    """Run the program there with only these packages, where no bytecode is to be written."""
    environment = {"PYTHONPATH": str(site), "PYTHONDONTWRITEBYTECODE": "1"}
    return subprocess.run(
        [sys.executable, "-S", "-P", "-m", "cloze.inspection.bytecode"],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE,
    )


def test_every_imported_module_has_bytecode_even_where_python_writes_none(tmp_path: Path) -> None:
    installed(tmp_path, torch="", prefect="")
    (tmp_path / "cloze" / "training.py").write_text("import torch, prefect\n")
    done = compiled(tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    names = {path.name.split(".")[0] for path in tmp_path.rglob("*.pyc")}
    assert names >= {"__init__", "training"}
    folders = {path.parent.parent.name for path in tmp_path.rglob("__init__.*.pyc")}
    assert folders == {"cloze", "inspection", "torch", "prefect"}


def test_an_extra_that_is_not_installed_is_left_out_without_a_word(tmp_path: Path) -> None:
    installed(tmp_path)
    (tmp_path / "cloze" / "training.py").write_text("import absent.of_it\n")
    done = compiled(tmp_path)
    assert (done.returncode, done.stdout) == (0, "")


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ("import broken.part", "No module named 'broken.part'"),
        ("from broken import part", "cannot import name 'part' from 'broken'"),
    ],
)
def test_a_package_that_does_not_work_is_named(tmp_path: Path, content: str, reason: str) -> None:
    installed(tmp_path, broken="")
    (tmp_path / "cloze" / "training.py").write_text(content)
    done = compiled(tmp_path)
    assert done.returncode == 0
    (line,) = done.stdout.splitlines()
    assert line.startswith(f"left out cloze.training: {reason}")


def test_packages_that_cannot_be_compiled_are_an_error_with_a_remedy(tmp_path: Path) -> None:
    installed(tmp_path)
    (tmp_path / "cloze" / "__pycache__").touch()  # stops root too
    done = compiled(tmp_path)
    assert done.returncode == 1
    assert "run this as the user who installed the packages" in done.stdout


def test_setup_and_images_write_the_bytecode_after_installing() -> None:
    texts = [(PROJECT / "Makefile").read_text()]
    texts += [path.read_text() for path in (PROJECT / "infra" / "images").glob("*.Dockerfile")]
    assert len(texts) == 3
    for text in texts:
        assert text.index("pip install") < text.index("python -P -m cloze.inspection.bytecode")


def test_a_package_without_bytecode_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "bare").mkdir()
    (tmp_path / "bare" / "__init__.py").touch()
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(bytecode, "HEAVY", ("bare", "not_installed"))
    assert bytecode.without_bytecode() == ["bare"]
