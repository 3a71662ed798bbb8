"""Which approach suits a task with few labels: cross-validation on its training rows.

In:  a task's tables, and a function that trains an approach on some rows.
Out: `Choice`, the figures of every approach, and the out-of-fold logits of the chosen one, from
     which its probabilities are calibrated.

Parts are stratified by label and the same for all approaches. With many rows a single model is
trained per approach, and the parts are those of its held-out rows.
"""

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import scipy  # imports `scipy.stats` on first use

from cloze.artifacts.progress import say
from cloze.artifacts.results import Candidate, Choice, standard_error
from cloze.artifacts.rng import address, permutation
from cloze.artifacts.tokenizer import SubwordTokenizer
from cloze.model.config import ApproachName, ChoiceConfig, TaskConfig
from cloze.model.finetune.sentence_heads import approaches_for
from cloze.model.tasks.base import Logits, Problem
from cloze.model.tasks.features import Places
from cloze.model.tasks.files.task_table import TaskTable
from cloze.model.tasks.problems import family_of, load_problem

MOST_OF_ONE_CLASS = 0.8
"""With a larger share of the rows in one class, accuracy says little about the others."""

CLEARLY = 2.0
"""An approach is clearly worse by more than so many standard errors of the difference."""

PART = "part-"
"""Names of the held-out parts, which are splits of a fold's problem."""

Train = Callable[[Problem, ApproachName], Mapping[str, Logits]]
"""Trains an approach on a problem; its logits of all splits but train."""


@dataclass(frozen=True)
class Fold:
    """Rows to train on, and parts of the others."""

    train: Places
    parts: tuple[Places, ...]


@dataclass(frozen=True)
class Chosen:
    """The outcome for one task."""

    approach: ApproachName
    record: Choice
    logits: Logits | None = None
    """[rows predicted, outputs] of the first cross-validation, in the order of `predicted_rows`;
    None if dev is a file of its own."""

    others: tuple[Logits, ...] = ()
    """The same of the approaches that were not chosen."""


def folds_of(table: TaskTable, config: ChoiceConfig, *, repeat: int = 0) -> tuple[Fold, ...]:
    """The folds of the rows of a training table; `repeat`: of another division."""
    parts = _parts(table, config.folds, repeat=repeat)
    every = np.arange(len(table))
    # Few rows: every fold trains a model, and each row is held out once. Many rows: one model is
    # trained without the first part, whose pieces then stand for folds: a standard error needs
    # several scores, not several trainings.
    if len(table) <= config.many_rows:
        return tuple(Fold(np.setdiff1d(every, part), (part,)) for part in parts if len(part))
    held = np.array_split(parts[0], config.folds)
    return (Fold(np.setdiff1d(every, parts[0]), tuple(np.sort(part) for part in held)),)


def _parts(table: TaskTable, count: int, *, repeat: int) -> list[Places]:
    """The rows in `count` parts; of each label, every part has as many, within one."""
    named: dict[str, list[int]] = {}
    for row in permutation(address("folds", repeat), len(table)).tolist():
        label = table.columns["label"][row]
        several = isinstance(label, list | float)
        named.setdefault("" if several else str(label), []).append(row)
    if len(named) > len(table) // 2:  # numbers written as text
        named = {"": [row for rows in named.values() for row in rows]}
    # The rows of a label stand together, in random order, and are dealt like cards: the counts of a
    # label in two parts differ by one at most, and so do the sizes of the parts.
    dealt = [row for _, rows in sorted(named.items()) for row in rows]
    return [np.sort(np.array(dealt[number::count], np.int64)) for number in range(count)]


def predicted_rows(table: TaskTable, config: ChoiceConfig) -> Places:
    """The training rows that the first cross-validation predicts, in the file's order."""
    return np.sort(np.concatenate([p for fold in folds_of(table, config) for p in fold.parts]))


@dataclass(frozen=True)
class CrossValidation:
    """A task's training rows, to be divided in the same way for all approaches."""

    problem: Problem
    """The whole task, whose labels the folds share."""

    table: TaskTable
    tokenizer: SubwordTokenizer
    config: ChoiceConfig
    train: Train

    def choose(self, seconds: dict[str, float]) -> Chosen:
        """Compare all approaches; `seconds` gets the time spent on each."""
        task = self.problem.config.name
        names = approaches_for(self.problem, self.config.approaches)
        many = len(self.table) > self.config.many_rows
        if many:
            # Contrastive tuning is for few rows; with many it costs most and gains nothing over
            # fine-tuning.
            names = tuple(name for name in names if name != "contrastive") or names
        candidates: list[Candidate] = []
        logits: dict[ApproachName, Logits] = {}
        for name in names:
            started = time.monotonic()
            found, logits[name] = self._compared(name)
            candidates.append(found)
            seconds[f"choices/{task}-{name}"] = round(time.monotonic() - started, 3)
            say(
                f"finetune {task}: {name} {found.mean:.4f} ± {found.standard_error:.4f} "
                f"{self.problem.headline} over {len(found.folds)} folds"
            )
        best = max(candidates, key=lambda one: one.mean)
        place = preferred(candidates, best, favoured="fine_tuning" if many else "contrastive")
        chosen = names[place]
        # How the score grows with the labels: worth knowing before labelling more. The last point,
        # all rows, is there already.
        curve = [self._compared(chosen, share=share)[0] for share in self.config.shares]
        say(f"finetune {task}: chosen {chosen}, the best is {best.approach}")
        record = Choice(
            chosen=chosen,
            best=best.approach,
            candidates=tuple(candidates),
            curve=(*curve, candidates[place]) if curve else (),
        )
        others = tuple(logits[name] for name in names if name != chosen)
        return Chosen(chosen, record, logits[chosen], others)

    def _compared(self, name: ApproachName, *, share: float = 1.0) -> tuple[Candidate, Logits]:
        """Scores of an approach on every part, and the first repeat's logits."""
        scores: list[float] = []
        held: list[Places] = []
        found: list[Logits] = []
        sizes: list[int] = []
        # Other divisions of the same rows steady the mean. Logits are kept from the first one, in
        # which each row is predicted exactly once.
        for repeat in range(self.config.repeats if share == 1.0 else 1):
            for fold in folds_of(self.table, self.config, repeat=repeat):
                smaller = replace(fold, train=self._some(fold.train, share))
                sizes.append(len(smaller.train))
                for score, rows, logits in self._fold(smaller, name):
                    scores.append(score)
                    if repeat == 0:
                        held.append(rows)
                        found.append(logits)
        mean, error = float(np.mean(scores)), standard_error(scores)
        # Folds share training rows, so their scores are not independent and the interval is
        # somewhat too narrow; it is for comparing approaches on the same folds.
        margin = error * float(scipy.stats.t.ppf(0.975, max(len(scores) - 1, 1)))
        candidate = Candidate(
            approach=name,
            rows=round(np.mean(sizes)),
            folds=tuple(scores),
            mean=mean,
            standard_error=error,
            interval=(mean - margin, min(mean + margin, 1.0)),
        )
        return candidate, np.concatenate(found)[np.argsort(np.concatenate(held), kind="stable")]

    def _some(self, rows: Places, share: float) -> Places:
        """A share of the rows, at least one of every label."""
        if share == 1.0:
            return rows
        parts = max(1, math.floor(1 / share))
        # One stratified part of 1/share has about this share of every label.
        dealt = _parts(self.table.take(rows.tolist()), parts, repeat=0)[0]
        labels = [str(self.table.columns["label"][row]) for row in rows]
        # A label of fewer rows than parts may be in another part. It gets its last row; unless
        # labels are nearly as many as rows, as for numbers, where every row would be "missing".
        missing = {label: place for place, label in enumerate(labels)}
        for place in dealt:
            missing.pop(labels[place], None)
        if len(missing) > len(rows) // 2 or not self.problem.labels:
            return rows[dealt]
        return rows[np.union1d(dealt, np.array(sorted(missing.values()), np.int64))]

    def _fold(self, fold: Fold, name: ApproachName) -> Iterator[tuple[float, Places, Logits]]:
        """Score, rows and logits of every part of a fold."""
        tables = {"train": self.table.take(fold.train.tolist())}
        tables |= {
            f"{PART}{number}": self.table.take(part.tolist())
            for number, part in enumerate(fold.parts)
        }
        # A fold may lack a rare label; its outputs must mean the same as those of the whole task.
        labels = {"labels": self.problem.labels} if self.problem.labels else {}
        task = self.problem.config.model_copy(update=labels)
        problem = load_problem(task, self.tokenizer, tables)
        logits = self.train(problem, name)
        for number, rows in enumerate(fold.parts):
            split = f"{PART}{number}"
            guesses = problem.thresholded(None, problem.predictions(split, logits[split]))
            yield problem.score(split, guesses)[problem.headline], rows, logits[split]


def preferred(
    candidates: Sequence[Candidate], best: Candidate, *, favoured: ApproachName = "contrastive"
) -> int:
    """The place of the approach to take, of candidates by cost.

    `favoured`: the one that wins on most data sets with so many rows.
    """
    # With 16 rows a standard error is ten points, so by cost alone contrastive tuning would not
    # win where it is five points better; and with a thousand, folds of the training file may be
    # more alike than what comes later. Only rows that clearly speak against it outweigh what other
    # data sets have shown: folds are the same for all, so their differences are judged.
    for place, one in enumerate(candidates):
        if one.approach == favoured:
            lost = [score - own for score, own in zip(best.folds, one.folds, strict=True)]
            if one.mean >= best.mean - max(CLEARLY * standard_error(lost), best.standard_error):
                return place
    # The rule of one standard error: the first that is good enough is the cheapest.
    enough = [n for n, one in enumerate(candidates) if one.mean >= best.mean - best.standard_error]
    return enough[0]


def with_headline(task: TaskConfig, train: TaskTable) -> TaskConfig:
    """The task with metrics that small classes count in, if one class has most of the rows."""
    uneven = family_of(task.kind).uneven_metrics
    if task.metrics or not uneven:
        return task
    labels = [str(label) for label in train.columns["label"]]
    largest = max(map(labels.count, set(labels)))
    if largest <= MOST_OF_ONE_CLASS * len(labels):
        return task
    return task.model_copy(update={"metrics": uneven})


def more_passes(task: TaskConfig, rows: int, config: ChoiceConfig) -> TaskConfig:
    """The task with as many epochs as `fewest_steps` need."""
    steps = -(-rows // task.batch_size)
    return task.model_copy(update={"epochs": max(task.epochs, -(-config.fewest_steps // steps))})


def with_predicted_dev(
    tables: Mapping[str, TaskTable], config: ChoiceConfig
) -> dict[str, TaskTable]:
    """The tables; without dev, it is the training rows that the cross-validation predicts."""
    if "dev" in tables:
        return dict(tables)
    train = tables["train"]
    rows = predicted_rows(train, config)
    remark = (
        f"no dev file: all {len(train):,} rows of {train.path} are trained on; scores on dev are "
        f"those of the cross-validation, on {len(rows):,} of them"
    )
    train = train.remarked(remark)
    return {**tables, "train": train, "dev": replace(train.take(rows.tolist()), whole=train)}
