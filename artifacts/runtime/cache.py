"""The user's cache on this node, for what can be made again but need not be.

In:  what kind of thing.
Out: the folder for it, or a temporary one where the user's cannot be written.
"""

import atexit
import os
import shutil
import tempfile
from functools import cache
from pathlib import Path

from artifacts.progress import say


def cache_directory(kind: str) -> Path:
    """Where this user keeps things of a `kind` on this node (XDG base directory specification)."""
    base = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return Path(_writable(os.path.join(base, "cloze"))) / kind


@cache
def _writable(folder: str) -> str:
    """`folder`, or a temporary one for this process and its children if it cannot be written."""
    try:
        os.makedirs(folder, exist_ok=True)
        tempfile.TemporaryFile(dir=folder).close()
    except OSError as error:
        temporary, owner = tempfile.mkdtemp(prefix="cloze-cache-"), os.getpid()

        def remove() -> None:
            if os.getpid() == owner:  # not when a fork exits
                shutil.rmtree(temporary, ignore_errors=True)

        atexit.register(remove)
        os.environ["XDG_CACHE_HOME"] = temporary
        say(
            f"warning: {folder}: cannot be written ({error.strerror}), so nothing is kept there; "
            "XDG_CACHE_HOME names another place"
        )
        return os.path.join(temporary, "cloze")
    return folder
