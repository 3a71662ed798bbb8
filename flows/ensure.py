"""`ensure`: the artifact of a stage is there afterwards, by reuse or by work.

In:  a stage table.
Out: `Outcome`. A verified artifact with the table's key is reused; what is damaged is removed and
     made again, file by file where the stage can; otherwise the stage runs.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from artifacts import filesystem
from artifacts.digests import cached_digest_of_file
from artifacts.errors import IntegrityError
from artifacts.manifest import MANIFEST_NAME, FileEntry, Manifest, parse_manifest
from artifacts.stage import StageTable, write_stage_table
from artifacts.store import Artifact, Store, finished_record
from flows.events import tell
from flows.launchers.watch import JobResult

RunProgram = Callable[[StageTable, Path], JobResult]
"""Runs the program of a table that was written to a file."""


@dataclass(frozen=True)
class Found:
    """What lies where a table's artifact should be."""

    artifact: Artifact | None
    """The verified artifact, if it is whole."""
    damage: str = ""
    """What is wrong; empty where there is nothing or nothing wrong."""
    damaged: tuple[FileEntry, ...] = ()
    """The files that are not what the manifest names."""


@dataclass(frozen=True)
class Outcome:
    """How a stage's artifact came to be there."""

    artifact: Artifact
    state: Literal["reused", "made"]
    result: JobResult | None = None
    """How the program ran, if it did."""


def ensure(table: StageTable, *, store: Store, file: Path, run_program: RunProgram) -> Outcome:
    """Reuse or make the artifact of `table`, which is left in `file` as a record."""
    write_stage_table(table, file)
    found = look_up(table)
    if found.artifact:
        return Outcome(found.artifact, "reused")
    if found.damage:
        tell(table.stage, "warned", f"{found.damage}; made again")
        remove_damage(table.output, found)
    result = run_program(table, file)
    made = store.find(table.stage, table.key)
    if made is None:
        raise IntegrityError(
            f"{table.output}: stage {table.stage} ended well but left no {MANIFEST_NAME}; "
            "its program must end with commit()"
        )
    return Outcome(made, "made", result)


def look_up(table: StageTable) -> Found:
    """The artifact of `table` with every byte verified (on object stores: every size)."""
    source = filesystem.join(table.output, MANIFEST_NAME)
    try:
        manifest = parse_manifest(filesystem.read_bytes(source), source=source)
    except FileNotFoundError:
        return Found(None)
    except IntegrityError as error:
        return Found(None, str(error))
    checked = [(entry, _damage(table.output, entry)) for entry in _entries(manifest)]
    damages = [damage for _, damage in checked if damage]
    if damages:
        damaged = tuple(entry for entry, damage in checked if damage)
        return Found(None, f"{table.output}: {', '.join(damages)}", damaged)
    return Found(Artifact(table.output, manifest))


def remove_damage(directory: str, found: Found) -> None:
    """Take the manifest back, and with it the damaged files; whole ones wait to be reused."""
    filesystem.remove(filesystem.join(directory, MANIFEST_NAME))
    for entry in found.damaged:
        filesystem.remove(finished_record(directory, entry.name))
        filesystem.remove(filesystem.join(directory, entry.stored_name))
    if not found.damaged:
        filesystem.remove(directory)


def _entries(manifest: Manifest) -> tuple[FileEntry, ...]:
    return (*manifest.files, *manifest.records)


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
