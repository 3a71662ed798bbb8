"""Forecasts of parameters and memory, compared with the model and DeepSpeed."""

from typing import Any

import pytest

from cloze.flows.forecast import activation_bytes, state_bytes
from cloze.model.config import EncoderConfig

VOCABULARY = 30_522
MODERN = {"family": "modern"}
LSTM = {"layer_type": "lstm", "attention_direction": "left_to_right"}


@pytest.mark.parametrize(
    ("preset", "count"), [("tiny", 4_433_468), ("base", 110_106_428), ("large", 336_226_108)]
)
def test_parameters_are_those_of_the_published_models_with_their_heads(
    preset: str, count: int
) -> None:
    assert EncoderConfig(preset=preset).parameters(VOCABULARY) == count


@pytest.mark.parametrize("kind", [{}, LSTM, MODERN])
def test_parameters_are_those_of_the_real_model(kind: dict[str, Any]) -> None:
    from cloze.model.encoder.models import Encoder, PretrainingModel

    shape = EncoderConfig(preset="tiny", max_position_embeddings=64, **kind)
    model = PretrainingModel(Encoder(shape, 1000))
    assert sum(p.numel() for p in model.parameters()) == shape.parameters(1000)


@pytest.mark.slow  # imports DeepSpeed
@pytest.mark.parametrize("ranks", [1, 8])
def test_memory_of_zero_2_and_3_is_deepspeeds_own_estimate(ranks: int) -> None:
    from deepspeed.runtime.zero.stage3 import estimate_zero3_model_states_mem_needs
    from deepspeed.runtime.zero.stage_1_and_2 import estimate_zero2_model_states_mem_needs

    shape = EncoderConfig(preset="large")
    count = shape.parameters(VOCABULARY)
    *_, second, third = state_bytes(shape, VOCABULARY, ranks=ranks)
    options = {"num_gpus_per_node": ranks, "cpu_offload": False}
    assert second == estimate_zero2_model_states_mem_needs(count, **options)[1]
    largest = VOCABULARY * shape.hidden_size
    assert largest > shape.layer_parameters
    theirs = estimate_zero3_model_states_mem_needs(
        count, largest, **options, cpu_offload_params=False
    )
    assert third == theirs[1]


def test_each_zero_stage_needs_less_on_many_ranks_and_no_more_on_one() -> None:
    shape = EncoderConfig(preset="base")
    many = state_bytes(shape, VOCABULARY, ranks=64)
    assert sorted(many, reverse=True) == list(many)
    assert len(set(many)) == 4
    assert len(set(state_bytes(shape, VOCABULARY, ranks=1)[:3])) == 1


def test_activations_grow_with_the_micro_batch() -> None:
    shape = EncoderConfig(preset="base")
    small, large = (
        activation_bytes(shape, VOCABULARY, tokens=tokens, masked_share=0.15)
        for tokens in (1024, 65_536)
    )
    assert large == 64 * small
