"""Looking up a stage's artifact in the store, and verifying it.

In:  a stage table.
Out: the artifact, every byte verified, or a description of its damage. Damaged files can be
     removed, so that a stage that works file by file makes only those again.
"""

from dataclasses import dataclass

from artifacts import filesystem
from artifacts.digests import cached_digest_of_file
from artifacts.errors import IntegrityError
from artifacts.manifest import MANIFEST_NAME, FileEntry, parse_manifest
from artifacts.stage import StageTable
from artifacts.store import Artifact, finished_record


@dataclass(frozen=True)
class Found:
    """What the store holds under a table's key."""

    artifact: Artifact | None
    """The verified artifact, if it is intact."""
    damage: str = ""
    """How it is damaged; empty if it is intact or missing."""
    damaged: tuple[FileEntry, ...] = ()
    """The files that differ from the manifest."""


def look_up(table: StageTable) -> Found:
    """Find the artifact of `table` and verify every byte (on object stores, every file's size)."""
    source = filesystem.join(table.output, MANIFEST_NAME)
    try:
        manifest = parse_manifest(filesystem.read_bytes(source), source=source)
    except FileNotFoundError:
        return Found(None)
    except IntegrityError as error:
        return Found(None, str(error))
    damages: list[tuple[FileEntry, str]] = []
    for entry in (*manifest.files, *manifest.records):
        path = filesystem.join(table.output, entry.stored_name)
        size = filesystem.size_of(path)
        if size is None:
            damages.append((entry, f"{entry.name} is missing"))
        elif size != entry.size:
            damages.append((entry, f"{entry.name} has {size} bytes instead of {entry.size}"))
        elif filesystem.is_local(path):
            digest = cached_digest_of_file(filesystem.local_path(path))
            if digest != entry.sha256:
                found = f"sha256 {digest[:12]} instead of {entry.sha256[:12]}"
                damages.append((entry, f"{entry.name} has {found}"))
    if damages:
        listed = ", ".join(damage for _, damage in damages)
        return Found(None, f"{table.output}: {listed}", tuple(entry for entry, _ in damages))
    return Found(Artifact(table.output, manifest))


def remove_damage(directory: str, found: Found) -> None:
    """Remove the manifest and the damaged files; intact ones stay for the next attempt."""
    filesystem.remove(filesystem.join(directory, MANIFEST_NAME))
    for entry in found.damaged:
        filesystem.remove(finished_record(directory, entry.name))
        filesystem.remove(filesystem.join(directory, entry.stored_name))
    if not found.damaged:
        filesystem.remove(directory)
