"""Task scores and comparisons from trials, and published scores beside them.

In:  `Trials`: the scores of all trials and baselines; the encoder's shape.
Out: a `TaskScore` per task: means and standard errors over seeds, comparisons, learning curves, and
     the published scores of an encoder of the same size.

Published scores of base and large: Devlin et al. 2019, single models fine-tuned on the task's own
data alone. Smaller sizes: Turc et al. 2019 (github.com/google-research/bert, README). All were
pre-trained on Wikipedia and books for far longer than any small run. GLUE scores are on test only;
dev usually differs by about a point.
"""

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from artifacts.results import (
    MIN_SEEDS,
    WIN_DIFFERENCE,
    Comparison,
    CurvePoint,
    LearningCurve,
    ReferenceScore,
    SeedScores,
    Split,
    SystemScore,
    TaskRecord,
    TaskScore,
    Trial,
    Trials,
    standard_error,
)
from model.config import PRESETS, Benchmark, EncoderConfig
from model.glue import GLUE, IN_AVERAGE

PRETRAINED = "pretrained"
RANDOM = "random"


def task_scores(
    trials: Trials, encoder: EncoderConfig, *, published: Mapping[str, Benchmark]
) -> tuple[TaskScore, ...]:
    """One score per task; `published`: the published names of tasks outside GLUE."""
    scores = []
    for task in trials.tasks:
        found = [trial for trial in trials.fits if trial.task == task.name and not trial.point]
        pretrained = [trial for trial in found if trial.system == PRETRAINED]
        curves = []
        for trial in found:
            points = (
                CurvePoint(epoch=one.epoch, train_loss=one.train_loss, dev=one.dev[trial.metric])
                for one in trial.epochs
                if trial.metric in one.dev
            )
            curves.append(LearningCurve(system=trial.system, seed=trial.seed, points=tuple(points)))
        best = max(pretrained, key=lambda trial: trial.merit, default=None)
        scores.append(
            TaskScore(
                name=task.name,
                kind=task.kind,
                metric=task.metrics[0],
                metrics=task.metrics,
                examples=task.examples,
                seeds=tuple(dict.fromkeys(trial.seed for trial in found)),
                systems=tuple(_systems(task, found)),
                comparisons=tuple(_comparisons(task, found)),
                curves=tuple(curves),
                confusion=best.confusion if best else None,
                errors=best.errors if best else (),
                published=reference_scores(published.get(task.name, task.glue), encoder),
            )
        )
    return tuple(scores)


def glue_average(trials: Trials, scores: tuple[TaskScore, ...]) -> float | None:
    """Mean headline metric of the pre-trained encoder over the GLUE tasks without WNLI (Table 1).

    Computed on dev: only the official server has the test labels.
    """
    glue = {task.name for task in trials.tasks if task.glue in IN_AVERAGE}
    means = [
        system.dev[score.metric].mean
        for score in scores
        for system in score.systems
        if score.name in glue and system.name == PRETRAINED
    ]
    return statistics.fmean(means) if means else None


def _systems(task: TaskRecord, trials: Sequence[Trial]) -> list[SystemScore]:
    """Scores of the baselines, then of random, then of pre-trained encoders."""
    found = [
        SystemScore(
            name=baseline.name,
            role="baseline",
            dev=_over_seeds([baseline.dev]),
            test=_over_seeds([baseline.test]),
        )
        for baseline in task.baselines
    ]
    for name in sorted({t.system for t in trials}, key=lambda n: (not n.startswith(RANDOM), n)):
        seeds = [trial for trial in trials if trial.system == name]
        found.append(
            SystemScore(
                name=name,
                role="random" if name.startswith(RANDOM) else "pretrained",
                fits=len(seeds),
                dev=_over_seeds([trial.dev for trial in seeds]),
                test=_over_seeds([trial.test for trial in seeds]),
                more={
                    split: _over_seeds([trial.more[split] for trial in seeds])
                    for split in seeds[0].more
                },
            )
        )
    return found


def _over_seeds(by_seed: Sequence[Mapping[str, float]]) -> dict[str, SeedScores]:
    """The metrics of one split over seeds, which all have the same metrics."""
    return {metric: SeedScores.of([one[metric] for one in by_seed]) for metric in by_seed[0]}


def _comparisons(task: TaskRecord, trials: Sequence[Trial]) -> list[Comparison]:
    """Every pre-trained system against each baseline and its random counterpart.

    On test if it is labelled, else on dev.
    """
    split: Split = "test" if all(trial.test for trial in trials) else "dev"
    metric = task.metrics[0]
    scored = [(one.name, 0, one.test if split == "test" else one.dev) for one in task.baselines]
    scored += [(one.system, one.seed, one.test if split == "test" else one.dev) for one in trials]
    by_seed: dict[str, dict[int, float]] = {}
    for name, seed, scores in scored:
        if metric in scores:
            by_seed.setdefault(name, {})[seed] = scores[metric]
    baselines = [baseline.name for baseline in task.baselines]
    return [
        compare(system, by_seed[system], against, by_seed[against], metric=metric, split=split)
        for system in dict.fromkeys(trial.system for trial in trials)
        if system.startswith(PRETRAINED)
        for against in (*baselines, system.replace(PRETRAINED, RANDOM, 1))
        if system in by_seed and against in by_seed
    ]


class Difference(NamedTuple):
    """Mean of one system minus the mean of another."""

    mean: float
    standard_error: float
    paired: bool


def difference(ours: Mapping[int, float], theirs: Mapping[int, float]) -> Difference:
    """The difference of two systems' scores by seed, with its standard error over seeds.

    With the same two or more seeds on both sides it is paired, so that shared effects such as the
    order of the data cancel. Otherwise the two standard errors add in quadrature; a deterministic
    system (a single value) adds nothing.
    """
    mean = statistics.fmean(ours.values()) - statistics.fmean(theirs.values())
    if len(ours) > 1 and ours.keys() == theirs.keys():
        gaps = [ours[seed] - theirs[seed] for seed in sorted(ours)]
        return Difference(mean, standard_error(gaps), paired=True)
    apart = math.hypot(standard_error([*ours.values()]), standard_error([*theirs.values()]))
    return Difference(mean, apart, paired=False)


def compare(
    system: str,
    ours: Mapping[int, float],
    against: str,
    theirs: Mapping[int, float],
    *,
    metric: str,
    split: Split,
) -> Comparison:
    """Compare two systems by their scores per seed; a baseline has only seed 0."""
    gap = difference(ours, theirs)
    with_seeds = [ours, theirs] if against.startswith(RANDOM) else [ours]
    found = Comparison(
        system=system,
        against=against,
        metric=metric,
        split=split,
        difference=gap.mean,
        standard_error=gap.standard_error,
        paired=gap.paired,
        seeds=min(map(len, with_seeds)),
        wins=False,
        statement="",
    )
    verdict = {
        "win": f"{system} wins over {against}",
        "gain": f"{system} is ahead of {against} by less than {100 * WIN_DIFFERENCE:.0f} points",
        "none": f"no clear difference between {system} and {against}",
        "loss": f"{system} loses to {against}",
        "undecided": f"no verdict on {system} and {against} with fewer than {MIN_SEEDS} seeds",
    }[found.outcome]
    error = f" ± {100 * gap.standard_error:.1f}" if found.seeds > 1 else ""
    points = f"{100 * gap.mean:+.1f}{error} points, {found.seeds} seed{'s' * (found.seeds != 1)}"
    return found.model_copy(
        update={"wins": found.outcome == "win", "statement": f"{verdict}: {points}"}
    )


_NAMES = {
    "tiny": "BERT-Tiny",
    "mini": "BERT-Mini",
    "small": "BERT-Small",
    "medium": "BERT-Medium",
    "base": "BERT-base",
    "large": "BERT-large",
}


@dataclass(frozen=True)
class _Table:
    """A table as printed in the paper, in percent."""

    source: str
    split: Literal["dev", "test"]
    columns: tuple[tuple[str, str], ...]
    """Task and metric of each column."""

    rows: Mapping[str, tuple[float, ...]]
    """Values by preset."""


_GLUE = tuple(
    (task, GLUE[task]["metrics"][0])
    for task in ("CoLA", "SST-2", "MRPC", "STS-B", "QQP", "MNLI", "QNLI", "RTE")
)
_SQUAD_1 = (("SQuAD 1.1", "exact_match"), ("SQuAD 1.1", "f1"))
_SQUAD_2 = (("SQuAD 2.0", "exact_match"), ("SQuAD 2.0", "f1"))
_SWAG = (("SWAG", "accuracy"),)
_CONLL = (("CoNLL-2003", "entity_f1"),)

_TURC = {
    "tiny": (0.0, 83.2, 81.1, 73.6, 62.2, 70.2, 81.5, 57.2),
    "mini": (0.0, 85.9, 81.1, 73.3, 66.4, 74.8, 84.1, 57.9),
    "small": (27.8, 89.7, 83.4, 77.0, 68.1, 77.6, 86.4, 61.8),
    "medium": (38.0, 89.6, 86.6, 78.4, 69.6, 80.0, 87.7, 62.2),
}
_DEVLIN = {
    "base": (52.1, 93.5, 88.9, 85.8, 71.2, 84.6, 90.5, 66.4),
    "large": (60.5, 94.9, 89.3, 86.5, 72.1, 86.7, 92.7, 70.1),
}

_TABLES = (
    _Table("Turc et al. 2019, google-research/bert README", "test", _GLUE, _TURC),
    _Table("Devlin et al. 2019, Table 1", "test", _GLUE, _DEVLIN),
    _Table(
        "Devlin et al. 2019, Table 2",
        "dev",
        _SQUAD_1,
        {"base": (80.8, 88.5), "large": (84.1, 90.9)},
    ),
    _Table("Devlin et al. 2019, Table 3", "dev", _SQUAD_2, {"large": (78.7, 81.9)}),
    _Table("Devlin et al. 2019, Table 3", "test", _SQUAD_2, {"large": (80.0, 83.1)}),
    _Table("Devlin et al. 2019, Table 4", "dev", _SWAG, {"base": (81.6,), "large": (86.6,)}),
    _Table("Devlin et al. 2019, Table 4", "test", _SWAG, {"large": (86.3,)}),
    _Table("Devlin et al. 2019, Table 7", "dev", _CONLL, {"base": (96.4,), "large": (96.6,)}),
    _Table("Devlin et al. 2019, Table 7", "test", _CONLL, {"base": (92.4,), "large": (92.8,)}),
)


def reference_scores(task: str, encoder: EncoderConfig) -> tuple[ReferenceScore, ...]:
    """Published scores of the preset with the encoder's shape; empty if there are none."""
    shape = (
        encoder.num_hidden_layers,
        encoder.hidden_size,
        encoder.num_attention_heads,
        encoder.intermediate_size,
    )
    known = PRESETS if encoder.family == "bert" else {}
    preset = next((name for name, sizes in known.items() if sizes == shape), "")
    return tuple(
        ReferenceScore(
            system=_NAMES[preset],
            metric=metric,
            value=percent / 100,
            split=table.split,
            source=table.source,
        )
        for table in _TABLES
        if preset in table.rows
        for (name, metric), percent in zip(table.columns, table.rows[preset], strict=True)
        if name == task
    )
