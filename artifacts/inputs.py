"""Which files a corpus path means.

In:  a file, a folder, a glob or an fsspec URL, as a person writes it into a configuration.
Out: its files with their sizes, sorted by path.

Hidden files and folders are left out: editors and version control put things there that nobody
means. Everything else in a folder counts; a file that cannot be read as its format is an error
of the reader, never passed over here.
"""

import os
from dataclasses import dataclass
from typing import Any

import fsspec
from fsspec.implementations.local import LocalFileSystem

from artifacts.errors import UsageError

_MAGIC = frozenset("*?[")


@dataclass(frozen=True)
class InputFile:
    """One file from outside."""

    path: str
    """Local path or URL."""

    size: int
    """Bytes."""


def find_files(path: str) -> list[InputFile]:
    """The files that `path` means, sorted by path; `UsageError` if there is none."""
    filesystem, inner = fsspec.core.url_to_fs(os.path.expanduser(path))
    if isinstance(filesystem, LocalFileSystem) and os.path.isdir(inner):
        found = _walk(inner)
    else:
        found = _list(filesystem, inner)
    if not found:
        raise UsageError(
            f"{path}: no files here; expected a file, a folder with files, or a pattern like *.txt"
        )
    return sorted(found, key=lambda file: file.path)


def _walk(directory: str) -> list[InputFile]:
    """All visible files under a local folder; `os.scandir`, since 100,000 files are no rarity."""
    found: list[InputFile] = []
    waiting = [directory]
    while waiting:
        with os.scandir(waiting.pop()) as entries:
            for entry in entries:
                if entry.name.startswith("."):
                    continue
                if entry.is_dir():
                    waiting.append(entry.path)
                elif entry.is_file():
                    found.append(InputFile(entry.path, entry.stat().st_size))
    return found


def _list(filesystem: Any, inner: str) -> list[InputFile]:
    if _MAGIC.isdisjoint(inner):
        details = filesystem.find(inner, detail=True)
    else:
        details = filesystem.glob(inner, detail=True)
    return [
        InputFile(filesystem.unstrip_protocol(name), int(facts["size"] or 0))
        if not isinstance(filesystem, LocalFileSystem)
        else InputFile(name, int(facts["size"]))
        for name, facts in details.items()
        if facts["type"] == "file" and not os.path.basename(name).startswith(".")
    ]
