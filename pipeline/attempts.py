"""A place for half-made files: inside the artifact's directory, so that finishing one is a rename.

In:  the directory of an unfinished artifact.
Out: a scratch directory of this process, gone afterwards; what killed processes left is swept. A
     full disk is an error that says which.

The name holds host and process, so nobody sweeps the files of somebody who is still at work.
"""

import errno
import os
import shutil
import socket
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager

from artifacts import filesystem
from pipeline.engine.errors import DiskFull

PREFIX = "attempt"
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


@contextmanager
def attempt_directory(output: str) -> Iterator[str]:
    """A local scratch directory; beside the files of `output` if that is local, too."""
    parent = filesystem.local_path(output) if filesystem.is_local(output) else None
    if parent:
        os.makedirs(parent, exist_ok=True)
        _sweep(parent)
    prefix = f"{PREFIX}.{socket.gethostname()}.{os.getpid()}."
    with tempfile.TemporaryDirectory(prefix=prefix, dir=parent) as scratch:
        yield scratch


@contextmanager
def naming_full_disk(directory: str) -> Iterator[None]:
    """Let a full disk (or quota, or size limit) under `directory` be a `DiskFull`."""
    try:
        yield
    except OSError as error:
        if error.errno not in _NO_ROOM:
            raise
        reason, free = os.strerror(error.errno), shutil.disk_usage(directory).free / 1e6
        raise DiskFull(
            f"{directory}: no room to write ({reason}; {free:,.0f} MB free); "
            "make room: finished parts are kept, the same command goes on"
        ) from None


def _sweep(parent: str) -> None:
    for name in os.listdir(parent):
        kind, _, rest = name.partition(".")
        host_and_process, _, _ = rest.rpartition(".")
        host, _, process = host_and_process.rpartition(".")
        ours = kind == PREFIX and host == socket.gethostname() and process.isdigit()
        if ours and not os.path.exists(f"/proc/{process}"):
            shutil.rmtree(os.path.join(parent, name), ignore_errors=True)
