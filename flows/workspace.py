"""The workspace: where artifacts and runs lie.

In:  a folder or fsspec URL, and a run's name.
Out: its store, the run's folder, and a local folder for logs and jobs.

    <workspace>/artifacts/<stage>/<key>/…   shared by all runs (artifacts/store.py)
    <workspace>/<run>/run.json              what the run consists of
    <workspace>/<run>/stages/*.json         the stage tables: repeat a stage by hand with one
    <workspace>/<run>/report.html, summary.json
    <workspace>/<run>/jobs/<stage>/log      what each program printed

On an object store, jobs and locks (flows/locks) lie in a local folder of this node.
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
    """Absolute folder or URL."""

    @property
    def store(self) -> Store:
        """Its artifacts."""
        return Store(filesystem.join(self.root, ARTIFACTS))

    @property
    def local(self) -> Path:
        """A folder of this machine that belongs to the workspace: itself, if it is one."""
        if filesystem.is_local(self.root):
            return Path(filesystem.local_path(self.root))
        base = os.environ.get("XDG_STATE_HOME") or os.path.expanduser("~/.local/state")
        return Path(base) / "cloze" / digest_of(self.root)[:12]

    def run_folder(self, run: str) -> str:
        """Folder or URL of the run called `run`."""
        return filesystem.join(self.root, run)

    def job_folder(self, run: str, stage: str) -> Path:
        """Local folder for the log of one stage's program."""
        return self.local / run / "jobs" / stage


def workspace(root: str) -> Workspace:
    """The workspace at `root`, which need not exist yet."""
    return Workspace(located(root))


def writable_workspace(root: str) -> Workspace:
    """The workspace at `root`, created if needed; a `UsageError` if it is not writable."""
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
