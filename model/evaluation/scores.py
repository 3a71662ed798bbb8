"""Task scores and comparisons from trials.

In:  `Trials`: the scores of all trials and baselines.
Out: a `TaskScore` per task: means and standard errors over seeds, comparisons, learning curves.
"""

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from artifacts.results import (
    MIN_SEEDS,
    WIN_DIFFERENCE,
    Comparison,
    CurvePoint,
    LearningCurve,
    SeedScores,
    Split,
    SystemScore,
    TaskRecord,
    TaskScore,
    Trial,
    Trials,
    standard_error,
)
from model.config import Benchmark, EncoderConfig
from model.evaluation.reference_scores import reference_scores
from model.glue import IN_AVERAGE

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
