"""One run at a time works in a workspace.

In:  a local folder.
Out: a held lock, or a `UsageError` that names the holder.

The kernel drops a `flock` when its holder dies in any way, so no lock is ever stale; the text in
the file only tells who holds it.
"""

import fcntl
import json
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from artifacts.errors import UsageError
from flows.launchers.processes import process

LOCK_NAME = ".lock"


@contextmanager
def locked(folder: Path, *, run: str) -> Iterator[None]:
    """Hold the lock of `folder` for the run called `run`."""
    handle = os.open(folder / LOCK_NAME, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        _take(handle, folder)
        os.ftruncate(handle, 0)
        os.pwrite(handle, json.dumps(_holder(run)).encode(), 0)
        yield
        os.ftruncate(handle, 0)
    finally:
        os.close(handle)


def refuse_if_locked(folder: Path) -> None:
    """Raise if another process holds the lock now; for an early word, not for safety."""
    if (folder / LOCK_NAME).exists():
        handle = os.open(folder / LOCK_NAME, os.O_RDWR)
        try:
            _take(handle, folder)
        finally:
            os.close(handle)


def _take(handle: int, folder: Path) -> None:
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise UsageError(
            f"{folder}: in use by {_describe(os.pread(handle, 4096, 0))}; "
            "wait for it, stop it, or choose another workspace (--workspace FOLDER)"
        ) from None


def _holder(run: str) -> dict[str, str | int]:
    ours = process(os.getpid())
    since = time.strftime("%Y-%m-%d %H:%M:%S")
    return {"run": run, "pid": ours.pid, "host": ours.host, "since": since}


def _describe(content: bytes) -> str:
    try:
        holder = json.loads(content)
    except ValueError:
        return "another run that is just beginning"
    return f"run {holder['run']} (pid {holder['pid']} on {holder['host']}, since {holder['since']})"
