"""Leases on an object store: of the machines that share one, one makes an artifact.

In:  a workspace's URL, an artifact, and who asks.
Out: a lease; one whose holder has been silent for a minute is taken over.

    <workspace>/.leases/<stage>-<key>/000007    its holder, heartbeats, and end

The highest number counts, and a number is created once: `filesystem.create`. A holder that was only
stopped finds a higher number when it goes on; it logs that and finishes all the same: both make the
same bytes, and the manifest is the only commit. So a lease saves work, and nothing is lost or mixed
where one fails. Clocks of different machines are never compared: a waiting machine looks for
changes.
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
"""Longer than a program can outlive its killed command (`jobs.grace`)."""

LOOK_SECONDS = 2.0
SETTLE_SECONDS = 2.0
"""On a store without conditional writes, concurrent writes have arrived by then."""


class Lease(Config):
    """The content of a lease's object."""

    holder: Holder
    place: str
    """Unique name of the local folder of the workspace that asks for it."""

    attempt: str
    """Unique for each request."""

    beats: int = 0
    ended: bool = False


@contextmanager
def leased_on_store(
    root: str, artifact: str, *, run: str, local: Path, waiting: Callable[[Holder], object]
) -> Iterator[Holder | None]:
    """Hold the lease of `artifact` in the workspace at the URL `root`.

    The caller holds the artifact's lease on its own disk, in `local`. Waits while another machine
    makes it, and calls `waiting` with the holder. Yields a holder that fell silent meanwhile.
    """
    folder = filesystem.join(root, f"{LEASES}/{artifact}")
    place = local / LEASES / "place"  # names this folder, once and for all
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
        with suppress(OSError, ClozeError):  # others then wait a minute
            _write(folder, number, lease.model_copy(update={"ended": True}))


def _take(
    folder: str, lease: Lease, waiting: Callable[[Holder], object]
) -> tuple[int, Holder | None]:
    """The number of our lease, and the holder it is taken over from, if that one had not ended."""
    last_seen: tuple[int, bytes | None] = (-1, None)
    since, told = 0.0, None
    while True:
        number, content = _latest(folder)
        if (number, content) != last_seen:
            last_seen, since = (number, content), time.monotonic()
        held = _parse(content)
        silent = time.monotonic() - since > SILENT_SECONDS
        # of our own place it is one that was killed: we hold what it held on this disk
        over = held is not None and (held.ended or held.place == lease.place)
        if (number == 0 or over or silent) and _made(folder, number + 1, lease):
            with suppress(OSError, ClozeError):
                filesystem.remove(_path(folder, number - 1))  # one is kept: lists may be late
            return number + 1, held.holder if held and not over else None
        if held and not over and held.holder != told:
            waiting(held.holder)
            told = held.holder
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
                    "while this machine stood still; both make the same bytes"
                )
                return
            beats += 1
            _write(folder, number, lease.model_copy(update={"beats": beats}))


def _made(folder: str, number: int, lease: Lease) -> bool:
    """Try to create the lease of that number; whether it is ours now."""
    path, content = _path(folder, number), _content(lease)
    if not filesystem.create(path, content):
        return filesystem.read_bytes(path) == content  # ours, if only the answer was lost
    if filesystem.create(path, content):  # whatever was there: the last one written counts
        time.sleep(SETTLE_SECONDS)
        return filesystem.read_bytes(path) == content
    return True


def _latest(folder: str) -> tuple[int, bytes | None]:
    """The highest number, 0 if there is none yet, and what its object holds."""
    numbers = [int(name) for name in filesystem.list_names(folder) if name.isdecimal()]
    if not numbers:
        return 0, None
    try:
        return max(numbers), filesystem.read_bytes(_path(folder, max(numbers)))
    except FileNotFoundError:  # removed since: there is a higher one
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
