"""One side of the modern encoder's benchmark: training steps, or documents embedded, each timed.

    python benchmarks/modern_steps.py SIDE --task train --preset 17M --length 1024 --steps 5

In:  which side: `ours`, `huggingface`, `huggingface_compiled`; they may name the precision between.
Out: one JSON line: seconds, tokens and FLOPs of each step, the matrix rate meanwhile.

Both sides see the same sequences and have no dropout (transformers exports 0 and has none on the
attention's output alone). Sequences of 128 tokens have the lengths of real text, sorted, so that
theirs pads least; longer ones are full, as packing makes them, so that theirs pads nothing and
needs no mask in its global layers. Training: fp32 masters, fused AdamW, clipping; theirs computes
in bf16 by autocast. Embedding: weights in bf16, the mean of the last layer's vectors. On a machine
without bf16 products all of it is fp32.
"""

import argparse
import json
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import asdict
from pathlib import Path

import numpy as np
import torch
from transformers import ModernBertConfig, ModernBertForMaskedLM, ModernBertModel

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.cpu_training import Turn
from benchmarks.measuring import PRECISION
from benchmarks.realistic import FIRST_WORD, VOCABULARY, lengths
from benchmarks.training_steps import matrix_rate
from model.config import EncoderConfig, PretrainConfig, TrainingMachine
from model.data.batch import Example, pack
from model.encoder.encoder import Encoder
from model.encoder.operations.native_kernels import kernels_in_use
from model.encoder.pretraining import PretrainingModel
from model.hugging_face.layout import hugging_face_config
from model.training.distributed import join_world
from model.training.engine import Engine
from model.training.monitoring.telemetry import training_flops
from model.training.waiting import patient_threads

LEARNING_RATE = 1e-4
MASKED = 0.3
DTYPE = torch.bfloat16 if PRECISION == "bf16" else torch.float32
MICRO_TOKENS = 4096
"""Of a micro-batch, at least one sequence; both sides."""

Batch = Sequence[Example]
Step = Callable[[Sequence[Batch], int], None]


def encoder_config(preset: str, length: int) -> EncoderConfig:
    """The architecture without dropout; its global base is that of its phase."""
    table = {"family": "modern", "preset": preset, "hidden_dropout_prob": 0.0}
    base = 160_000.0 if length > 1024 else 10_000.0
    return EncoderConfig.model_validate(
        {**table, "max_position_embeddings": max(length, 1024), "global_rope_theta": base}
    )


def micro_batches(sequences: int, length: int, *, seed: int) -> list[Batch]:
    """Sequences of falling length, cut where `MICRO_TOKENS` are reached when padded."""
    rng = np.random.default_rng([seed, length, 2])
    sizes = np.full(sequences, length)
    if length == 128:
        sizes = np.sort(lengths(sequences, longest=128, seed=seed))[::-1]
    parts: list[list[Example]] = [[]]
    for size in sizes.tolist():
        if parts[-1] and (len(parts[-1]) + 1) * len(parts[-1][0].input_ids) > MICRO_TOKENS:
            parts.append([])
        masked = max(1, round(MASKED * size))
        parts[-1].append(
            Example(
                input_ids=rng.integers(FIRST_WORD, VOCABULARY, size),
                masked_lm_positions=np.sort(rng.choice(np.arange(size), masked, replace=False)),
                masked_lm_ids=rng.integers(FIRST_WORD, VOCABULARY, masked),
            )
        )
    return list(parts)


def padded(batch: Batch) -> dict[str, torch.Tensor]:
    """What transformers reads; no mask where nothing is padded, labels of -100 elsewhere."""
    longest = max(len(example.input_ids) for example in batch)
    ids = torch.zeros(len(batch), longest, dtype=torch.long)
    seen, labels = torch.zeros_like(ids), torch.full_like(ids, -100)
    for row, example in enumerate(batch):
        size = len(example.input_ids)
        ids[row, :size], seen[row, :size] = torch.as_tensor(example.input_ids), 1
        labels[row, torch.as_tensor(example.masked_lm_positions)] = torch.as_tensor(
            example.masked_lm_ids
        )
    mask = {} if bool(seen.all()) else {"attention_mask": seen}
    return {"input_ids": ids, "labels": labels, **mask}


def our_training(config: EncoderConfig) -> Step:
    """The trainer's engine: ZeRO 0, one rank."""
    torch.manual_seed(0)
    engine = Engine(
        PretrainingModel(config, VOCABULARY),
        world=join_world(threads=torch.get_num_threads(), timeout=60.0),
        machine=TrainingMachine(),
        recipe=PretrainConfig(precision=PRECISION),
    )

    def step(batch: Sequence[Batch], number: int) -> None:
        masked = sum(len(example.masked_lm_ids) for part in batch for example in part)
        for part in batch:
            sums = engine.forward(pack(part), dropout=number)
            engine.backward(sums.masked_lm_loss / masked)
        engine.step(LEARNING_RATE)

    return step


def their_config(config: EncoderConfig) -> ModernBertConfig:
    """Ours in transformers' words, with its fastest attention on a CPU."""
    table = hugging_face_config(config, VOCABULARY)
    return ModernBertConfig(**table, attn_implementation="sdpa", sparse_prediction=True)


def their_training(config: EncoderConfig, *, compiled: bool) -> Step:
    """`ModernBertForMaskedLM`, logits of the masked places alone."""
    torch.manual_seed(0)
    model = ModernBertForMaskedLM(their_config(config)).train()
    forward = torch.compile(model) if compiled else model
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=LEARNING_RATE, eps=1e-6, weight_decay=0.01, fused=True
    )

    def step(batch: Sequence[Batch], number: int) -> None:
        for part in batch:
            with torch.autocast("cpu", dtype=torch.bfloat16, enabled=PRECISION == "bf16"):
                loss = forward(**padded(part)).loss
            (loss / len(batch)).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()

    return step


def our_embedding(config: EncoderConfig) -> Step:
    """The encoder as `cloze embed` runs it."""
    encoder = Encoder(config, VOCABULARY).to(DTYPE).eval()

    @torch.inference_mode()
    def step(batch: Sequence[Batch], number: int) -> None:
        for part in batch:
            packed = pack(part)
            encoder.pooled(encoder(packed), packed, pooling="mean")

    return step


def their_embedding(config: EncoderConfig, *, compiled: bool) -> Step:
    """`ModernBertModel`; nothing is padded."""
    model = ModernBertModel(their_config(config)).to(DTYPE).eval()
    forward = torch.compile(model) if compiled else model

    @torch.inference_mode()
    def step(batch: Sequence[Batch], number: int) -> None:
        for part in batch:
            forward(input_ids=padded(part)["input_ids"]).last_hidden_state.float().mean(1)

    return step


def run(side: str, arguments: argparse.Namespace) -> Turn:
    """Warm up, then time every step."""
    config = encoder_config(arguments.preset, arguments.length)
    compiled = side.endswith("compiled")
    if arguments.task == "train":
        step = our_training(config) if side == "ours" else their_training(config, compiled=compiled)
    else:
        step = (
            our_embedding(config) if side == "ours" else their_embedding(config, compiled=compiled)
        )
    turn = Turn([], [], [], [], kernels_in_use() if side == "ours" else "")
    for number in range(arguments.warm_up + arguments.steps):
        batch = micro_batches(arguments.sequences, arguments.length, seed=number % 4)
        started = time.perf_counter()
        step(batch, number)
        seconds = time.perf_counter() - started
        if number < arguments.warm_up:
            continue
        sizes = [len(example.input_ids) for part in batch for example in part]
        asked = sum(len(example.masked_lm_ids) for part in batch for example in part)
        training = arguments.task == "train"
        flops = training_flops(
            config,
            VOCABULARY,
            tokens=sum(sizes),
            squared=sum(size**2 for size in sizes),
            masked=asked if training else 0,
        )
        turn.seconds.append(seconds)
        turn.tokens.append(sum(sizes))
        turn.flops.append(flops if training else flops / 3)
        turn.rates.append(matrix_rate())
    return turn


def main() -> None:
    """Read the arguments, run, print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("side")
    parser.add_argument("--task", default="train", choices=["train", "embed"])
    parser.add_argument("--preset", default="17M")
    parser.add_argument("--length", type=int, default=1024)
    parser.add_argument("--sequences", type=int, default=8, help="of a step")
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--warm-up", type=int, default=2)
    arguments = parser.parse_args()
    ours = arguments.side == "ours"  # it waits as the product does
    with patient_threads(torch.get_num_threads()) if ours else nullcontext():
        turn = run(arguments.side, arguments)
    print(json.dumps(asdict(turn)), flush=True)


if __name__ == "__main__":
    main()
