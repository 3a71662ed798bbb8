"""The files of a model: an artifact of Cloze, or a folder in Hugging Face's layout.

In:  the directory or URL of an artifact, or a local folder.
Out: `Source`: the files by name, and the tensors. Artifacts are verified against their manifest.

A safetensors file holds nothing but numbers. Formats that can execute code when loaded (pickle and
its containers) are refused, whether or not a manifest lists them.
"""

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from pydantic import JsonValue
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from artifacts import filesystem
from artifacts.digests import cache_directory
from artifacts.errors import IntegrityError, UsageError
from artifacts.manifest import MANIFEST_NAME, Manifest
from artifacts.store import Artifact, open_artifact
from model.hugging_face.layout import LAYOUTS, Layout

SINGLE = "model.safetensors"
INDEX = "model.safetensors.index.json"
EXECUTABLE = (".bin", ".pt", ".pth", ".ckpt", ".pkl", ".pickle", ".h5", ".keras", ".msgpack")
"""Suffixes of other weight files that Hugging Face reads: they can contain code or need their own
parser.
"""

_PLAIN_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*\.safetensors")


@dataclass(frozen=True)
class Source:
    """The files of one model."""

    directory: str
    names: tuple[str, ...]
    path: Callable[[str], str]
    """Local path of the file with this name."""

    manifest: Manifest | None = None

    def read_text(self, name: str) -> str:
        """The text of a small file."""
        return Path(self.path(name)).read_text("utf-8")

    def read_table(self, name: str) -> dict[str, JsonValue]:
        """A file that holds one JSON object."""
        try:
            table = json.loads(self.read_text(name))
        except (ValueError, RecursionError) as error:
            raise UsageError(f"{self.directory}/{name}: not JSON: {error}") from None
        if not isinstance(table, dict):
            raise UsageError(f"{self.directory}/{name}: expected a JSON object")
        return table


def open_source(location: str | Path) -> Source:
    """The model at `location`: an artifact anywhere, or a folder on this machine."""
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
    staged = artifact.stage_files(str(cache_directory("models") / artifact.digest))
    names = tuple(
        entry.name.removeprefix(folder)
        for entry in artifact.manifest.files
        if entry.name.startswith(folder)
    )
    return Source(
        artifact.directory, names, lambda name: staged.path(folder + name), artifact.manifest
    )


def read_weights(source: Source, layout: Layout = LAYOUTS["bert"]) -> dict[str, Tensor]:
    """All tensors of the model, float32, under the names of the class with pre-training heads."""
    if SINGLE in source.names:
        tensors = _read_file(source, SINGLE)
    elif INDEX in source.names:
        tensors = {}
        weight_map = source.read_table(INDEX).get("weight_map")
        if not isinstance(weight_map, dict):
            raise UsageError(f"{source.directory}/{INDEX}: no weight_map; expected tensor to file")
        for shard in sorted({str(shard) for shard in weight_map.values()}):
            if not _PLAIN_NAME.fullmatch(shard):
                raise UsageError(f"{source.directory}/{INDEX}: {shard!r} is not a shard's name")
            if shard not in source.names:
                raise IntegrityError(f"{source.directory}/{shard}: missing, but {INDEX} lists it")
            tensors.update(_read_file(source, shard))
        missing = sorted(set(weight_map) - set(tensors))
        if missing:
            raise IntegrityError(
                f"{source.directory}: {INDEX} lists {missing[0]}, but no shard contains it"
            )
    else:
        executable = [name for name in source.names if name.endswith(EXECUTABLE)]
        raise UsageError(
            f"{source.directory}/{executable[0]}: a format that can execute code is not read; "
            f"expected {SINGLE}: if you trust the file, convert it with safetensors"
            if executable
            else f"{source.directory}: no {SINGLE} and no {INDEX}; expected Hugging Face's layout"
        )
    found = {}
    for name, tensor in tensors.items():
        # Older checkpoints use gamma and beta; bare encoders lack the prefix `bert.` or `model.`.
        present = re.sub(r"LayerNorm\.gamma$", "LayerNorm.weight", name)
        present = re.sub(r"LayerNorm\.beta$", "LayerNorm.bias", present)
        if present.startswith(layout.bare):
            present = layout.prefix + present
        found[present] = tensor.to(torch.float32) if tensor.is_floating_point() else tensor
        if not torch.isfinite(found[present]).all():
            raise IntegrityError(
                f"{source.directory}: {name} has NaN or infinite values: training diverged or the "
                "file is damaged; use an earlier checkpoint"
            )
    return found


def _read_file(source: Source, name: str) -> dict[str, Tensor]:
    try:
        return load_file(source.path(name))
    except (SafetensorError, json.JSONDecodeError, UnicodeDecodeError) as error:
        raise IntegrityError(
            f"{source.directory}/{name}: not a safetensors file: {error}"
        ) from None


def check_tied(tensors: Mapping[str, Tensor], layout: Layout, *, source: str) -> None:
    """Refuse an output layer that is not tied to the word embeddings; neither family has one."""
    for repeated, original in layout.tied.items():
        if (
            repeated in tensors
            and original in tensors
            and not torch.equal(tensors[repeated], tensors[original])
        ):
            raise UsageError(
                f"{source}: {repeated} differs from {original}; only models whose output layer is "
                "tied to the word embeddings can be read"
            )
