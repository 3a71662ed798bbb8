"""Local directories for unfinished files: on the artifact's disk, so that finishing is a rename.

In:  the directory of an unfinished artifact.
Out: a scratch directory of this process, gone afterwards, where what killed processes left is
     swept; or the stage's work directory, which the next attempt finds again.

A scratch directory's name holds host and process, so no running process loses its files.
"""

import os
import shutil
import socket
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager

from artifacts import filesystem
from artifacts.store import WORK

PREFIX = "scratch"


@contextmanager
def scratch_directory(output: str) -> Iterator[str]:
    """A local scratch directory; beside the files of `output` if that is local, too."""
    parent = filesystem.local_path(output) if filesystem.is_local(output) else None
    if parent:
        os.makedirs(parent, exist_ok=True)
        for name in os.listdir(parent):
            kind, _, rest = name.partition(".")
            host, process = rest.rpartition(".")[0].rpartition(".")[::2]
            ours = kind == PREFIX and host == socket.gethostname() and process.isdigit()
            if ours and not os.path.exists(f"/proc/{process}"):
                shutil.rmtree(os.path.join(parent, name), ignore_errors=True)
    prefix = f"{PREFIX}.{socket.gethostname()}.{os.getpid()}."
    with tempfile.TemporaryDirectory(prefix=prefix, dir=parent) as scratch:
        yield scratch


@contextmanager
def work_directory(output: str, *, workers_here: bool) -> Iterator[str]:
    """The stage's local work directory: beside a local output, where the next attempt finds it.

    For an output elsewhere it is a temporary one, and "" where the workers are elsewhere, too.
    """
    if filesystem.is_local(output):
        work = filesystem.local_path(filesystem.join(output, WORK))
        os.makedirs(work, exist_ok=True)
        yield work
    elif workers_here:
        with tempfile.TemporaryDirectory(prefix="cloze-work-") as work:
            yield work
    else:
        yield ""
