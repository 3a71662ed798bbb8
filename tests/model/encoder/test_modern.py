"""The modern family against `ModernBertForMaskedLM`; local attention against masked products."""

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor
from transformers import ModernBertConfig, ModernBertForMaskedLM

from cloze.artifacts.errors import UsageError
from cloze.model.config import MODERN_PRESETS, SIZE_NAMES, EncoderConfig
from cloze.model.data.batch import Example, pack_sequences
from cloze.model.encoder.models import Encoder, PretrainingModel
from cloze.model.encoder.operations.attention import BlockAttention, LongAttention, is_long
from cloze.model.encoder.operations.native_kernels import choose_kernels
from cloze.model.hugging_face.layout import (
    from_hugging_face,
    hugging_face_config,
    to_hugging_face,
)
from tests.model.encoder.encoder_builders import (
    VOCABULARY,
    padded_inputs,
    random_examples,
    random_model,
)

TOLERANCE = 1e-5
SIZES = ((1, 6, 3, 10), (3, 24, 2, 17), (4, 20, 1, 33), (7, 48, 4, 30))
"""Layers, hidden size, heads, intermediate size."""


@pytest.fixture(autouse=True)
def kernels_as_found() -> Iterator[None]:
    yield
    choose_kernels("auto")


def modern_config(sizes: tuple[int, ...] = SIZES[1], **changes: object) -> EncoderConfig:
    table = {"family": "modern", "preset": None, "hidden_dropout_prob": 0.0}
    shape = {**dict(zip(SIZE_NAMES, sizes, strict=True)), "max_position_embeddings": 2048}
    bases = {"global_rope_theta": 160_000.0, "local_attention": 32}
    return EncoderConfig.model_validate({**table, **shape, **bases, **changes})


def transformers_twin(model: PretrainingModel) -> ModernBertForMaskedLM:
    config = ModernBertConfig(**hugging_face_config(model.encoder.config, VOCABULARY))
    twin = ModernBertForMaskedLM(config)
    loaded = twin.load_state_dict(to_hugging_face(model.state_dict(), "modern"), strict=False)
    assert (loaded.missing_keys, loaded.unexpected_keys) == (["decoder.weight"], [])
    twin.tie_weights()
    return twin.eval()


def worst(found: Tensor, expected: Tensor) -> float:
    """The largest difference, relative to the largest value."""
    return float(((found - expected).abs().max() / expected.abs().max()).detach())


@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_logits_of_every_length_equal_transformers(sizes: tuple[int, ...]) -> None:
    model = random_model(modern_config(sizes))
    theirs = transformers_twin(model)
    examples = random_examples((1, 17, 130, 2048))
    batch = pack_sequences(examples)
    with torch.inference_mode():
        hidden_TH = model.eval().encoder(batch)
        logits = model.masked_lm_logits(hidden_TH, torch.arange(batch.tokens))
        for part, example in zip(logits.split(batch.lengths.tolist()), examples, strict=True):
            expected = theirs(torch.tensor([example.input_ids])).logits[0]
            assert worst(part, expected) < TOLERANCE, len(example.input_ids)


@pytest.mark.parametrize("activation", ["gelu", "gelu_tanh"])
def test_packed_loss_and_all_gradients_equal_transformers_on_padded_input(activation: str) -> None:
    model = random_model(modern_config(SIZES[3], hidden_act=activation))
    theirs = transformers_twin(model)
    examples = random_examples((130, 1, 64, 90, 5))
    inputs = padded_inputs(examples)
    loss = model(pack_sequences(examples)).masked_lm_loss / sum(
        len(e.masked_lm_ids) for e in examples
    )
    loss.backward()
    output = theirs(**{name: inputs[name] for name in ("input_ids", "attention_mask", "labels")})
    output.loss.backward()

    assert loss.item() == pytest.approx(output.loss.item(), rel=TOLERANCE)
    found = to_hugging_face({name: p.grad for name, p in model.named_parameters()}, "modern")
    expected = {name: p.grad for name, p in theirs.named_parameters()}
    assert found.keys() == expected.keys()
    for name, gradient in expected.items():
        assert worst(found[name], gradient) < 10 * TOLERANCE, name


@pytest.mark.parametrize("precision", [torch.float32, torch.bfloat16])
def test_every_hidden_state_of_a_packed_sequence_is_that_of_it_alone(
    precision: torch.dtype,
) -> None:
    encoder = random_model(modern_config()).encoder.to(precision).eval()
    examples = random_examples((40, 3, 129, 200))
    tolerance = TOLERANCE if precision == torch.float32 else 0.02
    with torch.inference_mode():
        together = encoder.hidden_states(pack_sequences(examples))
        alone = [encoder.hidden_states(pack_sequences([example])) for example in examples]
    assert len(together) == encoder.config.num_hidden_layers + 1
    for layer, states in enumerate(together):
        expected = torch.cat([one[layer] for one in alone])
        assert worst(states.float(), expected.float()) < tolerance


def masked_product(parts_T3AK: Tensor, lengths: list[int], reach: int) -> Tensor:
    """Local attention by definition: all scores, most of them masked."""
    query, key, value = parts_T3AK.transpose(0, 2).unbind(1)
    place = torch.arange(len(parts_T3AK))
    sequence = torch.repeat_interleave(torch.arange(len(lengths)), torch.tensor(lengths))
    visible = (place - place[:, None]).abs() <= reach
    visible &= sequence == sequence[:, None]
    scores = (query @ key.mT) / query.shape[-1] ** 0.5
    return (scores.masked_fill(~visible, -torch.inf).softmax(-1) @ value).transpose(0, 1)


@pytest.mark.parametrize("window", [2, 32, 128, 600])
@pytest.mark.parametrize("lengths", [[1], [128], [300, 1, 77, 128, 129]], ids=str)
def test_blocks_equal_a_masked_product_forward_and_backward(
    window: int, lengths: list[int]
) -> None:
    config = modern_config()
    batch = pack_sequences([Example([7] * length) for length in lengths])
    torch.manual_seed(0)
    parts = torch.randn(batch.tokens, 3, 2, 12, requires_grad=True)
    upstream = torch.randn(batch.tokens, 2, 12)
    choose_kernels("torch")
    found = BlockAttention(batch, config, reach=window // 2)(parts, None)
    expected = masked_product(parts, lengths, window // 2)
    assert worst(found, expected) < 1e-6
    (gradient,) = torch.autograd.grad(found, parts, upstream)
    (expected_gradient,) = torch.autograd.grad(expected, parts, upstream)
    assert worst(gradient, expected_gradient) < 2e-6


def test_long_sequences_equal_a_masked_product_forward_and_backward() -> None:
    lengths = [300, 1, 77]
    batch = pack_sequences([Example([7] * length) for length in lengths])
    torch.manual_seed(0)
    parts = torch.randn(batch.tokens, 3, 2, 12, requires_grad=True)
    upstream = torch.randn(batch.tokens, 2, 12)
    choose_kernels("torch")
    found = LongAttention(batch, modern_config())(parts, None)
    expected = masked_product(parts, lengths, 2048)
    assert worst(found, expected) < 1e-6
    (gradient,) = torch.autograd.grad(found, parts, upstream)
    (expected_gradient,) = torch.autograd.grad(expected, parts, upstream)
    assert worst(gradient, expected_gradient) < 2e-6


def test_long_sequences_are_told_from_many_short_ones() -> None:
    assert is_long(pack_sequences([Example([7] * length) for length in (1024, 9, 300)]))
    assert not is_long(pack_sequences([Example([7] * 1023)]))
    assert not is_long(pack_sequences([Example([7] * length) for length in (1024, *[800] * 3)]))


def test_gradients_of_blocks_are_those_of_finite_differences() -> None:
    batch = pack_sequences([Example([7] * length) for length in (5, 1, 4)])
    attend = BlockAttention(batch, modern_config(), reach=2)
    torch.manual_seed(0)
    parts = torch.randn(batch.tokens, 3, 1, 2, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda given: attend(given, None), (parts,))


def test_activations_computed_again_give_the_same_gradients_with_dropout() -> None:
    gradients = []
    for again in (False, True):
        torch.manual_seed(0)
        config = modern_config(hidden_dropout_prob=0.1)
        model = PretrainingModel(Encoder(config, VOCABULARY, checkpoint_activations=again))
        model(pack_sequences(random_examples((70, 9))), 5).masked_lm_loss.backward()
        gradients.append([parameter.grad for parameter in model.parameters()])
    assert all(torch.equal(*pair) for pair in zip(*gradients, strict=True))


@pytest.mark.parametrize(
    "rung", [{}, {"positions": "learned", "gated": False}, {"gated": False}], ids=str
)
def test_a_modern_encoder_and_the_rungs_before_it_learn_a_batch_by_heart(
    rung: dict[str, object],
) -> None:
    torch.manual_seed(0)
    model = PretrainingModel(Encoder(modern_config(**rung), VOCABULARY))
    again = from_hugging_face(
        to_hugging_face(model.state_dict(), "modern"), model.state_dict(), "modern"
    )
    assert all(torch.equal(again[name], value) for name, value in model.state_dict().items())
    is_theirs = hugging_face_config(model.encoder.config, VOCABULARY)["model_type"] == "modernbert"
    assert is_theirs == (not rung), "transformers must refuse what it does not compute"
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-2)
    batch, curve = pack_sequences(random_examples((20, 10))), []
    for _ in range(20):
        optimizer.zero_grad()
        loss = model(batch).masked_lm_loss
        loss.backward()
        optimizer.step()
        curve.append(loss.item())
    assert curve[-1] < 0.5 * curve[0]


@pytest.mark.parametrize(
    ("preset", "millions"),
    [("17M", 16.9), ("32M", 32.1), ("68M", 68.4), ("base", 150), ("large", 396)],
)
def test_presets_have_the_published_parameter_counts(preset: str, millions: float) -> None:
    with torch.device("meta"):
        config = EncoderConfig.model_validate({"family": "modern", "preset": preset})
        model = PretrainingModel(Encoder(config, 50_368))
    counted = sum(parameter.numel() for parameter in model.parameters()) / 1e6
    assert counted == pytest.approx(millions, rel=0.01)


def test_what_is_added_to_the_residual_stream_is_drawn_smaller_in_deep_encoders() -> None:
    torch.manual_seed(0)
    encoder = Encoder(EncoderConfig.model_validate({"family": "modern", "preset": "tiny"}), 999)
    drawn = dict(encoder.layers[1].named_parameters())
    inwards, outwards = drawn["feed_forward.input_weight"], drawn["feed_forward.output_weight"]
    layers = MODERN_PRESETS["tiny"][0]
    assert (inwards.std() / outwards.std()).item() == pytest.approx((2 * layers) ** 0.5, rel=0.05)


def test_a_longer_sequence_than_the_encoder_is_meant_for_is_refused() -> None:
    encoder = Encoder(modern_config(max_position_embeddings=8), VOCABULARY)
    with pytest.raises(UsageError, match="a sequence of 9 tokens, but the encoder has 8 positions"):
        encoder(pack_sequences([Example([7] * 9)]))
