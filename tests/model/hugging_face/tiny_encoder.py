"""Tiny encoders for tests of import and export."""

import torch

from cloze.artifacts.tokenizer import SPECIAL_TOKENS, WordPieceTokenizer
from cloze.model.encoder.models import Encoder, PretrainingModel
from cloze.model.hugging_face.model_files import EncoderFiles
from tests.model.shapes import small_shape

WORDS = ("the", "a", "new", "array", "of", "given", "shape", "returns", "list", "[", "]", "mask")
TOKENIZER = WordPieceTokenizer((*SPECIAL_TOKENS, *WORDS, "##s"), lowercase=True)
CONFIG = small_shape(layers=2, width=32, heads=4, positions=32)


def encoder_files(*, seed: int = 0, activation: str = "gelu_tanh") -> EncoderFiles:
    """A randomly initialised encoder with non-zero biases."""
    torch.manual_seed(seed)
    config = CONFIG.model_copy(update={"hidden_act": activation})
    model = PretrainingModel(Encoder(config, TOKENIZER.size))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.05)
    return EncoderFiles(config, TOKENIZER, dict(model.state_dict()))
