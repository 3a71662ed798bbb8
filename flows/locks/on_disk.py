"""Locks of this machine: one run of a name at a time, one maker of an artifact, `cloze gc` alone.

In:  a workspace's local folder, and a run's name.
Out: held locks, or a `UsageError` that names the holder; a lease, for which others wait.

    <workspace>/.lock                       shared by all runs; `cloze gc` wants it alone
    <workspace>/<run>/.lock                 one at a time makes the run of a name
    <workspace>/.leases/<stage>-<key>       one run at a time makes an artifact; others wait for it

The kernel drops a `flock` when its holder dies in any way, so no lock is ever stale; the text in
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
"""How long the holder of a lock may take to write its name into the file."""

LOOKING_SECONDS = 0.2
"""How long to wait for a lock: `holder_of` takes one for a moment to see whether it is free."""

SILENT_SECONDS = 1.0
"""How long to wait for a lease in silence: most are held only to look an artifact up."""

_held: set[Path] = set()
"""The runs' folders whose lock this process holds."""


class Holder(Config):
    """Who holds a lock, as its file says."""

    run: str
    pid: int
    host: str
    since: str

    @classmethod
    def now(cls, run: str) -> "Holder":
        """This process, which makes the run called `run`."""
        since = time.strftime("%Y-%m-%d %H:%M:%S")
        return cls(run=run, pid=os.getpid(), host=gethostname(), since=since)

    def __str__(self) -> str:
        return f"run {self.run} (pid {self.pid} on {self.host}, since {self.since})"


@contextmanager
def locked(folder: Path, *, run: str) -> Iterator[None]:
    """Hold the lock of the run called `run` in the workspace at `folder`.

    Runs of other names may proceed; this process may take the lock again inside.
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
    """Hold the workspace at `folder` exclusively: no run uses it meanwhile."""
    with ExitStack() as handles, _named(_lock(folder, handles), run):
        yield


@contextmanager
def leased(
    folder: Path, artifact: str, *, run: str, waiting: Callable[[Holder], object]
) -> Iterator[Holder | None]:
    """Hold the lease of `artifact` (stage and key): no other run in the workspace makes it.

    Waits while another run holds it, and calls `waiting` with the holder. Yields the previous
    holder if it was killed while making it: its program may live on for a moment.
    """
    (folder / LEASES).mkdir(parents=True, exist_ok=True)
    handle = os.open(folder / LEASES / artifact, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        began, told = time.monotonic(), None
        while not _taken(handle):
            holder = _read_holder(handle)
            if holder and holder != told and time.monotonic() - began > SILENT_SECONDS:
                waiting(holder)
                told = holder
            time.sleep(0.1)
        killed = _read_holder(handle)
        with _named(handle, run):
            yield killed
    finally:
        os.close(handle)


def holder_of(folder: Path) -> Holder | None:
    """Who holds the lock of a run's folder now."""
    try:
        handle = os.open(folder / LOCK_NAME, os.O_RDWR)
    except OSError:
        return None
    try:
        return None if _taken(handle, shared=True) else _read_holder(handle)
    finally:
        os.close(handle)


def _lock(folder: Path, handles: ExitStack, *, shared: bool = False) -> int:
    """Lock the folder itself, so that it does not help to remove the file, and the file.

    Some network file systems lock no folders. Returns the file's handle.
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
    """Write the holder into the locked file; the name of a killed one stays there."""
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
    """What the holder wrote into the lock; None before it has."""
    try:
        return Holder.model_validate_json(os.pread(handle, 4096, 0))
    except ValidationError:
        return None
