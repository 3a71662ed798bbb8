"""Content digests: of files, of JSON values, of whole inputs.

In:  paths, or anything JSON can hold.
Out: sha256 as 64 hexadecimal digits.

Hashing a file reads all of it, so results are kept per node, keyed by path, size, modification
time and inode; a changed file has another key and is read again.
"""

import hashlib
import json
import os
import tempfile
from pathlib import Path
from typing import IO, Any

BLOCK_BYTES = 1 << 20


def digest_of(value: Any) -> str:
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
    remembered = cache_directory() / digest_of(identity)
    try:
        return remembered.read_text()
    except FileNotFoundError:
        found = digest_of_file(path)
        _remember(remembered, found)
        return found


def cache_directory() -> Path:
    """Where this node keeps what it has already hashed (XDG base directory specification)."""
    base = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return Path(base) / "cloze" / "sha256"


def _remember(remembered: Path, digest: str) -> None:
    remembered.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile("w", dir=remembered.parent, delete=False) as file:
        file.write(digest)
    os.replace(file.name, remembered)
