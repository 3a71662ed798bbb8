"""What FP8 does to a loss: the same steps in bf16 and in FP8, on a CPU that rounds as a GPU does.

    python benchmarks/gpu/fp8_loss.py EXAMPLES [--steps 500] [--preset mini] [--seed 1]

In:  an examples artifact: the folder that `cloze examples CONFIG` prints.
Out: benchmarks/results/fp8_loss.json: the curves as means over windows of steps, and the largest
     distances between them. Runs of other seeds in the same file stay.

All engines see the same batches with the same dropout masks and start from the same weights, so
what lies between the curves is rounding. FP8 runs the operations that a GPU does, bf16 on a CPU
fused ones, which round elsewhere. So there are two with bf16: `bf16` as a CPU trains, and
`composed`, FP8's own operations with bf16 products. FP8 is held against the second; what lies
between the two is how far apart curves are for no more reason than that. Figures of speed mean
nothing here.
"""

import argparse
import contextlib
import json
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
from benchmarks.measuring import ROOT, machine, write_result
from model.config import PretrainStage, TrainingMachine
from model.data.micro_batches import Prefetcher, Share, StepBatch
from model.data.sources import Inputs, read_inputs, training_source
from model.encoder.layers import feed_forward, self_attention
from model.encoder.operations.fp8_products import fp8_affine
from model.encoder.operations.products import affine
from model.encoder.pretraining import PretrainingModel
from model.training.distributed import World, join_world
from model.training.engine import Engine
from model.training.optimizer import learning_rate

ALLOWED = 0.02
"""Nats between the two curves."""


PRECISIONS = {"bf16": "bf16", "composed": "bf16", "fp8": "fp8"}
"""Of each engine."""


class Comparison(TypedDict):
    """Masked-LM losses of one seed, in nats; a point of a curve is the mean of a window."""

    bf16: list[float]
    composed: list[float]
    fp8: list[float]
    fp8_against_composed: float
    """The largest difference of two points."""
    composed_against_bf16: float
    mean_fp8_against_composed: float
    """The mean difference of the points, above 0 where FP8's are higher."""
    mean_composed_against_bf16: float


def recipe(precision: str, arguments: argparse.Namespace) -> PretrainStage:
    """What the mini encoder learns with in so few steps."""
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
    """The trainer's engine over a model drawn from the seed."""
    torch.manual_seed(stage.seed)
    model = PretrainingModel(stage.encoder, inputs.tokenizer.size, fp8=name != "bf16")
    return Engine(model, world=world, machine=TrainingMachine(), recipe=stage.pretrain)


@contextlib.contextmanager
def products_of(name: str) -> Iterator[None]:
    """While it lasts, `composed` computes what FP8 would in bf16."""
    product = affine if name == "composed" else fp8_affine
    with (
        mock.patch.object(self_attention, "fp8_affine", product),
        mock.patch.object(feed_forward, "fp8_affine", product),
    ):
        yield


def train_step(trained: Engine, stage: PretrainStage, batch: StepBatch) -> float:
    """One update; the masked-LM loss before it, in nats a token."""
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
                said = f"{name} step {batch.step + 1} {found[-1]:.3f} {seconds:.0f} s"
                print(said, file=sys.stderr, flush=True)
    return found


def compare(found: Mapping[str, list[float]], *, window: int) -> Comparison:
    """The three engines' losses as curves, and how far apart they are."""
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


def kept_runs(out: str, settings: dict[str, object]) -> dict[str, Comparison]:
    """The runs of other seeds in the file, if their settings are these."""
    path = Path(out)
    if not path.exists():
        return {}
    record = json.loads(path.read_text())
    runs: dict[str, Comparison] = record.get("runs", {})
    return runs if record["settings"] == settings else {}


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
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", default=str(ROOT / "benchmarks/results/fp8_loss.json"))
    arguments = parser.parse_args()
    apart = ("examples", "out", "seed")
    settings = {k: v for k, v in vars(arguments).items() if k not in apart}
    runs = kept_runs(arguments.out, settings)
    curves = {name: losses(name, arguments) for name in PRECISIONS}
    found = runs[str(arguments.seed)] = compare(curves, window=arguments.window)
    write_result(arguments.out, {"machine": machine(), "settings": settings, "runs": runs})
    far, control = found["fp8_against_composed"], found["composed_against_bf16"]
    print(f"largest distance {far} nats, allowed {ALLOWED}; of bf16 in both ways {control}")
    sys.exit(int(far > ALLOWED))


if __name__ == "__main__":
    main()
