"""What the built package holds."""

import subprocess
import sys
import zipfile

import pytest

from tests.conftest import PROJECT
from tests.waiting import PATIENCE

PACKAGES = ("artifacts", "cloze", "flows", "model", "pipeline")
DATA = ("py.typed", "*.c", "*.css", "*.j2", "*.toml")


@pytest.fixture(scope="module")
def members(tmp_path_factory: pytest.TempPathFactory) -> frozenset[str]:
    """The files of a wheel built from what git would take."""
    source, built = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("built")
    for name in ("pyproject.toml", "README.md", "LICENSE", *PACKAGES):
        (source / name).symlink_to(PROJECT / name)
    build = "from setuptools import build_meta; import sys; build_meta.build_wheel(sys.argv[1])"
    subprocess.run(
        [sys.executable, "-c", build, str(built)],
        cwd=source,
        check=True,
        capture_output=True,
        timeout=PATIENCE,
    )
    (wheel,) = built.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        return frozenset(archive.namelist())


def files(*patterns: str) -> set[str]:
    """The project's files of these patterns, relative to its root."""
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
