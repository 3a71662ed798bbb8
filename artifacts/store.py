"""The store: artifacts by stage and key, complete or invisible.

In:  a workspace, local or an fsspec URL, and stage tables.
Out: `Artifact`, opened through its manifest and verified.

    <root>/<stage>/<key>/manifest.json      written last: the only commit
    <root>/<stage>/<key>/<name>.<sha>.<ext> content-addressed: two writers cannot collide
    <root>/<stage>/<key>/finished/<name>    one record per finished file: work to resume from
"""

import json
import os
import platform
import sys
import tempfile
import time
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from importlib import metadata
from typing import Any, TypedDict, Unpack

from artifacts import filesystem
from artifacts.digests import cache_directory, cached_digest_of_file, digest_of_file
from artifacts.errors import IntegrityError
from artifacts.manifest import MANIFEST_NAME, FileEntry, Manifest, parse_manifest
from artifacts.stage import StageTable

FINISHED = "finished"
WORK = "work"
"""Folder, within an unfinished artifact, of what only its stage needs."""
STORE_THREADS = 16
"""Object stores answer in tens of milliseconds; many small questions are asked at once."""
NAMED_VERSIONS = ("cloze", "apache-beam", "deepspeed", "numpy", "pyarrow", "tokenizers", "torch")


@dataclass(frozen=True)
class Artifact:
    """A finished artifact: a directory and its manifest."""

    directory: str
    manifest: Manifest

    @property
    def digest(self) -> str:
        """Content digest."""
        return self.manifest.digest

    def path(self, name: str) -> str:
        """Local path of a file, verified against its sha256 the first time this node opens it.

        A file behind a URL is brought to this node's cache; `stage_files` chooses another place.
        """
        entry = self.manifest.file(name)
        return open_file(self.directory, entry, scratch=node_cache(self.manifest.key))

    def read_bytes(self, name: str) -> bytes:
        """A small file's bytes, from any file system."""
        if filesystem.is_local(self.directory):
            with open(self.path(name), "rb") as file:
                return file.read()
        return filesystem.read_bytes(
            filesystem.join(self.directory, self.manifest.file(name).stored_name)
        )

    def read_json(self, name: str) -> Any:
        """A small JSON file's value."""
        return json.loads(self.read_bytes(name))

    def stage_files(self, destination: str, names: Iterable[str] | None = None) -> "Artifact":
        """The artifact with the named files (or all) on local disk: itself if local already.

        Without a `destination` each is fetched when it is first asked for.
        """
        if filesystem.is_local(self.directory) or not destination:
            return self
        wanted = (
            self.manifest.files if names is None else [self.manifest.file(name) for name in names]
        )
        for entry in wanted:
            local = os.path.join(destination, entry.stored_name)
            if not os.path.exists(local):
                filesystem.fetch_file(filesystem.join(self.directory, entry.stored_name), local)
        return Artifact(destination, self.manifest)


def node_cache(key: str) -> str:
    """Where this node keeps files of the remote artifact with `key`."""
    return str(cache_directory("artifacts") / key)


class Store:
    """All artifacts of a workspace."""

    def __init__(self, root: str) -> None:
        self.root = root

    def directory(self, stage: str, key: str) -> str:
        """Where the artifact with `key` lies or would lie."""
        return filesystem.join(self.root, f"{stage}/{key}")

    def find(self, stage: str, key: str) -> Artifact | None:
        """The finished artifact with `key`, or None; a damaged one is an `IntegrityError`."""
        directory = self.directory(stage, key)
        if not filesystem.exists(filesystem.join(directory, MANIFEST_NAME)):
            return None
        artifact = open_artifact(directory)
        if artifact.manifest.key != key:
            raise IntegrityError(
                f"{directory}: its manifest is that of {artifact.manifest.key[:12]}; "
                "delete it and run the stage again"
            )
        return artifact


def open_artifact(directory: str) -> Artifact:
    """The artifact in `directory`, its manifest read and every file's size checked."""
    source = filesystem.join(directory, MANIFEST_NAME)
    try:
        text = filesystem.read_bytes(source)
    except FileNotFoundError:
        raise IntegrityError(
            f"{directory}: no {MANIFEST_NAME}, so no finished artifact; "
            "run its stage, or name the directory that holds one"
        ) from None
    manifest = parse_manifest(text, source=source)
    if manifest.derived_key != manifest.key:
        raise IntegrityError(
            f"{source}: key {manifest.key[:12]}, but its configuration and inputs have "
            f"{manifest.derived_key[:12]}: it was changed; delete it and run the stage again"
        )
    for entry in (*manifest.files, *manifest.records):
        path = filesystem.join(directory, entry.stored_name)
        found = filesystem.size_of(path)
        if found is None:
            raise IntegrityError(f"{path}: missing, but the manifest names it; run the stage again")
        if found != entry.size:
            raise IntegrityError(
                f"{path}: {found} bytes, the manifest says {entry.size}; run the stage again"
            )
    return Artifact(directory, manifest)


def open_input(table: StageTable, role: str) -> Artifact:
    """The finished input that plays `role`; an `IntegrityError` if it is not the one planned."""
    artifact = open_artifact(table.input_path(role))
    planned = table.inputs[role].digest
    if artifact.digest != planned:
        raise IntegrityError(
            f"{artifact.directory}: digest {artifact.digest[:12]}, the stage table says "
            f"{planned[:12]}; the artifact was replaced: plan the run again"
        )
    return artifact


def open_file(directory: str, entry: FileEntry, *, scratch: str) -> str:
    """Local path of the file that `entry` describes, verified; brought to `scratch` if remote.

    For workers, which are given single entries: a whole manifest would travel with every task.
    """
    path = filesystem.join(directory, entry.stored_name)
    if filesystem.is_local(directory):
        path = filesystem.local_path(path)
        if not os.path.exists(path):
            raise IntegrityError(f"{path}: missing; its manifest names it: run its stage again")
    else:
        remote, path = path, os.path.join(scratch, entry.stored_name)
        if not os.path.exists(path):
            filesystem.fetch_file(remote, path)
    found = cached_digest_of_file(path)
    if found != entry.sha256:
        raise IntegrityError(
            f"{path}: sha256 {found[:12]}, the manifest says {entry.sha256[:12]}; "
            "the file was damaged or changed: delete it and run its stage again"
        )
    return path


class FileFacts(TypedDict, total=False):
    """The keywords of `put_file` that `put_bytes` and `put_json` pass on."""

    rows: int | None
    statistics: Mapping[str, object] | None


def put_file(
    directory: str,
    source: str,
    *,
    name: str,
    rows: int | None = None,
    statistics: Mapping[str, object] | None = None,
) -> FileEntry:
    """Move the local file `source` into the unfinished artifact as `name`; record it finished.

    `commit` waits until it and all others are flushed to disk: see `finished_file`.
    """
    entry = FileEntry(
        name=name,
        size=os.path.getsize(source),
        sha256=digest_of_file(source),
        rows=rows,
        statistics=dict(statistics or {}),
    )
    path = filesystem.join(directory, entry.stored_name)
    filesystem.put_file(source, path, durable=False)
    filesystem.begin_flush(path)
    filesystem.write_bytes(
        finished_record(directory, name), entry.model_dump_json().encode(), durable=False
    )
    return entry


def put_bytes(
    directory: str, content: bytes, *, name: str, **facts: Unpack[FileFacts]
) -> FileEntry:
    """Write `content` into the unfinished artifact as `name`; `facts` as for `put_file`."""
    local = filesystem.is_local(directory)
    folder = filesystem.local_path(directory) if local else tempfile.gettempdir()
    scratch = os.path.join(folder, name.replace("/", "-"))
    with filesystem.naming_full_disk(scratch), filesystem.temporary_beside(scratch) as temporary:
        with open(temporary, "wb") as file:
            file.write(content)
        return put_file(directory, temporary, name=name, **facts)


def put_json(directory: str, value: object, *, name: str, **facts: Unpack[FileFacts]) -> FileEntry:
    """Write `value` as readable JSON into the unfinished artifact as `name`."""
    return put_bytes(
        directory, (json.dumps(value, indent=1, sort_keys=True) + "\n").encode(), name=name, **facts
    )


def finished_file(directory: str, name: str) -> FileEntry | None:
    """The entry of a file that an earlier attempt has finished; None if it must be made.

    A killed process loses nothing it has put, a machine that goes down may: what was put before
    this machine started is read again.
    """
    record = finished_record(directory, name)
    try:
        entry = FileEntry.model_validate_json(filesystem.read_bytes(record))
    except (FileNotFoundError, ValueError):
        return None
    path = filesystem.join(directory, entry.stored_name)
    if filesystem.size_of(path) != entry.size:
        return None
    if filesystem.is_local(path) and filesystem.older_than_this_start(record):
        return entry if digest_of_file(filesystem.local_path(path)) == entry.sha256 else None
    return entry


def finished_files(directory: str, names: Sequence[str]) -> dict[str, FileEntry]:
    """The entries of those of the named files that are finished, by name."""
    if filesystem.is_local(directory):
        entries = [finished_file(directory, name) for name in names]
    else:
        with ThreadPoolExecutor(STORE_THREADS) as pool:
            entries = list(pool.map(lambda name: finished_file(directory, name), names))
    return {name: entry for name, entry in zip(names, entries, strict=True) if entry}


def all_finished(directory: str, names: Sequence[str]) -> list[FileEntry]:
    """The entries of the named files, in their order; an `IntegrityError` if one is missing."""
    found = finished_files(directory, names)
    missing = [name for name in names if name not in found]
    if missing:
        raise IntegrityError(
            f"{filesystem.join(directory, missing[0])}: not there after the job ({len(missing)} of "
            f"{len(names)} files); the workers must see the same {directory}, and nobody else may "
            "change it; run the stage again"
        )
    return [found[name] for name in names]


def commit(
    table: StageTable,
    files: Iterable[FileEntry],
    *,
    statistics: Mapping[str, object] | None = None,
    records: Iterable[FileEntry] = (),
    execution: Mapping[str, object] | None = None,
) -> Artifact:
    """Write the manifest: from now on the artifact exists."""
    manifest = Manifest(
        stage=table.stage,
        key=table.key,
        format_version=table.format_version,
        config=table.keyed_config,
        inputs={role: reference.digest for role, reference in table.inputs.items()},
        files=tuple(sorted(files, key=lambda entry: entry.name)),
        records=tuple(sorted(records, key=lambda entry: entry.name)),
        statistics=dict(statistics or {}),
        versions=versions(),
        execution={
            "finished_at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            **(execution or {}),
        },
    )
    path = filesystem.join(table.output, MANIFEST_NAME)
    filesystem.make_durable(
        filesystem.join(table.output, entry.stored_name)
        for entry in (*manifest.files, *manifest.records)
    )
    filesystem.write_bytes(path, (manifest.model_dump_json(indent=1) + "\n").encode())
    return open_artifact(table.output)


@cache
def versions() -> dict[str, str]:
    """Versions of Python, the machine and the packages a result can depend on."""
    found = {
        "python": platform.python_version(),
        "platform": f"{sys.platform}-{platform.machine()}",
    }
    for package in NAMED_VERSIONS:
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return found


def finished_record(directory: str, name: str) -> str:
    """Where an unfinished artifact remembers that the file `name` is finished."""
    return filesystem.join(directory, f"{FINISHED}/{name}.json")


def clear_work(directory: str) -> None:
    """Remove the stage's own work files and the records that they were finished."""
    for leftover in (WORK, f"{FINISHED}/{WORK}"):
        filesystem.remove(filesystem.join(directory, leftover))
