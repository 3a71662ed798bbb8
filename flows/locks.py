"""Locks of runs and of `cloze gc`, and leases of artifacts, so that only one run makes each.

In:  a workspace, the name of a run, and for a lease the artifact it wants to make.
Out: a held lock, or a `UsageError` that names its holder; a lease, for which others wait.

On this machine, the kernel releases a `flock` when its holder dies in any way, so no lock is ever
stale; the text in the file only names the holder.

    <workspace>/.lock                       shared by all runs and by commands that read artifacts,
                                            exclusive for `cloze gc`
    <workspace>/<run>/.lock                 held by the single run of this name
    <workspace>/.leases/<stage>-<key>       held while making an artifact; other runs wait for it

On an object store, a lease is taken over if its holder has not sent a heartbeat for a minute.

    <workspace>/.leases/<stage>-<key>/000007    its holder, heartbeats, and whether it has ended

The highest number is the current lease, and each number is created atomically
(`filesystem.create`). A holder that was suspended finds a higher number when it resumes; it logs
this and finishes anyway, since both make the same bytes and only the manifest commits them. Leases
therefore only save work: if one fails, nothing is lost or corrupted. Clocks of different machines
are never compared: a waiting machine looks for changed contents.
"""

import errno
import fcntl
import os
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from socket import gethostname

from pydantic import ValidationError

from cloze.artifacts import filesystem
from cloze.artifacts.config import Config
from cloze.artifacts.errors import ClozeError, UsageError
from cloze.artifacts.progress import say

LOCK_NAME = ".lock"
LEASES = ".leases"
NAMING_SECONDS = 2.0
"""Time that the holder of a lock may take to write its name into the file."""

LOOKING_SECONDS = 0.2
"""Time to wait for a lock, since `holder_of` holds it briefly to see whether it is free."""

UNLOGGED_SECONDS = 1.0
"""Time to wait for a lease before it is logged: most are only held to look up an artifact."""

BEAT_SECONDS = 15.0
SILENT_SECONDS = 60.0
"""Longer than a program can outlive its killed flow (`jobs.grace`)."""

LOOK_SECONDS = 2.0
SETTLE_SECONDS = 2.0
"""Time for concurrent writes to arrive on a store without conditional writes."""

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
    # The workspace is locked before the run's folder, shared: runs of other names do the same and
    # go on, `cloze gc` finds it taken. The order is the same for everybody, so no two can wait for
    # each other.
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
def in_use(folder: Path) -> Iterator[None]:
    """Keep `cloze gc` from the workspace at `folder`, if there is one; runs are not affected.

    A workspace that we cannot write to is not locked.
    """
    with ExitStack() as handles:
        try:
            _lock(folder, handles, shared=True)
        except OSError as error:
            if error.errno not in (errno.ENOENT, errno.EACCES, errno.EROFS):
                raise
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
        # The kernel drops the lock with its holder, so it is enough to ask again. A name that is
        # still in the file once the lock is ours was left by a holder that could not erase it: it
        # was killed.
        began, reported = time.monotonic(), None
        while not _taken(handle):
            holder = _read_holder(handle)
            if holder and holder != reported and time.monotonic() - began > UNLOGGED_SECONDS:
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
        # If we can take it, nobody holds it; closing the file gives it back.
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
        # Whoever holds a run inside is in the way of an exclusive lock.
        inside = (holder_of(file.parent) for file in folder.glob(f"*/{LOCK_NAME}"))
        holder = _read_holder(of_file) or next(filter(None, inside), None)
        if waited > (LOOKING_SECONDS if holder else NAMING_SECONDS):
            raise UsageError(
                f"{folder}: in use by {holder or 'a command, or a run that is just starting'}; "
                "wait for it, stop it, or choose another name (--set name=NAME) or workspace "
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
    # A lease is taken by creating the next number, which only one can. That is right in four cases:
    # nobody ever held it; the holder has ended it; the holder had this very folder, so it is dead;
    # or nothing has changed for a minute of our own clock. The minute starts anew with every change
    # seen, as heartbeats count up and so change the content.
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
    # `attempt` makes the content unique, so whoever reads it back knows whether it is its own. The
    # store may have done what was asked and lost the answer; a repeated request then fails on our
    # own object.
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
