"""Whether a stage's artifact is in the store already, whole.

In:  a stage table.
Out: the artifact with every byte verified, or what is damaged in it; and the removal of damage, so
     that a stage which works file by file repeats only the damaged files.
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
    """The verified artifact, if it is whole."""
    damage: str = ""
    """What is wrong with it; empty where there is nothing, or nothing wrong."""
    damaged: tuple[FileEntry, ...] = ()
    """The files that differ from the manifest."""


def look_up(table: StageTable) -> Found:
    """The artifact of `table`, every byte verified (on object stores: every size)."""
    source = filesystem.join(table.output, MANIFEST_NAME)
    try:
        manifest = parse_manifest(filesystem.read_bytes(source), source=source)
    except FileNotFoundError:
        return Found(None)
    except IntegrityError as error:
        return Found(None, str(error))
    entries = (*manifest.files, *manifest.records)
    damages = {entry.name: _damage(table.output, entry) for entry in entries}
    damaged = tuple(entry for entry in entries if damages[entry.name])
    if damaged:
        listed = ", ".join(filter(None, damages.values()))
        return Found(None, f"{table.output}: {listed}", damaged)
    return Found(Artifact(table.output, manifest))


def remove_damage(directory: str, found: Found) -> None:
    """Withdraw the manifest and the damaged files; whole ones stay for the next attempt."""
    filesystem.remove(filesystem.join(directory, MANIFEST_NAME))
    for entry in found.damaged:
        filesystem.remove(finished_record(directory, entry.name))
        filesystem.remove(filesystem.join(directory, entry.stored_name))
    if not found.damaged:
        filesystem.remove(directory)


def _damage(directory: str, entry: FileEntry) -> str:
    path = filesystem.join(directory, entry.stored_name)
    size = filesystem.size_of(path)
    if size is None:
        return f"{entry.name} is missing"
    if size != entry.size:
        return f"{entry.name} has {size} bytes, the manifest says {entry.size}"
    if not filesystem.is_local(path):
        return ""
    found = cached_digest_of_file(filesystem.local_path(path))
    if found != entry.sha256:
        return f"{entry.name} has sha256 {found[:12]}, the manifest says {entry.sha256[:12]}"
    return ""
