"""What FP8 does to a loss: the same steps in bf16 and in FP8, on a CPU that rounds as a GPU does.

    python benchmarks/gpu/fp8_loss.py EXAMPLES [--steps 500] [--preset mini]

In:  an examples artifact: the folder that `cloze examples CONFIG` prints.
Out: benchmarks/results/fp8_loss.json: both curves, as means over windows of steps, and the largest
     distance between them.

Both engines see the same batches with the same dropout masks and start from the same weights, so
what lies between the curves is rounding. Figures of speed mean nothing here.
"""

import argparse
import statistics
import sys
import time
from pathlib import Path
from typing import TypedDict

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from artifacts.store import open_artifact
from benchmarks.measuring import ROOT, machine, write_result
from model.config import PretrainStage, TrainingMachine
from model.data.micro_batches import Prefetcher, Share, StepBatch
from model.data.sources import Inputs, read_inputs, training_source
from model.encoder.pretraining import PretrainingModel
from model.training.distributed import World, join_world
from model.training.engine import Engine
from model.training.optimizer import learning_rate

ALLOWED = 0.02
"""Nats between the two curves."""


class Comparison(TypedDict):
    """Masked-LM losses of both precisions, in nats."""

    steps: int
    window: int
    """Steps of which a point of the curves is the mean."""
    bf16: list[float]
    fp8: list[float]
    largest_difference: float
    """Between two points of the curves."""
    largest_difference_of_a_step: float


def recipe(precision: str, arguments: argparse.Namespace) -> PretrainStage:
    """What the mini encoder learns with in so few steps."""
    phase = {"max_seq_length": arguments.max_seq_length, "share": 1.0}
    return PretrainStage.model_validate(
        {
            "seed": 1,
            "encoder": {"preset": arguments.preset},
            "pretrain": {
                "steps": arguments.steps,
                "batch_size": arguments.batch_size,
                "phases": [phase],
                "precision": precision,
                "optimizer": {
                    "learning_rate": arguments.learning_rate,
                    "warmup_steps": arguments.steps // 10,
                    "bias_correction": True,
                },
            },
        }
    )


def engine(stage: PretrainStage, inputs: Inputs, world: World) -> Engine:
    """The trainer's engine over a model drawn from the same seed."""
    torch.manual_seed(stage.seed)
    in_fp8 = stage.pretrain.precision == "fp8"
    model = PretrainingModel(stage.encoder, inputs.tokenizer.size, fp8=in_fp8)
    return Engine(model, world=world, machine=TrainingMachine(), recipe=stage.pretrain)


def train_step(trained: Engine, stage: PretrainStage, batch: StepBatch) -> float:
    """One update; the masked-LM loss before it, in nats a token."""
    total = torch.zeros(())
    for number, micro_batch in enumerate(batch.micro_batches):
        sums = trained.forward(micro_batch, dropout_seed=batch.step * 100 + number)
        loss = sums.masked_lm_loss / batch.masked + sums.next_sentence_loss / batch.labelled
        trained.backward(loss)
        total += sums.masked_lm_loss.detach()
    optimizer = stage.pretrain.optimizer
    trained.step(learning_rate(batch.step, steps=stage.pretrain.steps, optimizer=optimizer))
    return float(total) / batch.masked


def compare(arguments: argparse.Namespace) -> Comparison:
    """Both engines, step by step beside each other."""
    stages = {name: recipe(name, arguments) for name in ("bf16", "fp8")}
    inputs = read_inputs(open_artifact(arguments.examples), stages["bf16"])
    world = join_world(threads=torch.get_num_threads(), timeout=600.0, device="cpu")
    engines = {name: engine(stage, inputs, world) for name, stage in stages.items()}
    source = training_source(inputs, stages["bf16"], share=Share(0, 1, arguments.token_budget))
    losses: dict[str, list[float]] = {name: [] for name in stages}
    started = time.monotonic()
    for batch in Prefetcher(source, 0, arguments.steps):
        for name, stage in stages.items():
            losses[name].append(train_step(engines[name], stage, batch))
        if (batch.step + 1) % arguments.window == 0:
            latest = {name: round(values[-1], 3) for name, values in losses.items()}
            seconds = time.monotonic() - started
            print(f"step {batch.step + 1} {latest} {seconds:.0f} s", file=sys.stderr, flush=True)
    curves = {name: _means(values, arguments.window) for name, values in losses.items()}
    return {
        "steps": arguments.steps,
        "window": arguments.window,
        "bf16": [round(value, 4) for value in curves["bf16"]],
        "fp8": [round(value, 4) for value in curves["fp8"]],
        "largest_difference": round(_largest_difference(**curves), 4),
        "largest_difference_of_a_step": round(_largest_difference(**losses), 4),
    }


def _means(values: list[float], window: int) -> list[float]:
    return [statistics.fmean(values[at : at + window]) for at in range(0, len(values), window)]


def _largest_difference(bf16: list[float], fp8: list[float]) -> float:
    return max(abs(a - b) for a, b in zip(bf16, fp8, strict=True))


def main() -> None:
    """Read the arguments, compare, write; exit code 1 where the curves part."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("examples")
    parser.add_argument("--preset", default="mini")
    parser.add_argument("--steps", type=int, default=500)
    parser.add_argument("--window", type=int, default=25)
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--learning-rate", type=float, default=5e-4)
    parser.add_argument("--max-seq-length", type=int, default=128)
    parser.add_argument("--token-budget", type=int, default=4096)
    parser.add_argument("--out", default=str(ROOT / "benchmarks/results/fp8_loss.json"))
    arguments = parser.parse_args()
    found = compare(arguments)
    settings = {k: v for k, v in vars(arguments).items() if k not in ("examples", "out")}
    write_result(arguments.out, {"machine": machine(), "settings": settings, **found})
    far = found["largest_difference"]
    print(f"largest distance of the curves {far} nats, allowed {ALLOWED}")
    sys.exit(int(far > ALLOWED))


if __name__ == "__main__":
    main()
