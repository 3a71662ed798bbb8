"""A tiny encoder in Hugging Face's layout."""

import json
from pathlib import Path

import torch
from safetensors.torch import save_file

from cloze.artifacts.tokenizer import SPECIAL_TOKENS, WordPieceTokenizer
from cloze.model.config import EncoderConfig
from cloze.model.encoder.models import Encoder, PretrainingModel, TaskModel
from cloze.model.hugging_face.layout import hugging_face_config, to_hugging_face
from tests.model.shapes import small_shape

TOKENIZER = WordPieceTokenizer(
    (*SPECIAL_TOKENS, "the", "list", "of", "names", "a", "b"), lowercase=True
)
CONFIG = small_shape(layers=2, width=8, heads=2, positions=16)
MODERN = small_shape(layers=2, width=8, heads=2, positions=16, family="modern")


def write_model(
    directory: Path,
    *,
    seed: int = 0,
    encoder: EncoderConfig = CONFIG,
    tokenizer: WordPieceTokenizer = TOKENIZER,
) -> None:
    """A randomly initialised encoder with its heads."""
    directory.mkdir()
    torch.manual_seed(seed)
    weights = PretrainingModel(Encoder(encoder, tokenizer.size)).state_dict()
    save_file(to_hugging_face(weights, encoder.family), directory / "model.safetensors")
    config = hugging_face_config(encoder, tokenizer.size)
    (directory / "config.json").write_text(json.dumps(config))
    (directory / "vocab.txt").write_text(tokenizer.vocab_txt())
    if tokenizer.strip_accents is not None:
        (directory / "tokenizer.json").write_text(tokenizer.tokenizer_json())


def write_cross_encoder(
    directory: Path, *, outputs: int = 1, encoder: EncoderConfig = CONFIG
) -> None:
    """A randomly initialised classifier of pairs, as sentence-transformers saves a CrossEncoder."""
    write_model(directory, encoder=encoder)
    torch.manual_seed(1)
    model = TaskModel(Encoder(encoder, TOKENIZER.size), outputs=outputs)
    torch.nn.init.normal_(model.head.weight)
    for parameter in model.encoder.parameters():  # scores that differ visibly
        parameter.data *= 3
    weights = model.state_dict()
    head = {f"classifier.{part}": weights.pop(f"head.{part}") for part in ("weight", "bias")}
    save_file({**to_hugging_face(weights, encoder.family), **head}, directory / "model.safetensors")
