"""The modules of installed distributions, as data.

In:  the name of a distribution.
Out: its Python modules, sorted by path: bytes, syntax trees, docstrings and symbols. Nothing is
     imported.

The selection of modules depends on the pinned version alone, not on the installation directory,
platform-specific files written by a build, or compiled caches.
"""

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from artifacts.errors import IntegrityError, UsageError
from artifacts.progress import say
from pipeline.demo.python_source import Docstring, Symbols, docstrings, parse, symbols_of

LEFT_OUT_FOLDER = re.compile(
    "_?tests?|test_data|_internal|_?vendor(ed)?|third_party|extern|_?externals?",
)
"""Folders of tests and of vendored code, which would appear in several packages."""

GENERATED_FILE = re.compile(r"_?version\.py|__config__\.py|_build_config\.py|_distributor_init\.py")
"""Files written when a wheel is built, which differ between platforms."""


@dataclass(frozen=True)
class ModuleFile:
    """One Python file of a distribution."""

    name: str
    """Path in the installation, for example `numpy/fft/_helper.py`."""

    path: Path
    """Absolute path on this machine."""

    size: int
    """Bytes, from the distribution's record."""


@dataclass(frozen=True)
class Module:
    """The docstrings and symbols of a module."""

    name: str
    """Path in the installation."""

    docstrings: list[Docstring]
    symbols: Symbols


def module_files(distribution: str) -> list[ModuleFile]:
    """The documented modules of an installed distribution, sorted by name."""
    found = _installed(distribution)
    record(distribution)
    listed = []
    for file in sorted(found.files or [], key=str):
        *folders, name = str(file).split("/")
        # only modules of its own: no tests, no vendored code
        if (
            name.endswith(".py")
            and not name.startswith("test_")
            and not name.endswith("_test.py")
            and not GENERATED_FILE.fullmatch(name)
            and folders[:1] != [".."]
            and not any(LEFT_OUT_FOLDER.fullmatch(folder) for folder in folders)
        ):
            path = Path(str(found.locate_file(file)))
            listed.append(ModuleFile(str(file), path, file.size or 0))
    if not listed:
        raise UsageError(
            f"{distribution} {found.version}: its record names no Python module; editable and "
            "compiled distributions cannot be read, choose another"
        )
    return listed


def record(distribution: str) -> str:
    """The distribution's RECORD: its files with their digests."""
    found = _installed(distribution)
    listed = found.read_text("RECORD")
    if listed is None:  # `found.files` would list the source tree
        raise UsageError(
            f"{distribution} {found.version}: installed without a record of its files, as pip "
            f"before 23.1 may do; pip install --force-reinstall --use-pep517 {distribution}"
        )
    return listed


def sources(distribution: str) -> Iterator[tuple[ModuleFile, bytes]]:
    """The modules of a distribution with their content."""
    for file in module_files(distribution):
        try:
            yield file, file.path.read_bytes()
        except FileNotFoundError:
            raise IntegrityError(
                f"{file.path}: missing, but {distribution}'s record names it; "
                f"pip install --force-reinstall {distribution}"
            ) from None


def trees(distribution: str) -> Iterator[tuple[str, ast.Module]]:
    """The name and syntax tree of every module, sorted by name."""
    for file, source in sources(distribution):
        try:
            tree = parse(source)
        except (SyntaxError, ValueError, RecursionError) as error:
            # a template, or syntax of a newer Python
            say(f"{distribution}: skipping {file.name}, not valid in this Python: {error}")
            continue
        yield file.name, tree


def read_modules(distribution: str) -> Iterator[Module]:
    """The docstrings and symbols of every module, sorted by name."""
    for name, tree in trees(distribution):
        yield Module(name, docstrings(tree), symbols_of(tree))


def _installed(distribution: str) -> metadata.Distribution:
    try:
        return metadata.distribution(distribution)
    except metadata.PackageNotFoundError:
        raise UsageError(
            f"{distribution}: not installed here, so its docstrings cannot be read; "
            f"pip install {distribution}, or remove it from the configuration"
        ) from None
