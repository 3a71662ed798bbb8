"""The manifest: the file that makes an artifact exist.

In:  `manifest.json`, written last into an artifact's directory.
Out: every file with its size and sha256, the inputs' digests, the configuration, the versions.

A directory without a manifest is not an artifact, and readers ignore files that are not listed in
it.
"""

import json
import re
from typing import Annotated

from pydantic import Field, field_validator

from cloze.artifacts.config import Config, JsonObject, parse
from cloze.artifacts.digests import digest_of
from cloze.artifacts.errors import IntegrityError, UsageError

MANIFEST_NAME = "manifest.json"
MANIFEST_VERSION = 1
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*(/[A-Za-z0-9_][A-Za-z0-9_.-]*)*")

Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
"""A digest. It is part of file names, so one with a slash would lead out of the artifact."""


class FileEntry(Config):
    """One file of an artifact."""

    name: str
    """The logical name, for example `train-128-00003.arrow`."""

    size: int = Field(ge=0)
    """Bytes."""

    sha256: Sha256
    """Digest of the bytes."""

    rows: int | None = None
    """Rows, if the file is a table."""

    statistics: JsonObject = Field(default_factory=dict)
    """Counts over this file's rows, specific to the stage."""

    @field_validator("name")
    @classmethod
    def _stay_inside(cls, name: str) -> str:
        if not _NAME.fullmatch(name):
            raise ValueError(f"file name {name!r} points outside the artifact or is not portable")
        return name

    @property
    def stored_name(self) -> str:
        """The name on disk; includes the digest, so that concurrent writers cannot collide."""
        # The suffix stays last, for programs that go by it.
        stem, dot, suffix = self.name.rpartition(".")
        return f"{stem}.{self.sha256[:12]}.{suffix}" if dot else f"{self.name}.{self.sha256[:12]}"


class Manifest(Config):
    """The description of a finished artifact."""

    manifest_version: int = MANIFEST_VERSION
    """Version of this schema; other versions are rejected."""

    stage: str = Field(pattern=r"^[a-z][a-z0-9_-]*$")
    """The stage that made the artifact."""

    key: Sha256
    """The stage table's key."""

    format_version: int
    """The stage's own format version."""

    config: JsonObject
    """The stage's result-defining configuration."""

    inputs: dict[str, str]
    """Content digest of each input, by role."""

    files: tuple[FileEntry, ...]
    """Content files, sorted by name."""

    records: tuple[FileEntry, ...] = ()
    """Files about the run (timings, logs): verified like content, but not part of the digest."""

    statistics: JsonObject = Field(default_factory=dict)
    """Deterministic counts over the whole artifact."""

    versions: dict[str, str] = Field(default_factory=dict)
    """Versions of Python and of the packages involved."""

    execution: JsonObject = Field(default_factory=dict)
    """When and where the stage ran, and for how long."""

    @property
    def derived_key(self) -> str:
        """The key recomputed from stage, configuration and inputs, as in `StageTable.key`."""
        return digest_of([self.stage, self.format_version, self.config, self.inputs])

    @property
    def digest(self) -> str:
        """Digest of the content, which enters the keys of later stages."""
        # Name, content and rows; statistics of single files follow from these.
        # Without the configuration: equal content is the same input to later stages, whatever
        # settings it was made with, so that these are not run again for nothing.
        files = [[entry.name, entry.sha256, entry.rows] for entry in self.files]
        return digest_of([self.stage, self.format_version, files, self.statistics])

    def file(self, name: str) -> FileEntry:
        """The content file or record called `name`."""
        for entry in (*self.files, *self.records):
            if entry.name == name:
                return entry
        raise IntegrityError(f"{self.stage} artifact {self.key[:12]} has no file {name}")


def parse_manifest(text: str | bytes, *, source: str) -> Manifest:
    """Parse a manifest; `IntegrityError` if it is malformed."""
    try:
        table = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise IntegrityError(
            f"{source}: not JSON ({error}); delete the artifact and run its stage again"
        ) from None
    version = table.get("manifest_version") if isinstance(table, dict) else None
    if version != MANIFEST_VERSION:
        # an artifact of a newer version is not damaged and must not be removed
        kind = UsageError if isinstance(version, int) else IntegrityError
        raise kind(
            f"{source}: manifest version {version}, this Cloze reads {MANIFEST_VERSION}; "
            "install a matching Cloze"
        )
    try:
        return parse(Manifest, table, source=source)
    except UsageError as error:
        raise IntegrityError(str(error)) from None
