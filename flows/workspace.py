"""The workspace: where artifacts and runs lie, and its lock: one run at a time works in it.

In:  a folder or fsspec URL, and a run's name.
Out: its store, the run's folder, and a local folder for logs and jobs; a held lock, or a
     `UsageError` that names the holder.

    <workspace>/artifacts/<stage>/<key>/…   shared by all runs (artifacts/store.py)
    <workspace>/<run>/run.json              what the run consists of
    <workspace>/<run>/stages/*.json         the stage tables: repeat a stage by hand with one
    <workspace>/<run>/report.html, summary.json
    <workspace>/<run>/jobs/<stage>/log      what each program printed

On an object store, jobs and the lock lie in a local folder of this node. The kernel drops a `flock`
when its holder dies in any way, so no lock is ever stale; the text in the file only names the
holder.
"""

import fcntl
import json
import os
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from socket import gethostname

from artifacts import filesystem
from artifacts.digests import digest_of
from artifacts.errors import UsageError
from artifacts.store import Store
from flows.external_inputs import located

ARTIFACTS = "artifacts"
LOCK_NAME = ".lock"
NAMING_SECONDS = 2.0
"""So long who holds the lock may take to write down who it is."""

LOOKING_SECONDS = 0.2
"""So long the lock is waited for: `holder_of` takes it for a moment to see whether it is free."""

UNNAMED = {"run": "that is just starting", "pid": "?", "host": "?", "since": "?"}

_held: set[Path] = set()
"""The folders whose lock this process holds."""


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
    """The workspace at `root`, made if need be; a `UsageError` if it cannot be written."""
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


@contextmanager
def locked(folder: Path, *, run: str) -> Iterator[None]:
    """Hold the lock of `folder` for the run called `run`; inside it, it may be asked for again."""
    if folder in _held:
        yield
        return
    with ExitStack() as handles:
        file = _lock(folder, handles)
        since = time.strftime("%Y-%m-%d %H:%M:%S")
        holder = {"run": run, "pid": os.getpid(), "host": gethostname(), "since": since}
        os.pwrite(file, json.dumps(holder).encode(), 0)
        _held.add(folder)
        try:
            yield
        finally:
            _held.remove(folder)
            os.ftruncate(file, 0)


def holder_of(folder: Path) -> str:
    """Name of the run that holds the lock of `folder` now; empty if none does."""
    try:
        handle = os.open(folder / LOCK_NAME, os.O_RDWR)
    except OSError:
        return ""
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return str(_read_holder(handle).get("run", ""))
    finally:
        os.close(handle)
    return ""


def _lock(folder: Path, handles: ExitStack) -> int:
    """Lock the folder itself, so that it does not help to remove the file, and the file.

    Some network file systems lock no folders. Returns the file's handle; it is empty.
    """
    descriptors = []
    for path, flags in ((folder, os.O_RDONLY), (folder / LOCK_NAME, os.O_RDWR | os.O_CREAT)):
        descriptors.append(os.open(path, flags, 0o644))
        handles.callback(os.close, descriptors[-1])
    of_folder, of_file = descriptors
    began = time.monotonic()
    while not (_taken(of_folder, optional=True) and _taken(of_file)):
        waited, holder = time.monotonic() - began, _read_holder(of_file)
        if waited > (LOOKING_SECONDS if holder else NAMING_SECONDS):
            named = "run {run} (pid {pid} on {host}, since {since})".format(**holder or UNNAMED)
            raise UsageError(
                f"{folder}: in use by {named}; "
                "wait for it, stop it, or choose another workspace (--workspace FOLDER)"
            )
        time.sleep(0.02)
    os.ftruncate(of_file, 0)
    return of_file


def _taken(handle: int, *, optional: bool = False) -> bool:
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        if not optional:
            raise
    return True


def _read_holder(handle: int) -> dict[str, str | int]:
    """What the holder wrote into the lock; empty before it has."""
    try:
        return dict(json.loads(os.pread(handle, 4096, 0)))
    except ValueError:
        return {}
