"""One side of a CPU benchmark: a number of training steps, or of documents embedded, each timed.

    python benchmarks/training/training_steps.py ours --preset mini --steps 12 --warm-up 3
    python benchmarks/training/training_steps.py huggingface_bf16 --preset modern-17M --longest 1024

In:  the side: `ours` (the trainer's engine), `huggingface_bf16` or `huggingface_fp32`; `_compiled`
     may follow.
Out: one JSON line: seconds, real tokens and FLOPs of each step, and the matrix rate after it.

All sides see the same sequences and use exact GELU, fused AdamW, clipping and fp32 masters;
gradients are accumulated over micro-batches. BERT has dropout 0.1 and sequences of realistic
lengths. Modern encoders have no dropout; their sequences of 128 have realistic lengths and are
length-grouped for Hugging Face, longer ones are full, as packing makes them, so that nothing is
padded. Embedding computes the mean of the last layer's vectors, with weights in bf16 where the
processor has products for it.
"""

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks.measuring import PRECISION, Arguments
from benchmarks.training.cpu_training import Turn
from benchmarks.training.transformers_steps import (
    LEARNING_RATE,
    hugging_face_model,
    micro_batches,
    update_of,
)
from benchmarks.training.workload import (
    DISTINCT,
    SHARE_BY_TENTH,
    VOCABULARY,
    Workload,
    cut,
    encoder_config,
)
from cloze.model.config import EncoderConfig, PretrainStage
from cloze.model.data.batch import Example, pack_sequences
from cloze.model.encoder.models import Encoder
from cloze.model.encoder.operations.native_kernels import kernels_in_use
from cloze.model.training.waiting import patient_threads

MICRO_TOKENS = 4096
"""Tokens per micro-batch of Hugging Face's side, padding included, and of modern encoders."""
DTYPE = torch.bfloat16 if PRECISION == "bf16" else torch.float32
MATRIX = 2048

Step = Callable[[Sequence[Example], int], object]


def our_training(config: EncoderConfig) -> Step:
    """The trainer's engine: ZeRO 0, one rank."""
    # imported here to keep our code out of the other side's process
    from benchmarks.training.product_steps import engine_of
    from cloze.model.training.distributed import join_world
    from cloze.model.training.pretrain import cpu_token_budget

    optimizer = {"learning_rate": LEARNING_RATE, "warmup_steps": 0, "schedule": "constant"}
    recipe = {"precision": PRECISION, "optimizer": optimizer}
    stage = PretrainStage.model_validate({"seed": 0, "encoder": config, "pretrain": recipe})
    world = join_world(threads=torch.get_num_threads(), timeout=60.0, device="cpu")
    engine = engine_of(stage, VOCABULARY, world=world)
    budget = MICRO_TOKENS if config.family == "modern" else cpu_token_budget(config)

    def step(batch: Sequence[Example], number: int) -> None:
        masked = sum(len(example.masked_lm_ids) for example in batch)
        for micro, part in enumerate(cut(batch, budget)):
            # Every micro-batch has dropout masks of its own.
            sums = engine.forward(pack_sequences(part), dropout=number * 1000 + micro)
            engine.backward(sums.loss(masked, len(batch)))
        engine.step(number, torch.zeros(0))

    return step


def their_training(config: EncoderConfig, work: Workload, side: str) -> Step:
    """Hugging Face's model on padded batches."""
    update = update_of(
        hugging_face_model(config).train(),
        device="cpu",
        bf16="bf16" in side,
        compiled=side.endswith("compiled"),
    )
    padding = "grouped" if work.is_modern else "padded"

    def step(batch: Sequence[Example], number: int) -> None:
        update(micro_batches(padding, work, batch, MICRO_TOKENS))

    return step


def our_embedding(config: EncoderConfig) -> Step:
    """The encoder as `cloze embed` runs it."""
    encoder = Encoder(config, VOCABULARY).to(DTYPE).eval()

    @torch.inference_mode()
    def step(batch: Sequence[Example], number: int) -> None:
        for part in cut(batch, MICRO_TOKENS):
            packed = pack_sequences(part)
            encoder.pooled(encoder(packed), packed, pooling="mean")

    return step


def their_embedding(config: EncoderConfig, work: Workload, side: str) -> Step:
    """`ModernBertModel`; no sequence is padded."""
    model = hugging_face_model(config, headless=True).to(DTYPE).eval()
    forward = torch.compile(model) if side.endswith("compiled") else model

    @torch.inference_mode()
    def step(batch: Sequence[Example], number: int) -> None:
        for inputs in micro_batches("padded", work, batch, MICRO_TOKENS):
            forward(input_ids=inputs["input_ids"]).last_hidden_state.float().mean(1)

    return step


def matrix_rate() -> float:
    """FLOP/s of a square product in the machine's precision, median of 15."""
    left = torch.randn(MATRIX, MATRIX, dtype=DTYPE)
    seconds = []
    for _ in range(15):
        started = time.perf_counter()
        left @ left
        seconds.append(time.perf_counter() - started)
    return 2 * MATRIX**3 / statistics.median(seconds)


def run(side: str, arguments: argparse.Namespace) -> Turn:
    """Warm up, then time every step."""
    work = Workload(
        arguments.preset,
        arguments.longest,
        arguments.batch_size,
        full=arguments.longest not in SHARE_BY_TENTH,
    )
    config = encoder_config(work.size, hidden_act=arguments.activation)
    embeds, ours = arguments.task == "embed", not side.startswith("huggingface")
    if embeds:
        step = our_embedding(config) if ours else their_embedding(config, work, side)
    elif ours:
        step = our_training(config)
    else:
        step = their_training(config, work, side)
    turn: Turn = {"seconds": [], "tokens": [], "flops": [], "rates": [], "kernels": ""}
    for number in range(arguments.warm_up + arguments.steps):
        batch = work.batches[number % DISTINCT]
        started = time.perf_counter()
        step(batch, number)
        seconds = time.perf_counter() - started
        if number >= arguments.warm_up:
            turn["seconds"].append(seconds)
            turn["tokens"].append(int(work.lengths[number % DISTINCT].sum()))
            turn["flops"].append(work.flops(number, forward_only=embeds))
            turn["rates"].append(matrix_rate())
    turn["kernels"] = kernels_in_use() if ours else ""
    return turn


def main() -> None:
    """Read the arguments, run, print."""
    parser = Arguments(
        __doc__, task=("train", "embed"), activation="gelu", batch_size=64, steps=12, warm_up=3
    )
    parser.add_argument("side")
    parser.add_argument("--preset", default="mini", help="of a modern encoder with `modern-`")
    parser.add_argument("--longest", type=int, default=128, help="tokens of a sequence at most")
    arguments = parser.parse_args()
    ours = not arguments.side.startswith("huggingface")  # its threads wait as the product's do
    with patient_threads(torch.get_num_threads()) if ours else nullcontext():
        turn = run(arguments.side, arguments)
    print(json.dumps(turn), flush=True)


if __name__ == "__main__":
    main()
