"""Local disks and fsspec URLs behind one small set of functions.

In:  a path or URL, `/data/store` or `gs://bucket/store`.
Out: bytes that are either there whole or not there.

Locally a file is written under a temporary name, flushed and renamed. Object stores have no rename
and need none: an upload appears at once or never.

`find_files` is for data from outside. Hidden files and folders are left out: editors and version
control keep their own files there. Everything else in a folder counts; a file that is not in the
expected format is the reader's error to raise, never skipped here.
"""

import errno
import logging
import os
import shutil
import stat
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import IO, Any, ParamSpec, TypeVar

import fsspec
from fsspec import AbstractFileSystem
from fsspec.implementations.local import LocalFileSystem

from artifacts.errors import ClozeError, DiskFull, UsageError

Arguments = ParamSpec("Arguments")
Answer = TypeVar("Answer")

FLUSH_THREADS = 8

ATTEMPTS = 6
FIRST_PAUSE_SECONDS = 0.1
"""Pauses double: 0.1 s, 0.2 s, … 1.6 s before an object store's fault is reported."""

FINAL_ANSWERS = (
    *(FileNotFoundError, FileExistsError),
    *(PermissionError, IsADirectoryError, NotADirectoryError),
)
"""Errors that another attempt would meet again."""

OURS = ("builtins", "artifacts")
"""Modules whose errors are about the call, not about the store."""

# It logs each fault with a traceback, and raises it as well.
logging.getLogger("gcsfs").setLevel(logging.CRITICAL)

FORBIDDEN = "Forbidden: "
"""So gcsfs begins the `OSError` of a 403, for which it has no class."""

PRECONDITION_FAILED = 412

NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
"""A full disk, a quota, a limit on the size of a file."""

_MAGIC = frozenset("*?[")
VERSIONS = (
    *("ETag", "etag", "md5Hash", "crc32c", "content_md5", "generation"),
    *("LastModified", "last_modified", "mtime", "updated", "created"),
)
"""Metadata of an object that changes with its content, the most reliable first."""


def join(directory: str, name: str) -> str:
    """`name` inside `directory`, path or URL."""
    return f"{directory.rstrip('/')}/{name}"


def is_local(path: str) -> bool:
    """Whether `path` lies on this machine's own file systems."""
    return isinstance(_open(path)[0], LocalFileSystem)


def local_path(path: str) -> str:
    """`path` without its `file://`, if it had one."""
    return _open(path)[1]


def located(path: str) -> str:
    """`path` as any working directory understands it: absolute, `~` expanded, without `file://`."""
    if not is_local(path):
        return path
    return os.path.abspath(local_path(os.path.expanduser(path)))


def open_to_read(path: str) -> IO[bytes]:
    """The file at `path`, whatever characters its name has; `UsageError` if it may not be read."""
    filesystem, inner = _open(path)
    try:
        opened: IO[bytes] = filesystem.open(inner, "rb")
    except PermissionError as error:
        raise _unreadable(path, error) from None
    return opened


def exists(path: str) -> bool:
    """Whether there is a file or directory at `path`."""
    filesystem, inner = _open(path)
    filesystem.invalidate_cache()
    try:
        filesystem.info(inner)  # fsspec's own `exists` returns False on any fault
    except (FileNotFoundError, NotADirectoryError):
        return False
    return True


def size_of(path: str) -> int | None:
    """Bytes at `path`, or None if nothing is there."""
    filesystem, inner = _open(path)
    try:
        return int(filesystem.size(inner))
    except FileNotFoundError:
        return None


def is_link(path: str) -> bool:
    """Whether `path` is a symbolic link of this machine."""
    return is_local(path) and os.path.islink(local_path(path))


def size_below(path: str) -> int:
    """Bytes of a file, or of everything in a directory; none for a link."""
    if is_link(path):
        return 0
    filesystem, inner = _open(path)
    return int(filesystem.du(inner))


def read_bytes(path: str) -> bytes:
    """All bytes at `path`; FileNotFoundError if nothing is there."""
    filesystem, inner = _open(path)
    return bytes(filesystem.cat_file(inner))


def write_bytes(path: str, content: bytes, *, durable: bool = True) -> None:
    """Put `content` at `path`, whole or not at all; if not `durable`, see `make_durable`."""
    filesystem, inner = _open(path)
    if not isinstance(filesystem, LocalFileSystem):
        filesystem.pipe_file(inner, content)
        return
    with naming_full_disk(inner), temporary_beside(inner) as temporary:
        with open(temporary, "wb") as file:
            file.write(content)
        _replace(temporary, inner, durable=durable)


def create(path: str, content: bytes) -> bool:
    """Put `content` at the URL `path` unless something is there; whether it was put.

    A store that knows no conditional writes puts it in any case.
    """
    filesystem, inner = _open(path)
    try:
        filesystem.pipe_file(inner, content, mode="create")
    except FileExistsError:
        return False
    return True


def put_file(source: str, path: str, *, durable: bool = True) -> None:
    """Move the local file `source` to `path`, whole or not at all; `durable` as above."""
    filesystem, inner = _open(path)
    folder = os.path.dirname(inner)
    if not isinstance(filesystem, LocalFileSystem):
        filesystem.put_file(source, inner)
        os.unlink(source)
    elif os.path.exists(folder) and os.stat(source).st_dev == os.stat(folder).st_dev:
        _replace(source, inner, durable=durable)
    else:
        with naming_full_disk(inner), temporary_beside(inner) as temporary:
            shutil.copyfile(source, temporary)
            _replace(temporary, inner, durable=durable)
        os.unlink(source)


def begin_flush(path: str) -> None:
    """Have the kernel start to write out a local file, while others are still made.

    Not by `fsync` in a thread: Linux reports a write error to one caller only, and that must be
    `make_durable`. This advice only starts the writing.
    """
    if is_local(path):
        handle = os.open(local_path(path), os.O_RDONLY)
        try:
            os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(handle)


def make_durable(paths: Iterable[str]) -> None:
    """Flush local files that were not written `durable`, and the directories they lie in.

    Many files are flushed in a fraction of the time that one after another takes.
    """
    local = {local_path(path) for path in paths if is_local(path)}
    with ThreadPoolExecutor(FLUSH_THREADS) as pool:
        list(pool.map(_flush, local))
        list(pool.map(_flush, {os.path.dirname(path) or "." for path in local}))


def older_than_this_start(path: str) -> bool:
    """Whether the local `path` was written before this machine started, as far as it can tell."""
    try:
        with open("/proc/stat") as file:
            started = next(int(line.split()[1]) for line in file if line.startswith("btime"))
    except FileNotFoundError:  # not Linux
        return True
    return os.path.getmtime(local_path(path)) < started


def fetch_file(path: str, destination: str) -> None:
    """Copy what is at `path` into the local file `destination`, whole or not at all."""
    filesystem, inner = _open(path)
    with naming_full_disk(destination), temporary_beside(destination) as temporary:
        filesystem.get_file(inner, temporary)
        replace_durably(temporary, destination)


@contextmanager
def brought_here(path: str, scratch: str) -> Iterator[str]:
    """A local path of the file at `path`: its own, or a copy in `scratch`, gone afterwards."""
    if is_local(path):
        yield local_path(path)
        return
    copy = os.path.join(scratch, uuid.uuid4().hex)
    fetch_file(path, copy)
    try:
        yield copy
    finally:
        os.unlink(copy)


def list_names(directory: str) -> list[str]:
    """Names directly inside `directory`, sorted; empty if it does not exist."""
    filesystem, inner = _open(directory)
    filesystem.invalidate_cache()
    try:
        found = filesystem.ls(inner, detail=False)
    except FileNotFoundError:
        return []
    return sorted(str(path).rstrip("/").rsplit("/", 1)[-1] for path in found)


def remove(path: str) -> None:
    """Delete a file, a link or a whole directory; nothing there is fine."""
    if is_link(path):
        os.unlink(local_path(path))  # the link alone: what it leads to belongs to somebody else
    elif exists(path):
        filesystem, inner = _open(path)
        filesystem.rm(inner, recursive=True)


@dataclass(frozen=True)
class InputFile:
    """One file from outside."""

    path: str
    """Local path or URL."""

    size: int
    """Bytes."""

    version: str = ""
    """Changes when the file is written to: its time and inode, or the store's checksum."""


def find_files(path: str) -> list[InputFile]:
    """The files that `path` means, sorted by path; `UsageError` if there is none."""
    filesystem, inner = _open(os.path.expanduser(path))
    try:
        is_folder = isinstance(filesystem, LocalFileSystem) and os.path.isdir(inner)
        found = _walk(inner) if is_folder else _list(filesystem, inner)
    except OSError as error:
        name = error.filename or path
        if os.path.islink(name) and not os.path.exists(name):
            raise UsageError(
                f"{name}: a link that leads nowhere ({error.strerror}); remove it, or put the file "
                "where it points"
            ) from None
        if isinstance(error, PermissionError):
            raise _unreadable(name, error) from None
        raise
    except ValueError as error:  # what libraries for URLs call one without a host, for example
        raise UsageError(f"{path}: no files can be looked for there ({error!r})") from None
    if not found:
        raise UsageError(
            f"{path}: no files here; expected a file, a folder with files, or a pattern like *.txt"
        )
    return sorted(found, key=lambda file: file.path)


@contextmanager
def naming_full_disk(path: str) -> Iterator[None]:
    """Let a full disk (or quota, or size limit) at the local `path` be a `DiskFull`."""
    try:
        yield
    except OSError as error:
        if error.errno not in NO_ROOM:
            raise
        disk = path
        while disk and not os.path.exists(disk):
            disk = os.path.dirname(disk)
        reason, free = os.strerror(error.errno), shutil.disk_usage(disk or ".").free
        raise DiskFull(
            f"{path}: no room to write ({reason}; {free / 1e6:,.0f} MB free); "
            "make room: finished parts are kept, the same command goes on"
        ) from None


@contextmanager
def temporary_beside(path: str) -> Iterator[str]:
    """A fresh name in the same directory as the local `path`; gone afterwards."""
    os.makedirs(os.path.dirname(path) or ".", exist_ok=True)
    temporary = os.path.join(os.path.dirname(path) or ".", f".tmp-{uuid.uuid4().hex}")
    try:
        # not mkstemp: its files are readable by nobody else, and a team shares a workspace
        os.close(os.open(temporary, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666))
    except OSError as error:
        error.filename = path  # the only name that its reader knows
        raise
    try:
        yield temporary
    finally:
        if os.path.exists(temporary):
            os.unlink(temporary)


def replace_durably(temporary: str, path: str) -> None:
    """Flush a local file and rename it over `path`: a power cut leaves the old or the new."""
    _flush(temporary)
    os.replace(temporary, path)
    _flush(os.path.dirname(path) or ".")


def _replace(temporary: str, path: str, *, durable: bool) -> None:
    if durable:
        replace_durably(temporary, path)
    else:
        os.replace(temporary, path)


def _flush(path: str) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _walk(directory: str) -> list[InputFile]:
    """All visible files under a local folder; `os.scandir`, since 100,000 files are common."""
    found: list[InputFile] = []
    waiting = [(directory, frozenset({_identity(os.stat(directory))}))]
    while waiting:
        folder, above = waiting.pop()
        with os.scandir(folder) as entries:
            visible = [entry for entry in entries if not entry.name.startswith(".")]
        for entry in visible:
            status = entry.stat()
            if stat.S_ISREG(status.st_mode):
                found.append(_local_file(entry.path, status))
            elif stat.S_ISDIR(status.st_mode) and _identity(status) not in above:
                waiting.append((entry.path, above | {_identity(status)}))
            elif stat.S_ISDIR(status.st_mode):
                raise UsageError(
                    f"{entry.path}: a link to a folder that it lies in; remove the link, "
                    "or name the folders one by one"
                )
    return found


def _unreadable(path: str, error: PermissionError) -> UsageError:
    return UsageError(
        f"{path}: may not be read ({error.strerror}); ask its owner for the right to (chmod +r), "
        "or take it away"
    )


def _identity(status: os.stat_result) -> tuple[int, int]:
    return status.st_dev, status.st_ino


def _local_file(path: str, status: os.stat_result) -> InputFile:
    return InputFile(path, status.st_size, f"{status.st_mtime_ns} {status.st_ino}")


def _list(filesystem: "AbstractFileSystem | Patient", inner: str) -> list[InputFile]:
    """The files below a path, or those that a pattern means; a name may look like a pattern."""
    local = isinstance(filesystem, LocalFileSystem)
    if _MAGIC.isdisjoint(inner) or filesystem.isfile(inner):
        details = filesystem.find(inner, detail=True)
    else:
        details = filesystem.glob(inner, detail=True)
    # Of a single file, HTTP lists nothing but its name.
    details = {name: facts or filesystem.info(name) for name, facts in details.items()}
    visible = {
        name: facts for name, facts in details.items() if not os.path.basename(name).startswith(".")
    }
    if local:
        for name in filter(os.path.islink, [inner, *visible]):
            os.stat(name)  # which fails where the link leads nowhere
    names = [name for name, facts in visible.items() if facts["type"] == "file"]
    if local:
        return [_local_file(name, os.stat(name)) for name in names]
    return [
        InputFile(
            filesystem.unstrip_protocol(name),
            int(details[name]["size"] or 0),
            next((str(details[name][key]) for key in VERSIONS if details[name].get(key)), ""),
        )
        for name in names
    ]


def _open(path: str) -> tuple["AbstractFileSystem | Patient", str]:
    if "\0" in path:
        raise UsageError(f"{path!r}: no path has a NUL in it; take it out")
    if "://" not in path:  # fsspec would take `a::b` for a chain of file systems
        return LocalFileSystem(), os.path.abspath(path)
    try:
        filesystem, inner = fsspec.core.url_to_fs(path)
    except (ValueError, TypeError) as error:  # unknown, or it wants more than a URL can say
        raise UsageError(
            f"{path}: no file system for this URL ({error}); expected a path, or a URL that fsspec "
            "knows, gs://bucket/folder or s3://bucket/folder for example"
        ) from None
    if isinstance(filesystem, LocalFileSystem):
        return filesystem, str(inner)
    return Patient(filesystem), str(inner)


class Patient:
    """A remote file system whose calls are retried while the store is busy or the network bad.

    All our calls can be repeated: names hold digests, and a partial upload is simply redone.
    """

    def __init__(self, filesystem: AbstractFileSystem) -> None:
        self._filesystem = filesystem

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._filesystem, name)
        return partial(_until_answered, method) if callable(method) else method


def _until_answered(
    method: Callable[Arguments, Answer], *arguments: Arguments.args, **options: Arguments.kwargs
) -> Answer:
    attempt = 1
    while True:
        try:
            return method(*arguments, **options)
        except PermissionError as error:
            raise _refused(error, arguments) from None
        except FINAL_ANSWERS:
            raise
        except Exception as error:  # a 503, a broken connection, a time-out
            if _condition_failed(error):
                raise FileExistsError(errno.EEXIST, "is there already", str(arguments[0])) from None
            about_the_call = isinstance(error, (TypeError, ValueError)) or not _of_a_library(error)
            if about_the_call and not isinstance(error, OSError):
                raise
            if attempt == ATTEMPTS:
                raise _lasting(error, arguments) from None
            time.sleep(FIRST_PAUSE_SECONDS * 2 ** (attempt - 1))
            attempt += 1


def _condition_failed(error: Exception) -> bool:
    """Whether a store refused to create what is there: s3fs has no class for S3's status."""
    response = getattr(error.__cause__ or error, "response", None)
    facts = response.get("ResponseMetadata", {}) if isinstance(response, dict) else {}
    return PRECONDITION_FAILED in (facts.get("HTTPStatusCode"), getattr(error, "code", None))


def _of_a_library(error: Exception) -> bool:
    """Whether its class belongs to the store's library, or to one that it uses."""
    return type(error).__module__.partition(".")[0] not in OURS


def _lasting(error: Exception, arguments: Sequence[object]) -> Exception:
    """The error to raise for a fault that every attempt has met."""
    # only now, since a store may also answer this when it is busy
    if str(error).startswith(FORBIDDEN):
        return _refused(PermissionError(str(error)), arguments)
    if isinstance(error, OSError) and not _of_a_library(error):
        return error
    # a class of the library's own, such as `EndpointConnectionError`
    said = " ".join(str(error).split())
    return ClozeError(
        f"the object store did not answer {ATTEMPTS} times ({type(error).__name__}: {said}); see "
        "that it is there, and that endpoint and credentials are set; the same command goes on"
    )


def _refused(error: PermissionError, arguments: Sequence[object]) -> PermissionError:
    """The same with the path, which a store's library leaves out, and the remedy."""
    if error.filename is not None or not arguments:
        return error
    reason = " ".join((error.strerror or str(error)).split())
    said = f"the object store refuses it ({reason}), see that the credentials are allowed to"
    return PermissionError(errno.EACCES, said, str(arguments[0]))
