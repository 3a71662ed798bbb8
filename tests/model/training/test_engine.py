"""The engine of ZeRO 0: what DeepSpeed would do, without it."""

import contextlib
import sys

import numpy as np
import pytest
import torch

from cloze.model.config import EncoderConfig, OptimizerConfig
from cloze.model.data.batch import Example, PackedBatch, pack_sequences
from cloze.model.encoder.models import Encoder, PretrainingModel
from cloze.model.encoder.precision import computed_in
from cloze.model.training.distributed import join_world
from cloze.model.training.engine import Replicated
from cloze.model.training.optimizer import AdamW, Schedule, build_optimizer
from cloze.model.training.sharded import deepspeed
from tests.model.training.training_fixtures import ENCODER, WORDS

STEPS, MICRO_BATCHES = 4, 3
RECIPE = OptimizerConfig(learning_rate=1e-2, warmup_steps=2, max_grad_norm=0.5)
COUNTS = (6.0 * MICRO_BATCHES, 3.0 * MICRO_BATCHES)
"""Masked tokens and labelled sequences of a step."""


def micro_batches(step: int) -> list[tuple[PackedBatch, int]]:
    """The micro-batches of a step: three sequences each; and the seeds of their dropout."""
    rng = np.random.default_rng(step)

    def example() -> Example:
        return Example(
            input_ids=rng.integers(5, WORDS, rng.integers(9, 31)).tolist(),
            segment_a_length=4,
            masked_lm_positions=[2, 7],
            masked_lm_ids=rng.integers(5, WORDS, 2).tolist(),
            next_sentence_label=int(rng.integers(2)),
        )

    packed = [pack_sequences([example() for _ in range(3)]) for _ in range(MICRO_BATCHES)]
    return [(batch, 1 + step * MICRO_BATCHES + micro) for micro, batch in enumerate(packed)]


def model() -> PretrainingModel:
    torch.manual_seed(0)
    return PretrainingModel(Encoder(EncoderConfig.model_validate(ENCODER), WORDS))


def replicated(precision: str, *, skips_nonfinite: bool = True) -> Replicated:
    return Replicated(
        computed_in(precision, model()),
        world=join_world(threads=1, timeout=60.0, device="cpu"),
        schedule=Schedule(RECIPE, STEPS),
        skips_nonfinite=skips_nonfinite,
    )


@pytest.mark.parametrize("precision", ["bf16", "fp32"])
def test_one_rank_without_deepspeed_trains_bit_for_bit_as_with_it(precision: str) -> None:
    ours = replicated(precision)
    for step in range(STEPS):
        for micro, (batch, seed) in enumerate(micro_batches(step), 1):
            loss = ours.forward(batch, dropout=seed).loss(*COUNTS)
            ours.backward(loss, last=micro == MICRO_BATCHES)
        assert ours.step(step, torch.zeros(0)).applied
    theirs = model()
    named = theirs.named_parameters()
    optimizer = build_optimizer(named, config=RECIPE, precision=precision)
    assert isinstance(optimizer, AdamW)
    configuration = {
        "train_micro_batch_size_per_gpu": 1,
        "managed_gradient_accumulation": False,
        "gradient_clipping": 0.0,
    }
    with contextlib.redirect_stdout(sys.stderr):
        engine, *_ = deepspeed().initialize(
            model=computed_in(precision, theirs), optimizer=optimizer, config=configuration
        )
    for step in range(STEPS):
        for batch, seed in micro_batches(step):
            engine.backward(engine(batch, seed).loss(*COUNTS))
        for group in optimizer.param_groups:
            group["lr"] = ours.schedule(step)
        optimizer.shorten(RECIPE.max_grad_norm)
        engine.step()
    for (name, state), parameter in zip(ours.state(), theirs.parameters(), strict=True):
        assert torch.equal(state.master, parameter), name
        assert torch.equal(state.exp_avg_sq, optimizer.state[parameter]["exp_avg_sq"]), name


def test_a_step_clips_updates_at_the_scheduled_rate_and_counts() -> None:
    engine = replicated("fp32")
    for step, rate in enumerate((0.0, 0.005, 0.005, 0.0025)):
        before = [parameter.detach().clone() for parameter in engine.model.parameters()]
        for batch, seed in micro_batches(step):
            engine.backward(engine.forward(batch, dropout=seed).loss(*COUNTS))
        gradients = [p.grad for p in engine.model.parameters() if p.grad is not None]
        norm = float(torch.nn.utils.get_total_norm(gradients))
        outcome = engine.step(step, torch.tensor([1.0, step]))
        assert outcome.learning_rate == rate
        assert float(outcome.gradient_norm) == pytest.approx(norm)
        assert norm > RECIPE.max_grad_norm
        assert outcome.sums.tolist() == [1.0, step]
        assert engine.updates == step + 1
        pairs = zip(engine.model.parameters(), before, strict=True)
        assert any(not torch.equal(now, old) for now, old in pairs) == (rate > 0)
        assert all(parameter.grad is None for parameter in engine.model.parameters())


@pytest.mark.parametrize("skips", [True, False])
def test_a_gradient_that_is_not_finite_is_skipped_or_left_to_the_caller(skips: bool) -> None:
    engine = replicated("fp32", skips_nonfinite=skips)
    ((batch, seed), *_) = micro_batches(0)
    engine.backward(engine.forward(batch, dropout=seed).loss(*COUNTS) * torch.nan, last=True)
    outcome = engine.step(1, torch.ones(1))
    assert outcome.applied is not skips
    assert outcome.gradient_norm.isnan()
    assert engine.updates == (not skips)
    values = torch.cat([parameter.flatten() for parameter in engine.model.parameters()])
    assert bool(values.isfinite().all()) is skips
