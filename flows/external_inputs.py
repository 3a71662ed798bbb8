"""Digests of external inputs: everything a stage reads besides artifacts of its run.

In:  a file, folder, glob or fsspec URL; names of installed packages; a model trained elsewhere.
Out: a digest of the contents alone, independent of names, order and location.

Nothing is read twice: digests of local files are cached by size, mtime and inode
(`artifacts/digests.py`), and an object store's own checksum is used where it has one.
"""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from importlib import metadata
from typing import TypeVar

from cloze.artifacts import filesystem
from cloze.artifacts.digests import cached_digest_of_file, digest_of
from cloze.artifacts.errors import UsageError
from cloze.artifacts.filesystem import InputFile, find_files, is_local, located
from cloze.artifacts.manifest import MANIFEST_NAME
from cloze.artifacts.store import open_artifact

MODEL_CONFIG = "config.json"
"""Present in every model, in an artifact as in a folder in Hugging Face's layout."""

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
            object.__setattr__(self, kind.name, given(getattr(self, kind.name)))

    def __bool__(self) -> bool:
        return bool(self.places or self.packages)

    @property
    def places(self) -> dict[str, str]:
        """The fields that hold locations, which must not enter a key."""
        return {**self.files, **self.artifacts, **self.models, **self.folders}

    def digest(self) -> str:
        """Digest of all contents, in the order of their fields."""
        parts = [digest_of_packages(names, place=place) for place, names in self.packages.items()]
        parts += [
            digest_of_files(path, place=place, exclude=self.exclude.get(place, ()))
            for place, path in self.files.items()
        ]
        parts += [open_artifact(located(path)).digest for path in self.artifacts.values()]
        parts += [digest_of_model(path, place=place) for place, path in self.models.items()]
        return digest_of(parts)


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
        found.append(f"{name.lower().replace('_', '-').replace('.', '-')}=={version}")
    return digest_of(sorted(found))


def digest_of_files(path: str, *, place: str, exclude: Sequence[str] = ()) -> str:
    """Digest of the contents of all files at `path` as a multiset, without hidden files.

    Files that match a pattern of `exclude` are left out. `place` is the configuration field that
    names it, with which error messages begin.
    """
    try:
        files = find_files(located(path), exclude)
    except UsageError as error:
        raise UsageError(f"{place}: {error}") from None
    except PermissionError as error:
        raise UsageError(f"{place}: {path}: {error.strerror}: {error.filename}") from None
    if not any(file.size for file in files):
        found = "1 file, empty" if len(files) == 1 else f"{len(files)} files, all empty"
        raise UsageError(f"{place}: {path}: {found}; expected documents")
    return digest_of(sorted(_content(file, place=place) for file in files))


def digest_of_model(path: str, *, place: str) -> str:
    """Digest of a model: that of its artifact, or of the files in its folder."""
    directory = located(path)
    if is_artifact(directory):
        return open_artifact(directory).digest
    if not filesystem.exists(filesystem.join(directory, MODEL_CONFIG)):
        raise UsageError(
            f"{place}: {path}: no model found; expected a Cloze artifact or a folder with "
            f"{MODEL_CONFIG} and model.safetensors"
        )
    return digest_of_files(directory, place=place)


def read_model_config(directory: str) -> bytes:
    """The content of a model's `config.json`."""
    if is_artifact(directory):
        return open_artifact(directory).read_bytes(MODEL_CONFIG)
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
    if checksum := filesystem.checksum_of(file.path):
        return f"{checksum}:{file.size}"
    with filesystem.open_to_read(file.path) as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()
