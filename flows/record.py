"""The record of a run: its artifacts and how they were made.

In:  the result of each stage.
Out: `<workspace>/<run>/run.json`, rewritten after every stage, through which a run's name resolves
     to artifacts.

A workspace can be moved or copied: artifacts are found by stage and key, and paths inside the
workspace are stored relative to it.
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
from artifacts.config import Config, flat
from artifacts.errors import IntegrityError, UsageError
from artifacts.progress import say
from artifacts.store import Artifact, open_artifact
from flows.config import ReportConfig, RunConfig
from flows.locks.on_disk import holder_of
from flows.workspace import Workspace

RECORD_NAME = "run.json"
PAGE_NAME = "report.html"
SUMMARY_NAME = "summary.json"
REPORT_FILES = (PAGE_NAME, SUMMARY_NAME)
"""The report's files, copied into the run's folder."""
ATTEMPTS_NAME = "attempts.json"

WORKSPACE = "{workspace}"
"""Stands for the workspace's root in `run.json`."""

RunState = Literal["running", "finished", "failed", "interrupted"]


class StageRecord(Config):
    """One stage of a run; fields written by earlier versions are ignored."""

    model_config = ConfigDict(frozen=True, extra="ignore", use_attribute_docstrings=True)

    key: str
    """Key of its stage table."""
    digest: str
    """Content digest of its artifact."""
    state: Literal["reused", "made"]
    """Whether this run made the artifact or reused it."""
    seconds: float | None = None
    """Wall-clock time of its program over all attempts, if a run of this name made it."""
    peak_memory: int | None = None
    """Peak PSS in bytes of all of that run's processes while the program ran."""
    argv: tuple[str, ...] = ()
    """The command that makes it."""


class RunRecord(Config):
    """One run; fields written by earlier versions are ignored."""

    model_config = ConfigDict(frozen=True, extra="ignore", use_attribute_docstrings=True)

    name: str
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


class Attempts(Config):
    """The attempts so far at making one stage's artifact, stored beside its log."""

    key: str
    """Key of the stage table."""
    seconds: float = 0.0
    """Wall-clock time of the attempts that have ended."""
    started: float | None = None
    """Start of the current or killed attempt, in seconds since 1970."""


def begin_attempt(folder: Path, key: str) -> Attempts:
    """Record the start of another attempt by the job in `folder`.

    A killed run could not record its end, so its attempt is taken to end with the last output.
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
    """Record the end of an attempt; returns the seconds of all attempts."""
    seconds = attempts.seconds + time.time() - (attempts.started or time.time())
    file = folder / ATTEMPTS_NAME
    if finished:
        file.unlink(missing_ok=True)
    else:
        ended = attempts.model_copy(update={"seconds": seconds, "started": None})
        file.write_text(ended.model_dump_json() + "\n", "utf-8")
    return round(seconds, 3)


def utc_now() -> str:
    """The current time in the format of records."""
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
    """`value` with `new` for `old` in every string that is the folder `old` or a path in it."""
    if isinstance(value, str):
        inside = value == old or value.startswith(f"{old}/")
        return new + value.removeprefix(old) if inside else value
    if isinstance(value, list):
        return [_replaced(item, old, new) for item in value]
    if isinstance(value, dict):
        return {name: _replaced(item, old, new) for name, item in value.items()}
    return value


def keep_replaced(record: RunRecord, run: RunConfig, workspace: Workspace) -> None:
    """Rename a finished run that `run` is about to replace with other settings.

    `demo` becomes `demo.1`, `demo.2`, …, which no run can be started as because of the dot. Its
    artifacts stay where they are, and its record protects them from `cloze gc`.
    """
    if record.state != "finished":
        return
    try:
        settings = RunConfig.model_validate(record.config)
    except ValidationError:  # written by an earlier version
        changes = ["of an earlier version"]
    else:
        old, new = (
            flat(one.model_copy(update={"report": ReportConfig()}).model_dump(mode="json"))
            for one in (settings, run)
        )
        changes = [place for place in old | new if old.get(place) != new.get(place)]
    if not changes:
        return
    taken = set(filesystem.list_names(workspace.root))
    names = (f"{record.name}.{number}" for number in itertools.count(1))
    kept = next(name for name in names if name not in taken)
    for file in REPORT_FILES:
        path = filesystem.join(workspace.run_folder(record.name), file)
        if filesystem.exists(path):
            target = filesystem.join(workspace.run_folder(kept), file)
            filesystem.write_bytes(target, filesystem.read_bytes(path))
    write_record(record.model_copy(update={"name": kept}), workspace)
    shown = ", ".join(changes[:3]) + (", …" if len(changes) > 3 else "")
    say(f"run {record.name} had other settings ({shown}); it is kept as {kept}")
    if changes == ["pretrain.steps"]:
        say(
            "training starts from scratch; to continue the earlier run instead: --set "
            f"name=NAME --set pretrain.continue_from={kept}"
        )


def find_record(workspace: Workspace, run: str) -> RunRecord | None:
    """The record of the run called `run`, or None.

    A killed run could not record its end, so it counts as interrupted if its lock is free. On an
    object store, only the host that started it can check that.
    """
    path = record_path(workspace, run)
    try:
        record = read_record_file(path)
    except FileNotFoundError:
        return None
    has_lock_here = filesystem.is_local(workspace.root) or record.host == gethostname()
    if record.state == "running" and has_lock_here and not holder_of(workspace.local / run):
        return record.model_copy(update={"state": "interrupted"})
    return record


def read_record_file(path: str) -> RunRecord:
    """The record at `<workspace>/<run>/run.json`, with paths in the workspace's current place."""
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
    """The names of the runs in a workspace."""
    names = filesystem.list_names(workspace.root)
    return [name for name in names if filesystem.exists(record_path(workspace, name))]


def read_record(workspace: Workspace, run: str) -> RunRecord:
    """The record of the run called `run`; raises a `UsageError` that lists the existing runs."""
    found = find_record(workspace, run)
    if found is None:
        known = ", ".join(list_runs(workspace)) or "none"
        raise UsageError(
            f"{run}: no run of this name in workspace {workspace.root}; existing runs: {known}"
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
            f"{directory}: digest {artifact.digest[:12]}, but {RECORD_NAME} of run {run} has "
            f"{entry.digest[:12]}; run `cloze run CONFIG` to update the record"
        )
    return artifact
