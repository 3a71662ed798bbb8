"""The workspace: the folder or bucket that holds artifacts and runs, and the record of each run.

In:  a folder or fsspec URL, and a run's name; the result of each stage.
Out: its store, the run's folder, a local folder for logs and jobs; `run.json`, rewritten after
     every stage, through which a run's name resolves to artifacts.

    <workspace>/artifacts/<stage>/<key>/…   shared by all runs (artifacts/store.py)
    <workspace>/<run>/run.json              the run's record: its artifacts and how they were made
    <workspace>/<run>/stages/*.json         its stage tables, for running a stage by hand
    <workspace>/<run>/report.html, summary.json
    <workspace>/<run>/jobs/<stage>/log      the output of each program

For a workspace on an object store, jobs and locks (flows/locks) are kept in a local folder. A
workspace can be moved or copied: artifacts are found by stage and key, and paths inside the
workspace are stored relative to it.
"""

import itertools
import json
import os
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from socket import gethostname
from typing import Literal

from pydantic import ConfigDict, Field, JsonValue, ValidationError

from cloze.artifacts import filesystem
from cloze.artifacts.config import Config
from cloze.artifacts.digests import digest_of
from cloze.artifacts.errors import IntegrityError, UsageError
from cloze.artifacts.filesystem import located
from cloze.artifacts.progress import clock
from cloze.artifacts.runtime.temporary import clear_left
from cloze.artifacts.store import Artifact, Store, open_artifact
from cloze.flows.locks import holder_of

ARTIFACTS = "artifacts"
RECORD_NAME = "run.json"
PAGE_NAME = "report.html"
SUMMARY_NAME = "summary.json"
REPORT_FILES = (PAGE_NAME, SUMMARY_NAME)
"""The report's files, copied into the run's folder."""

ADAPTED = "adapted"
"""The encoder that `cloze adapt` kept, among the artifacts of a run."""

PLACEHOLDER = "{workspace}"
"""Stands for the workspace's root in `run.json`."""

PROBE = ".writable"
"""An object that is written and removed; the next run removes what a killed one left."""

GIB = 1 << 30

RunState = Literal["running", "finished", "failed", "interrupted"]


@dataclass(frozen=True)
class Workspace:
    """One workspace."""

    root: str
    """Absolute path or URL."""

    @property
    def store(self) -> Store:
        """The store of its artifacts."""
        return Store(filesystem.join(self.root, ARTIFACTS))

    @property
    def local(self) -> Path:
        """The workspace itself if it is a folder, else a folder on this machine that serves it."""
        if filesystem.is_local(self.root):
            return Path(filesystem.local_path(self.root))
        base = os.environ.get("XDG_STATE_HOME") or os.path.expanduser("~/.local/state")
        # A folder of its own for each workspace on a store, by the digest of its URL.
        return Path(base) / "cloze" / digest_of(self.root)[:12]

    def run_folder(self, run: str) -> str:
        """Folder or URL of the run called `run`."""
        return filesystem.join(self.root, run)

    def job_folder(self, run: str, stage: str) -> Path:
        """Local folder of the job that runs one stage."""
        return self.local / run / "jobs" / stage


def workspace(root: str) -> Workspace:
    """The workspace at `root`, which may not exist yet."""
    return Workspace(located(root))


def writable_workspace(root: str) -> Workspace:
    """The workspace at `root`, created if needed; raises a `UsageError` if it is not writable.

    What killed commands left in TMPDIR is removed, since not every command that is repeated needs a
    temporary folder again.
    """
    clear_left()
    made = workspace(root)
    try:
        made.local.mkdir(parents=True, exist_ok=True)
        # Permissions say little about network disks, so try it.
        probe = filesystem.join(made.root, PROBE)
        filesystem.write_bytes(probe, b"")
        with suppress(FileNotFoundError):  # another run has just done so
            filesystem.remove(probe)
    except OSError as error:
        reason = error.strerror or str(error)
        raise UsageError(
            f"workspace {made.root}: cannot be written ({reason}); choose another folder"
        ) from None
    return made


class StageRecord(Config):
    """One stage of a run; fields written by earlier versions are ignored."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    key: str = Field(pattern=r"^[0-9a-z]+$")
    """Key of its stage table."""
    digest: str
    """Content digest of its artifact."""
    state: Literal["reused", "made"]
    """Whether this run made the artifact or reused it."""
    seconds: float | None = None
    """Wall-clock time of its program over all attempts, if a run of this name made it."""
    peak_memory: int | None = None
    """Peak PSS in bytes of all of that run's processes while the program ran."""
    load: float | None = None
    """Runnable processes of the machine per core when it ended, its own included."""
    processor: str = ""
    """Of the machine that made it, if known."""
    argv: tuple[str, ...] = ()
    """The command that makes it."""

    @property
    def cost(self) -> tuple[str, str]:
        """Its time and peak memory as text, each empty if unknown."""
        memory = f"{self.peak_memory / GIB:.2f} GiB" if self.peak_memory else ""
        return clock(self.seconds) if self.seconds is not None else "", memory


class RunRecord(Config):
    """One run; fields written by earlier versions are ignored."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    name: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]*$")
    """The run's name."""
    state: RunState
    """Whether it is running, or how it ended."""
    config: dict[str, JsonValue]
    """The complete resolved configuration."""
    machine: dict[str, JsonValue]
    """The machine's configuration."""
    host: str = ""
    """Host that started it and holds its lock."""
    stages: dict[str, StageRecord] = Field(default_factory=dict)
    """The stages finished so far, in order."""
    started_at: str
    """UTC."""
    finished_at: str = ""
    """UTC; empty while it runs."""
    seconds: float | None = None
    """Wall-clock time of the whole run."""
    peak_memory: int | None = None
    """Peak PSS in bytes of all its processes, over the stages that ran."""
    failure: str = ""
    """Why it failed."""


def utc_now() -> str:
    """The current time in the format of records."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())


def record_path(workspace: Workspace, run: str) -> str:
    """Path or URL of a run's record."""
    return filesystem.join(workspace.run_folder(run), RECORD_NAME)


def write_record(record: RunRecord, workspace: Workspace) -> None:
    """Write the record to its place in the workspace."""
    # Paths in the workspace are stored relative to it, so that it can be moved.
    table = _replaced(record.model_dump(mode="json"), workspace.root, PLACEHOLDER)
    content = json.dumps(table, indent=1, ensure_ascii=False) + "\n"
    filesystem.write_bytes(record_path(workspace, record.name), content.encode())


def show_report(report: Artifact, workspace: Workspace, run: str) -> None:
    """Copy a report beside the run's record, where people look for it."""
    written = {entry.name for entry in report.manifest.files}
    for name in sorted(written.intersection(REPORT_FILES)):
        path = filesystem.join(workspace.run_folder(run), name)
        filesystem.write_bytes(path, report.read_bytes(name))


def keep_under_number(record: RunRecord, workspace: Workspace) -> str:
    """Keep a run under another name, which is returned: its record and the files of its report.

    `demo` becomes `demo.1`, `demo.2`, …, which no run can be started as because of the dot. Its
    artifacts stay where they are, and its record protects them from `cloze gc`.
    """
    taken = set(filesystem.list_names(workspace.root))
    # The next free number: what was kept before stays as it is called.
    names = (f"{record.name}.{number}" for number in itertools.count(1))
    kept = next(name for name in names if name not in taken)
    for file in REPORT_FILES:
        path = filesystem.join(workspace.run_folder(record.name), file)
        if filesystem.exists(path):
            target = filesystem.join(workspace.run_folder(kept), file)
            filesystem.write_bytes(target, filesystem.read_bytes(path))
    write_record(record.model_copy(update={"name": kept}), workspace)
    return kept


def _replaced(value: JsonValue, old: str, new: str) -> JsonValue:
    """`value` with `new` for `old` in every string that is the folder `old` or a path in it."""
    if isinstance(value, str):
        # Only whole components: /data/runs must not match in /data/runs2.
        inside = value == old or value.startswith(f"{old}/")
        return new + value.removeprefix(old) if inside else value
    if isinstance(value, list):
        return [_replaced(item, old, new) for item in value]
    if isinstance(value, dict):
        return {name: _replaced(item, old, new) for name, item in value.items()}
    return value


def find_record(workspace: Workspace, run: str) -> RunRecord | None:
    """The record of the run called `run`, or None.

    A killed run could not record its end, so it counts as interrupted if its lock is free. On an
    object store, only the host that started it can check that.
    """
    if "/" in run:  # of a folder elsewhere, perhaps outside the workspace
        return None
    path = record_path(workspace, run)
    try:
        record = read_record_file(path)
    except FileNotFoundError:
        return None
    has_lock_here = filesystem.is_local(workspace.root) or record.host == gethostname()
    # A record cannot tell a run that goes on from one that was killed. A lock can: the kernel
    # releases it with the process.
    if record.state == "running" and has_lock_here and not holder_of(workspace.local / run):
        return record.model_copy(update={"state": "interrupted"})
    return record


def read_record_file(path: str) -> RunRecord:
    """The record at `<workspace>/<run>/run.json`, with paths in the workspace's current place."""
    # The place where the record lies now decides, not the one where it was written.
    root = path.rsplit("/", 2)[0]
    try:
        table = json.loads(filesystem.read_bytes(path))
        return RunRecord.model_validate(_replaced(table, PLACEHOLDER, root))
    except ValidationError as error:
        reason = error.errors()[0]["msg"]
    except IsADirectoryError:
        reason = "a folder"
    except (ValueError, RecursionError) as error:
        reason = str(error)
    raise UsageError(f"{path}: not a run's record: {reason}; remove it, or start the run again")


def list_runs(workspace: Workspace) -> list[str]:
    """The names of the runs in a workspace."""
    names = filesystem.list_names(workspace.root)
    return [name for name in names if filesystem.exists(record_path(workspace, name))]


def read_record(workspace: Workspace, run: str) -> RunRecord:
    """The record of the run called `run`; raises a `UsageError` that lists the existing runs."""
    found = find_record(workspace, run)
    if found is None:
        known = ", ".join(list_runs(workspace)) or "none"
        raise UsageError(
            f"{run or 'an empty name'}: no run of this name in workspace {workspace.root}; "
            f"existing runs: {known}"
        )
    return found


def stage_tables(
    record: RunRecord, workspace: Workspace, *, stages: Sequence[str] = ()
) -> dict[str, dict[str, JsonValue]]:
    """The records of some or all stages, each with the directory of its artifact."""
    return {
        stage: {
            **record.stages[stage].model_dump(mode="json"),
            "directory": workspace.store.directory(stage, record.stages[stage].key),
        }
        for stage in stages or record.stages
    }


def run_artifact(workspace: Workspace, run: str, *, stage: str) -> Artifact:
    """The artifact that `stage` has in a run."""
    record = read_record(workspace, run)
    if stage not in record.stages:
        raise UsageError(
            f"run {run} has no finished stage {stage} ({record.state}; finished: "
            f"{', '.join(record.stages) or 'none'}); run `cloze {stage} CONFIG` first"
        )
    entry = record.stages[stage]
    directory = workspace.store.directory(stage, entry.key)
    artifact = open_artifact(directory)
    # Made again since: the record describes other content.
    if artifact.digest != entry.digest:
        raise IntegrityError(
            f"{directory}: digest {artifact.digest[:12]}, but {RECORD_NAME} of run {run} has "
            f"{entry.digest[:12]}; run `cloze run CONFIG` to update the record"
        )
    return artifact
