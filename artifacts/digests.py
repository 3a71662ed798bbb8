"""Content digests of files and JSON values, and the user's cache on this node.

In:  paths, or anything JSON can hold; what kind of thing is to be kept.
Out: sha256 as 64 hexadecimal digits; a folder.

Hashing a file reads all of it, so results are cached per node, keyed by path, size, modification
time and inode; a changed file has another key and is read again. Each cache entry carries its own
checksum, so one that is torn, empty or another file's is ignored.
"""

import atexit
import hashlib
import json
import os
import shutil
import tempfile
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import IO

from artifacts.progress import say

BLOCK_BYTES = 1 << 20


def digest_of(value: object) -> str:
    """Digest of a JSON value, independent of the order of its keys."""
    canonical = json.dumps(
        value, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False
    )
    return hashlib.sha256(canonical.encode()).hexdigest()


def digest_of_file(path: str | Path) -> str:
    """Digest of a local file's bytes, read now."""
    with open(path, "rb", buffering=0) as file:
        return digest_of_stream(file)


def digest_of_stream(stream: IO[bytes]) -> str:
    """Digest of all bytes that are still to be read from `stream`."""
    digest = hashlib.sha256()
    while block := stream.read(BLOCK_BYTES):
        digest.update(block)
    return digest.hexdigest()


def cached_digest_of_file(path: str | Path) -> str:
    """Digest of a local file, read once per node as long as the file does not change."""
    status = os.stat(path)
    # a modification time can be set back (`touch -r`, a wrong clock), the time of change cannot
    times = (status.st_mtime_ns, status.st_ctime_ns)
    identity = [os.path.abspath(path), status.st_size, *times, status.st_ino]
    remembered = cache_directory("sha256") / digest_of(identity)
    try:
        found, _, check = remembered.read_bytes().decode().partition(" ")
        if check == digest_of([*identity, found]):
            return found
    except (OSError, UnicodeDecodeError):
        pass
    found = digest_of_file(path)
    with suppress(OSError):  # a full disk, say: it is read again next time
        remembered.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile("w", dir=remembered.parent, delete=False) as file:
            file.write(f"{found} {digest_of([*identity, found])}")
        os.replace(file.name, remembered)
    return found


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
