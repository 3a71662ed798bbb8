"""The record of a run: which artifacts it consists of, and how they came to be.

In:  outcomes, stage by stage.
Out: `<workspace>/<run>/run.json`, rewritten after every stage; a run's name is resolved through it.

A workspace may be moved or copied: artifacts are found by stage and key, and what lies inside the
workspace is written relative to it.
"""

import contextlib
import itertools
import json
import time
from collections.abc import Sequence
from pathlib import Path
from socket import gethostname
from typing import Literal

from pydantic import ConfigDict, Field, JsonValue, ValidationError

from artifacts import filesystem
from artifacts.config import Config
from artifacts.errors import IntegrityError, UsageError
from artifacts.store import Artifact, open_artifact
from flows.locks.on_disk import holder_of
from flows.workspace import Workspace

RECORD_NAME = "run.json"
PAGE_NAME = "report.html"
SUMMARY_NAME = "summary.json"
REPORT_FILES = (PAGE_NAME, SUMMARY_NAME)
"""Files of the report that are copied into the run's folder."""
ATTEMPTS_NAME = "attempts.json"

WORKSPACE = "{workspace}"
"""Stands for the workspace's root in `run.json`."""

RunState = Literal["running", "finished", "failed", "interrupted"]


class StageRecord(Config):
    """One stage of a run; fields that earlier versions wrote are ignored."""

    model_config = ConfigDict(frozen=True, extra="ignore", use_attribute_docstrings=True)

    key: str
    """Key of its table."""
    digest: str
    """Content digest of its artifact."""
    state: Literal["reused", "made"]
    """Whether this run made it."""
    seconds: float | None = None
    """Wall-clock time of its program over all attempts, if a run of this name made it."""
    peak_memory: int | None = None
    """Largest PSS in bytes of all processes of that run while its program ran."""
    argv: tuple[str, ...] = ()
    """What was started, or would have been."""


class RunRecord(Config):
    """One run; fields that earlier versions wrote are ignored."""

    model_config = ConfigDict(frozen=True, extra="ignore", use_attribute_docstrings=True)

    name: str
    """The run's name."""
    state: RunState
    """Whether it is running, or how it ended."""
    config: dict[str, JsonValue]
    """The whole resolved configuration."""
    machine: dict[str, JsonValue]
    """Where it ran."""
    host: str = ""
    """Machine that started it, where its lock says whether it still runs."""
    stages: dict[str, StageRecord] = Field(default_factory=dict)
    """The stages finished so far, in order."""
    started_at: str
    """UTC."""
    finished_at: str = ""
    """UTC; empty while it runs."""
    seconds: float | None = None
    """Wall-clock time of the whole run."""
    peak_memory: int | None = None
    """Largest PSS in bytes of all its processes, over the stages that ran."""
    failure: str = ""
    """Why it failed."""

    def with_stage(self, name: str, entry: StageRecord) -> "RunRecord":
        """The record with another finished stage; its peak memory counts if it was made now."""
        peaks = [self.peak_memory, entry.peak_memory if entry.state == "made" else None]
        return self.model_copy(
            update={
                "stages": {**self.stages, name: entry},
                "peak_memory": max((peak for peak in peaks if peak), default=None),
            }
        )


class Attempts(Config):
    """The attempts at one stage's artifact so far, kept beside the log of its program."""

    key: str
    """Of the stage's table."""
    seconds: float = 0.0
    """Wall-clock time of the attempts that have ended."""
    started: float | None = None
    """When the one that runs, or was killed, started, seconds since 1970."""


def begin_attempt(folder: Path, key: str) -> Attempts:
    """Record that the program whose job lies in `folder` starts once more.

    A killed run could not record its end: its attempt lasted until its program's last output.
    """
    file, log = folder / ATTEMPTS_NAME, folder / "log"
    now, seconds = time.time(), 0.0
    with contextlib.suppress(FileNotFoundError, ValidationError):
        earlier = Attempts.model_validate_json(file.read_bytes())
        if earlier.key == key:
            last_line = log.stat().st_mtime if log.exists() else 0.0
            killed = max(0.0, last_line - earlier.started) if earlier.started else 0.0
            seconds = earlier.seconds + killed
    attempts = Attempts(key=key, seconds=seconds, started=now)
    folder.mkdir(parents=True, exist_ok=True)
    file.write_text(attempts.model_dump_json() + "\n", "utf-8")
    return attempts


def end_attempt(folder: Path, attempts: Attempts, *, finished: bool) -> float:
    """Record that it has ended; returns the seconds of all attempts."""
    seconds = attempts.seconds + time.time() - (attempts.started or time.time())
    file = folder / ATTEMPTS_NAME
    if finished:
        file.unlink(missing_ok=True)
    else:
        ended = attempts.model_copy(update={"seconds": seconds, "started": None})
        file.write_text(ended.model_dump_json() + "\n", "utf-8")
    return round(seconds, 3)


def utc_now() -> str:
    """The current time, as records have it."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())


def record_path(workspace: Workspace, run: str) -> str:
    """Path or URL of a run's record."""
    return filesystem.join(workspace.run_folder(run), RECORD_NAME)


def write_record(record: RunRecord, workspace: Workspace) -> None:
    """Write the record to its place in the workspace."""
    table = _replaced(record.model_dump(mode="json"), workspace.root, WORKSPACE)
    content = json.dumps(table, indent=1, ensure_ascii=False) + "\n"
    filesystem.write_bytes(record_path(workspace, record.name), content.encode())


def _replaced(value: JsonValue, old: str, new: str) -> JsonValue:
    """`value` with `new` instead of `old` where a string is that folder or begins with it."""
    if isinstance(value, str):
        inside = value == old or value.startswith(f"{old}/")
        return new + value.removeprefix(old) if inside else value
    if isinstance(value, list):
        return [_replaced(item, old, new) for item in value]
    if isinstance(value, dict):
        return {name: _replaced(item, old, new) for name, item in value.items()}
    return value


def keep_record(record: RunRecord, workspace: Workspace) -> str:
    """Rename a run that a new one of its name is about to replace; returns the new name.

    `demo` becomes `demo.1`, `demo.2`, …: no run can be started under a name with a dot.
    Its artifacts stay where they are, and its record protects them from `cloze gc`.
    """
    taken = set(filesystem.list_names(workspace.root))
    kept = next(
        f"{record.name}.{n}" for n in itertools.count(1) if f"{record.name}.{n}" not in taken
    )
    for name in REPORT_FILES:
        path = filesystem.join(workspace.run_folder(record.name), name)
        if filesystem.exists(path):
            target = filesystem.join(workspace.run_folder(kept), name)
            filesystem.write_bytes(target, filesystem.read_bytes(path))
    write_record(record.model_copy(update={"name": kept}), workspace)
    return kept


def find_record(workspace: Workspace, run: str) -> RunRecord | None:
    """The record of the run called `run`, or None.

    A killed run could not record its end: it counts as interrupted if nobody holds its lock. On an
    object store only the machine that started it can tell.
    """
    path = record_path(workspace, run)
    try:
        record = read_record_file(path)
    except FileNotFoundError:
        return None
    knows = filesystem.is_local(workspace.root) or record.host == gethostname()
    if record.state == "running" and knows:
        is_held = holder_of(workspace.local / run) is not None
        return record if is_held else record.model_copy(update={"state": "interrupted"})
    return record


def read_record_file(path: str) -> RunRecord:
    """The record at `<workspace>/<run>/run.json`, with its paths where the workspace lies now."""
    root = path.rsplit("/", 2)[0]
    try:
        table = json.loads(filesystem.read_bytes(path))
        return RunRecord.model_validate(_replaced(table, WORKSPACE, root))
    except ValidationError as error:
        reason = error.errors()[0]["msg"]
    except IsADirectoryError:
        reason = "a folder"
    except (ValueError, RecursionError) as error:
        reason = str(error)
    raise UsageError(f"{path}: not a run's record: {reason}; remove it, or start the run again")


def list_runs(workspace: Workspace) -> list[str]:
    """Names of the runs in a workspace."""
    names = filesystem.list_names(workspace.root)
    return [name for name in names if filesystem.exists(record_path(workspace, name))]


def read_record(workspace: Workspace, run: str) -> RunRecord:
    """The record of the run called `run`; a `UsageError` lists the existing ones."""
    found = find_record(workspace, run)
    if found is None:
        known = ", ".join(list_runs(workspace)) or "none"
        raise UsageError(
            f"{run}: no run of this name in workspace {workspace.root}; runs there: {known}"
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
    if artifact.digest != entry.digest:
        raise IntegrityError(
            f"{directory}: digest {artifact.digest[:12]}, but {RECORD_NAME} of run {run} "
            f"says {entry.digest[:12]}; `cloze run CONFIG` brings them together again"
        )
    return artifact
