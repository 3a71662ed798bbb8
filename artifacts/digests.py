"""Content digests of files and JSON values, and the user's cache directory on this node.

In:  paths, or JSON values.
Out: sha256 as 64 hexadecimal digits.

Hashing a file reads all of it, so digests are cached per node under path, size, modification and
change times, and inode: a modified file is hashed again. The cache is one file of bounded size, and
each of its records carries its own checksum, so a damaged or misplaced one is ignored.
"""

import atexit
import hashlib
import json
import os
import sys
import tempfile
from contextlib import ExitStack, suppress
from functools import cache
from pathlib import Path

from cloze.artifacts.runtime.temporary import temporary_directory

RECORDS = 1 << 20
"""Most digests that are cached per user and node, in a file of at most 64 MiB."""

DIGEST_BYTES = 32
RECORD_BYTES = 2 * DIGEST_BYTES


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
    identity = digest_of([os.path.abspath(path), status.st_size, *times, status.st_ino])
    table = cache_directory("digests")
    if found := _remembered(table, identity):
        return found
    found = digest_of_file(path)
    with suppress(OSError):  # for example a full disk: the file is hashed again next time
        _remember(table, identity, found)
    return found


def _place(identity: str) -> int:
    """Where the table of digests has the record of an identity: a later one may overwrite it."""
    return int(identity[:8], 16) % RECORDS * RECORD_BYTES


def _remembered(table: Path, identity: str) -> str:
    """The digest that the table has for a file of this identity; "" if it has none."""
    try:
        with open(table, "rb", buffering=0) as file:
            record = os.pread(file.fileno(), RECORD_BYTES, _place(identity))
    except OSError:
        return ""
    # A record of another identity, a half-written one, or zeros do not match their checksum.
    found = record[:DIGEST_BYTES].hex()
    return found if record == _record(identity, found) else ""


def _remember(table: Path, identity: str, found: str) -> None:
    """Write a record: only its own blocks of the file take space on the disk."""
    table.parent.mkdir(parents=True, exist_ok=True)
    handle = os.open(table, os.O_WRONLY | os.O_CREAT, 0o600)
    try:
        # no lock: a record of which two writers wrote a part each has a wrong checksum
        os.pwrite(handle, _record(identity, found), _place(identity))
    finally:
        os.close(handle)


def _record(identity: str, found: str) -> bytes:
    """A digest, and a checksum of it and of the identity, which itself is not stored."""
    return bytes.fromhex(found) + bytes.fromhex(digest_of([identity, found]))


def read_checked(path: Path) -> bytes:
    """The content of a cached file that `with_checksum` made; `ValueError` if it is damaged."""
    check, _, content = path.read_bytes().partition(b"\n")
    if check != hashlib.sha256(content).hexdigest().encode():
        raise ValueError(f"{path}: damaged")
    return content


def with_checksum(content: bytes) -> bytes:
    """`content` for a file of a cache, after a line with its digest."""
    return hashlib.sha256(content).hexdigest().encode() + b"\n" + content


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
        ours = ExitStack()
        temporary = ours.enter_context(temporary_directory())
        atexit.register(ours.close)
        # Children inherit it, so that they do not make another each.
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
