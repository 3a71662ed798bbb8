"""The files of a model: an artifact of Cloze, or a folder in Hugging Face's layout.

In:  the directory or URL of an artifact, or a local folder.
Out: `Source`: the files by name. From them, each checked: the encoder's configuration, the
     tokenizer and the tensors. Artifacts are verified against their manifest.

A safetensors file holds nothing but numbers. Formats that can execute code when loaded (pickle and
its containers) are refused, whether or not a manifest lists them.
"""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from pydantic import JsonValue
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from cloze.artifacts import filesystem
from cloze.artifacts.errors import IntegrityError, UsageError
from cloze.artifacts.manifest import MANIFEST_NAME, Manifest
from cloze.artifacts.store import Artifact, open_artifact
from cloze.artifacts.tokenizer import (
    SPECIAL_TOKENS,
    SubwordTokenizer,
    WordPieceTokenizer,
    read_tokenizer_json,
    read_vocab_txt,
)
from cloze.model.config import EncoderConfig
from cloze.model.hugging_face.layout import Layout, encoder_config, tensors_as_bert

CONFIG = "config.json"
SINGLE = "model.safetensors"
INDEX = "model.safetensors.index.json"
EXECUTABLE = (".bin", ".pt", ".pth", ".ckpt", ".pkl", ".pickle", ".h5", ".keras", ".msgpack")
"""Suffixes of other weight files that Hugging Face reads: they can contain code or need their own
parser.
"""

NOT_IN_THE_WEIGHTS = {
    "preset",
    "hidden_dropout_prob",
    "attention_probs_dropout_prob",
    "initializer_range",
}
"""Fields in which a run may differ from its initial checkpoint."""

NOT_IN_MODERN_WEIGHTS = {"max_position_embeddings", "global_rope_theta"}
"""Further such fields without a position table, so that a second phase can train on longer
sequences.
"""

POSITION_IDS = ("position_ids", "token_type_ids")
"""Ends of the names of integer tensors that some checkpoints contain beside their weights."""

_PLAIN_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*\.safetensors")


@dataclass(frozen=True)
class Source:
    """The files of one model."""

    directory: str
    names: tuple[str, ...]
    path: Callable[[str], str]
    """Local path of the file with this name."""

    manifest: Manifest | None = None

    def read_text(self, name: str, *, errors: str = "strict") -> str:
        """The text of a small file; `errors` as for `str.decode`."""
        path = Path(self.path(name))
        if path.exists() and not path.is_file():  # reading a pipe or a device might never end
            raise UsageError(f"{self.directory}/{name}: not a regular file; copy the model again")
        return path.read_text("utf-8", errors)

    def read_table(self, name: str) -> dict[str, JsonValue]:
        """A file that holds one JSON object."""
        try:
            table = json.loads(self.read_text(name))
        except (ValueError, RecursionError) as error:
            raise UsageError(f"{self.directory}/{name}: not JSON: {error}") from None
        if not isinstance(table, dict):
            raise UsageError(f"{self.directory}/{name}: expected a JSON object")
        return table

    def inside(self, folder: str) -> "Source":
        """The model in the `folder/` of these files."""
        # Names relative to the folder, as if it were the model's own.
        names = tuple(name.removeprefix(folder) for name in self.names if name.startswith(folder))
        return replace(self, names=names, path=lambda name: self.path(folder + name))


def open_source(location: str | Path) -> Source:
    """The model at `location`: an artifact anywhere, or a folder on this machine."""
    directory = str(location).rstrip("/")
    if filesystem.is_file(filesystem.join(directory, MANIFEST_NAME)):
        return artifact_source(open_artifact(directory))
    folder = Path(filesystem.local_path(directory)) if filesystem.is_local(directory) else None
    if folder is None or not folder.is_dir():
        raise UsageError(
            f"{directory}: no model there; expected an artifact of Cloze, or a folder on this "
            "machine with config.json and model.safetensors"
        )
    names = tuple(sorted(path.name for path in folder.iterdir() if path.is_file()))
    return Source(directory, names, lambda name: str(folder / name))


def artifact_source(artifact: Artifact) -> Source:
    """The files of an artifact, each downloaded when it is first read."""
    names = tuple(entry.name for entry in artifact.manifest.files)
    return Source(artifact.directory, names, artifact.path, artifact.manifest)


def read_shape(location: str | Path | Source) -> tuple[EncoderConfig, SubwordTokenizer]:
    """Configuration and tokenizer of the model at `location`, without reading its weights."""
    source = location if isinstance(location, Source) else open_source(location)
    if CONFIG not in source.names:
        raise UsageError(
            f"{source.directory}: no config.json among {_listed(source.names)}; expected an "
            "artifact of Cloze or Hugging Face's layout (config.json, model.safetensors, "
            "tokenizer.json or vocab.txt)"
        )
    table = source.read_table(CONFIG)
    return encoder_config(table, source=f"{source.directory}/{CONFIG}"), read_tokenizer(source)


def _listed(names: Sequence[str]) -> str:
    """The files of a folder in a few words."""
    if not names:
        return "its files: there are none"
    return f"its {len(names):,} files, such as {names[0]}" if len(names) > 1 else names[0]


def refuse_another_shape(given: EncoderConfig, wanted: EncoderConfig, *, where: str) -> None:
    """Refuse an initial checkpoint `where` whose weights do not fit the configured encoder."""
    compared = set(EncoderConfig.model_fields) - NOT_IN_THE_WEIGHTS
    if not wanted.has_position_table:
        # An initial checkpoint of the modern family may have been trained for shorter sequences.
        compared -= NOT_IN_MODERN_WEIGHTS
    if given.family != wanted.family:
        compared = {"family"}  # sizes of two families are not comparable
    changed = [
        f"{name}: it has {getattr(given, name)}, wanted {getattr(wanted, name)}"
        for name in sorted(compared)
        if getattr(given, name) != getattr(wanted, name)
    ]
    if changed:
        raise UsageError(f"{where}: another shape ({'; '.join(changed)}); set [encoder] to its own")


def refuse_another_tokenizer(given: str, wanted: str, *, where: str) -> None:
    """Refuse an initial checkpoint `where` whose tokenizer, by its digest, is not the run's.

    `wanted` is empty if the run would train a tokenizer of its own.
    """
    if given != wanted:
        what = f"the run's is {wanted[:12]}" if wanted else "the run would train its own"
        raise UsageError(
            f"{where}: its tokenizer is {given[:12]}, {what}; set vocabulary.path to its "
            "tokenizer.json or vocab.txt (`cloze init FOLDER --from MODEL` does so)"
        )


def read_tokenizer(source: Source) -> SubwordTokenizer:
    """The tokenizer beside the weights: tokenizer.json, else vocab.txt."""
    settings: dict[str, JsonValue] = {}
    where = f"{source.directory}/tokenizer_config.json"
    if "tokenizer_config.json" in source.names:
        settings = source.read_table("tokenizer_config.json")
    # These options of slow tokenizers would change ids without any trace in vocab.txt.
    if settings.get("do_basic_tokenize", True) is False or settings.get("never_split"):
        raise UsageError(
            f"{where}: do_basic_tokenize = false and never_split are not honoured; save the model "
            "with a fast tokenizer, whose tokenizer.json has every setting"
        )
    extra = _extra_tokens(source, settings)
    if "tokenizer.json" in source.names:
        tokenizer = read_tokenizer_json(source.path("tokenizer.json"))
        if unknown := sorted(extra.difference(tokenizer.ids)):
            raise UsageError(
                f"{where}: the special tokens {' '.join(unknown)} are not in tokenizer.json; save "
                "tokenizer and model again, with an embedding for each"
            )
        if not isinstance(tokenizer, WordPieceTokenizer):
            return tokenizer  # its class in transformers has no such options
        strips = tokenizer.strip_accents
        # The two files may have been edited apart: neither is obviously right.
        in_use = {
            "do_lower_case": tokenizer.lowercase,
            "strip_accents": tokenizer.lowercase if strips is None else strips,
            "tokenize_chinese_chars": tokenizer.split_chinese,
        }
        for name, value in in_use.items():
            if settings.get(name) not in (None, value):
                raise UsageError(
                    f"{where}: {name} is {settings[name]}, but tokenizer.json says {value}; "
                    "correct one of the two"
                )
        return tokenizer
    if "vocab.txt" not in source.names:
        raise UsageError(
            f"{source.directory}: no tokenizer.json and no vocab.txt; put the one it was trained "
            "with beside the weights"
        )
    if "added_tokens.json" in source.names or extra:
        raise UsageError(
            f"{source.directory}: added tokens {' '.join(sorted(extra))} beside vocab.txt; save "
            "the model with a fast tokenizer, whose tokenizer.json has them"
        )
    strip_accents = settings.get("strip_accents")
    lowercase = settings.get("do_lower_case")
    return read_vocab_txt(
        source.path("vocab.txt"),
        lowercase=None if lowercase is None else bool(lowercase),
        strip_accents=None if strip_accents is None else bool(strip_accents),
        split_chinese=bool(settings.get("tokenize_chinese_chars", True)),
    )


def _extra_tokens(source: Source, settings: Mapping[str, JsonValue]) -> set[str]:
    """The special tokens beyond BERT's that the tokenizer's settings name."""
    tables = [settings]
    if "special_tokens_map.json" in source.names:
        tables.append(source.read_table("special_tokens_map.json"))
    found: list[JsonValue] = []
    for table in tables:
        for name in ("additional_special_tokens", "extra_special_tokens"):
            named = table.get(name)
            found += [*named.values()] if isinstance(named, dict) else []
            found += named if isinstance(named, list) else []
    # Either plain strings or objects with the token as `content`.
    contents = (one.get("content") if isinstance(one, dict) else one for one in found)
    return {str(content) for content in contents}.difference(SPECIAL_TOKENS)


def read_weights(source: Source, layout: Layout) -> dict[str, Tensor]:
    """All tensors of the model, float32, under the names of the class with pre-training heads.

    An output layer that is not tied to the word embeddings is refused; neither family has one.
    """
    found = {}
    table = source.read_table(CONFIG) if CONFIG in source.names else {}
    for name, tensor in tensors_as_bert(_stored_tensors(source), table).items():
        # Older checkpoints use gamma and beta; bare encoders lack the prefix `bert.` or `model.`.
        present = re.sub(r"LayerNorm\.gamma$", "LayerNorm.weight", name)
        present = re.sub(r"LayerNorm\.beta$", "LayerNorm.bias", present)
        if present.startswith(layout.bare):
            present = layout.prefix + present
        # Integers are quantised weights, except for stored numbers of positions and segments.
        if not tensor.is_floating_point() and not name.endswith(POSITION_IDS):
            raise IntegrityError(
                f"{source.directory}: {name} is {tensor.dtype}, expected floating-point numbers; "
                "quantised weights are not read: use the original ones"
            )
        found[present] = tensor.to(torch.float32) if tensor.is_floating_point() else tensor
        # A sum shows such values at a fifth of the time, but that of large ones overflows.
        values = found[present]
        if not values.sum().isfinite() and not values.isfinite().all():
            raise IntegrityError(
                f"{source.directory}: {name} has NaN or infinite values: training diverged or the "
                "file is damaged; use an earlier checkpoint"
            )
    for repeated, original in layout.tied.items():
        pair = [found[name] for name in (repeated, original) if name in found]
        if len(pair) == 2 and not torch.equal(*pair):
            raise UsageError(
                f"{source.directory}: {repeated} differs from {original}; only models whose output "
                "layer is tied to the word embeddings can be read"
            )
    return found


def _stored_tensors(source: Source) -> dict[str, Tensor]:
    """All tensors as they are stored, in one file or in several with an index."""
    if SINGLE in source.names:
        return read_tensors(source, SINGLE)
    if INDEX in source.names:
        tensors: dict[str, Tensor] = {}
        weight_map = source.read_table(INDEX).get("weight_map")
        if not isinstance(weight_map, dict):
            raise UsageError(f"{source.directory}/{INDEX}: no weight_map; expected tensor to file")
        # A name from a downloaded file must not lead out of the folder.
        for shard in sorted({str(shard) for shard in weight_map.values()}):
            if not _PLAIN_NAME.fullmatch(shard):
                raise UsageError(f"{source.directory}/{INDEX}: {shard!r} is not a shard's name")
            if shard not in source.names:
                raise IntegrityError(f"{source.directory}/{shard}: missing, but {INDEX} lists it")
            tensors.update(read_tensors(source, shard))
        missing = sorted(set(weight_map) - set(tensors))
        if missing:
            raise IntegrityError(
                f"{source.directory}: {INDEX} lists {missing[0]}, but no shard contains it"
            )
        return tensors
    executable = [name for name in source.names if name.endswith(EXECUTABLE)]
    raise UsageError(
        f"{source.directory}/{executable[0]}: a format that can execute code is not read; "
        f"expected {SINGLE}: if you trust the file, convert it with safetensors"
        if executable
        else f"{source.directory}: no {SINGLE} and no {INDEX}; expected Hugging Face's layout"
    )


def read_tensors(source: Source, name: str) -> dict[str, Tensor]:
    """The tensors of one safetensors file."""
    try:
        return load_file(source.path(name))
    except (SafetensorError, json.JSONDecodeError, UnicodeDecodeError) as error:
        raise IntegrityError(
            f"{source.directory}/{name}: not a safetensors file: {error}"
        ) from None
