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
from collections.abc import Mapping
from pathlib import Path
from unittest import mock

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks.measuring import Arguments, Figures, machine, read_result, write_result
from benchmarks.training.product_steps import Way, engine_of
from cloze.artifacts.store import open_artifact
from cloze.model.config import PretrainStage
from cloze.model.data.micro_batches import Share, StepBatch, prefetch
from cloze.model.data.sources import suited_tokenizer, training_source
from cloze.model.encoder import bert
from cloze.model.encoder.operations.products import affine, fp8_affine
from cloze.model.training.distributed import join_world
from cloze.model.training.engine import Engine

ALLOWED = 0.02
"""Largest difference between FP8's curve and its control, in nats."""

PRECISIONS = {"bf16": "bf16", "composed": "bf16", "fp8": "fp8"}
"""Precision of each engine."""


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


def train_step(trained: Engine, batch: StepBatch) -> float:
    """One update; the MLM loss before it, in nats per masked token."""
    total = torch.zeros(())
    for number, micro_batch in enumerate(batch.micro_batches):
        # The same numbers in all engines, so the same dropout masks.
        sums = trained.forward(micro_batch, dropout=batch.step * 100 + number)
        trained.backward(sums.loss(batch.masked, batch.labelled))
        total += sums.masked_lm_loss.detach()
    trained.step(batch.step, total[None])
    return float(total) / batch.masked


def losses(name: str, arguments: argparse.Namespace) -> list[float]:
    """The loss of each step of one engine."""
    stage = recipe(PRECISIONS[name], arguments)
    examples = open_artifact(arguments.examples)
    tokenizer = suited_tokenizer(examples, stage)
    trained = engine_of(
        stage,
        tokenizer.size,
        world=join_world(threads=torch.get_num_threads(), timeout=600.0, device="cpu"),
        way=Way("bf16" if name == "bf16" else "fp8"),
    )
    source = training_source(examples, tokenizer, stage, share=Share(0, 1, arguments.token_budget))
    found: list[float] = []
    started = time.monotonic()
    # `composed` computes FP8's products in bf16
    product = affine if name == "composed" else fp8_affine
    with (
        contextlib.closing(prefetch(source, 0, arguments.steps)) as batches,
        mock.patch.object(bert, "fp8_affine", product),
    ):
        for batch in batches:
            found.append(train_step(trained, batch))
            if (batch.step + 1) % arguments.window == 0:
                seconds = time.monotonic() - started
                line = f"{name} step {batch.step + 1} {found[-1]:.3f} {seconds:.0f} s"
                print(line, file=sys.stderr, flush=True)
    return found


def compare(found: Mapping[str, list[float]], *, window: int) -> Figures:
    """The engines' losses in nats as means over windows, and how far these curves are apart.

    That is the largest difference between two points, and the mean difference of the points, which
    is positive if the loss of the first is higher.
    """
    curves = {
        name: [statistics.fmean(values[at : at + window]) for at in range(0, len(values), window)]
        for name, values in found.items()
    }
    result: Figures = {name: [round(value, 4) for value in curve] for name, curve in curves.items()}
    for first, second in (("fp8", "composed"), ("composed", "bf16")):
        apart = [a - b for a, b in zip(curves[first], curves[second], strict=True)]
        result[f"{first}_against_{second}"] = round(max(map(abs, apart)), 4)
        result[f"mean_{first}_against_{second}"] = round(statistics.fmean(apart), 4)
    return result


def main() -> None:
    """Read the arguments, compare, write; exit code 1 if the curves differ too much."""
    parser = Arguments(__doc__, output="fp8_loss.json", preset="mini", steps=500, window=25)
    parser.add_options(batch_size=16, learning_rate=5e-4, seed=1)
    parser.add_options(max_seq_length=128, token_budget=4096)
    parser.add_argument("examples")
    arguments = parser.parse_args()
    varied = ("examples", "output", "seed")
    settings = {k: v for k, v in vars(arguments).items() if k not in varied}
    # Runs with other settings are not comparable and are dropped.
    earlier = read_result(arguments.output)
    runs = earlier["runs"] if earlier.get("settings") == settings else {}
    curves = {name: losses(name, arguments) for name in PRECISIONS}
    found = runs[str(arguments.seed)] = compare(curves, window=arguments.window)
    write_result(arguments.output, {"machine": machine(), "settings": settings, "runs": runs})
    far, control = found["fp8_against_composed"], found["composed_against_bf16"]
    print(f"largest difference {far} nats, allowed {ALLOWED}; between the two of bf16 {control}")
    sys.exit(int(far > ALLOWED))


if __name__ == "__main__":
    main()
