"""What no run names any more.

In:  a workspace.
Out: directories that could go, with their sizes; and their removal.

A run names the artifacts in its record, those its stage tables would make (unfinished work to go on
from), and everything those were made of. In a finished artifact, whatever its manifest does not
name is left over from its making: checkpoints, other attempts.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from artifacts import filesystem
from artifacts.manifest import MANIFEST_NAME, Manifest
from artifacts.stage import read_stage_table
from artifacts.store import FINISHED
from flows.inventory import Shelf, shelves
from flows.record import find_record, list_runs
from flows.workspace import Workspace


@dataclass(frozen=True)
class Rubbish:
    """Something that could go."""

    path: str
    size: int
    """Bytes."""
    reason: str


def rubbish(workspace: Workspace) -> list[Rubbish]:
    """Everything that no run of the workspace names."""
    everything = list(shelves(workspace.store))
    kept = _kept(workspace, everything)
    return [
        found
        for shelf in everything
        for found in (_left_over(shelf) if shelf.key in kept else _unnamed(shelf))
    ]


def remove_rubbish(found: list[Rubbish]) -> None:
    """Remove it. A manifest goes first, so that a reader never sees half an artifact."""
    for item in found:
        filesystem.remove(filesystem.join(item.path, MANIFEST_NAME))
        filesystem.remove(item.path)


def _kept(workspace: Workspace, everything: list[Shelf]) -> set[str]:
    """Keys that a run names, and those of whatever they were made of."""
    by_digest = {shelf.manifest.digest: shelf for shelf in everything if shelf.manifest}
    by_key = {shelf.key: shelf for shelf in everything}
    waiting = [key for run in list_runs(workspace) for key in _named(workspace, run)]
    kept: set[str] = set()
    while waiting:
        key = waiting.pop()
        shelf = by_key.get(key)
        if key not in kept and shelf and shelf.manifest:
            made_of = shelf.manifest.inputs.values()
            waiting += [by_digest[digest].key for digest in made_of if digest in by_digest]
        kept.add(key)
    return kept


def _named(workspace: Workspace, run: str) -> Iterator[str]:
    record = find_record(workspace, run)
    if record:
        yield from (stage.key for stage in record.stages.values())
    for file in sorted((workspace.local / run / "stages").glob("*.json")):
        yield read_stage_table(file).key


def _unnamed(shelf: Shelf) -> Iterator[Rubbish]:
    what = "artifact" if shelf.manifest else "unfinished artifact"
    size = filesystem.size_below(shelf.directory)
    yield Rubbish(shelf.directory, size, f"{what} of {shelf.stage} that no run names")


def _left_over(shelf: Shelf) -> Iterator[Rubbish]:
    if shelf.manifest is None:
        return
    named = _named_by(shelf.manifest)
    for name in filesystem.list_names(shelf.directory):
        if name not in named:
            path = filesystem.join(shelf.directory, name)
            reason = f"left over from making {shelf.stage}"
            yield Rubbish(path, filesystem.size_below(path), reason)


def _named_by(manifest: Manifest) -> set[str]:
    """The names at the top of an artifact's directory that belong there."""
    entries = (*manifest.files, *manifest.records)
    return {MANIFEST_NAME, FINISHED, *(entry.stored_name.split("/")[0] for entry in entries)}
