"""Local disks and fsspec URLs behind one small set of functions.

In:  a path or URL, `/data/store` or `gs://bucket/store`.
Out: files that exist completely or not at all.

Local files are written under a temporary name, flushed and renamed. Object stores have no rename
and need none: an upload appears atomically.

`find_files` is for input data. It skips hidden files and folders, where editors and version control
keep their own files, and returns everything else; a file in an unexpected format is for the reader
to reject, never skipped here.
"""

import errno
import fcntl
import logging
import os
import re
import shutil
import stat
import sys
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import partial
from itertools import takewhile
from typing import IO, Any

import fsspec
import psutil
from fsspec import AbstractFileSystem
from fsspec.implementations.local import LocalFileSystem

from cloze.artifacts.errors import ClozeError, DiskFull, UsageError
from cloze.artifacts.runtime.temporary import temporary_file

FLUSH_THREADS = 8

PATIENCE_SECONDS = 10.0
"""Time after which an object store's error is reported. It is the one limit for all stores: several
libraries repeat requests themselves (s3fs for 7 s, gcsfs for 33 s), and their time counts too, so
that retries of retries do not add up to minutes."""

FIRST_PAUSE_SECONDS = 0.1
"""Pauses double: 0.1 s, 0.2 s, …"""

PERMANENT_ERRORS = (FileNotFoundError, FileExistsError, IsADirectoryError, NotADirectoryError)
"""Errors that a retry would not change."""

OURS = ("builtins", "cloze")
"""Modules whose errors concern the call, not the store."""

# gcsfs logs every error with a traceback in addition to raising it.
logging.getLogger("gcsfs").setLevel(logging.CRITICAL)

FORBIDDEN = "Forbidden: "
"""How gcsfs starts the message of the `OSError` for a 403, which has no class of its own."""

PRECONDITION_FAILED = 412

NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
"""A full disk, a quota, a file size limit."""

CHECKSUMS = ("md5Hash", "crc32c", "content_md5", "ETag", "etag")
"""Names under which object stores report the checksum of a file's content."""

MOST_WAYS = 100
"""Ways to one folder through links: with two links in each, a chain of 30 has a billion."""

UNDECODABLE = re.compile("[\ud800-\udfff]")
"""Matches a byte of a file name or argument that Python could not decode (PEP 383)."""

BOMB_BYTES = 64 << 20
BOMB_RATIO = 250
"""Maximum expansion after the first `BOMB_BYTES` (about two seconds of work). Prose compresses to a
quarter, logs and markup to a tenth or a hundredth, Wikipedia with its full history to a hundredth;
decompression bombs reach a thousandth (gzip) or a 30,000th (zstd)."""

_MAGIC = frozenset("*?[")
VERSIONS = (
    *CHECKSUMS,
    *("generation", "LastModified", "last_modified", "mtime", "updated", "created"),
)
"""Object metadata that changes with the content, most reliable first."""


def join(directory: str, name: str) -> str:
    """`name` inside `directory`, a path or URL."""
    return f"{directory.rstrip('/')}/{name}"


def is_local(path: str) -> bool:
    """Whether `path` is on a local file system."""
    return isinstance(_open(path)[0], LocalFileSystem)


def local_path(path: str) -> str:
    """`path` without a leading `file://`."""
    return _open(path)[1]


def located(path: str) -> str:
    """`path` independent of the working directory: absolute, `~` expanded, without `file://`."""
    if not is_local(path):
        return path
    return os.path.abspath(local_path(os.path.expanduser(path)))


def open_to_read(path: str) -> IO[bytes]:
    """Open the file with exactly this name; `UsageError` if it is not readable."""
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
        filesystem.info(inner)  # fsspec's own `exists` returns False on any error
    except (FileNotFoundError, NotADirectoryError):
        return False
    return True


def is_file(path: str) -> bool:
    """Whether there is a file at `path`; locally a regular one, whose reading ends."""
    return os.path.isfile(local_path(path)) if is_local(path) else exists(path)


def size_of(path: str) -> int | None:
    """Size in bytes, or None if there is no file."""
    filesystem, inner = _open(path)
    try:
        return int(filesystem.size(inner))
    except FileNotFoundError:
        return None


def is_link(path: str) -> bool:
    """Whether `path` is a local symbolic link."""
    return is_local(path) and os.path.islink(local_path(path))


def size_below(path: str) -> int:
    """Bytes of a file or of everything in a directory; 0 for a link."""
    if is_link(path):
        return 0
    filesystem, inner = _open(path)
    return int(filesystem.du(inner))


def read_bytes(path: str) -> bytes:
    """The content of the file; FileNotFoundError if there is none."""
    filesystem, inner = _open(path)
    return bytes(filesystem.cat_file(inner))


def checksum_of(path: str) -> str:
    """The checksum that an object store keeps of the file's content; empty if it keeps none."""
    filesystem, inner = _open(path)
    facts = filesystem.info(inner)
    return next((f"{name}:{facts[name]}" for name in CHECKSUMS if facts.get(name)), "")


def write_bytes(path: str, content: bytes, *, durable: bool = True) -> None:
    """Write `content` atomically; unless `durable`, call `make_durable` later."""
    filesystem, inner = _open(path)
    if not isinstance(filesystem, LocalFileSystem):
        filesystem.pipe_file(inner, content)
        return
    with naming_full_disk(inner), temporary_beside(inner) as temporary:
        with open(temporary, "wb") as file:
            file.write(content)
        _replace(temporary, inner, durable=durable)


def create(path: str, content: bytes) -> bool:
    """Write `content` to the URL `path` unless it exists; returns whether it was written.

    A store without conditional writes overwrites what is there.
    """
    filesystem, inner = _open(path)
    try:
        filesystem.pipe_file(inner, content, mode="create")
    except FileExistsError:
        return False
    return True


def put_file(source: str, path: str, *, durable: bool = True) -> None:
    """Move the local file `source` to `path` atomically; `durable` as for `write_bytes`."""
    filesystem, inner = _open(path)
    folder = os.path.dirname(inner)
    # A store: upload. The same disk: rename. Another disk: copy beside the target, then rename.
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
    """Start writing a local file back to disk while others are still being made.

    Not `fsync` in a thread: Linux reports a write error to only one caller, which must be
    `make_durable`. `posix_fadvise` only starts the write-back.
    """
    if is_local(path):
        with open(local_path(path), "rb") as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def make_durable(paths: Iterable[str]) -> None:
    """Flush local files that were not written `durable`, and their directories.

    Flushing in parallel takes a fraction of the time.
    """
    local = {local_path(path) for path in paths if is_local(path)}
    # Files before the directories that hold their names.
    with ThreadPoolExecutor(FLUSH_THREADS) as pool:
        list(pool.map(flush, local))
        list(pool.map(flush, {os.path.dirname(path) or "." for path in local}))


def flush(path: str | os.PathLike[str]) -> None:
    """Flush a local file or directory to disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def older_than_this_start(path: str) -> bool:
    """Whether the local `path` was written before the last boot."""
    return bool(os.path.getmtime(local_path(path)) < psutil.boot_time())


def fetch_file(path: str, destination: str) -> None:
    """Copy the file at `path` to the local file `destination` atomically."""
    filesystem, inner = _open(path)
    with naming_full_disk(destination), temporary_beside(destination) as temporary:
        filesystem.get_file(inner, temporary)
        _replace(temporary, destination)


@contextmanager
def brought_here(path: str, scratch: str) -> Iterator[str]:
    """A local path for `path`: the path itself, or a temporary copy in `scratch`."""
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
    """Sorted names of the entries of `directory`; empty if it does not exist."""
    filesystem, inner = _open(directory)
    filesystem.invalidate_cache()
    try:
        found = filesystem.ls(inner, detail=False)
    except FileNotFoundError:
        return []
    return sorted(str(path).rstrip("/").rsplit("/", 1)[-1] for path in found)


def remove(path: str) -> None:
    """Delete a file, link or directory tree, if it exists."""
    if is_link(path):
        os.unlink(local_path(path))  # only the link: its target is not ours
    elif exists(path):
        filesystem, inner = _open(path)
        filesystem.rm(inner, recursive=True)


def remove_below(directory: str, name: str) -> None:
    """Delete the file or tree `name` in `directory` without following a link there.

    A link on the way, as in an artifact from a stranger, is removed itself: what it leads to is
    not ours.
    """
    path = directory.rstrip("/")
    for part in name.split("/"):
        if part in ("", ".", ".."):
            raise UsageError(f"{directory}: {name!r} does not name a file in it; nothing removed")
        path = join(path, part)
        if is_link(path):
            break
    remove(path)


@dataclass(frozen=True)
class InputFile:
    """An input file."""

    path: str
    """Local path or URL."""

    size: int
    """Bytes."""

    version: str = ""
    """Changes when the file does: modification time and inode, or the store's checksum."""


def find_files(path: str, exclude: Sequence[str] = ()) -> list[InputFile]:
    """The files at `path` (a file, folder or pattern), sorted; `UsageError` if there are none.

    Files and folders that match a pattern of `exclude` are left out: by name (`*.docx`), or with a
    slash by their path below `path` (`drafts/*`).
    """
    if not path:  # else the working directory: a shell's variable that is not set
        raise UsageError("the path of the files is empty; name a file, a folder or a pattern")
    filesystem, inner = _open(os.path.expanduser(path))
    try:
        is_folder = isinstance(filesystem, LocalFileSystem) and os.path.isdir(inner)
        found = _walk(inner, exclude) if is_folder else _list(filesystem, inner)
        if exclude and not is_folder:
            root = folder_of(path)
            found = [
                file for file in found if not is_excluded(relative_path(file.path, root), exclude)
            ]
    except OSError as error:
        name = error.filename or path
        if os.path.islink(name) and not os.path.exists(name):
            raise UsageError(
                f"{name}: broken link ({error.strerror}); remove it, or restore its target"
            ) from None
        if isinstance(error, PermissionError):
            raise _unreadable(name, error) from None
        raise
    except ValueError as error:  # for example, a URL without a host
        raise UsageError(f"{path}: cannot be searched for files ({error!r})") from None
    for file in found:
        if UNDECODABLE.search(file.path):
            raise UsageError(
                f"{ascii(file.path)[1:-1]}: its name is not valid {sys.getfilesystemencoding()}, "
                "the encoding of file names here; rename it, or leave it out: "
                f'exclude = ["{unnamed(relative_path(file.path, folder_of(path)))}"]'
            )
    if not found:
        raise UsageError(
            f"{path}: no files here; expected a file, a folder with files, or a pattern like *.txt"
        )
    return sorted(found, key=lambda file: file.path)


def require_plausible_size(path: str, unpacked: int, packed: int) -> None:
    """Raise `UsageError` if `unpacked` bytes from `packed` must be a decompression bomb."""
    if unpacked > max(BOMB_BYTES, BOMB_RATIO * packed):
        raise UsageError(
            f"{path}: {packed:,} bytes unpack to {unpacked:,} and more, but text expands at most "
            f"{BOMB_RATIO} times; if this is intended, unpack it yourself and name the result"
        )


@contextmanager
def naming_full_disk(path: str) -> Iterator[None]:
    """Turn a full disk, quota or size limit at the local `path` into a `DiskFull`."""
    try:
        yield
    except OSError as error:
        if error.errno not in NO_ROOM:
            raise
        disk = path
        # the nearest folder that exists
        while disk and not os.path.exists(disk):
            disk = os.path.dirname(disk)
        reason, free = os.strerror(error.errno), shutil.disk_usage(disk or ".").free
        # Behind a quota the disk may be far from full.
        of_disk = " on the whole disk" if error.errno == errno.EDQUOT else ""
        remedy = (
            "raise the limit on the length of files (ulimit -f)"
            if error.errno == errno.EFBIG
            else "make room"
        )
        raise DiskFull(
            f"{path}: no room to write ({reason}; {free / 1e6:,.0f} MB free{of_disk}); "
            f"{remedy}: finished parts are kept, run the same command to resume"
        ) from None


@contextmanager
def temporary_beside(path: str) -> Iterator[str]:
    """A temporary file in the same directory as the local `path`."""
    folder = os.path.dirname(path) or "."
    os.makedirs(folder, exist_ok=True)
    with ExitStack() as stack:
        try:
            temporary = stack.enter_context(temporary_file(folder))
        except OSError as error:
            error.filename = path  # the name that the user knows
            raise
        yield temporary


@contextmanager
def partial_file(path: str) -> Iterator[str]:
    """The temporary file of the local `path`, which replaces it at the end.

    Unlike `temporary_beside`, it always has the same name, so that a command that was killed leaves
    nothing behind once it is repeated. `UsageError` if another process is writing it.
    """
    refuse_device(path)
    temporary = os.path.join(os.path.dirname(path), f".{os.path.basename(path)}.partial")
    with naming_full_disk(path):
        try:
            # Not through a link, which might lead anywhere.
            handle = os.open(temporary, os.O_CREAT | os.O_WRONLY | os.O_NOFOLLOW, 0o666)
        except OSError as error:
            error.filename = path  # the name that the user knows
            raise
        try:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise UsageError(
                    f"{path}: another command is writing it; wait for it, or choose another output"
                ) from None
            except OSError:  # some network file systems have no locks
                pass
            try:
                yield temporary
                os.replace(temporary, path)
            except BaseException:
                with suppress(FileNotFoundError):
                    os.unlink(temporary)
                raise
        finally:
            os.close(handle)


def refuse_device(path: str) -> None:
    """Raise a `UsageError` if the local `path` is a device, a pipe, a socket or an open stream.

    A file that replaced it would put an end to it: as root even to /dev/stdout, for all programs.
    """
    try:
        # Even if a stream leads to a file, the link in /dev is not one.
        is_stream = os.path.islink(path) and os.readlink(path).startswith("/proc/")
        kind = os.stat(path).st_mode
    except OSError:  # there is nothing yet, or only a broken link
        return
    if is_stream or not (stat.S_ISREG(kind) or stat.S_ISDIR(kind)):
        raise UsageError(f"{path}: a device, pipe or stream, expected the name of a file")


def _replace(temporary: str, path: str, *, durable: bool = True) -> None:
    """Rename a file to `path`; if `durable`, a power cut leaves the old or the new content."""
    if durable:
        # Content before name: after a power cut, the name has the old content or the new one.
        flush(temporary)
    refuse_device(path)
    os.replace(temporary, path)
    if durable:
        flush(os.path.dirname(path) or ".")


def folder_of(path: str) -> str:
    """The folder that relative paths start from: `path` itself, or what precedes a pattern."""
    parts = path.split("/")
    # Parts before the first with a special character; without any, the whole path.
    fixed = takewhile(_MAGIC.isdisjoint, parts[:-1] if _MAGIC & {*path} or not path else parts)
    return "/".join(fixed)


def relative_path(path: str, folder: str) -> str:
    """`path` relative to `folder`; its last part if it is not inside."""
    start = f"{_open(folder)[1] if is_local(folder) else folder}".rstrip("/") + "/"
    return path[len(start) :] if path.startswith(start) else path.rsplit("/", 1)[-1]


def is_excluded(relative: str, patterns: Sequence[str]) -> bool:
    """Whether a path, or a folder that it is in, matches one of the patterns.

    A byte that is no text matches U+FFFD, as configurations, which are text, write it.
    """
    parts = unnamed(relative).split("/")
    heads = ["/".join(parts[: stop + 1]) for stop in range(len(parts))]
    # A pattern with a slash is compared with every folder on the way, others with every single
    # name.
    return any(
        fnmatchcase(name, pattern.rstrip("/"))
        for pattern in patterns
        for name in (heads if "/" in pattern.rstrip("/") else parts)
    )


def unnamed(path: str) -> str:
    """`path` with U+FFFD for every byte that is no text."""
    return UNDECODABLE.sub("\ufffd", path)


@dataclass(frozen=True)
class OddEntries:
    """What is odd about a local folder, whatever its files contain."""

    unnamed: tuple[str, ...] = ()
    """Files whose names are no text, relative to the folder."""

    outward: tuple[str, ...] = ()
    """Links in it that lead out of it, relative to it."""

    special: tuple[str, ...] = ()
    """Pipes, sockets and devices, relative to it, which are never read."""


def odd_entries(path: str, exclude: Sequence[str] = ()) -> OddEntries:
    """What is odd about the local folder at `path`; nothing if it is no folder that can be read."""
    root, links, special = os.path.expanduser(path), list[str](), list[str]()
    try:
        files = _walk(root, exclude, links, special) if os.path.isdir(root) else []
    except (OSError, UsageError):  # which `find_files` explains
        return OddEntries()
    inside = os.path.realpath(root).rstrip("/") + "/"
    return OddEntries(
        tuple(relative_path(file.path, root) for file in files if UNDECODABLE.search(file.path)),
        tuple(
            sorted(
                relative_path(link, root)
                for link in links
                if not os.path.realpath(link).startswith(inside)
            )
        ),
        tuple(sorted(relative_path(one, root) for one in special)),
    )


def _walk(
    directory: str,
    exclude: Sequence[str] = (),
    links: list[str] | None = None,
    special: list[str] | None = None,
) -> list[InputFile]:
    """All visible files below a local folder, the `links` to some, and what is `special`.

    `os.scandir` is fast enough for 100,000 files.
    """
    found: list[InputFile] = []
    # Folders to visit, each with the identities of those above it: a link to one of them never
    # ends.
    waiting = [(directory, frozenset({_identity(os.stat(directory))}))]
    ways: Counter[tuple[int, int]] = Counter()
    while waiting:
        folder, above = waiting.pop()
        with os.scandir(folder) as entries:
            visible = [entry for entry in entries if not entry.name.startswith(".")]
        for entry in visible:
            if exclude and is_excluded(entry.path[len(directory) :].lstrip("/"), exclude):
                continue
            # Follows links: what they lead to is part of the corpus.
            status = entry.stat()
            if links is not None and entry.is_symlink():
                links.append(entry.path)
            if stat.S_ISREG(status.st_mode):
                found.append(_local_file(entry.path, status))
            elif stat.S_ISDIR(status.st_mode) and _identity(status) not in above:
                ways[_identity(status)] += 1
                if ways[_identity(status)] > MOST_WAYS:
                    raise UsageError(
                        f"{entry.path}: the same folder is reached by more than {MOST_WAYS} links "
                        "below this one; remove the links, or name the folders one by one"
                    )
                waiting.append((entry.path, above | {_identity(status)}))
            elif stat.S_ISDIR(status.st_mode):
                raise UsageError(
                    f"{entry.path}: a link to one of its parent folders; remove the link, "
                    "or name the folders one by one"
                )
            elif special is not None:  # reading a pipe would wait for whoever writes to it
                special.append(entry.path)
    return found


def _unreadable(path: str, error: PermissionError) -> UsageError:
    return UsageError(
        f"{path}: not readable ({error.strerror}); ask its owner for read permission (chmod +r), "
        "or remove it"
    )


def _identity(status: os.stat_result) -> tuple[int, int]:
    return status.st_dev, status.st_ino


def _local_file(path: str, status: os.stat_result) -> InputFile:
    return InputFile(path, status.st_size, f"{status.st_mtime_ns} {status.st_ino}")


def _list(filesystem: "AbstractFileSystem | RetryingFileSystem", inner: str) -> list[InputFile]:
    """The files below a path or matching a pattern; an existing name may look like a pattern."""
    # Names may contain `[` and `*`, so an existing file wins over a pattern.
    is_name = _MAGIC.isdisjoint(inner) or filesystem.isfile(inner)
    listed = (filesystem.find if is_name else filesystem.glob)(inner, detail=True)
    # HTTP lists a single file without details.
    details = {name: facts or filesystem.info(name) for name, facts in listed.items()}
    visible = [name for name in details if not os.path.basename(name).startswith(".")]
    files = [name for name in visible if details[name]["type"] == "file"]
    if isinstance(filesystem, LocalFileSystem):
        for name in filter(os.path.islink, [inner, *visible]):
            os.stat(name)  # raises for a broken link
        return [_local_file(name, os.stat(name)) for name in files]
    return [
        InputFile(
            filesystem.unstrip_protocol(name),
            int(details[name]["size"] or 0),
            next((str(details[name][key]) for key in VERSIONS if details[name].get(key)), ""),
        )
        for name in files
    ]


def _open(path: str) -> tuple["AbstractFileSystem | RetryingFileSystem", str]:
    if "\0" in path:
        raise UsageError(f"{path!r}: contains a NUL character; remove it")
    if "://" not in path:  # fsspec would read `a::b` as a chain of file systems
        return LocalFileSystem(), os.path.abspath(path)
    try:
        filesystem, inner = fsspec.core.url_to_fs(path)
    except (ValueError, TypeError) as error:  # unknown, or it needs more than a URL
        raise UsageError(
            f"{path}: no file system for this URL ({error}); expected a path, or a URL that fsspec "
            "supports, for example gs://bucket/folder or s3://bucket/folder"
        ) from None
    if isinstance(filesystem, LocalFileSystem):
        return filesystem, str(inner)
    return RetryingFileSystem(filesystem), str(inner)


class RetryingFileSystem:
    """A remote file system that repeats calls while the store or the network fails.

    All our calls are idempotent: names contain digests, and a partial upload is simply redone.
    """

    def __init__(self, filesystem: AbstractFileSystem) -> None:
        self._filesystem = filesystem

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._filesystem, name)
        return partial(_with_retries, method) if callable(method) else method


def _with_retries(method: Callable[..., object], *arguments: object, **options: object) -> object:
    begun, pause = time.monotonic(), FIRST_PAUSE_SECONDS
    while True:
        try:
            return method(*arguments, **options)
        except PermissionError as error:
            raise _refused(error, arguments) from None
        except PERMANENT_ERRORS:
            raise
        except Exception as error:  # for example a 503, a broken connection, a timeout
            # a conditional write that failed: s3fs has no class for this status of S3
            response = getattr(error.__cause__ or error, "response", None)
            facts = response.get("ResponseMetadata", {}) if isinstance(response, dict) else {}
            status = facts.get("HTTPStatusCode", getattr(error, "code", None))
            if status == PRECONDITION_FAILED:
                raise FileExistsError(errno.EEXIST, "already exists", str(arguments[0])) from None
            # Wrong arguments and our own errors are not the store's fault: repeating would not
            # help.
            about_the_call = isinstance(error, (TypeError, ValueError)) or not _of_a_library(error)
            if about_the_call and not isinstance(error, OSError):
                raise
            waited = time.monotonic() - begun
            if waited + pause > PATIENCE_SECONDS:
                raise _permanent(error, arguments, waited) from None
            time.sleep(pause)
            pause *= 2


def _of_a_library(error: Exception) -> bool:
    """Whether the error comes from the store's library or one of its dependencies."""
    return type(error).__module__.partition(".")[0] not in OURS


def _permanent(error: Exception, arguments: Sequence[object], waited: float) -> Exception:
    """The error to raise after all attempts in `waited` seconds failed."""
    # only now, since a busy store may also answer this
    if str(error).startswith(FORBIDDEN):
        return _refused(PermissionError(str(error)), arguments)
    if isinstance(error, OSError) and not _of_a_library(error):
        return error
    # one of the library's own classes, such as `EndpointConnectionError`
    said = " ".join(str(error).split())
    return ClozeError(
        f"the object store did not answer for {waited:.0f} s ({type(error).__name__}: {said}); "
        "check that it is running and that endpoint and credentials are set, then run the same "
        "command"
    )


def _refused(error: PermissionError, arguments: Sequence[object]) -> PermissionError:
    """The error with the path, which the store's library omits, and the remedy."""
    if error.filename is not None or not arguments:
        return error
    reason = " ".join((error.strerror or str(error)).split())
    said = f"the object store denied access ({reason}); check the permissions of the credentials"
    return PermissionError(errno.EACCES, said, str(arguments[0]))
