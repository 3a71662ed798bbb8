"""Random batches and models, for our encoder and for Hugging Face's."""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor
from transformers import BertConfig, BertForPreTraining

from cloze.model.config import EncoderConfig
from cloze.model.data.batch import Example
from cloze.model.encoder.models import Encoder, PretrainingModel
from cloze.model.hugging_face.layout import hugging_face_config, to_hugging_face

VOCABULARY = 300
DROPPING = {"hidden_dropout_prob": 0.1, "attention_probs_dropout_prob": 0.1}
MIXED_LENGTHS = (128, 128, 128, 100, 37, 5, 60, 61, 127, 2, 128)


def small_config(**changes: object) -> EncoderConfig:
    """Two layers of width 64 with 4 heads, without dropout by default."""
    table = {
        "preset": None,
        "num_hidden_layers": 2,
        "hidden_size": 64,
        "num_attention_heads": 4,
        "intermediate_size": 256,
        "hidden_dropout_prob": 0.0,
        "attention_probs_dropout_prob": 0.0,
    }
    return EncoderConfig.model_validate({**table, **changes})


def random_model(config: EncoderConfig, *, seed: int = 0) -> PretrainingModel:
    """A model with random biases and layer norms too, so that swapped ones are detected."""
    torch.manual_seed(seed)
    model = PretrainingModel(Encoder(config, VOCABULARY))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.05)
    return model


def hugging_face_twin(model: PretrainingModel) -> BertForPreTraining:
    """Hugging Face's model with the same weights."""
    table = hugging_face_config(model.encoder.config, VOCABULARY)
    twin = BertForPreTraining(BertConfig(**table))
    missing = twin.load_state_dict(to_hugging_face(model.state_dict()), strict=False)
    assert missing.unexpected_keys == []
    twin.tie_weights()
    return twin


def random_examples(lengths: Sequence[int], *, seed: int = 0) -> list[Example]:
    """Sequences of the given lengths with masks and next-sentence labels."""
    rng = np.random.default_rng(seed)
    return [
        Example(
            input_ids=rng.integers(5, VOCABULARY, length).tolist(),
            segment_a_length=int(rng.integers(1, length + 1)),
            masked_lm_positions=sorted(
                rng.choice(length, max(1, length * 15 // 100), replace=False).tolist()
            ),
            masked_lm_ids=rng.integers(0, VOCABULARY, max(1, length * 15 // 100)).tolist(),
            next_sentence_label=int(rng.integers(0, 2)),
        )
        for length in lengths
    ]


def padded_inputs(examples: Sequence[Example]) -> dict[str, Tensor]:
    """The same examples in Hugging Face's format: [B, S] with padding, labels -100 elsewhere."""
    longest = max(len(example.input_ids) for example in examples)
    shape = (len(examples), longest)
    inputs = {
        name: torch.zeros(shape, dtype=torch.long)
        for name in ("input_ids", "token_type_ids", "attention_mask")
    }
    labels = torch.full(shape, -100)
    for row, example in enumerate(examples):
        length = len(example.input_ids)
        inputs["input_ids"][row, :length] = torch.tensor(example.input_ids)
        inputs["token_type_ids"][row, example.segment_a_length : length] = 1
        inputs["attention_mask"][row, :length] = 1
        labels[row, list(example.masked_lm_positions)] = torch.tensor(example.masked_lm_ids)
    following = torch.tensor([example.next_sentence_label for example in examples])
    return {**inputs, "labels": labels, "next_sentence_label": following}
