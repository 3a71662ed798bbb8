"""A trained encoder in Hugging Face's layout.

In:  `EncoderFiles`, a directory.
Out: config.json, model.safetensors, tokenizer.json, tokenizer_config.json, vocab.txt, README.md.

The same encoder always gives the same bytes, so that what was exported, imported and exported again
can be compared by its digests.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from safetensors.torch import save

from artifacts.errors import UsageError
from artifacts.filesystem import write_bytes
from artifacts.tokenizer import CLS, MASK, PAD, SEP, UNK, WordPieceTokenizer
from model.inference.encoder_files import CARD, EncoderFiles
from model.inference.hugging_face_config import hugging_face_config
from model.inference.model_card import model_card


def export(files: EncoderFiles, directory: str | Path) -> list[Path]:
    """Write the encoder into `directory`, which must be empty or not exist; the paths written."""
    return write_folder(contents(files), directory)


def write_folder(contents: Mapping[str, bytes], directory: str | Path) -> list[Path]:
    """Write files into `directory`, which must be empty or not exist; the paths written."""
    target = Path(directory)
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise UsageError(f"{target}: exists already; name a new or empty directory")
    written = []
    for name, content in contents.items():
        path = target / name
        path.parent.mkdir(parents=True, exist_ok=True)
        write_bytes(str(path), content)
        written.append(path)
    return written


def contents(files: EncoderFiles) -> dict[str, bytes]:
    """Every file's bytes by its name."""
    tensors = {name: tensor.contiguous() for name, tensor in files.tensors.items()}
    return {
        "config.json": _json(exported_config(files)),
        "model.safetensors": save(tensors, metadata={"format": "pt"}),
        **tokenizer_files(files.tokenizer, positions=files.config.max_position_embeddings),
        CARD: (files.card or model_card(files)).encode(),
    }


def exported_config(files: EncoderFiles) -> dict[str, Any]:
    """`config.json` with the class that the weights are complete for."""
    config = hugging_face_config(files.config, files.tokenizer.size)
    architecture = "BertForPreTraining" if files.has_heads else "BertModel"
    return {**config, "architectures": [architecture], "pad_token_id": files.tokenizer.pad_id}


def tokenizer_files(tokenizer: WordPieceTokenizer, *, positions: int) -> dict[str, bytes]:
    """The tokenizer in every form that is asked for."""
    return {
        "tokenizer.json": tokenizer.tokenizer_json().encode(),
        "tokenizer_config.json": _json(_tokenizer_config(tokenizer, positions=positions)),
        "vocab.txt": tokenizer.vocab_txt().encode(),
    }


def _tokenizer_config(tokenizer: WordPieceTokenizer, *, positions: int) -> dict[str, Any]:
    """`tokenizer_config.json`, so that `AutoTokenizer` finds its class."""
    return {
        "tokenizer_class": "BertTokenizer",
        "do_lower_case": tokenizer.lowercase,
        "model_max_length": positions,
        "pad_token": PAD,
        "unk_token": UNK,
        "cls_token": CLS,
        "sep_token": SEP,
        "mask_token": MASK,
    }


def _json(value: dict[str, Any]) -> bytes:
    return (json.dumps(value, indent=1, sort_keys=True) + "\n").encode()
