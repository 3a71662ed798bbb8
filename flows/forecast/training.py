"""What pre-training takes: epochs, FLOPs, memory of a GPU, hours and cost by their number.

In:  a run's configuration, the examples there will be, and the rates of a machine.
Out: `TrainingForecast`.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from flows.config import MachineConfig, RunConfig
from flows.forecast.corpus import expected_yield
from flows.forecast.encoder import (
    MASTER_BYTES,
    activation_bytes,
    example_flops,
    parameters,
    state_bytes,
)

TOKEN_BUDGET = 65_536
"""Tokens of a micro-batch on a GPU where `training.token_budget` says nothing."""

GPUS = (1, 8, 64, 512, 1024)
"""For so many the time is given, as far as a step has an example for each, and for as many as the
machine has."""


@dataclass(frozen=True)
class PhaseForecast:
    """A stretch of pre-training at one length."""

    max_seq_length: int
    """Its examples' length."""
    steps: int
    """Optimizer steps."""
    epochs: float
    """Passes over the corpus, each with another of its copies."""
    flops: float
    """Of all its steps."""


@dataclass(frozen=True)
class Cluster:
    """The same training on so many GPUs."""

    gpus: int
    """Each with `rates.gpu_tflops`."""
    examples: float
    """Of a step, on each GPU."""
    hours: float
    """Wall-clock."""
    cost: float
    """US dollars."""


@dataclass(frozen=True)
class TrainingForecast:
    """What is to be expected of pre-training."""

    parameters: int
    """Weights, heads included."""
    phases: tuple[PhaseForecast, ...]
    """In order."""
    flops: float
    """Of all steps, the matrix products alone."""
    state_bytes: tuple[int, ...]
    """On one of `training.ranks` GPUs: weights, gradients, optimizer, by ZeRO stage."""
    activation_bytes: int
    """On each of them, at most, of one micro-batch."""
    checkpoint_bytes: int
    """One checkpoint on disk."""
    clusters: tuple[Cluster, ...]
    """By number of GPUs."""


def forecast_training(
    run: RunConfig, machine: MachineConfig, *, examples: Mapping[int, float]
) -> TrainingForecast:
    """What pre-training takes where a copy of the corpus has so many `examples` of each length."""
    vocabulary, training = run.vocabulary.size, machine.training
    count = parameters(run.encoder, vocabulary)
    share = run.examples.masking.masked_lm_prob
    phases = tuple(_phases(run, examples))
    budget = min(training.token_budget or TOKEN_BUDGET, _longest_share(run, training.ranks))
    flops = sum(phase.flops for phase in phases)
    return TrainingForecast(
        parameters=count,
        phases=phases,
        flops=flops,
        state_bytes=state_bytes(run.encoder, vocabulary, ranks=training.ranks),
        activation_bytes=activation_bytes(
            run.encoder, vocabulary, tokens=budget, masked_share=share
        ),
        checkpoint_bytes=count * MASTER_BYTES,
        clusters=tuple(_clusters(run, machine, flops=flops)),
    )


def _phases(run: RunConfig, examples: Mapping[int, float]) -> list[PhaseForecast]:
    share, recipe = run.examples.masking.masked_lm_prob, run.pretrain
    found = []
    for phase in recipe.phases:
        length, steps = phase.max_seq_length, round(phase.share * recipe.steps)
        tokens = expected_yield(length).mean_length
        one = example_flops(run.encoder, run.vocabulary.size, tokens=tokens, masked=share * tokens)
        read = steps * recipe.batch_size
        epochs = read / examples[length] if examples.get(length) else 0.0
        found.append(PhaseForecast(length, steps, epochs, flops=read * one))
    return found


def _longest_share(run: RunConfig, ranks: int) -> int:
    """Tokens of a step on one rank, at most: it has no more to put into a micro-batch."""
    longest = max(phase.max_seq_length for phase in run.pretrain.phases)
    return -(-run.pretrain.batch_size // ranks) * longest


def _clusters(run: RunConfig, machine: MachineConfig, *, flops: float) -> Iterator[Cluster]:
    rates, recipe = machine.rates, run.pretrain
    fixed = recipe.steps * rates.step_seconds
    for gpus in sorted({*GPUS, machine.training.ranks}):
        if gpus <= recipe.batch_size:
            hours = (fixed + flops / (rates.gpu_tflops * 1e12 * gpus)) / 3600
            cost = gpus * hours * rates.gpu_hour
            yield Cluster(gpus, recipe.batch_size / gpus, hours, cost)
