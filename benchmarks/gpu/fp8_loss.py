"""The effect of FP8 on the loss: the same steps in bf16 and FP8, on a CPU that rounds like a GPU.

    python benchmarks/gpu/fp8_loss.py EXAMPLES [--steps 500] [--preset mini] [--seed 1]

In:  an examples artifact: the folder that `cloze examples CONFIG` prints.
Out: benchmarks/results/fp8_loss.json: the curves as means over windows of steps, and the largest
     differences between them. Runs with other seeds stay in the file.

All engines see the same batches with the same dropout masks and start from the same weights, so the
curves differ by rounding alone. FP8 runs the same operations as on a GPU, whereas bf16 on a CPU
uses fused ones, which round in other places. Hence there are two engines with bf16: `bf16` trains
as a CPU does; `composed` runs FP8's operations with bf16 products and is the control for FP8. The
difference between these two shows how far curves drift apart by rounding alone. Speed is not
measured.
"""

import argparse
import contextlib
import statistics
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TypedDict
from unittest import mock

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from artifacts.store import open_artifact
from benchmarks.measuring import arguments_of, machine, read_result, write_result
from model.config import PretrainStage, TrainingMachine
from model.data.micro_batches import Prefetcher, Share, StepBatch
from model.data.sources import Inputs, read_inputs, training_source
from model.encoder import bert
from model.encoder.models import PretrainingModel
from model.encoder.operations.products import affine, fp8_affine
from model.training.distributed import World, join_world
from model.training.engine import Engine
from model.training.optimizer import learning_rate

ALLOWED = 0.02
"""Largest difference between FP8's curve and its control, in nats."""

PRECISIONS = {"bf16": "bf16", "composed": "bf16", "fp8": "fp8"}
"""Precision of each engine."""


class Comparison(TypedDict):
    """MLM losses of one seed, in nats; a point of a curve is the mean over a window."""

    bf16: list[float]
    composed: list[float]
    fp8: list[float]
    fp8_against_composed: float
    """The largest difference between two points."""
    composed_against_bf16: float
    mean_fp8_against_composed: float
    """The mean difference of the points; positive if FP8's loss is higher."""
    mean_composed_against_bf16: float


def recipe(precision: str, arguments: argparse.Namespace) -> PretrainStage:
    """The recipe, suited to a mini encoder and few steps."""
    phase = {"max_seq_length": arguments.max_seq_length, "share": 1.0}
    return PretrainStage.model_validate(
        {
            "seed": arguments.seed,
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


def engine(name: str, stage: PretrainStage, inputs: Inputs, world: World) -> Engine:
    """The trainer's engine around a model drawn from the seed."""
    torch.manual_seed(stage.seed)
    model = PretrainingModel(stage.encoder, inputs.tokenizer.size, fp8=name != "bf16")
    return Engine(
        model,
        world=world,
        machine=TrainingMachine(),
        optimizer=stage.pretrain.optimizer,
        precision=stage.pretrain.precision,
    )


@contextlib.contextmanager
def products_of(name: str) -> Iterator[None]:
    """Within it, `composed` computes FP8's products in bf16."""
    product = affine if name == "composed" else fp8_affine
    with mock.patch.object(bert, "fp8_affine", product):
        yield


def train_step(trained: Engine, stage: PretrainStage, batch: StepBatch) -> float:
    """One update; the MLM loss before it, in nats per masked token."""
    total = torch.zeros(())
    for number, micro_batch in enumerate(batch.micro_batches):
        sums = trained.forward(micro_batch, dropout=batch.step * 100 + number)
        loss = sums.masked_lm_loss / batch.masked + sums.next_sentence_loss / batch.labelled
        trained.backward(loss)
        total += sums.masked_lm_loss.detach()
    optimizer = stage.pretrain.optimizer
    trained.step(learning_rate(batch.step, steps=stage.pretrain.steps, optimizer=optimizer))
    return float(total) / batch.masked


def losses(name: str, arguments: argparse.Namespace) -> list[float]:
    """The loss of each step of one engine."""
    stage = recipe(PRECISIONS[name], arguments)
    inputs = read_inputs(open_artifact(arguments.examples), stage)
    world = join_world(threads=torch.get_num_threads(), timeout=600.0, device="cpu")
    trained = engine(name, stage, inputs, world)
    source = training_source(inputs, stage, share=Share(0, 1, arguments.token_budget))
    found: list[float] = []
    started = time.monotonic()
    with contextlib.closing(Prefetcher(source, 0, arguments.steps)) as batches, products_of(name):
        for batch in batches:
            found.append(train_step(trained, stage, batch))
            if (batch.step + 1) % arguments.window == 0:
                seconds = time.monotonic() - started
                line = f"{name} step {batch.step + 1} {found[-1]:.3f} {seconds:.0f} s"
                print(line, file=sys.stderr, flush=True)
    return found


def compare(found: Mapping[str, list[float]], *, window: int) -> Comparison:
    """The three engines' losses as curves, and the differences between them."""
    curves = {
        name: [statistics.fmean(values[at : at + window]) for at in range(0, len(values), window)]
        for name, values in found.items()
    }
    of_fp8 = [a - b for a, b in zip(curves["fp8"], curves["composed"], strict=True)]
    of_operations = [a - b for a, b in zip(curves["composed"], curves["bf16"], strict=True)]
    rounded = {name: [round(value, 4) for value in curve] for name, curve in curves.items()}
    return {
        "bf16": rounded["bf16"],
        "composed": rounded["composed"],
        "fp8": rounded["fp8"],
        "fp8_against_composed": round(max(map(abs, of_fp8)), 4),
        "composed_against_bf16": round(max(map(abs, of_operations)), 4),
        "mean_fp8_against_composed": round(statistics.fmean(of_fp8), 4),
        "mean_composed_against_bf16": round(statistics.fmean(of_operations), 4),
    }


def main() -> None:
    """Read the arguments, compare, write; exit code 1 if the curves differ too much."""
    parser = arguments_of(__doc__, output="fp8_loss.json")
    parser.add_argument("examples")
    parser.add_argument("--preset", default="mini")
    parser.add_argument("--steps", type=int, default=500)
    parser.add_argument("--window", type=int, default=25)
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--learning-rate", type=float, default=5e-4)
    parser.add_argument("--max-seq-length", type=int, default=128)
    parser.add_argument("--token-budget", type=int, default=4096)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    varied = ("examples", "output", "seed")
    settings = {k: v for k, v in vars(arguments).items() if k not in varied}
    earlier = read_result(arguments.output)
    runs: dict[str, Comparison] = {}
    if earlier.get("settings") == settings:
        runs = earlier["runs"]
    curves = {name: losses(name, arguments) for name in PRECISIONS}
    found = runs[str(arguments.seed)] = compare(curves, window=arguments.window)
    write_result(arguments.output, {"machine": machine(), "settings": settings, "runs": runs})
    far, control = found["fp8_against_composed"], found["composed_against_bf16"]
    print(f"largest difference {far} nats, allowed {ALLOWED}; between the two of bf16 {control}")
    sys.exit(int(far > ALLOWED))


if __name__ == "__main__":
    main()
