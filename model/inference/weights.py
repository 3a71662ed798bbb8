"""Tensors from safetensors files, one or many.

In:  a `Source`.
Out: tensors in float32, by the names of `BertForPreTraining`.

safetensors holds numbers and nothing else. Formats that can execute code when they are read
(pickle and what contains it) are refused, with or without a manifest that names them.
"""

import json
import re
from collections.abc import Mapping

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from artifacts.errors import IntegrityError, UsageError
from model.inference.source import Source

SINGLE = "model.safetensors"
INDEX = "model.safetensors.index.json"
EXECUTABLE = (".bin", ".pt", ".pth", ".ckpt", ".pkl", ".pickle", ".h5", ".keras", ".msgpack")
"""Endings of weights that Hugging Face also reads; each can hold code or needs its own parser."""

_PLAIN_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*\.safetensors")


def read_weights(source: Source) -> dict[str, Tensor]:
    """All tensors of the model, under `BertForPreTraining`'s names."""
    if SINGLE in source.names:
        tensors = _read_file(source, SINGLE)
    elif INDEX in source.names:
        tensors = _read_shards(source)
    else:
        raise UsageError(_nothing_to_read(source))
    return {_present_name(name): _float32(tensor) for name, tensor in tensors.items()}


def _read_shards(source: Source) -> dict[str, Tensor]:
    weight_map = source.read_table(INDEX).get("weight_map")
    if not isinstance(weight_map, dict):
        raise UsageError(f"{source.directory}/{INDEX}: no weight_map; expected tensor to file")
    tensors: dict[str, Tensor] = {}
    for shard in sorted(set(weight_map.values())):
        if not isinstance(shard, str) or not _PLAIN_NAME.fullmatch(shard):
            raise UsageError(f"{source.directory}/{INDEX}: {shard!r} is no name of a shard")
        if shard not in source.names:
            raise IntegrityError(f"{source.directory}/{shard}: missing, {INDEX} names it")
        tensors.update(_read_file(source, shard))
    missing = sorted(set(weight_map) - set(tensors))
    if missing:
        raise IntegrityError(
            f"{source.directory}: {INDEX} promises {missing[0]}, but no shard holds it"
        )
    return tensors


def _read_file(source: Source, name: str) -> dict[str, Tensor]:
    try:
        return load_file(source.path(name))
    except (SafetensorError, json.JSONDecodeError, UnicodeDecodeError) as error:
        raise IntegrityError(
            f"{source.directory}/{name}: not a safetensors file: {error}"
        ) from None


def _present_name(name: str) -> str:
    """Undo what older checkpoints do: gamma and beta, and an encoder without its `bert.`."""
    name = re.sub(r"LayerNorm\.gamma$", "LayerNorm.weight", name)
    name = re.sub(r"LayerNorm\.beta$", "LayerNorm.bias", name)
    inside_bert = name.startswith(("embeddings.", "encoder.", "pooler."))
    return f"bert.{name}" if inside_bert else name


def _float32(tensor: Tensor) -> Tensor:
    return tensor.to(torch.float32) if tensor.is_floating_point() else tensor


def _nothing_to_read(source: Source) -> str:
    executable = [name for name in source.names if name.endswith(EXECUTABLE)]
    if executable:
        return (
            f"{source.directory}/{executable[0]}: a format that can execute code is not read; "
            f"expected {SINGLE}: convert it where you trust it, with safetensors"
        )
    return f"{source.directory}: no {SINGLE} and no {INDEX}; expected Hugging Face's layout"


def check_tied(tensors: Mapping[str, Tensor], *, source: str) -> None:
    """A decoder of its own is not BERT's: it must equal the word embeddings and the bias."""
    pairs = {
        "cls.predictions.decoder.weight": "bert.embeddings.word_embeddings.weight",
        "cls.predictions.decoder.bias": "cls.predictions.bias",
    }
    for repeated, original in pairs.items():
        if (
            repeated in tensors
            and original in tensors
            and not torch.equal(tensors[repeated], tensors[original])
        ):
            raise UsageError(
                f"{source}: {repeated} differs from {original}; only models whose output layer is "
                "tied to the word embeddings can be read"
            )
