"""The record of a run: which artifacts it consists of, and how they came to be.

In:  outcomes, stage by stage.
Out: `<workspace>/<run>/run.json`, rewritten after every stage; a run's name is resolved through it.
"""

import time
from typing import Literal

from pydantic import ConfigDict, Field, JsonValue, ValidationError

from artifacts import filesystem
from artifacts.config import Config
from artifacts.errors import UsageError
from artifacts.store import Artifact, open_artifact
from flows.workspace import Workspace

RECORD_NAME = "run.json"

RunState = Literal["running", "finished", "failed", "interrupted"]


class StageRecord(Config):
    """One stage of a run."""

    key: str
    """Key of its table."""
    digest: str
    """Content digest of its artifact."""
    directory: str
    """Where the artifact lies."""
    state: Literal["reused", "made"]
    """Whether this run made it."""
    seconds: float | None = None
    """Wall-clock time of its program in the run that made it, if that was a run of this name."""
    peak_memory: int | None = None
    """Largest PSS in bytes of all processes of that run while its program ran."""
    argv: tuple[str, ...] = ()
    """What was started, or would have been."""


class RunRecord(Config):
    """One run; fields that earlier versions wrote are passed over."""

    model_config = ConfigDict(frozen=True, extra="ignore", use_attribute_docstrings=True)

    name: str
    """The run's name."""
    state: RunState
    """How far it is."""
    config: dict[str, JsonValue]
    """The whole resolved configuration."""
    machine: dict[str, JsonValue]
    """Where it ran."""
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


def utc_now() -> str:
    """The time as records write it."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())


def record_path(workspace: Workspace, run: str) -> str:
    """Path or URL of a run's record."""
    return filesystem.join(workspace.run_folder(run), RECORD_NAME)


def write_record(record: RunRecord, workspace: Workspace) -> None:
    """Put the record where readers look for it."""
    content = record.model_dump_json(indent=1) + "\n"
    filesystem.write_bytes(record_path(workspace, record.name), content.encode())


def find_record(workspace: Workspace, run: str) -> RunRecord | None:
    """The record of the run called `run`, or None."""
    path = record_path(workspace, run)
    try:
        return RunRecord.model_validate_json(filesystem.read_bytes(path))
    except FileNotFoundError:
        return None
    except ValidationError as error:
        raise UsageError(f"{path}: not a run's record: {error.errors()[0]['msg']}") from None


def list_runs(workspace: Workspace) -> list[str]:
    """Names of the runs in a workspace."""
    names = filesystem.list_names(workspace.root)
    return [name for name in names if filesystem.exists(record_path(workspace, name))]


def read_record(workspace: Workspace, run: str) -> RunRecord:
    """The record of the run called `run`; a `UsageError` names those there are."""
    found = find_record(workspace, run)
    if found is None:
        known = ", ".join(list_runs(workspace)) or "none"
        raise UsageError(
            f"{run}: no run of this name in workspace {workspace.root}; runs there: {known}"
        )
    return found


def run_artifact(workspace: Workspace, run: str, *, stage: str) -> Artifact:
    """The artifact that `stage` has in a run."""
    record = read_record(workspace, run)
    if stage not in record.stages:
        raise UsageError(
            f"run {run} has no finished stage {stage} ({record.state}; finished: "
            f"{', '.join(record.stages) or 'none'}); run `cloze {stage} CONFIG` first"
        )
    return open_artifact(record.stages[stage].directory)
