"""Properties of the encoder beyond equal numbers: dropout, directions, dtypes, errors."""

import weakref
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

import pytest
import torch

from cloze.artifacts.errors import UsageError
from cloze.model.data.batch import Example, pack_sequences, padded
from cloze.model.encoder.models import Encoder, PretrainingModel
from cloze.model.encoder.operations.attention import backend_name
from cloze.model.encoder.operations.dropout import Noise, dropout, dropout_draws
from tests.model.encoder.encoder_builders import (
    DROPPING,
    MIXED_LENGTHS,
    VOCABULARY,
    random_examples,
    random_model,
    small_config,
)


def test_weights_are_drawn_from_a_normal_cut_at_two_sigma() -> None:
    torch.manual_seed(0)
    words = Encoder(small_config(), 3000).embeddings.word_embeddings.weight
    assert words.abs().max() <= 0.04
    assert words.std().item() == pytest.approx(0.0176, abs=2e-4)


def test_biases_begin_at_zero_and_layer_norms_at_one() -> None:
    model = PretrainingModel(Encoder(small_config(), VOCABULARY))
    for name, parameter in model.named_parameters():
        if name.endswith("bias"):
            assert not parameter.any(), name
        elif "layer_norm" in name:
            assert (parameter == 1).all(), name


def test_the_same_dropout_seed_gives_the_same_loss_and_another_another() -> None:
    model = random_model(small_config(**DROPPING))
    batch = pack_sequences(random_examples(MIXED_LENGTHS))
    losses = [model(batch, seed).masked_lm_loss.item() for seed in (7, 7, 8)]
    assert losses[0] == losses[1] != losses[2]


def test_without_a_seed_dropout_follows_torchs_generator() -> None:
    model = random_model(small_config(**DROPPING))
    batch = pack_sequences(random_examples((20, 30)))
    torch.manual_seed(3)
    first, second = model(batch).masked_lm_loss.item(), model(batch).masked_lm_loss.item()
    torch.manual_seed(3)
    assert model(batch).masked_lm_loss.item() == first != second


@torch.inference_mode()
def test_without_gradients_a_layer_finds_its_input_alone_in_memory() -> None:
    encoder = Encoder(small_config(num_hidden_layers=4), VOCABULARY).eval()
    outputs: list[weakref.ref[torch.Tensor]] = []
    held: list[int] = []

    def count(_module: object, _inputs: object, output: torch.Tensor) -> None:
        outputs.append(weakref.ref(output))
        held.append(sum(one() is not None for one in outputs))

    for layer in encoder.layers:
        layer.register_forward_hook(count)
    batch = pack_sequences(random_examples((32, 32)))
    last = encoder(batch)
    assert held == [1, 2, 2, 2]  # a layer's output, and the one that it was computed from
    assert torch.equal(encoder.hidden_states(batch)[-1], last)
    assert held[4:] == [2, 3, 4, 5]  # all of this call, and `last`


@pytest.mark.parametrize("family", ["bert", "modern"])
def test_layers_continued_from_the_middle_end_where_all_of_them_end(
    family: Literal["bert", "modern"],
) -> None:
    encoder = Encoder(small_config(family=family, num_hidden_layers=4), VOCABULARY).eval()
    batch = pack_sequences(random_examples((32, 7)))
    middle = encoder.state_after(batch, 2)
    assert torch.equal(middle, encoder.hidden_states(batch)[2])
    assert torch.equal(encoder.continued(middle, batch, 2), encoder(batch))


def test_dropout_is_off_in_evaluation() -> None:
    model = random_model(small_config(**DROPPING)).eval()
    batch = pack_sequences(random_examples((20, 30)))
    assert model(batch, 1).masked_lm_loss == model(batch, 2).masked_lm_loss


def _mask(*address: int) -> torch.Tensor:
    draws = dropout_draws(Noise(address), 1_000_000, probability=0.1)
    assert draws is not None
    return draws.mask()


@dataclass(frozen=True)
class RecordedNoise(Noise):
    """Noise that records every address from which bits are drawn."""

    drawn: list[tuple[int, ...]] = field(default_factory=list)

    def at(self, *place: int) -> Noise:
        return RecordedNoise((*self.address, *place), self.drawn)

    @property
    def stream(self) -> int:
        self.drawn.append(self.address)
        return super().stream


@pytest.mark.parametrize("fused", [True, False])
def test_every_dropout_of_every_layer_draws_from_a_stream_of_its_own(fused: bool) -> None:
    torch.manual_seed(0)
    config = small_config(**DROPPING)
    encoder = Encoder(config, VOCABULARY, fp8=not fused)
    noise = RecordedNoise((7,))
    encoder(pack_sequences(random_examples(MIXED_LENGTHS)), noise)
    # The embeddings' dropout; of each layer the probabilities', and those of both outputs.
    assert len(noise.drawn) == 1 + 3 * config.num_hidden_layers
    assert len(set(noise.drawn)) == len(noise.drawn)
    assert len({Noise(address).stream for address in noise.drawn}) == len(noise.drawn)


def test_masks_drop_one_value_in_ten_and_places_are_independent() -> None:
    mask, other = _mask(1, 2), _mask(1, 3)
    assert set(mask.unique().tolist()) == {-1, 0}
    assert (mask == 0).double().mean().item() == pytest.approx(0.1, abs=1e-3)
    assert torch.equal(mask, _mask(1, 2))
    both = ((mask == 0) & (other == 0)).double().mean().item()
    assert both == pytest.approx(0.01, abs=5e-4)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_dropout_keeps_the_mean_and_its_gradient_is_its_mask(dtype: torch.dtype) -> None:
    values = torch.ones(200, 500, dtype=dtype, requires_grad=True)
    dropped = dropout(values, 0.25, Noise((5,)))
    dropped.sum().backward()
    assert dropped.double().mean().item() == pytest.approx(1.0, abs=0.02)
    assert torch.equal(values.grad, dropped.detach())


def test_gradients_under_dropout_are_those_of_the_function_itself() -> None:
    """Finite differences: the hand-written backward passes use the masks of the forward passes."""
    sizes = {"num_hidden_layers": 1, "hidden_size": 16, "intermediate_size": 32}
    model = random_model(small_config(**sizes, **DROPPING)).double()
    batch = pack_sequences(random_examples((6, 4, 6)))

    def loss() -> torch.Tensor:
        sums = model(batch, 11)
        return sums.masked_lm_loss + sums.next_sentence_loss

    loss().backward()
    torch.manual_seed(0)
    for name, parameter in model.named_parameters():
        direction = torch.randn_like(parameter)
        step = 1e-5 * direction / direction.norm()
        with torch.no_grad():
            difference = (_at(parameter, step, loss) - _at(parameter, -step, loss)) / 2e-5
        expected = (parameter.grad * step).sum() / 1e-5
        assert difference.item() == pytest.approx(expected.item(), rel=1e-4, abs=1e-6), name


def _at(
    parameter: torch.Tensor, step: torch.Tensor, loss: Callable[[], torch.Tensor]
) -> torch.Tensor:
    original = parameter.clone()
    parameter.add_(step)
    value = loss()
    parameter.copy_(original)
    return value


@pytest.mark.parametrize("direction", ["left_to_right", "right_to_left", "bidirectional"])
def test_a_token_sees_only_its_side(direction: str) -> None:
    encoder = random_model(small_config(attention_direction=direction)).eval().encoder
    examples = random_examples((12, 7, 12))
    before = encoder(pack_sequences(examples)).split([12, 7, 12])[1]
    ids = list(examples[1].input_ids)
    ids[3] = (ids[3] + 1) % VOCABULARY
    examples[1] = Example(ids, examples[1].segment_a_length)
    after = encoder(pack_sequences(examples)).split([12, 7, 12])[1]
    changed = ((before - after).abs().amax(-1) > 1e-6).tolist()
    assert (
        changed
        == {
            "left_to_right": [False] * 3 + [True] * 4,
            "right_to_left": [True] * 4 + [False] * 3,
            "bidirectional": [True] * 7,
        }[direction]
    )


def test_no_token_sees_another_sequence() -> None:
    encoder = random_model(small_config()).eval().encoder
    examples = random_examples(MIXED_LENGTHS)
    together = encoder(pack_sequences(examples)).split(list(MIXED_LENGTHS))
    for example, part in zip(examples, together, strict=True):
        torch.testing.assert_close(encoder(pack_sequences([example])), part, rtol=0, atol=2e-5)


def test_recomputed_activations_give_the_same_gradients_bit_for_bit() -> None:
    batch = pack_sequences(random_examples(MIXED_LENGTHS))
    gradients = []
    for again in (False, True):
        model = random_model(small_config(**DROPPING))
        model.encoder.checkpoint_activations = again
        model(batch, 5).masked_lm_loss.backward()
        gradients.append([p.grad for p in model.encoder.parameters() if p.grad is not None])
    for plain, recomputed in zip(*gradients, strict=True):
        assert torch.equal(plain, recomputed)


def test_bfloat16_stays_near_float32() -> None:
    model = random_model(small_config(**DROPPING))
    batch = pack_sequences(random_examples(MIXED_LENGTHS))
    expected = model(batch, 3).masked_lm_loss.item()
    assert model.bfloat16()(batch, 3).masked_lm_loss.item() == pytest.approx(expected, rel=3e-3)


def test_bfloat16_gradients_point_where_float32_ones_do() -> None:
    batch = pack_sequences(random_examples(MIXED_LENGTHS))
    gradients = []
    for dtype in (torch.float32, torch.bfloat16):
        model = random_model(small_config(**DROPPING)).to(dtype)
        model(batch, 3).masked_lm_loss.backward()
        gradients.append({n: p.grad for n, p in model.named_parameters() if p.grad is not None})
    for name, exact in gradients[0].items():
        if exact.norm() > 1e-6 and "key_bias" not in name:  # softmax cancels the key bias
            rounded = gradients[1][name].float()
            cosine = torch.cosine_similarity(exact.flatten(), rounded.flatten(), dim=0)
            assert cosine > 0.99, name


def test_a_batch_without_masks_or_labels_has_zero_losses_and_gradients() -> None:
    model = random_model(small_config())
    sums = model(pack_sequences([Example([2, 7, 3]), Example([2, 3])]))
    (sums.masked_lm_loss + sums.next_sentence_loss).backward()
    assert [value.item() for value in sums] == [0.0, 0.0, 0, 0]
    assert all(p.grad is not None and not p.grad.any() for p in model.parameters())


def test_padding_is_only_a_way_of_showing() -> None:
    batch = pack_sequences([Example([2, 7, 3]), Example([2, 3])])
    assert padded(batch.input_ids, batch).tolist() == [[2, 7, 3], [2, 3, 0]]


def test_a_sequence_beyond_the_position_table_is_refused() -> None:
    encoder = Encoder(small_config(max_position_embeddings=16), VOCABULARY)
    with pytest.raises(UsageError, match="17 tokens.*16 positions"):
        encoder(pack_sequences([Example([1] * 17)]))


@pytest.mark.parametrize("wanted", ["flash", "varlen", "xformers"])
def test_an_attention_that_is_not_there_is_an_error(wanted: str) -> None:
    with pytest.raises(UsageError, match=wanted):
        backend_name(wanted, device=torch.device("cpu"), dtype=torch.bfloat16)


def test_the_attention_in_use_is_named() -> None:
    assert Encoder(small_config(), VOCABULARY).attention_backend == "grouped"
