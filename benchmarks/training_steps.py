"""One side of the training benchmark: a number of optimizer steps, each timed.

    python benchmarks/training_steps.py SIDE --preset mini --steps 12 --warm-up 3

In:  which side: `ours` (the trainer's engine), `deepspeed` (the same through DeepSpeed, which one
     rank does without), `huggingface_bf16` or `huggingface_fp32`, with `_compiled` behind or not.
Out: one JSON line: seconds of each step, real tokens and FLOPs of each, the matrix rate meanwhile.

All sides see the same examples, dropout 0.1, exact GELU, AdamW, clipping, fp32 masters; gradients
are accumulated over micro-batches to one global batch.
"""

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import asdict
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.cpu_training import Turn
from benchmarks.measuring import PRECISION
from benchmarks.realistic import VOCABULARY, cut, examples, padded
from model.config import EncoderConfig, PretrainConfig, TrainingMachine
from model.data.batch import Example, pack
from model.encoder.operations.native_kernels import kernels_in_use
from model.encoder.pretraining import PretrainingModel
from model.hugging_face.layout import hugging_face_config
from model.training.distributed import join_world
from model.training.monitoring.telemetry import training_flops
from model.training.pretrain import cpu_token_budget
from model.training.waiting import patient_threads

LEARNING_RATE = 1e-4
MATRIX = 2048

Step = Callable[[list[Example], int], None]


def encoder_config(preset: str, activation: str) -> EncoderConfig:
    """The architecture, with the paper's dropout."""
    return EncoderConfig.model_validate({"preset": preset, "hidden_act": activation})


def our_step(config: EncoderConfig, token_budget: int, machine: TrainingMachine) -> Step:
    """The trainer's engine: ZeRO 0, one rank."""
    from model.training.engine import Engine

    torch.manual_seed(0)
    engine = Engine(
        PretrainingModel(config, VOCABULARY),
        world=join_world(threads=torch.get_num_threads(), timeout=60.0),
        machine=machine,
        recipe=PretrainConfig(precision=PRECISION),
    )

    def step(batch: list[Example], number: int) -> None:
        masked, labelled = counts(batch)
        for micro, part in enumerate(cut(batch, token_budget)):
            sums = engine.forward(pack(part), dropout=number * 1000 + micro)
            engine.backward(sums.masked_lm_loss / masked + sums.next_sentence_loss / labelled)
        engine.step(LEARNING_RATE)

    return step


def hugging_face_step(
    config: EncoderConfig, micro_batch: int, *, bf16: bool, compiled: bool
) -> Step:
    """Hugging Face's model: padded batches, SDPA, fused AdamW; bf16 by autocast."""
    from transformers import BertConfig, BertForPreTraining

    torch.manual_seed(0)
    table = BertConfig(**hugging_face_config(config, VOCABULARY), attn_implementation="sdpa")
    model: torch.nn.Module = BertForPreTraining(table).train()
    forward = torch.compile(model) if compiled else model
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=LEARNING_RATE, eps=1e-6, weight_decay=0.01, fused=True
    )

    def step(batch: list[Example], number: int) -> None:
        parts = [batch[at : at + micro_batch] for at in range(0, len(batch), micro_batch)]
        for part in parts:
            with torch.autocast("cpu", dtype=torch.bfloat16, enabled=bf16):
                loss = forward(**padded(part, longest=128)).loss
            (loss / len(parts)).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()

    return step


def counts(batch: list[Example]) -> tuple[int, int]:
    """Masked tokens and labelled sequences of a global batch."""
    return sum(len(example.masked_lm_ids) for example in batch), len(batch)


def matrix_rate() -> float:
    """FLOP/s of a square product in the machine's precision, median."""
    dtype = torch.bfloat16 if PRECISION == "bf16" else torch.float32
    left = torch.randn(MATRIX, MATRIX, dtype=dtype)
    seconds = []
    for _ in range(15):
        started = time.perf_counter()
        left @ left
        seconds.append(time.perf_counter() - started)
    return 2 * MATRIX**3 / statistics.median(seconds)


def run(side: str, arguments: argparse.Namespace) -> Turn:
    """Warm up, then time every step."""
    config = encoder_config(arguments.preset, arguments.activation)
    micro_batch, budget = arguments.micro_batch, cpu_token_budget(config)
    if side.startswith("huggingface"):
        step = hugging_face_step(
            config, micro_batch, bf16="bf16" in side, compiled=side.endswith("compiled")
        )
    else:
        through_deepspeed = {"steps_per_print": None} if side == "deepspeed" else {}
        step = our_step(config, budget, TrainingMachine(deepspeed=through_deepspeed))
    batches = [examples(arguments.batch_size, longest=128, seed=seed) for seed in range(4)]
    seconds, tokens, flops, rates = [], [], [], []
    for number in range(arguments.warm_up + arguments.steps):
        batch = batches[number % len(batches)]
        started = time.perf_counter()
        step(batch, number)
        if number < arguments.warm_up:
            continue
        seconds.append(time.perf_counter() - started)
        sizes = [len(example.input_ids) for example in batch]
        tokens.append(sum(sizes))
        squared = sum(size * size for size in sizes)
        masked = counts(batch)[0]
        flops.append(
            training_flops(config, VOCABULARY, tokens=sum(sizes), squared=squared, masked=masked)
        )
        rates.append(matrix_rate())
    kernels = kernels_in_use() if side in ("ours", "deepspeed") else ""
    return Turn(seconds, tokens, flops, rates, kernels)


def main() -> None:
    """Read the arguments, run, print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("side")
    parser.add_argument("--preset", default="mini")
    parser.add_argument("--activation", default="gelu")
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--warm-up", type=int, default=3)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--micro-batch", type=int, default=32)
    parser.add_argument("--threads", type=int, default=0)
    arguments = parser.parse_args()
    if arguments.threads:
        torch.set_num_threads(arguments.threads)
    ours = arguments.side in ("ours", "deepspeed")  # they wait as the product does
    with patient_threads(torch.get_num_threads()) if ours else nullcontext():
        turn = run(arguments.side, arguments)
    print(json.dumps(asdict(turn)), flush=True)


if __name__ == "__main__":
    main()
