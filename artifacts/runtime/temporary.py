"""Temporary files and folders, each with an owner that can be asked.

In:  a folder.
Out: the path of a new file or folder in it, which is gone afterwards. What a killed process left is
     removed by the next one that begins to use the folder.

    cloze-HOST-PID-RANDOM    a folder      short, as a job's sockets are in it; HOST is a digest
    .tmp-HOST-PID-RANDOM     a file

The owner holds a `flock` on it, which the kernel drops with its last process, so who can take it
knows that nobody is left. Where a disk has no locks, the process id is looked for instead. What
another host has made always stays: its processes are not seen from here, and a shared disk may lock
for each host separately.
"""

import atexit
import fcntl
import hashlib
import os
import re
import secrets
import shutil
import socket
import stat
import tempfile
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress

FOLDER = "cloze"
FILE = ".tmp"
NAME = re.compile(rf"(?:{FOLDER}|{re.escape(FILE)})-(?P<host>[0-9a-f]{{6}})-(?P<pid>\d+)-\w+")

_begun: set[str] = set()
"""Folders that this process has cleared."""


@contextmanager
def temporary_directory(parent: str = "") -> Iterator[str]:
    """A folder for its user alone (mode 0700) in the local `parent`, by default TMPDIR."""
    parent = parent or tempfile.gettempdir()
    clear_once(parent)

    def make() -> str:
        while True:
            path = os.path.join(parent, f"{_prefix(FOLDER)}{secrets.token_hex(2)}")
            with suppress(FileExistsError):
                os.mkdir(path, 0o700)
                return path

    with _owned(make) as path:
        yield path


@contextmanager
def temporary_file(parent: str, *, mode: int = 0o666) -> Iterator[str]:
    """An empty file in the local folder `parent`; it may be renamed to stay.

    Of `mode` the process's mask is taken away: unlike private ones of `tempfile`, files can be
    those of a team that shares a workspace.
    """
    clear_once(parent)

    def make() -> str:
        path = os.path.join(parent, f"{_prefix(FILE)}{uuid.uuid4().hex}")
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, mode))
        return path

    with _owned(make) as path:
        yield path


@contextmanager
def temporaries_of_libraries() -> Iterator[None]:
    """Meanwhile, let whatever else this process or its children put into TMPDIR be in one of ours.

    For the whole process, so other threads are meant, too. The folder goes when the process exits:
    libraries clear up there in handlers of their own.
    """
    stack = ExitStack()
    # The first to be registered is called last, when theirs have been.
    atexit.register(stack.close)
    folder = stack.enter_context(temporary_directory())
    before, named = tempfile.tempdir, os.environ.get("TMPDIR")
    tempfile.tempdir = os.environ["TMPDIR"] = folder
    try:
        yield
    finally:
        tempfile.tempdir = before
        if named is None:
            del os.environ["TMPDIR"]
        else:
            os.environ["TMPDIR"] = named


def clear_once(parent: str) -> None:
    """`clear_left` when this process first uses the local folder, as one of 10,000 files may be."""
    folder = os.path.realpath(parent)
    if folder not in _begun:
        _begun.add(folder)
        clear_left(folder)


def clear_left(parent: str = "") -> None:
    """Remove what killed processes of this user and host left in a local folder, or in TMPDIR."""
    try:
        parent = parent or tempfile.gettempdir()
        names = os.listdir(parent)
    except OSError:  # there is no such folder, it is none of ours, or every disk is full
        return
    for name in names:
        # Only names of ours: a folder for temporary files is full of those of others.
        found = NAME.fullmatch(name)
        if found and found["host"] == _host():
            path = os.path.join(parent, name)
            # The id in a name may be another process's by now; nobody holds a lock by chance.
            with _locked(path) as locked:
                # without locks, whether there is such a process
                alive = os.path.exists(f"/proc/{found['pid']}") if locked is None else not locked
                if not alive:
                    _remove(path)


def _prefix(kind: str) -> str:
    return f"{kind}-{_host()}-{os.getpid()}-"


def _host() -> str:
    return hashlib.sha256(socket.gethostname().encode()).hexdigest()[:6]


@contextmanager
def _owned(make: Callable[[], str]) -> Iterator[str]:
    """What `make` has made, locked, and removed afterwards by the process that made it."""
    owner = os.getpid()
    # Between making a file and locking it, another process may find it unlocked and remove it as a
    # leftover. So it counts as ours only if it is still there under the lock; otherwise once more.
    while True:
        path = make()
        with _locked(path) as locked:
            if locked is False:
                continue  # it was taken for a leftover before it was locked
            try:
                yield path
            finally:
                if os.getpid() == owner:  # not in a fork that ends
                    _remove(path)
            return


@contextmanager
def _locked(path: str) -> Iterator[bool | None]:
    """Whether the lock of our file or folder is held here meanwhile; None on disks without locks.

    False as well if it is another user's, a link, or gone.
    """
    # For an exclusive lock of a file, network disks want it open for writing.
    try:
        access = os.O_RDONLY if stat.S_ISDIR(os.lstat(path).st_mode) else os.O_RDWR
        handle = os.open(path, access | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        yield False
        return
    try:
        held: bool | None = os.fstat(handle).st_uid == os.geteuid()
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            held = False
        except OSError:
            held = None if held else False
        # It may have been removed before it was locked.
        yield held if os.path.lexists(path) else False
    finally:
        os.close(handle)


def _remove(path: str) -> None:
    """Remove a file or folder, if it is still there."""
    try:
        os.unlink(path)
    except FileNotFoundError:  # it was renamed to stay
        pass
    except OSError:  # a folder
        shutil.rmtree(path, ignore_errors=True)
