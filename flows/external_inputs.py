"""Digests of external inputs: everything a stage reads besides artifacts of its run.

In:  a file, folder, glob or fsspec URL; names of installed packages; a model trained elsewhere.
Out: a digest of the contents alone, independent of names, order and location.

Nothing is read twice: the plan of a run keeps all digests (`Digests`), those of local files are
cached by size, mtime and inode besides (`artifacts/digests.py`), and an object store's own checksum
is used where it has one.
"""

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from importlib import metadata
from typing import Literal, TypeVar

from cloze.artifacts import filesystem
from cloze.artifacts.digests import cached_digest_of_file, digest_of
from cloze.artifacts.errors import ClozeError, UsageError
from cloze.artifacts.filesystem import InputFile, find_files, is_local, located
from cloze.artifacts.manifest import MANIFEST_NAME
from cloze.artifacts.store import open_artifact

MODEL_CONFIG = "config.json"
"""Present in every model, in an artifact as in a folder in Hugging Face's layout."""

BLOCK = 1 << 20
"""Bytes read at a time from a store without checksums."""

Value = TypeVar("Value")


def given(values: Mapping[str, Value]) -> dict[str, Value]:
    """The `values` that are not empty."""
    return {name: value for name, value in values.items() if value}


@dataclass(frozen=True)
class ExternalInput:
    """The external input of one role: configuration fields and the locations they name.

    Empty fields name no location, and are left out.
    """

    files: Mapping[str, str] = field(default_factory=dict)
    """Files, folders, globs and URLs, for example `{"corpus.sources.0.path": "texts/"}`."""

    exclude: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Patterns of files that are left out, by the field of `files`."""

    packages: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Names of installed distributions."""

    artifacts: Mapping[str, str] = field(default_factory=dict)
    """Directories of artifacts made by other runs."""

    models: Mapping[str, str] = field(default_factory=dict)
    """Models trained elsewhere: artifacts, or folders in Hugging Face's layout."""

    folders: Mapping[str, str] = field(default_factory=dict)
    """Locations whose contents are not read: a prefix of file names (a task's folder) or a missing
    test file."""

    def __post_init__(self) -> None:
        for kind in fields(self):
            # The class is frozen; empty fields are dropped once, here.
            object.__setattr__(self, kind.name, given(getattr(self, kind.name)))

    def __bool__(self) -> bool:
        return bool(self.places or self.packages)

    @property
    def places(self) -> dict[str, str]:
        """The fields that hold locations, which must not enter a key."""
        return {**self.files, **self.artifacts, **self.models, **self.folders}

    def contents(self) -> "Iterator[Content]":
        """What its digest covers, in this order."""
        yield from (Content(place, "packages", " ".join(n)) for place, n in self.packages.items())
        for place, path in self.files.items():
            yield Content(place, "files", path, tuple(self.exclude.get(place, ())))
        yield from (Content(place, "artifact", path) for place, path in self.artifacts.items())
        yield from (Content(place, "model", path) for place, path in self.models.items())


@dataclass(frozen=True)
class Content:
    """What one field of the configuration names."""

    place: str = field(compare=False)
    """The field, with which error messages begin."""

    kind: Literal["packages", "files", "artifact", "model"]

    location: str
    """As configured: path, URL, or names of packages with spaces in between."""

    exclude: tuple[str, ...] = ()
    """Patterns of files that are left out."""

    def files(self) -> list[InputFile]:
        """Its files as they are listed now; empty if others keep its digest: pip, a manifest."""
        where = located(self.location) if self.kind != "packages" else ""
        if self.kind == "model" and not is_artifact(where):
            if not filesystem.exists(filesystem.join(where, MODEL_CONFIG)):
                raise UsageError(
                    f"{self.place}: {self.location}: no model found; expected a Cloze artifact or "
                    f"a folder with {MODEL_CONFIG} and model.safetensors"
                )
        elif self.kind != "files":
            return []
        try:
            files = find_files(where, self.exclude)
        except UsageError as error:
            raise UsageError(f"{self.place}: {error}") from None
        except PermissionError as error:
            named = f"{self.location}: {error.strerror}: {error.filename}"
            raise UsageError(f"{self.place}: {named}") from None
        # Files without any text are more likely a wrong path than a corpus.
        if not any(file.size for file in files):
            found = "1 file, empty" if len(files) == 1 else f"{len(files)} files, all empty"
            raise UsageError(f"{self.place}: {self.location}: {found}; expected documents")
        return files

    def digest(self, files: list[InputFile]) -> str:
        """Its digest: that of all `files` as a multiset, of the packages, or of the artifact."""
        if files:
            # Sorted, so that names and order do not matter; repetitions count.
            return digest_of(sorted(_content(file, place=self.place) for file in files))
        if self.kind == "packages":
            return digest_of_packages(tuple(self.location.split()), place=self.place)
        return open_artifact(located(self.location)).digest


class Digests:
    """Digests of external inputs, each computed once, and whether they still hold.

    Runs that share them, such as those of several seeds, are all given the same data.
    """

    def __init__(self) -> None:
        self._known: dict[Content, tuple[list[InputFile], str]] = {}

    def of(self, content: Content) -> str:
        """The digest of `content` when it was first asked for."""
        if content not in self._known:
            # The listing comes first: a file that changes before it is read is then digested again
            # by `confirm`, and one that changes later is refused there.
            files = content.files()
            self._known[content] = files, content.digest(files)
        return self._known[content][1]

    def of_input(self, data: ExternalInput) -> str:
        """The digest of all contents of an input, in the order of their fields."""
        found = [self.of(content) for content in data.contents()]
        return digest_of(found)

    def confirm(self, content: Content) -> None:
        """Refuse content that is no longer what its digest says.

        Files are only read again if the size, time, inode or checksum of one has changed, or if
        their store tells none of these.
        """
        files, digest = self._known[content]
        now = content.files()
        # Equal listings with versions mean equal content; anything else is digested again.
        is_listed = bool(now) and all(file.version for file in now)
        if not (is_listed and now == files) and content.digest(now) != digest:
            raise ClozeError(
                f"{content.place}: {content.location}: changed since this run was planned; "
                "finished stages are kept, run the same command to plan it with what is there now"
            )


def digest_of_packages(names: tuple[str, ...], *, place: str) -> str:
    """Digest of installed distributions, by canonical name and version."""
    found = []
    for name in names:
        try:
            version = metadata.version(name)
        except metadata.PackageNotFoundError:
            raise UsageError(
                f"{place}: {name} is not installed here; pip install {name}, or remove it"
            ) from None
        # as pip spells it, whatever the configuration does
        found.append(f"{name.lower().replace('_', '-').replace('.', '-')}=={version}")
    return digest_of(sorted(found))


def digest_of_files(path: str, *, place: str, exclude: Sequence[str] = ()) -> str:
    """Digest of the contents of all files at `path` as a multiset, without hidden files.

    Files that match a pattern of `exclude` are left out. `place` is the configuration field that
    names it, with which error messages begin.
    """
    return Digests().of(Content(place, "files", path, tuple(exclude)))


def digests_of_files(
    path: str, *, place: str, exclude: Sequence[str] = ()
) -> list[tuple[str, str]]:
    """The path and the digest of the content of each file at `path`, in path order."""
    content = Content(place, "files", path, tuple(exclude))
    return [(file.path, _content(file, place=place)) for file in content.files()]


def digest_of_model(path: str, *, place: str) -> str:
    """Digest of a model: that of its artifact, or of the files in its folder."""
    return Digests().of(Content(place, "model", path))


def read_model_config(location: str) -> bytes:
    """The content of the `config.json` of the model at `location`, as configured.

    Of a finetune artifact, whose models have one architecture, that of the first.
    """
    directory = located(location)
    if is_artifact(directory):
        artifact = open_artifact(directory)
        names = [entry.name for entry in artifact.manifest.files]
        # Without one, reading it raises the error that names the file.
        found = [name for name in names if name.split("/")[-1] == MODEL_CONFIG] or [MODEL_CONFIG]
        return artifact.read_bytes(MODEL_CONFIG if MODEL_CONFIG in names else min(found))
    return filesystem.read_bytes(filesystem.join(directory, MODEL_CONFIG))


def is_artifact(directory: str) -> bool:
    """Whether `directory` holds a finished artifact."""
    return filesystem.exists(filesystem.join(directory, MANIFEST_NAME))


def _content(file: InputFile, *, place: str) -> str:
    """Digest of one file's content, or its object store's checksum."""
    if is_local(file.path):
        try:
            return cached_digest_of_file(file.path)
        except OSError as error:
            raise UsageError(f"{place}: {file.path}: {error.strerror}") from None
    # A store's own checksum saves reading everything.
    if checksum := filesystem.checksum_of(file.path):
        return f"{checksum}:{file.size}"
    content = hashlib.sha256()
    with filesystem.open_to_read(file.path) as stream:
        while block := stream.read(BLOCK):
            content.update(block)
    return content.hexdigest()
