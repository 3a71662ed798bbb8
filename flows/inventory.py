"""The contents of the store: a stage's artifact, all entries, ancestors, and garbage.

In:  a stage table; a workspace or its store.
Out: `Found`, the verified artifact of a table, or its damage; `StoreEntry`, finished
     or not; ancestors by stage; `Garbage` with its size, and its removal.

Damaged files can be removed, so that a stage that works file by file makes only those again.

A run refers to the artifacts in its record, to those its stage tables would make (unfinished work
that can be resumed), and to everything those were made from. In a finished artifact, files that
the manifest does not list are left over from making it: checkpoints and other attempts.
"""

import calendar
import math
import time
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass

from cloze.artifacts import filesystem
from cloze.artifacts.digests import cached_digest_of_file
from cloze.artifacts.errors import ClozeError, IntegrityError, UsageError
from cloze.artifacts.manifest import MANIFEST_NAME, FileEntry, Manifest, parse_manifest
from cloze.artifacts.progress import say
from cloze.artifacts.stage import StageTable, read_stage_table
from cloze.artifacts.store import FINISHED, WORK, Artifact, Store, copies_directory
from cloze.flows.workspace import Workspace, find_record, list_runs

SEARCHED = ("vectors", "compact_vectors", "lexical_index", "vector_graph")
"""Stages of `cloze search`, whose artifacts no run refers to."""

IMPORTED = "import"
"""Stage name of imported models (`cloze import`), which are kept though no run refers to them."""


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
    except (FileNotFoundError, NotADirectoryError):
        return Found(None)
    except IntegrityError as error:
        return Found(None, str(error))
    damages: list[tuple[FileEntry, str]] = []
    # All damage is collected, so that one attempt makes all of it again.
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
    """Remove the manifest and the damaged files; intact ones stay for the next attempt.

    Of an artifact that is a link only the link is removed.
    """
    if filesystem.is_link(directory):
        filesystem.remove(directory)
        return
    filesystem.remove_below(directory, MANIFEST_NAME)
    for entry in found.damaged:
        filesystem.remove_below(directory, f"{FINISHED}/{entry.name}.json")
        filesystem.remove_below(directory, entry.stored_name)
    # An unreadable manifest does not say which files are intact: none is kept.
    if not found.damaged:
        filesystem.remove(directory)


def intact(table: StageTable, *, said_by: str) -> Artifact | None:
    """The artifact of `table`, verified; what is damaged of it is removed, to be made again.

    `said_by`: the command that says so.
    """
    found = look_up(table)
    if found.damage:
        say(f"{said_by}: {found.damage}; making it again")
        remove_damage(table.output, found)
    return found.artifact


@dataclass(frozen=True)
class StoreEntry:
    """One key of a stage, with or without a finished artifact."""

    stage: str
    key: str
    directory: str
    manifest: Manifest | None
    """None if it is unfinished or unreadable."""


@dataclass(frozen=True)
class Retention:
    """What stays in a workspace."""

    runs: float | None = None
    """Days after which a run's artifacts are garbage, unless a newer run refers to them; its record
    and its report stay. None: never."""

    searches: float = 30.0
    """Days for which the indexes of `cloze search` stay."""

    copies: float = 30.0
    """Days for which a node's copies of remote artifacts stay after their last use."""


KEEP_RUNS = Retention()


@dataclass(frozen=True)
class Garbage:
    """A path that no run refers to."""

    path: str
    size: int
    """Bytes."""
    reason: str


def store_entries(store: Store, *, stage: str = "") -> Iterator[StoreEntry]:
    """All entries of a store, or those of one stage."""
    for name in [stage] if stage else filesystem.list_names(store.root):
        for key in filesystem.list_names(filesystem.join(store.root, name)):
            directory = store.directory(name, key)
            source = filesystem.join(directory, MANIFEST_NAME)
            try:
                manifest = parse_manifest(filesystem.read_bytes(source), source=source)
            except (FileNotFoundError, NotADirectoryError, ClozeError):
                manifest = None
            yield StoreEntry(name, key, directory, manifest)


def ancestors(artifact: Artifact, *, store: Store) -> dict[str, Artifact]:
    """The artifact and everything it was made from, by stage, nearest first."""
    # Inputs are recorded by content, so artifacts are found by digest.
    known = {
        entry.manifest.digest: Artifact(entry.directory, entry.manifest)
        for entry in store_entries(store)
        if entry.manifest
    }
    # Breadth first, so of several artifacts of one stage the nearest counts.
    found: dict[str, Artifact] = {}
    waiting = [artifact]
    while waiting:
        nearest = waiting.pop(0)
        if nearest.manifest.stage not in found:
            found[nearest.manifest.stage] = nearest
            digests = nearest.manifest.inputs.values()
            waiting += [known[digest] for digest in digests if digest in known]
    return found


def unreadable_references(workspace: Workspace) -> list[UsageError]:
    """The errors of records and stage tables that cannot be read.

    With any of these, apparent garbage may still belong to a run.
    """
    return [reference for reference in _references(workspace) if isinstance(reference, UsageError)]


def garbage(workspace: Workspace, retention: Retention = KEEP_RUNS) -> list[Garbage]:
    """Everything that no readable record or stage table refers to, or only of runs too old."""
    entries = list(store_entries(workspace.store))
    # A record that is too old no longer refers; what it referred to stays if a younger run, a
    # running one or a search index refers to it, too.
    old = {run for run in list_runs(workspace) if _is_too_old(workspace, run, retention)}
    references = [key for key in _references(workspace, without=old) if isinstance(key, str)]
    kept = _with_inputs([*references, *search_indexes(entries, retention)], entries)
    found: list[Garbage] = []
    for entry in entries:
        if filesystem.is_link(workspace.store.directory(entry.stage, "")):
            continue  # belongs to another store
        if entry.key not in kept and not (entry.stage == IMPORTED and entry.manifest):
            size = filesystem.size_below(entry.directory)
            found.append(Garbage(entry.directory, size, _why_garbage(entry, retention)))
        elif entry.manifest and not filesystem.is_link(entry.directory):
            files = (*entry.manifest.files, *entry.manifest.records)
            # What the manifest explains; the rest of the folder is left over.
            named = {MANIFEST_NAME, FINISHED, *(file.stored_name.split("/")[0] for file in files)}
            left = {*filesystem.list_names(entry.directory)} - named
            # Records of its files stay, those of working files were to go when it was finished.
            records = filesystem.join(entry.directory, FINISHED)
            if WORK in filesystem.list_names(records):
                left.add(f"{FINISHED}/{WORK}")
            for name in sorted(left):
                path = filesystem.join(entry.directory, name)
                reason = f"left over from making {entry.stage}"
                found.append(Garbage(path, filesystem.size_below(path), reason))
    return found


def unused_copies(retention: Retention = KEEP_RUNS) -> list[Garbage]:
    """This node's copies of remote artifacts that no command has opened for so long.

    Whoever still reads one keeps what it has opened; the next command downloads it again.
    """
    found: list[Garbage] = []
    for folder in sorted(copies_directory().glob("*")):
        days = (time.time() - folder.stat().st_mtime) / 86_400
        if days > retention.copies:
            reason = f"copy of a remote artifact, unused for {days:.0f} days"
            found.append(Garbage(str(folder), filesystem.size_below(str(folder)), reason))
    return found


def _with_inputs(keys: list[str], entries: Sequence[StoreEntry]) -> set[str]:
    """`keys`, and those of everything their artifacts were made from."""
    by_digest = {entry.manifest.digest: entry for entry in entries if entry.manifest}
    by_key = {entry.key: entry for entry in entries}
    found: set[str] = set()
    waiting = [*keys]
    while waiting:
        key = waiting.pop()
        referred = by_key.get(key)
        if key not in found and referred and referred.manifest:
            made_from = referred.manifest.inputs.values()
            waiting += [by_digest[digest].key for digest in made_from if digest in by_digest]
        found.add(key)
    return found


def search_indexes(entries: Iterable[StoreEntry], retention: Retention) -> dict[str, str]:
    """Keys of the search indexes that stay, with what each is an index of."""
    return {
        entry.key: str(entry.manifest.execution.get("source", entry.stage))
        for entry in entries
        if entry.stage in SEARCHED and entry.manifest
        if age_in_days(entry.manifest.execution.get("finished_at")) <= retention.searches
    }


def age_in_days(moment: object) -> float:
    """Days since a moment in the format of records; infinite if it is not known."""
    try:
        since = time.strptime(str(moment), "%Y-%m-%dT%H:%M:%SZ")
    except ValueError:
        return math.inf
    return (time.time() - calendar.timegm(since)) / 86_400


def _is_too_old(workspace: Workspace, run: str, retention: Retention) -> bool:
    """Whether a finished run ended too long ago; one without a readable record stays."""
    if retention.runs is None:
        return False
    try:
        record = find_record(workspace, run)
    except UsageError:
        return False
    if record is None or not record.finished_at:
        return False
    return age_in_days(record.finished_at) > retention.runs


def _why_garbage(entry: StoreEntry, retention: Retention) -> str:
    if entry.stage in SEARCHED and entry.manifest:
        age = age_in_days(entry.manifest.execution.get("finished_at"))
        what = entry.manifest.execution.get("source", "a search index")
        return f"{entry.stage} of {what}, {age:.0f} days old"
    what = "artifact" if entry.manifest else "unfinished artifact"
    young = f" of the last {retention.runs:g} days" if retention.runs is not None else ""
    return f"{what} of {entry.stage} that no run{young} refers to"


def remove_garbage(found: list[Garbage]) -> None:
    """Remove garbage, manifests first, so that no reader sees a partial artifact."""
    for item in found:
        if not filesystem.is_link(item.path):
            filesystem.remove(filesystem.join(item.path, MANIFEST_NAME))
        filesystem.remove(item.path)


def _references(
    workspace: Workspace, *, without: Collection[str] = ()
) -> Iterator[str | UsageError]:
    """The keys in the records and stage tables of runs, or an error for an unreadable one."""
    for run in (run for run in list_runs(workspace) if run not in without):
        try:
            record = find_record(workspace, run)
            yield from (stage.key for stage in record.stages.values()) if record else ()
        except UsageError as error:
            yield error
        for file in sorted((workspace.local / run / "stages").glob("*.json")):
            try:
                yield read_stage_table(file).key
            except UsageError as error:
                yield error
