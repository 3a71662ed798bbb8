"""Leases on an object store, so that only one of several machines makes an artifact.

In:  a workspace's URL, an artifact, and the run that wants to make it.
Out: a lease; it is taken over if its holder has not sent a heartbeat for a minute.

    <workspace>/.leases/<stage>-<key>/000007    its holder, heartbeats, and whether it has ended

The highest number is the current lease, and each number is created atomically
(`filesystem.create`). A holder that was suspended finds a higher number when it resumes; it logs
this and finishes anyway, since both make the same bytes and only the manifest commits them. Leases
therefore only save work: if one fails, nothing is lost or corrupted. Clocks of different machines
are never compared: a waiting machine looks for changed contents.
"""

import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from pydantic import ValidationError

from artifacts import filesystem
from artifacts.config import Config
from artifacts.errors import ClozeError
from artifacts.progress import say
from flows.locks.on_disk import LEASES, Holder

BEAT_SECONDS = 15.0
SILENT_SECONDS = 60.0
"""Longer than a program can outlive its killed flow (`jobs.grace`)."""

LOOK_SECONDS = 2.0
SETTLE_SECONDS = 2.0
"""Time for concurrent writes to arrive on a store without conditional writes."""


class Lease(Config):
    """The content of a lease's object."""

    holder: Holder
    place: str
    """Unique name of the holder's local workspace folder."""

    attempt: str
    """Unique for each request."""

    beats: int = 0
    ended: bool = False


@contextmanager
def leased_on_store(
    root: str, artifact: str, *, run: str, local: Path, waiting: Callable[[Holder], object]
) -> Iterator[Holder | None]:
    """Hold the lease of `artifact` in the workspace at the URL `root`.

    The caller holds the lease of the same artifact on its own disk, in `local`. Waits while another
    machine makes the artifact, and calls `waiting` with the holder. Yields the previous holder if
    its heartbeats stopped.
    """
    folder = filesystem.join(root, f"{LEASES}/{artifact}")
    place = local / LEASES / "place"  # the permanent name of this folder
    with suppress(FileExistsError), place.open("x") as new:
        new.write(uuid.uuid4().hex)
    lease = Lease(holder=Holder.now(run), place=place.read_text(), attempt=uuid.uuid4().hex)
    number, silent = _take(folder, lease, waiting)
    done = threading.Event()
    beating = threading.Thread(target=_beat, args=(folder, number, lease, done), daemon=True)
    beating.start()
    try:
        yield silent
    finally:
        done.set()
        beating.join()
        with suppress(OSError, ClozeError):  # if this fails, others wait for a minute
            _write(folder, number, lease.model_copy(update={"ended": True}))


def _take(
    folder: str, lease: Lease, waiting: Callable[[Holder], object]
) -> tuple[int, Holder | None]:
    """Take the lease; returns its number, and the holder it was taken over from, if any."""
    last_seen: tuple[int, bytes | None] = (-1, None)
    since, reported = 0.0, None
    while True:
        number, content = _latest(folder)
        if (number, content) != last_seen:
            last_seen, since = (number, content), time.monotonic()
        held = _parse(content)
        silent = time.monotonic() - since > SILENT_SECONDS
        # a holder in our own place was killed, since we now hold its lease on this disk
        over = held is not None and (held.ended or held.place == lease.place)
        if (number == 0 or over or silent) and _made(folder, number + 1, lease):
            with suppress(OSError, ClozeError):
                filesystem.remove(_path(folder, number - 1))  # keep one, as listings may lag
            return number + 1, held.holder if held and not over else None
        if held and not over and held.holder != reported:
            waiting(held.holder)
            reported = held.holder
        time.sleep(LOOK_SECONDS)


def _beat(folder: str, number: int, lease: Lease, done: threading.Event) -> None:
    """Write heartbeats until `done` is set or the lease has been taken over."""
    beats = 0
    while not done.wait(BEAT_SECONDS):
        with suppress(OSError, ClozeError):
            latest, content = _latest(folder)
            if latest > number:
                other = _parse(content)
                say(
                    f"warning: {folder}: taken over by {other.holder if other else 'another'} "
                    "while this machine was suspended; both make the same bytes"
                )
                return
            beats += 1
            _write(folder, number, lease.model_copy(update={"beats": beats}))


def _made(folder: str, number: int, lease: Lease) -> bool:
    """Try to create the lease with this number; returns whether it is ours."""
    path, content = _path(folder, number), _content(lease)
    if not filesystem.create(path, content):
        return filesystem.read_bytes(path) == content  # ours if only the response was lost
    if filesystem.create(path, content):  # no conditional writes: the last one written wins
        time.sleep(SETTLE_SECONDS)
        return filesystem.read_bytes(path) == content
    return True


def _latest(folder: str) -> tuple[int, bytes | None]:
    """The highest number, or 0, and the content of its object."""
    numbers = [int(name) for name in filesystem.list_names(folder) if name.isdecimal()]
    if not numbers:
        return 0, None
    try:
        return max(numbers), filesystem.read_bytes(_path(folder, max(numbers)))
    except FileNotFoundError:  # removed in the meantime, so there is a higher number
        return max(numbers), None


def _parse(content: bytes | None) -> Lease | None:
    try:
        return Lease.model_validate_json(content or b"")
    except ValidationError:
        return None


def _write(folder: str, number: int, lease: Lease) -> None:
    filesystem.write_bytes(_path(folder, number), _content(lease))


def _content(lease: Lease) -> bytes:
    return lease.model_dump_json().encode()


def _path(folder: str, number: int) -> str:
    return filesystem.join(folder, f"{number:06}")
