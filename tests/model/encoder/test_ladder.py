"""Few shapes: padding changes no loss, no gradient and no vector."""

from collections.abc import Callable

import numpy as np
import pytest
import torch

from cloze.model.data.batch import (
    CPU_RUNGS,
    CPU_TOKEN_STEP,
    PackedBatch,
    Shape,
    gpu_bucket,
    ladder,
    pack_sequences,
)
from cloze.model.encoder.operations.attention import BACKENDS
from cloze.model.encoder.operations.grouped_attention import group_sequences
from cloze.model.encoder.operations.native_kernels import choose_kernels
from tests.model.encoder.encoder_builders import (
    MIXED_LENGTHS,
    random_examples,
    random_model,
    small_config,
)

DROPPING = {"hidden_dropout_prob": 0.1}


def gradients(model: torch.nn.Module, batch: PackedBatch) -> dict[str, torch.Tensor]:
    sums = model(batch, 5)
    (sums.masked_lm_loss + sums.next_sentence_loss).backward()
    found = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
    return {"losses": torch.stack([value.detach().double() for value in sums]), **found}


def unfilled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PackedBatch, "filled", lambda batch: batch)


@pytest.mark.parametrize("kernels", ["native", "torch"])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-6), (torch.bfloat16, 2.0**-7)])
def test_losses_and_gradients_are_the_same_with_and_without_fillers(
    dtype: torch.dtype, tolerance: float, kernels: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    choose_kernels("torch" if kernels == "torch" else "auto")
    batch = pack_sequences(random_examples((*MIXED_LENGTHS, 60, 128, 41)))
    filled = batch.filled()
    assert filled.tokens > batch.tokens
    assert len(filled.masked_lm_ids) > len(batch.masked_lm_ids)
    found = gradients(random_model(small_config(**DROPPING)).to(dtype), batch)
    unfilled(monkeypatch)
    expected = gradients(random_model(small_config(**DROPPING)).to(dtype), batch)
    choose_kernels("auto")
    for name, value in expected.items():
        distance = (found[name].double() - value.double()).norm()
        assert distance <= tolerance * max(1.0, value.double().norm().item()), name


def test_vectors_are_those_of_the_sequences_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    encoder = random_model(small_config()).eval().encoder
    batch = pack_sequences(random_examples((33, 40, 2)))
    states = encoder.hidden_states(batch)
    unfilled(monkeypatch)
    for found, expected in zip(states, encoder.hidden_states(batch), strict=True):
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-6)


def test_the_ladder_has_sixteen_rungs_an_octave_and_fills_three_percent_on_average() -> None:
    sizes = np.arange(1, 20_000)
    rungs = np.array([cpu_tokens(int(size)) for size in sizes])
    assert (rungs >= sizes).all()
    assert (rungs / sizes)[512:].max() <= 1 + 1 / 16
    assert len(np.unique(rungs[(sizes > 4096) & (sizes <= 8192)])) == 16
    assert (rungs / sizes)[512:].mean() < 1.03
    assert [cpu_tokens(size) for size in (0, 1, 64, 65, 1025)] == [0, 32, 64, 96, 1088]


def cpu_tokens(count: int) -> int:
    return ladder(count, rungs=CPU_RUNGS, step=CPU_TOKEN_STEP)


def test_a_hundred_batches_have_few_shapes() -> None:
    rng = np.random.default_rng(0)
    tokens, groups = set(), set()
    for _ in range(100):
        lengths = np.where(rng.random(32) < 0.6, 64, rng.integers(8, 65, 32))
        tokens.add(cpu_tokens(int(lengths.sum())))
        groups |= {
            (group.sequences, group.length) for group in group_sequences(lengths, heads=2).groups
        }
    assert len(tokens) <= 10
    assert len(groups) <= 12


def test_buckets_of_a_gpu_change_no_loss_and_no_gradient() -> None:
    batch = pack_sequences(random_examples((*MIXED_LENGTHS, 60, 128, 41)))
    bucketed = batch.bucketed()
    assert bucketed.tokens > batch.tokens
    assert bucketed.sequences > batch.sequences
    assert len(bucketed.next_sentence_label) == bucketed.sequences
    found, expected = (gradients(random_model(small_config()), b) for b in (bucketed, batch))
    for name, value in expected.items():
        torch.testing.assert_close(found[name], value, rtol=1e-5, atol=1e-5, msg=name)


@pytest.mark.parametrize(
    "lengths", [(2,), (1,), (1, 1, 1), (2, 1), (2, 512), (64,), (256,), (1,) * 1000 + (512,)]
)
def test_any_batch_has_a_bucket_on_a_gpu_and_that_is_its_own(lengths: tuple[int, ...]) -> None:
    bucketed = pack_sequences(random_examples(lengths)).bucketed()
    assert bucketed.tokens % 256 == 0
    assert 1 <= bucketed.lengths.min() <= bucketed.lengths.max() <= bucketed.max_seqlen
    assert bucketed.lengths.sum() == bucketed.tokens
    assert bucketed.bucketed().shape == bucketed.shape


@pytest.mark.parametrize(
    ("longest", "sequences", "share", "most"),
    [(128, 256, 0.15, 10), (512, 256, 0.15, 10), (1024, 48, 0.3, 16), (128, 16, 0.15, 12)],
)
def test_tokens_sequences_and_masked_places_together_have_few_sizes_on_a_gpu(
    longest: int, sequences: int, share: float, most: int
) -> None:
    rng = np.random.default_rng(0)
    shapes, grown = set(), []
    for _ in range(1000):
        lengths = np.where(
            rng.random(sequences) < 0.7, longest, rng.integers(8, longest + 1, sequences)
        )
        batch = Shape(
            tokens=int(lengths.sum()),
            sequences=sequences,
            masked=int(np.maximum(1, np.round(lengths * share)).sum()),
            longest=longest,
        )
        bucket = gpu_bucket(batch, longest=longest)
        assert all(size >= least for size, least in zip(bucket, batch, strict=True))
        shapes.add(bucket)
        grown.append(bucket.tokens / batch.tokens)
    assert len(shapes) <= most
    assert len(shapes) <= 2 * len({shape.tokens for shape in shapes})
    if batch.tokens > 8192:
        assert np.mean(grown) < 1.02
        assert max(grown) < 1.05


def test_filled_groups_hold_every_sequence_once() -> None:
    lengths = np.array([128] * 9 + [40, 39, 38, 17, 16, 3, 2])
    groups = group_sequences(lengths, heads=4).groups
    held = np.concatenate([group.lengths for group in groups])
    assert sorted(held[held > 0]) == sorted(lengths)
    assert all(group.length % 16 == 0 for group in groups)
    assert all(group.sequences == ladder(group.sequences, rungs=4) for group in groups)


@pytest.mark.parametrize("direction", ["bidirectional", "left_to_right", "right_to_left"])
@pytest.mark.parametrize("kernels", ["auto", "torch"])
def test_empty_sequences_make_no_number_that_is_not_finite(
    direction: str, kernels: str, request: pytest.FixtureRequest
) -> None:
    request.addfinalizer(lambda: choose_kernels("auto"))
    choose_kernels("torch" if kernels == "torch" else "auto")
    config = small_config(attention_direction=direction)
    batch = pack_sequences(random_examples((5,) * 9))
    parts = torch.randn(45, 3, 4, 16).bfloat16().requires_grad_()
    attend: Callable[..., torch.Tensor] = BACKENDS["grouped"](batch, config)
    context = attend(parts, None)
    context.float().sum().backward()
    assert context.isfinite().all()
    assert parts.grad.isfinite().all()
