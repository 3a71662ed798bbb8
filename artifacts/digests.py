"""Content digests of files and JSON values, and the user's cache directory on this node.

In:  paths, or JSON values.
Out: sha256 as 64 hexadecimal digits.

Hashing a file reads all of it, so digests are cached per node under path, size, modification and
change times, and inode: a modified file is hashed again. Each cache entry carries its own checksum,
so a truncated, empty or misplaced entry is ignored.
"""

import atexit
import hashlib
import json
import os
import shutil
import sys
import tempfile
from contextlib import suppress
from functools import cache
from pathlib import Path


def digest_of(value: object) -> str:
    """Digest of a JSON value; the order of keys does not matter."""
    canonical = json.dumps(
        value, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False
    )
    return hashlib.sha256(canonical.encode()).hexdigest()


def digest_of_file(path: str | Path) -> str:
    """Digest of a local file, without the cache."""
    with open(path, "rb", buffering=0) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def cached_digest_of_file(path: str | Path) -> str:
    """Digest of a local file; an unchanged file is hashed once per node."""
    status = os.stat(path)
    # a modification time can be set back (`touch -r`, a wrong clock), a change time cannot
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
    with suppress(OSError):  # for example a full disk: the file is hashed again next time
        remembered.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile("w", dir=remembered.parent, delete=False) as file:
            file.write(f"{found} {digest_of([*identity, found])}")
        os.replace(file.name, remembered)
    return found


def cache_directory(kind: str) -> Path:
    """This user's cache for one `kind` of thing on this node (XDG base directories)."""
    base = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return Path(_writable(os.path.join(base, "cloze"))) / kind


@cache
def _writable(folder: str) -> str:
    """`folder`, or if it is not writable a temporary one for this process and its children."""
    try:
        os.makedirs(folder, exist_ok=True)
        tempfile.TemporaryFile(dir=folder).close()
    except OSError as error:
        temporary, owner = tempfile.mkdtemp(prefix="cloze-cache-"), os.getpid()

        def remove() -> None:
            if os.getpid() == owner:  # not in a fork
                shutil.rmtree(temporary, ignore_errors=True)

        atexit.register(remove)
        os.environ["XDG_CACHE_HOME"] = temporary
        with suppress(BrokenPipeError):
            print(
                f"warning: {folder}: not writable ({error.strerror}), so nothing is cached there; "
                "set XDG_CACHE_HOME to another directory",
                file=sys.stderr,
                flush=True,
            )
        return os.path.join(temporary, "cloze")
    return folder
