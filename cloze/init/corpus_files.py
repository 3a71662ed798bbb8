"""Which files of a corpus to read, with which readers, and which to leave out.

In:  the files at a path.
Out: `ChosenFiles`: for each kind of documents, by content, its reader, the files that it reads, and
     patterns that leave out the others; what no reader reads.

A folder of data holds more than data: a README, marks of finished jobs, metadata, images. What is
left out is written to the configuration, so that preparation, search and adaptation leave out the
same.
"""

import glob
import os
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import PurePosixPath

from cloze.artifacts import filesystem
from cloze.artifacts.errors import ClozeError, IntegrityError, NotText, UsageError
from cloze.artifacts.filesystem import InputFile, folder_of, located, relative_path
from cloze.artifacts.progress import say
from cloze.flows.report.units import plural
from cloze.flows.workspace import Workspace
from cloze.pipeline.config.formats import FORMATS, format_of_bytes
from cloze.pipeline.readers.compression import COMPRESSED_SUFFIXES, stream, unpacked
from cloze.pipeline.readers.structure import format_of

PEEKED_FILES = 64
"""Files per suffix whose content is examined, evenly spread."""
PEEKED_BYTES = 1 << 16
MOST_DAMAGE = 0.01
"""Maximum share of undecodable characters in a text file."""

METADATA = (
    *("readme*", "license*", "copying*", "notice*", "citation*", "changelog*", "makefile"),
    *("_success", "_metadata", "_common_metadata", "dataset_dict.json", "dataset_info*.json"),
    *("state.json", "*.crc", "*.md5", "*.sha256", "md5sums*", "sha256sums*", "thumbs.db"),
    *("robots.txt", "humans.txt", "security.txt", "ads.txt"),
)
"""Names, in lower case, of what lies beside data."""
WEB_ASSETS = (".js", ".css", ".map", ".svg", ".xml", ".json")
"""Suffixes of what lies beside HTML pages."""
REFUSING_EMPTY = ("parquet", "arrow", "csv", "warc")
"""Readers for which an empty file is a damaged one."""

LEFT_OUT = "left out)"
"""How the reason for leaving out a file ends."""
LISTED_FILES = 3
"""Files left out by a pattern that are listed by name; more are counted."""


@dataclass(frozen=True)
class FilesOfKind:
    """The files that one reader reads."""

    reader: str
    """Name of a reader; `text` for prose of any layout."""
    files: tuple[InputFile, ...]
    """In path order."""
    exclude: tuple[str, ...]
    """Patterns that leave out all others of the corpus."""


@dataclass(frozen=True)
class ChosenFiles:
    """The files to read."""

    kinds: tuple[FilesOfKind, ...]
    """By reader, the one with most bytes first."""
    odd: tuple[str, ...]
    """Files that are left out, and those that will be dropped or refused, each with the reason."""


@dataclass(frozen=True)
class _Kind:
    """What a file is: the name of a reader, `json`, or nothing with the error."""

    name: str
    error: ClozeError | None = None

    @property
    def why(self) -> str:
        if isinstance(self.error, NotText):
            return "not text"
        if self.error:
            return f"not readable: {str(self.error).partition(': ')[2]}"
        return described(self.name)


def described(reader: str) -> str:
    """What the files of a reader are, in words; also of `json`, which has none, and of nothing."""
    if reader == "json":
        return "JSON, but not one object per line"
    return FORMATS[reader].kind if reader else "empty"


def left_out(folder: str, space: Workspace, *others: str) -> tuple[str, ...]:
    """Patterns of what is left out of a local folder whatever it contains.

    The workspace and `others` of ours, where the folder holds them; files whose names are no text,
    which no configuration or index could name. These, pipes and devices, and links that lead out of
    the folder and are followed, are said.
    """
    if not filesystem.is_local(folder):
        return ()
    ours = _own_files(folder, space, *others)
    odd = filesystem.odd_entries(filesystem.local_path(folder), ours)
    for name in odd.unnamed:
        say(f"left out: {folder}/{filesystem.unnamed(name)} (its name is no text; rename it)")
    for name in odd.special:
        say(f"left out: {folder}/{name} (a pipe, a socket or a device)")
    if odd.outward:
        first = os.path.join(located(folder), odd.outward[0])
        say(
            f"{plural(len(odd.outward), 'link')} out of {folder} followed "
            f"(the first: {odd.outward[0]} to {os.path.realpath(first)})"
        )
    unnamed = (glob.escape(filesystem.unnamed(name)) for name in odd.unnamed)
    return (*ours, *dict.fromkeys(unnamed))


def _own_files(folder: str, space: Workspace, *others: str) -> tuple[str, ...]:
    # What is below the workspace, and the other files themselves.
    ours = dict.fromkeys(others, "") | {space.root: "/*"}
    inside = {
        os.path.relpath(located(path), located(folder)): below
        for path, below in ours.items()
        if filesystem.is_local(path)
    }
    return tuple(
        f"{glob.escape(name)}{below}"
        for name, below in inside.items()
        if name != "." and name[:2] != ".."
    )


def choose_files(path: str, files: Sequence[InputFile]) -> ChosenFiles:
    """The files at `path` to read; raises the first file's error if none can be read."""
    # Files of one kind usually share a suffix: look into some of each.
    groups: dict[str, list[InputFile]] = {}
    for file in files:
        groups.setdefault(_group(file.path), []).append(file)
    kinds = {
        file: _peek(file)
        for group in groups.values()
        for file in group[:: max(1, len(group) // PEEKED_FILES)]
    }
    readers = _readers(groups, kinds)
    if not readers:
        raise next((kind.error for kind in kinds.values() if kind.error), None) or UsageError(
            f"{path}: no text in it; it has "
            + "; ".join(f"{_name(file)} ({kind.why})" for file, kind in [*kinds.items()][:5])
            + (_JSON_REMEDY if any(kind.name == "json" for kind in kinds.values()) else "")
        )
    sizes: Counter[str] = Counter()
    for file, reader in readers.items():
        sizes[reader] += file.size
    chosen = []
    for reader, _ in sizes.most_common():
        taken = tuple(file for file in files if readers.get(file) == reader)
        others = {
            suffix: [file for file in group if readers.get(file) != reader]
            for suffix, group in groups.items()
        }
        patterns = _patterns(others, taken, folder_of(path))
        chosen.append(FilesOfKind(reader, taken, tuple(sorted(patterns))))
    odd = [f"{_name(file)} ({kinds[file].why})" for file in readers if _is_odd(kinds.get(file))]
    return ChosenFiles(tuple(chosen), (*odd, *_left_out(groups, kinds, readers)))


_JSON_REMEDY = "; JSON lines have one object per line: jq -c '.[]' FILE > FILE.jsonl makes them"


def _group(path: str) -> str:
    """The suffix, without that of compression; a mark or metadata without one is its own group."""
    name = path.rsplit("/", 1)[-1]
    packed = next((end for end in COMPRESSED_SUFFIXES if name.endswith(end)), "")
    suffix = PurePosixPath(name.removesuffix(packed)).suffix
    if suffix[1:].isdigit() or len(suffix) > 9 or "-p" in suffix:  # of a part: x.xml-p10p30
        suffix = ""
    return suffix if suffix or not _is_metadata(path) else name


def _name(file: InputFile) -> str:
    return file.path.rsplit("/", 1)[-1]


def _is_metadata(path: str) -> bool:
    name = path.rsplit("/", 1)[-1].lower()
    return any(fnmatchcase(name, pattern) for pattern in METADATA)


def _peek(file: InputFile) -> _Kind:
    """What a file is, by its first bytes."""
    if not file.size:
        return _Kind("")
    try:
        head = next(unpacked(file.path), b"")
        if found := format_of_bytes(head):
            return _Kind(found)
        chunk = next(stream(file.path, at_a_time=PEEKED_BYTES), b"")[:PEEKED_BYTES]
    except (IntegrityError, UsageError) as error:
        return _Kind("", error)
    text = chunk.decode("utf-8", "replace")
    if text.count("\ufffd") + text.count("\0") > MOST_DAMAGE * len(text):
        return _Kind("", NotText(f"{file.path}: no text"))
    return _Kind(format_of(text, file.path))


def _readers(
    groups: dict[str, list[InputFile]], kinds: dict[InputFile, _Kind]
) -> dict[InputFile, str]:
    """The reader of each file that is read.

    Metadata and what belongs to web pages are read only if there is nothing else.
    """
    pages = any(kind.name == "html" for kind in kinds.values())
    data: dict[InputFile, str] = {}
    beside: dict[InputFile, str] = {}
    for suffix, group in groups.items():
        sizes: Counter[str] = Counter()
        for file in group:
            # What is damaged, or JSON that is not in lines, has no reader.
            if file in kinds and kinds[file].name not in ("", "json"):
                sizes[kinds[file].name] += file.size
        if not sizes:
            continue
        ((usual, _),) = sizes.most_common(1)
        # Of many files some are looked into, and only one reader can be told from the others.
        own = sizes if all(file in kinds for file in group) else {usual}
        is_data = not all(_is_metadata(file.path) for file in group)
        found = data if is_data and not (pages and suffix in WEB_ASSETS) else beside
        for file in group:
            kind = kinds.get(file)
            reader = kind.name if kind and kind.name in own else usual
            if not (kind and _is_foreign(kind, reader)):
                found[file] = reader
    return data or beside


def _is_foreign(kind: _Kind, reader: str) -> bool:
    """Whether the reader would refuse the file, or read it as what it is not."""
    if kind.error:
        # Archives stop every reader; what is no text stops some, and others drop it.
        archive = isinstance(kind.error, UsageError) and not isinstance(kind.error, NotText)
        return archive or (isinstance(kind.error, NotText) and reader in REFUSING_EMPTY)
    return kind.name != reader and (bool(kind.name) or reader in REFUSING_EMPTY)


def _is_odd(kind: _Kind | None) -> bool:
    return kind is not None and not kind.name


def _patterns(
    left: dict[str, list[InputFile]], chosen: Sequence[InputFile], root: str
) -> Iterable[str]:
    """Patterns that match every file left out, and none that is chosen."""
    # One pattern for a suffix that no chosen file has; otherwise each file by name, or by path if a
    # chosen one has the same name.
    names = {_name(file) for file in chosen}
    for suffix, group in left.items():
        if not group:
            continue
        pattern = f"*{glob.escape(suffix)}"
        if suffix.startswith(".") and not any(fnmatchcase(name, pattern) for name in names):
            # Those with a suffix of compression behind this one.
            plain = [file for file in group if not fnmatchcase(_name(file), pattern)]
            yield pattern
            packed = {
                f"{pattern}{end}"
                for f in plain
                for end in COMPRESSED_SUFFIXES
                if f.path.endswith(end)
            }
            yield from packed
            continue
        for file in group:
            relative = relative_path(file.path, root)
            yield glob.escape(_name(file) if _name(file) not in names else relative)


def _left_out(
    groups: dict[str, list[InputFile]],
    kinds: dict[InputFile, _Kind],
    readers: dict[InputFile, str],
) -> Iterable[str]:
    """What is left out, each with the reason."""
    for suffix, group in groups.items():
        known = [file for file in group if file in kinds and file not in readers]
        is_whole = not any(file in readers for file in group)
        if is_whole and suffix.startswith(".") and len(group) > LISTED_FILES:
            reasons = Counter(kinds[file].why for file in known).most_common()
            why = f", {reasons[0][0]}"
            if len(reasons) > 1:
                looked = "" if len(known) == len(group) else f" of {len(known):,} looked into"
                why = f":{looked} {', '.join(f'{count:,} {one}' for one, count in reasons)}"
            yield f"*{suffix} ({len(group):,} files{why}; {LEFT_OUT}"
        else:
            yield from (f"{_name(file)} ({kinds[file].why}; {LEFT_OUT}" for file in known)
