"""The workspace: the folder or bucket that holds artifacts and runs.

In:  a folder or fsspec URL, and a run's name.
Out: its store, the run's folder, and a local folder for logs and jobs.

    <workspace>/artifacts/<stage>/<key>/…   shared by all runs (artifacts/store.py)
    <workspace>/<run>/run.json              the run's record (flows/record.py)
    <workspace>/<run>/stages/*.json         its stage tables, for running a stage by hand
    <workspace>/<run>/report.html, summary.json
    <workspace>/<run>/jobs/<stage>/log      the output of each program

For a workspace on an object store, jobs and locks (flows/locks) are kept in a local folder.
"""

import os
from dataclasses import dataclass
from pathlib import Path

from artifacts import filesystem
from artifacts.digests import digest_of
from artifacts.errors import UsageError
from artifacts.filesystem import located
from artifacts.store import Store

ARTIFACTS = "artifacts"


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
    """The workspace at `root`, created if needed; raises a `UsageError` if it is not writable."""
    made = workspace(root)
    try:
        made.local.mkdir(parents=True, exist_ok=True)
        probe = filesystem.join(made.root, f".writable-{os.getpid()}")
        filesystem.write_bytes(probe, b"")
        filesystem.remove(probe)
    except OSError as error:
        reason = error.strerror or str(error)
        raise UsageError(
            f"workspace {made.root}: cannot be written ({reason}); choose another folder"
        ) from None
    return made
