"""The store: artifacts by stage and key, complete or invisible.

In:  a workspace (a directory or an fsspec URL), and stage tables.
Out: `Artifact`, opened through its manifest and verified.

    <root>/<stage>/<key>/manifest.json      written last: the commit
    <root>/<stage>/<key>/<name>.<sha>.<ext> content-addressed: two writers cannot collide
    <root>/<stage>/<key>/finished/<name>    one record per finished file, to resume from
"""

import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

from cloze.artifacts import filesystem
from cloze.artifacts.digests import cache_directory, cached_digest_of_file, digest_of_file
from cloze.artifacts.errors import IntegrityError
from cloze.artifacts.manifest import MANIFEST_NAME, FileEntry, Manifest, parse_manifest
from cloze.artifacts.runtime.temporary import clear_left, clear_once, temporary_directory
from cloze.artifacts.stage import StageTable

FINISHED = "finished"
WORK = "work"
"""Folder inside an unfinished artifact for the stage's own working files."""
STORE_THREADS = 16
"""Object stores take tens of milliseconds per request, so requests run in parallel."""
NAMED_VERSIONS = ("apache-beam", "deepspeed", "numpy", "pyarrow", "tokenizers", "torch")
DISTRIBUTION = "cloze-encoder"
CHECKOUT = Path(__file__).resolve().parent.parent


@dataclass(frozen=True)
class Artifact:
    """A finished artifact: a directory and its manifest."""

    directory: str
    manifest: Manifest

    @property
    def digest(self) -> str:
        """Content digest."""
        return self.manifest.digest

    def path(self, name: str, cache: str = "") -> str:
        """Local path of a file, verified against its sha256 when this node first opens it.

        A remote file is downloaded to `cache`, by default a folder in this node's cache.
        """
        cache = cache or str(copies_directory() / self.manifest.key)
        return open_file(self.directory, self.manifest.file(name), scratch=cache)

    def read_bytes(self, name: str) -> bytes:
        """The content of a small file."""
        return Path(self.path(name)).read_bytes()

    def read_json(self, name: str) -> Any:
        """The value of a small JSON file."""
        return json.loads(self.read_bytes(name))


class Store:
    """The artifacts of a workspace."""

    def __init__(self, root: str) -> None:
        self.root = root

    def directory(self, stage: str, key: str) -> str:
        """The directory of the artifact with `key`, whether or not it exists."""
        return filesystem.join(self.root, f"{stage}/{key}")

    def find(self, stage: str, key: str) -> Artifact | None:
        """The finished artifact with `key`, or None; `IntegrityError` if it is damaged."""
        directory = self.directory(stage, key)
        if not filesystem.exists(filesystem.join(directory, MANIFEST_NAME)):
            return None
        artifact = open_artifact(directory)
        # A folder copied to the place of another key would otherwise pass for the artifact of that
        # key.
        if artifact.manifest.key != key:
            raise IntegrityError(
                f"{directory}: its manifest is that of {artifact.manifest.key[:12]}; "
                "delete it and run the stage again"
            )
        return artifact


def copies_directory() -> Path:
    """This node's copies of remote artifacts: a folder a key, with the time of its last use."""
    return cache_directory("artifacts")


def open_artifact(directory: str) -> Artifact:
    """Open the artifact in `directory`: read its manifest and check the size of every file."""
    source = filesystem.join(directory, MANIFEST_NAME)
    try:
        if not filesystem.is_file(source):  # reading a pipe might never end
            raise FileNotFoundError(source)
        text = filesystem.read_bytes(source)
    except FileNotFoundError:
        raise IntegrityError(
            f"{directory}: no {MANIFEST_NAME}, so not a finished artifact; "
            "run its stage, or give the directory of a finished one"
        ) from None
    manifest = parse_manifest(text, source=source)
    if manifest.derived_key != manifest.key:
        raise IntegrityError(
            f"{source}: key {manifest.key[:12]}, but its configuration and inputs give "
            f"{manifest.derived_key[:12]}: it was changed; delete it and run the stage again"
        )
    # Sizes only: reading all content here would take as long as using it. It is verified when a
    # file is opened.
    for entry in (*manifest.files, *manifest.records):
        path = filesystem.join(directory, entry.stored_name)
        found = filesystem.size_of(path)
        if found is None:
            raise IntegrityError(f"{path}: missing, but the manifest lists it; run the stage again")
        if found != entry.size:
            raise IntegrityError(
                f"{path}: {found} bytes, the manifest says {entry.size}; run the stage again"
            )
    return Artifact(directory, manifest)


def open_input(table: StageTable, role: str) -> Artifact:
    """Open the input with this `role`; `IntegrityError` if it is not the planned one."""
    artifact = open_artifact(table.input_path(role))
    planned = table.inputs[role].digest
    if artifact.digest != planned:
        raise IntegrityError(
            f"{artifact.directory}: digest {artifact.digest[:12]}, the stage table says "
            f"{planned[:12]}; the artifact was replaced: plan the run again"
        )
    return artifact


def open_file(directory: str, entry: FileEntry, *, scratch: str) -> str:
    """Local path of the file described by `entry`, verified; downloaded to `scratch` if remote.

    A damaged copy of a remote file is downloaded again.

    For workers, which receive single entries: a whole manifest per task would be too much to send.
    """
    path = filesystem.join(directory, entry.stored_name)
    if filesystem.is_local(directory):
        path = filesystem.local_path(path)
        if not os.path.isfile(path):
            raise IntegrityError(f"{path}: missing, but the manifest lists it; run its stage again")
    else:
        remote, path = path, os.path.join(scratch, entry.stored_name)
        clear_once(os.path.dirname(path))  # a killed download of what another has finished since
        if not (os.path.exists(path) and cached_digest_of_file(path) == entry.sha256):
            filesystem.fetch_file(remote, path)
        with suppress(OSError):  # a cache that others filled may only be read
            os.utime(scratch)  # the time of its last use, for whoever tidies it
    found = cached_digest_of_file(path)
    if found != entry.sha256:
        raise IntegrityError(
            f"{path}: sha256 {found[:12]}, the manifest says {entry.sha256[:12]}; "
            "the file was damaged or changed: delete it and run its stage again"
        )
    return path


def put_local_file(
    directory: str,
    source: str,
    *,
    name: str,
    rows: int | None = None,
    statistics: Mapping[str, object] | None = None,
) -> FileEntry:
    """Move the local file `source` into the unfinished artifact as `name`, and record it finished.

    Only `commit` waits until all files are flushed to disk; see `finished_file`.
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
    # Writing to disk begins now and is awaited once, by `commit`: waiting for each of ten thousand
    # files would take as long as making them.
    filesystem.begin_flush(path)
    # The record comes after the file, of which it says that it is there.
    filesystem.write_bytes(
        finished_record(directory, name), entry.model_dump_json().encode(), durable=False
    )
    return entry


def put_bytes(
    directory: str,
    content: bytes,
    *,
    name: str,
    rows: int | None = None,
    statistics: Mapping[str, object] | None = None,
) -> FileEntry:
    """Write `content` into the unfinished artifact as `name`, like `put_file`."""
    local = filesystem.is_local(directory)
    folder = filesystem.local_path(directory) if local else tempfile.gettempdir()
    # Beside the artifact's files, so that putting it there is a rename.
    scratch = os.path.join(folder, name.replace("/", "-"))
    with filesystem.naming_full_disk(scratch), filesystem.temporary_beside(scratch) as temporary:
        Path(temporary).write_bytes(content)
        return put_local_file(directory, temporary, name=name, rows=rows, statistics=statistics)


def put_json(directory: str, value: object, *, name: str) -> FileEntry:
    """Write `value` as readable JSON into the unfinished artifact as `name`."""
    content = json.dumps(value, indent=1, sort_keys=True) + "\n"
    return put_bytes(directory, content.encode(), name=name)


def finished_file(directory: str, name: str) -> FileEntry | None:
    """The entry of a file that an earlier attempt finished; None if it has to be made.

    Files survive the death of the process that put them, but perhaps not of the machine: what was
    put before the last boot is verified.
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
    """The entries of the finished files among `names`, by name."""
    # On an object store each look is a round trip of some 50 ms, which overlap.
    with ThreadPoolExecutor(STORE_THREADS) as pool:
        entries = list(pool.map(lambda name: finished_file(directory, name), names))
    return {name: entry for name, entry in zip(names, entries, strict=True) if entry}


def all_finished(directory: str, names: Sequence[str]) -> list[FileEntry]:
    """The entries of the named files, in order; `IntegrityError` if one is missing."""
    found = finished_files(directory, names)
    missing = [name for name in names if name not in found]
    if missing:
        raise IntegrityError(
            f"{filesystem.join(directory, missing[0])}: missing after the job ({len(missing)} of "
            f"{len(names)} files); make sure that all workers share {directory} and nothing else "
            "changes it, then run the stage again"
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
    """Write the manifest: the artifact now exists."""
    manifest = Manifest(
        stage=table.stage,
        key=table.key,
        format_version=table.format_version,
        config=table.keyed_config,
        inputs={role: reference.digest for role, reference in table.inputs.items()},
        # By name, since workers finish in any order and the digest must not depend on it.
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
    # Everything is on disk before the manifest says so.
    filesystem.make_durable(
        filesystem.join(table.output, entry.stored_name)
        for entry in (*manifest.files, *manifest.records)
    )
    filesystem.write_bytes(path, (manifest.model_dump_json(indent=1) + "\n").encode())
    return open_artifact(table.output)


@cache
def versions() -> dict[str, str]:
    """What a result may depend on besides its inputs: our version, Python, processor, packages.

    In a checkout our version ends with the commit, and with `.dirty` if files have changed since.
    """
    found = {
        "cloze": "unknown",
        "python": platform.python_version(),
        "platform": f"{sys.platform}-{platform.machine()}",
        "processor": processor(),
    }
    for name, package in (
        ("cloze", DISTRIBUTION),
        *zip(NAMED_VERSIONS, NAMED_VERSIONS, strict=True),
    ):
        try:
            found[name] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    if (CHECKOUT / ".git").exists():
        git = ("git", "-C", str(CHECKOUT), "describe", "--always", "--dirty=.dirty", "--exclude=*")
        try:
            done = subprocess.run(git, capture_output=True, text=True, check=False, timeout=10)
        except (OSError, subprocess.TimeoutExpired):  # no git, or a slow disk
            return found
        if commit := done.stdout.strip():
            found["cloze"] += f"+{commit}"
    return found


def processor() -> str:
    """The processor's own name, or else its architecture."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.machine())


def finished_record(directory: str, name: str) -> str:
    """Path of the record that the file `name` of an unfinished artifact is finished."""
    return filesystem.join(directory, f"{FINISHED}/{name}.json")


@contextmanager
def scratch_directory(output: str) -> Iterator[str]:
    """A local scratch directory, inside `output` if that is local, removed afterwards.

    What killed processes of this host left behind is removed first.
    """
    parent = filesystem.local_path(output) if filesystem.is_local(output) else tempfile.gettempdir()
    os.makedirs(parent, exist_ok=True)
    clear_left(parent)
    with temporary_directory(parent) as scratch:
        yield scratch


def clear_work(directory: str) -> None:
    """Remove the stage's working files and their finished records."""
    for leftover in (WORK, f"{FINISHED}/{WORK}"):
        filesystem.remove_below(directory, leftover)
