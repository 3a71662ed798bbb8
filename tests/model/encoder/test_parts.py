"""Grouping, products, embedding gradients: optimisations that must not change any number."""

from collections.abc import Iterator

import numpy as np
import pytest
import torch

from cloze.model.encoder.embeddings import embedding_sum
from cloze.model.encoder.losses import hits, masked_lm_loss
from cloze.model.encoder.operations.grouped_attention import cuts, group_sequences
from cloze.model.encoder.operations.native_kernels import choose_kernels
from cloze.model.encoder.operations.products import transposed, weight_gradient


@pytest.fixture(autouse=True)
def plain_torch() -> Iterator[None]:
    choose_kernels("torch")
    yield
    choose_kernels("auto")


@pytest.mark.parametrize("shape", [(3307, 256), (32, 48), (31, 64), (1, 8), (100, 7)])
def test_a_transposed_copy_is_the_transpose(shape: tuple[int, int]) -> None:
    values = torch.randn(shape).bfloat16()
    assert torch.equal(transposed(values), values.mT)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("outputs", [5, 24])
@pytest.mark.parametrize("input_first", [True, False])
def test_weight_gradients_come_in_the_weights_own_orientation(
    input_first: bool, outputs: int, dtype: torch.dtype
) -> None:
    x, dy = torch.randn(70, 8).to(dtype), torch.randn(70, outputs).to(dtype)
    weight = weight_gradient(x, dy, input_first=input_first)
    torch.testing.assert_close(weight, x.mT @ dy if input_first else dy.mT @ x)


def test_every_token_has_one_row_and_padding_none() -> None:
    lengths = np.array([5, 40, 40, 17, 40, 3])
    grouping = group_sequences(lengths, heads=3)
    token_head_of_row, back, padding_rows = grouping.indices
    assert torch.equal(token_head_of_row[back], torch.arange(int(lengths.sum()) * 3))
    assert len(padding_rows) == grouping.rows - len(back)
    assert not set(padding_rows.tolist()) & set(back.tolist())


def test_equal_lengths_are_one_group_without_padding() -> None:
    (group,) = group_sequences(np.full(8, 128), heads=4).groups
    assert (group.sequences, group.length, group.is_padded) == (8, 128, False)


def test_a_group_beyond_a_rung_of_its_ladder_is_filled_up_with_empty_sequences() -> None:
    (group,) = group_sequences(np.full(9, 128), heads=4).groups
    assert (group.sequences, group.length, group.is_padded) == (10, 128, True)
    assert group.lengths.tolist() == [128] * 9 + [0]


def test_groups_are_cut_where_lengths_fall_far() -> None:
    many_long_many_short = np.array([512] * 20 + [40] * 50)
    assert cuts(many_long_many_short, heads=12) == [20]
    assert cuts(np.array([128, 127, 125, 120]), heads=4) == []


def test_a_tables_gradient_does_not_stop_growing_in_bfloat16() -> None:
    table = torch.zeros(2, 4, dtype=torch.bfloat16, requires_grad=True)
    embedding_sum((table, torch.zeros(3000, dtype=torch.long))).sum().backward()
    assert table.grad[0, 0].item() == pytest.approx(3000, rel=0.01)
    assert not table.grad[1].any()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_loss_and_its_gradients_are_those_of_cross_entropy(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    vectors, words, bias = (torch.randn(s).to(dtype) for s in ((50, 16), (90, 16), (90,)))
    labels = torch.randint(0, 90, (50,))
    ours = [t.clone().requires_grad_() for t in (vectors, words, bias)]
    theirs = [t.float().requires_grad_() for t in (vectors, words, bias)]
    loss, _ = masked_lm_loss(*ours, labels)
    (loss / 50).backward()
    logits = torch.nn.functional.linear(*theirs)
    expected = torch.nn.functional.cross_entropy(logits, labels)
    expected.backward()
    tolerance = 1e-5 if dtype == torch.float32 else 0.02
    assert loss.item() / 50 == pytest.approx(expected.item(), rel=tolerance)
    for mine, reference in zip(ours, theirs, strict=True):
        torch.testing.assert_close(
            mine.grad.float(), reference.grad, rtol=tolerance, atol=tolerance
        )


def test_the_factor_of_a_loss_is_not_rounded_to_bfloat16() -> None:
    torch.manual_seed(3)
    words, labels = torch.randn(50, 8).bfloat16(), torch.arange(40)
    vectors = torch.randn(40, 8).bfloat16().requires_grad_()
    factor = 1 / 1027  # 0.27 % from the next bfloat16
    gradients = []
    for scale in (1.0, factor):
        loss = masked_lm_loss(vectors, words, torch.zeros(50).bfloat16(), labels)[0]
        (gradient,) = torch.autograd.grad(loss * scale, vectors)
        gradients.append(gradient.float())
    whole, scaled = gradients
    share = (scaled * whole).sum() / (whole * whole).sum()
    assert share == pytest.approx(factor, rel=5e-4)


def test_of_equal_logits_the_first_counts() -> None:
    logits = torch.tensor([[1.0, 2.0, 2.0], [1.0, 2.0, 2.0], [3.0, 2.0, 1.0]])
    assert hits(logits, torch.tensor([1, 2, 0])) == 2
