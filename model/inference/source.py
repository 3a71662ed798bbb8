"""Where a model's files come from: an artifact of ours, or a folder in Hugging Face's layout.

In:  the directory or URL of an artifact, or a local folder.
Out: `Source`: its files by name. An artifact's are verified against the manifest.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from artifacts import filesystem
from artifacts.digests import cache_directory
from artifacts.errors import UsageError
from artifacts.manifest import MANIFEST_NAME, Manifest
from artifacts.store import Artifact, open_artifact


@dataclass(frozen=True)
class Source:
    """The files of one model."""

    directory: str
    names: tuple[str, ...]
    path: Callable[[str], str]
    """Local path of the file with this name."""

    manifest: Manifest | None = None

    def read_text(self, name: str) -> str:
        """A small file's text."""
        return Path(self.path(name)).read_text("utf-8")

    def read_table(self, name: str) -> dict[str, Any]:
        """A JSON file that holds a table."""
        try:
            table = json.loads(self.read_text(name))
        except ValueError as error:
            raise UsageError(f"{self.directory}/{name}: not JSON: {error}") from None
        if not isinstance(table, dict):
            raise UsageError(f"{self.directory}/{name}: expected a JSON object")
        return table


def open_source(location: str | Path) -> Source:
    """The model at `location`: an artifact, wherever it lies, or a folder on this machine."""
    directory = str(location).rstrip("/")
    if filesystem.exists(filesystem.join(directory, MANIFEST_NAME)):
        return artifact_source(open_artifact(directory))
    folder = Path(filesystem.local_path(directory)) if filesystem.is_local(directory) else None
    if folder is None or not folder.is_dir():
        raise UsageError(
            f"{directory}: no model there; expected an artifact of Cloze, or a folder on this "
            "machine with config.json and model.safetensors"
        )
    names = tuple(sorted(path.name for path in folder.iterdir() if path.is_file()))
    return Source(directory, names, lambda name: str(folder / name))


def artifact_source(artifact: Artifact, *, folder: str = "") -> Source:
    """The model inside an artifact, or inside one `folder/` of it."""
    staged = artifact.stage_files(str(cache_directory().parent / "models" / artifact.digest))
    names = tuple(
        entry.name.removeprefix(folder)
        for entry in artifact.manifest.files
        if entry.name.startswith(folder)
    )
    return Source(
        artifact.directory, names, lambda name: staged.path(folder + name), artifact.manifest
    )
