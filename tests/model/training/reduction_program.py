"""One rank of a test: gradients of a small model, summed over ranks in buckets and individually.

    python reduction_program.py bf16|fp32

Out: one JSON line: `differences`, the largest difference between both sums relative to a gradient's
     largest value, where all ranks use both heads and where only the first does; and for some steps
     of the former a trace of the last backward pass: in microseconds, when the sums were
     `launched`, when they `ran`, and when the `backward` pass ended.
"""

import json
import sys
from typing import TypedDict

import numpy as np
import torch
from torch import Tensor, distributed

from cloze.model.config import EncoderConfig
from cloze.model.data.batch import Example, PackedBatch, pack_sequences
from cloze.model.encoder.models import Encoder, PretrainingModel
from cloze.model.encoder.precision import Rounded, computed_in
from cloze.model.training.distributed import GradientBuckets, World, gradient_buckets, join_world

VOCABULARY = 300
MICRO_BATCHES = 3
TRACES = 6
"""Reductions may be delayed by other programs for as long as one backward pass takes."""

SHAPE = {"num_hidden_layers": 4, "hidden_size": 64, "num_attention_heads": 4}
DRY = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}


class Times(TypedDict):
    """Times of one backward pass."""

    launched: list[float]
    ran: list[float]
    backward: float


def random_batch(seed: int) -> PackedBatch:
    """Eight sequences of 60 tokens, five of them masked."""
    rng = np.random.default_rng(seed)
    examples = [
        Example(
            input_ids=rng.integers(5, VOCABULARY, 60).tolist(),
            segment_a_length=30,
            masked_lm_positions=[3, 10, 20, 40, 50],
            masked_lm_ids=rng.integers(5, VOCABULARY, 5).tolist(),
            next_sentence_label=number % 2,
        )
        for number in range(8)
    ]
    return pack_sequences(examples)


def main(precision: str) -> None:
    """Both sums in both cases, and the trace."""
    world = join_world(threads=1, timeout=300.0, device="cpu")
    torch.manual_seed(0)
    config = EncoderConfig.model_validate(
        {"preset": None, "intermediate_size": 256, **SHAPE, **DRY}
    )
    model = PretrainingModel(Encoder(config, VOCABULARY))
    buckets = gradient_buckets(model.parameters(), bucket_bytes=1 << 16)
    reduction = GradientBuckets(buckets)
    module = computed_in(precision, model)
    if isinstance(module, Rounded):
        module.deliver_early(buckets)
    differences: list[float] = []
    traces: list[Times] = []
    for both_heads in (*[True] * TRACES, False):
        expected = plain_sums(model, module, world, both_heads=both_heads)
        model.zero_grad()
        for micro in range(MICRO_BATCHES - 1):
            loss(module, world, micro, both_heads=both_heads).backward()
        last = loss(module, world, MICRO_BATCHES - 1, both_heads=both_heads)
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as trace:
            reduction.begin()
            last.backward()
            reduction.finish()
        if both_heads:
            traces.append(times(trace))
        found = zip(model.parameters(), expected, strict=True)
        differences.append(
            max(float((ours.grad - whole).abs().max() / whole.abs().max()) for ours, whole in found)
        )
    told = {"buckets": len(buckets), "differences": differences, "traces": traces}
    print(json.dumps({"end": "done", **told}))


def loss(module: torch.nn.Module, world: World, micro: int, *, both_heads: bool) -> Tensor:
    """The loss of this rank's micro-batch; without `both_heads`, only rank 0 uses both."""
    sums = module(random_batch(micro * world.ranks + world.rank))
    total: Tensor = sums.masked_lm_loss
    return total + sums.next_sentence_loss if both_heads or world.is_first else total


def plain_sums(
    model: torch.nn.Module, module: torch.nn.Module, world: World, *, both_heads: bool
) -> list[Tensor]:
    """The gradients of a whole step, summed over ranks one by one."""
    model.zero_grad()
    for micro in range(MICRO_BATCHES):
        loss(module, world, micro, both_heads=both_heads).backward()
    sums = [torch.zeros_like(p) if p.grad is None else p.grad.clone() for p in model.parameters()]
    for gradient in sums:
        distributed.all_reduce(gradient)
    return sums


def times(trace: torch.profiler.profile) -> Times:
    """When the sums were launched and ran, and when the backward pass ended."""
    spans = [(event.name, event.time_range) for event in trace.events()]
    return {
        "launched": sorted(span.start for name, span in spans if "c10d::allreduce_" in name),
        "ran": sorted(span.start for name, span in spans if "gloo:all_reduce" in name),
        "backward": max(span.end for name, span in spans if "evaluate_function" in name),
    }


if __name__ == "__main__":
    main(sys.argv[1])
