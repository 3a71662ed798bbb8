"""FP8 products: rounding, gradients, and their effect on a loss."""

import pytest
import torch
from torch import Tensor

from cloze.model.data.batch import pack_sequences
from cloze.model.encoder.models import Encoder, PretrainingModel
from cloze.model.encoder.operations.products import Scaled, fp8_affine, scaled
from tests.model.encoder.encoder_builders import (
    MIXED_LENGTHS,
    VOCABULARY,
    random_examples,
    random_model,
    small_config,
)

E4M3, E5M2 = torch.float8_e4m3fn, torch.float8_e5m2


def rounded(tensor: Tensor, dtype: torch.dtype) -> Tensor:
    found = scaled(tensor, dtype)
    return found.values.float() * found.scale


@pytest.mark.parametrize(("dtype", "error"), [(E4M3, 2**-4), (E5M2, 2**-3)])
def test_the_largest_value_is_kept_and_others_to_a_half_step(
    dtype: torch.dtype, error: float
) -> None:
    torch.manual_seed(0)
    tensor = torch.randn(50, 30, dtype=torch.bfloat16)
    found = scaled(tensor, dtype)
    assert found.values.dtype == dtype
    assert found.values.float().abs().max() == torch.finfo(dtype).max
    large = tensor.float().abs() > 0.1
    relative = (rounded(tensor, dtype) - tensor.float()).abs() / tensor.float().abs()
    assert relative[large].max() <= error * 1.001


def test_zeros_stay_zeros_and_what_is_not_finite_stays_so() -> None:
    assert rounded(torch.zeros(2, 2), E4M3).equal(torch.zeros(2, 2))
    for value in (torch.nan, torch.inf):
        assert not rounded(torch.tensor([1.0, value]), E5M2).isfinite().all()


@pytest.mark.parametrize("tokens", [48, 37])
@pytest.mark.parametrize("input_first", [False, True])
def test_a_product_and_its_gradients_are_those_of_the_rounded_tensors(
    tokens: int, input_first: bool
) -> None:
    torch.manual_seed(0)
    x = torch.randn(tokens, 32, dtype=torch.bfloat16, requires_grad=True)
    weight = torch.randn(32, 64, dtype=torch.bfloat16) if input_first else torch.randn(64, 32)
    weight = weight.bfloat16().requires_grad_()
    bias = torch.randn(64, dtype=torch.bfloat16, requires_grad=True)
    upstream = torch.randn(tokens, 64, dtype=torch.bfloat16)
    output = fp8_affine(x, weight, bias, input_first=input_first)
    output.backward(upstream)
    weight_OI = weight.mT if input_first else weight
    x8, weight8, up8 = rounded(x, E4M3), rounded(weight_OI, E4M3), rounded(upstream, E5M2)
    dweight = x8.mT @ up8 if input_first else up8.mT @ x8
    for found, expected in (
        (output, x8 @ weight8.mT + bias.float()),
        (x.grad, up8 @ weight8),
        (weight.grad, dweight),
        (bias.grad, upstream.float().sum(0)),
    ):
        assert found.dtype == torch.bfloat16
        torch.testing.assert_close(found.float(), expected, rtol=8e-3, atol=2e-2)


def test_an_encoder_in_fp8_has_nearly_the_gradient_of_one_in_bf16() -> None:
    config = small_config()
    model = random_model(config).bfloat16()
    in_fp8 = PretrainingModel(Encoder(config, VOCABULARY, fp8=True)).bfloat16()
    in_fp8.load_state_dict(model.state_dict())
    batch = pack_sequences(random_examples(MIXED_LENGTHS))
    losses, gradients = [], []
    for each in (model, in_fp8):
        sums = each(batch)
        loss = sums.masked_lm_loss / len(batch.masked_lm_ids) + sums.next_sentence_loss * 0.0
        loss.backward()
        losses.append(float(loss.detach()))
        gradients.append(torch.cat([p.grad.flatten().float() for p in each.parameters()]))
    assert losses[1] == pytest.approx(losses[0], abs=0.02)
    assert losses[1] != losses[0]
    assert torch.cosine_similarity(*gradients, dim=0) > 0.98


def test_what_is_kept_for_the_way_back_is_fp8() -> None:
    kept: list[Tensor] = []
    x = torch.randn(16, 32, dtype=torch.bfloat16, requires_grad=True)
    weight = torch.randn(64, 32, dtype=torch.bfloat16)
    with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(t) or t, lambda t: t):
        fp8_affine(x, weight, torch.zeros(64, dtype=torch.bfloat16))
    assert [t.dtype for t in kept if t.dim()] == [E4M3, E4M3]
    assert isinstance(scaled(x, E4M3), Scaled)


def test_layers_in_fp8_can_be_checkpointed() -> None:
    gradients = []
    for checkpointed in (False, True):
        torch.manual_seed(0)
        model = PretrainingModel(
            Encoder(small_config(), VOCABULARY, fp8=True, checkpoint_activations=checkpointed)
        ).bfloat16()
        model(pack_sequences(random_examples(MIXED_LENGTHS)), 1).loss(10, 5).backward()
        gradients.append([parameter.grad for parameter in model.encoder.parameters()])
    for kept, recomputed in zip(*gradients, strict=True):
        assert torch.equal(kept, recomputed)
