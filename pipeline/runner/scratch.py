"""A place for half-made files: inside the artifact's directory, so that finishing one is a rename.

In:  the directory of an unfinished artifact.
Out: a scratch directory of this process, gone afterwards; what killed processes left is swept.

The name holds host and process, so nobody sweeps the files of somebody who is still at work.
"""

import os
import shutil
import socket
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager

from artifacts import filesystem

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
