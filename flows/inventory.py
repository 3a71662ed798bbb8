"""Everything that lies in a store, finished or not.

In:  a store.
Out: `Shelf`s: a stage, a key, and the manifest if there is one that can be read.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from artifacts import filesystem
from artifacts.errors import ClozeError
from artifacts.manifest import MANIFEST_NAME, Manifest, parse_manifest
from artifacts.store import Store


@dataclass(frozen=True)
class Shelf:
    """The place of one artifact."""

    stage: str
    key: str
    directory: str
    manifest: Manifest | None
    """None for unfinished work and for what cannot be read."""


def shelves(store: Store) -> Iterator[Shelf]:
    """All of a store."""
    for stage in filesystem.list_names(store.root):
        yield from shelves_of(stage, store=store)


def shelves_of(stage: str, *, store: Store) -> Iterator[Shelf]:
    """Those of one stage."""
    for key in filesystem.list_names(filesystem.join(store.root, stage)):
        directory = store.directory(stage, key)
        yield Shelf(stage, key, directory, _manifest(directory))


def _manifest(directory: str) -> Manifest | None:
    source = filesystem.join(directory, MANIFEST_NAME)
    try:
        return parse_manifest(filesystem.read_bytes(source), source=source)
    except (FileNotFoundError, NotADirectoryError, ClozeError):
        return None
