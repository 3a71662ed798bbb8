"""Locks on this machine, for runs, artifacts and `cloze gc`.

In:  a workspace's local folder, and a run's name.
Out: a held lock, or a `UsageError` that names its holder; a lease, for which others wait.

    <workspace>/.lock                       shared by all runs, exclusive for `cloze gc`
    <workspace>/<run>/.lock                 held by the single run of this name
    <workspace>/.leases/<stage>-<key>       held while making an artifact; other runs wait for it

The kernel releases a `flock` when its holder dies in any way, so no lock is ever stale; the text in
the file only names the holder.
"""

import fcntl
import os
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from socket import gethostname

from pydantic import ValidationError

from artifacts.config import Config
from artifacts.errors import UsageError

LOCK_NAME = ".lock"
LEASES = ".leases"
NAMING_SECONDS = 2.0
"""Time that the holder of a lock may take to write its name into the file."""

LOOKING_SECONDS = 0.2
"""Time to wait for a lock, since `holder_of` holds it briefly to see whether it is free."""

SILENT_SECONDS = 1.0
"""Time to wait for a lease before it is logged: most are only held to look up an artifact."""

_held: set[Path] = set()
"""The folders of runs whose lock this process holds."""


class Holder(Config):
    """The holder of a lock, as written in its file."""

    run: str
    pid: int
    host: str
    since: str

    @classmethod
    def now(cls, run: str) -> "Holder":
        """This process, for the run called `run`."""
        since = time.strftime("%Y-%m-%d %H:%M:%S")
        return cls(run=run, pid=os.getpid(), host=gethostname(), since=since)

    def __str__(self) -> str:
        return f"run {self.run} (pid {self.pid} on {self.host}, since {self.since})"


@contextmanager
def locked(folder: Path, *, run: str) -> Iterator[None]:
    """Hold the lock of the run called `run` in the workspace at `folder`.

    Runs of other names are not affected, and this process can take the lock again.
    """
    own = folder / run
    if own in _held:
        yield
        return
    with ExitStack() as handles:
        os.ftruncate(_lock(folder, handles, shared=True), 0)
        own.mkdir(exist_ok=True)
        with _named(_lock(own, handles), run):
            _held.add(own)
            try:
                yield
            finally:
                _held.remove(own)


@contextmanager
def locked_alone(folder: Path, *, run: str) -> Iterator[None]:
    """Hold the exclusive lock of the workspace at `folder`, which no run can use meanwhile."""
    with ExitStack() as handles, _named(_lock(folder, handles), run):
        yield


@contextmanager
def leased(
    folder: Path, artifact: str, *, run: str, waiting: Callable[[Holder], object]
) -> Iterator[Holder | None]:
    """Hold the lease of `artifact` (stage and key), so that no other run makes it.

    Waits while another run holds it, and calls `waiting` with the holder. Yields the previous
    holder if it was killed while making the artifact: its program may still be alive briefly.
    """
    (folder / LEASES).mkdir(parents=True, exist_ok=True)
    handle = os.open(folder / LEASES / artifact, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        began, reported = time.monotonic(), None
        while not _taken(handle):
            holder = _read_holder(handle)
            if holder and holder != reported and time.monotonic() - began > SILENT_SECONDS:
                waiting(holder)
                reported = holder
            time.sleep(0.1)
        killed = _read_holder(handle)
        with _named(handle, run):
            yield killed
    finally:
        os.close(handle)


def holder_of(folder: Path) -> Holder | None:
    """The current holder of the lock of a run's folder."""
    try:
        handle = os.open(folder / LOCK_NAME, os.O_RDWR)
    except OSError:
        return None
    try:
        return None if _taken(handle, shared=True) else _read_holder(handle)
    finally:
        os.close(handle)


def _lock(folder: Path, handles: ExitStack, *, shared: bool = False) -> int:
    """Lock the folder, so that removing the file does not release the lock, and the file.

    Some network file systems cannot lock folders. Returns the file's handle.
    """
    descriptors = []
    for path, flags in ((folder, os.O_RDONLY), (folder / LOCK_NAME, os.O_RDWR | os.O_CREAT)):
        descriptors.append(os.open(path, flags, 0o644))
        handles.callback(os.close, descriptors[-1])
    of_folder, of_file = descriptors
    began = time.monotonic()
    while not (_taken(of_folder, shared=shared, optional=True) and _taken(of_file, shared=shared)):
        waited = time.monotonic() - began
        inside = (holder_of(file.parent) for file in folder.glob(f"*/{LOCK_NAME}"))
        holder = _read_holder(of_file) or next(filter(None, inside), None)
        if waited > (LOOKING_SECONDS if holder else NAMING_SECONDS):
            raise UsageError(
                f"{folder}: in use by {holder or 'a run that is just starting'}; wait for it, "
                "stop it, or choose another name (--set name=NAME) or workspace "
                "(--workspace FOLDER)"
            )
        time.sleep(0.02)
    return of_file


@contextmanager
def _named(handle: int, run: str) -> Iterator[None]:
    """Name the holder in the locked file, where the name remains if the process is killed."""
    os.ftruncate(handle, 0)
    os.pwrite(handle, Holder.now(run).model_dump_json().encode(), 0)
    try:
        yield
    finally:
        os.ftruncate(handle, 0)


def _taken(handle: int, *, shared: bool = False, optional: bool = False) -> bool:
    try:
        fcntl.flock(handle, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        if not optional:
            raise
    return True


def _read_holder(handle: int) -> Holder | None:
    """The holder named in the lock; None if it has not been written yet."""
    try:
        return Holder.model_validate_json(os.pread(handle, 4096, 0))
    except ValidationError:
        return None
