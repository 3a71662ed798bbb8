"""The built distributions, and what an installation of them is for others.

A source distribution is built, a wheel from it, and the wheel is installed into an environment that
has the dependencies it declares, and nothing else of this checkout's.
"""

import importlib.metadata
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from tests.conftest import PROJECT
from tests.waiting import PATIENCE

PACKAGES = ("artifacts", "cloze", "flows", "model", "pipeline")
DATA = ("py.typed", "*.c", "*.h", "*.css", "*.j2", "*.toml")
BUILD = "from setuptools import build_meta; import sys; build_meta.build_{}(sys.argv[1])"
USER_FILES = (*PACKAGES[:1], *PACKAGES[2:])
"""Names that files beside a user's script may well have."""


def run(*argv: str | Path, cwd: Path, seconds: float = PATIENCE) -> str:
    """The output of a program that succeeds, with the checkout on no path."""
    done = subprocess.run(
        [str(word) for word in argv],
        cwd=cwd,
        capture_output=True,
        text=True,
        check=False,
        timeout=seconds,
        env={"PATH": "/usr/bin:/bin", "HOME": str(cwd)},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def declared() -> set[str]:
    """Top-level files and folders of what the wheel depends on with its usual extras."""
    found = set[str]()
    seen = set[tuple[str, str]]()
    todo = [("cloze-encoder", extra) for extra in ("", "pipeline", "model", "flows")]
    while todo:
        name, extra = one = todo.pop()
        if one in seen:
            continue
        seen.add(one)
        try:
            distribution = importlib.metadata.distribution(name)
        except importlib.metadata.PackageNotFoundError:
            continue  # of another platform
        if name != "cloze-encoder":
            found |= {file.parts[0] for file in distribution.files or ()}
        for wanted in map(Requirement, distribution.requires or ()):
            if wanted.marker is None or wanted.marker.evaluate({"extra": extra}):
                todo += [(wanted.name, each) for each in ("", *wanted.extras)]
    return found - {"..", "__pycache__"}


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A wheel built from a source distribution of what git would take."""
    source, built = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("built")
    for name in ("pyproject.toml", "README.md", "LICENSE", *PACKAGES):
        (source / name).symlink_to(PROJECT / name)
    run(sys.executable, "-c", BUILD.format("sdist"), built, cwd=source)
    (archive,) = built.glob("*.tar.gz")
    with tarfile.open(archive) as members:
        members.extractall(built, filter="data")
    unpacked = built / archive.name.removesuffix(".tar.gz")
    run(sys.executable, "-c", BUILD.format("wheel"), built, cwd=unpacked)
    (found,) = built.glob("*.whl")
    return found


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`bin` of an environment with the wheel; of this checkout's, only what that depends on."""
    environment = tmp_path_factory.mktemp("environment")
    run(sys.executable, "-m", "venv", "--without-pip", environment, cwd=environment)
    (site,) = environment.glob("lib/python*/site-packages")
    ours = Path(pytest.__file__).parent.parent
    for name in declared():
        if (ours / name).exists() and not (site / name).exists():
            (site / name).symlink_to(ours / name)
    pip = (sys.executable, "-m", "pip", "--python", environment / "bin" / "python", "install")
    run(*pip, "--no-deps", "--no-index", "--ignore-installed", wheel, cwd=environment)
    return environment / "bin"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A user's folder, with files called like our folders that must not be imported."""
    for name in USER_FILES:
        (tmp_path / f"{name}.py").write_text("raise SystemExit('imported the user's file')")
    return tmp_path


@pytest.fixture(scope="module")
def members(wheel: Path) -> frozenset[str]:
    with zipfile.ZipFile(wheel) as archive:
        return frozenset(archive.namelist())


def files(*patterns: str) -> set[str]:
    """The project's files of these patterns, as they are named in a wheel."""
    found = (path for name in PACKAGES for p in patterns for path in (PROJECT / name).rglob(p))
    names = (path.relative_to(PROJECT).as_posix() for path in found)
    return {name if name.startswith("cloze/") else f"cloze/{name}" for name in names}


def test_the_wheel_holds_every_module(members: frozenset[str]) -> None:
    assert files("*.py") <= members


@pytest.mark.parametrize("pattern", DATA)
def test_the_wheel_holds_the_data_beside_the_modules(members: frozenset[str], pattern: str) -> None:
    wanted = files(pattern)
    assert wanted, f"no {pattern} in the project"
    assert wanted <= members


def test_the_wheel_holds_one_package_and_nothing_else(members: frozenset[str]) -> None:
    tops = {name.partition("/")[0] for name in members}
    assert {top for top in tops if not top.endswith(".dist-info")} == {"cloze"}


def test_nothing_but_what_is_declared_is_there_to_be_imported() -> None:
    names = declared()
    assert {"torch", "pyarrow", "prefect", "numpy.libs", "apache_beam"} <= names
    assert not {"pandas", "datasets", "pytest", "astropy"} & names


def test_a_users_files_do_not_hide_our_packages(installed: Path, folder: Path) -> None:
    script = folder / "script.py"
    script.write_text(
        "import cloze, cloze.model.inference.load as ours\n"
        "from cloze import *\n"
        "print(cloze.__version__, cloze.__file__)\n"
        "try: load('nowhere')\n"
        "except UsageError as error: print(type(error).__name__)\n"
    )
    version, place, refused = run(installed / "python", script, cwd=folder).split()
    assert version == "0.1.0"
    assert refused == "UsageError"
    assert Path(place).is_relative_to(installed.parent)
    assert "evaluated BERT encoder" in run(installed / "cloze", "--help", cwd=folder)


@pytest.mark.slow
def test_an_installed_wheel_runs_the_smoke_configuration(installed: Path, folder: Path) -> None:
    """The stages are programs of their own, started as modules beside the user's files."""
    shutil.copy(PROJECT / "configs" / "smoke.toml", folder)
    run(installed / "cloze", "run", "smoke.toml", "--without-prefect", cwd=folder, seconds=600)
    assert (folder / "runs" / "smoke" / "report.html").exists()


TYPED = """
import cloze

vectors = cloze.load("demo").embed(["a text"])
reveal_type(vectors)
cloze.load("demo", precision="int9")
"""


@pytest.mark.slow
def test_type_checkers_see_the_types_of_an_installation(installed: Path, folder: Path) -> None:
    (folder / "script.py").write_text(TYPED)
    checker = (sys.executable, "-m", "mypy", "--python-executable", installed / "python")
    done = subprocess.run(
        [*map(str, checker), "script.py"], cwd=folder, capture_output=True, text=True, check=False
    )
    lines = done.stdout.splitlines()
    assert "numpy.ndarray[tuple[Any, ...], numpy.dtype[numpy.floating[" in lines[0]
    assert lines[1].startswith('script.py:6: error: Argument "precision" to "load" has incompat')
    assert len(lines) == 3


def test_an_editable_installation_is_a_path() -> None:
    """Type checkers and editors follow paths; they do not run import hooks."""
    site = Path(pytest.__file__).parent.parent
    (link,) = site.glob("__editable__.cloze_encoder*.pth")
    assert Path(link.read_text().strip()).samefile(PROJECT)
