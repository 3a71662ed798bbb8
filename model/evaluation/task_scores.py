"""From fits to verdicts.

In:  `Trials`: every run's figures and the baselines.
Out: `TaskScore` for each task: means, spreads, comparisons, curves, and which system won.
"""

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from artifacts.results import (
    WIN_DIFFERENCE,
    WIN_STANDARD_ERRORS,
    Baseline,
    Comparison,
    CurvePoint,
    LearningCurve,
    ReferenceScore,
    Role,
    SeedScores,
    SystemScore,
    TaskRecord,
    TaskScore,
    Trial,
    Trials,
    standard_error,
)
from model.config import Benchmark, EncoderConfig
from model.evaluation.reference_scores import published_scores
from model.glue import IN_AVERAGE

PRETRAINED = "pretrained"
RANDOM = "random"
SPLITS = ("dev", "test")


def glue_average(fits: Trials, scores: tuple[TaskScore, ...]) -> float | None:
    """Mean headline metric of the pre-trained encoder over the GLUE tasks but WNLI (Table 1).

    On dev, which is what there is without the official server.
    """
    glue = {task.name for task in fits.tasks if task.glue in IN_AVERAGE}
    means = [
        system.dev[score.metric].mean
        for score in scores
        for system in score.systems
        if score.name in glue and system.name == PRETRAINED
    ]
    return statistics.fmean(means) if means else None


def task_scores(
    fits: Trials, encoder: EncoderConfig, *, published: Mapping[str, Benchmark]
) -> tuple[TaskScore, ...]:
    """One score a task; `published`: what papers call those that are not GLUE's."""
    return tuple(
        _task_score(
            task,
            [fit for fit in fits.fits if fit.task == task.name and not fit.point],
            published_scores(published.get(task.name, task.glue), encoder),
        )
        for task in fits.tasks
    )


def _task_score(
    task: TaskRecord, fits: list[Trial], published: tuple[ReferenceScore, ...]
) -> TaskScore:
    best = _best([fit for fit in fits if fit.system == PRETRAINED])
    names = list(dict.fromkeys(fit.system for fit in fits))
    return TaskScore(
        name=task.name,
        kind=task.kind,
        metric=task.metrics[0],
        metrics=task.metrics,
        examples=task.examples,
        seeds=tuple(dict.fromkeys(fit.seed for fit in fits)),
        systems=(
            *(_baseline(baseline) for baseline in task.baselines),
            *(
                _system(name, [fit for fit in fits if fit.system == name])
                for name in sorted(names, key=lambda name: (_role(name) == PRETRAINED, name))
            ),
        ),
        comparisons=tuple(_comparisons(task, fits)),
        curves=tuple(_curve(fit) for fit in fits),
        confusion=best.confusion if best else None,
        errors=best.errors if best else (),
        published=published,
    )


def _role(system: str) -> Role:
    return "random" if system.startswith(RANDOM) else "pretrained"


def _over_seeds(by_seed: Sequence[Mapping[str, float]]) -> dict[str, SeedScores]:
    """One split's metrics over the seeds, which all have the same."""
    return {metric: SeedScores.of([one[metric] for one in by_seed]) for metric in by_seed[0]}


def _baseline(baseline: Baseline) -> SystemScore:
    return SystemScore(
        name=baseline.name,
        role="baseline",
        dev=_over_seeds([baseline.dev]),
        test=_over_seeds([baseline.test]),
    )


def _system(name: str, trials: Sequence[Trial]) -> SystemScore:
    return SystemScore(
        name=name,
        role=_role(name),
        fits=len(trials),
        dev=_over_seeds([trial.dev for trial in trials]),
        test=_over_seeds([trial.test for trial in trials]),
        more={
            split: _over_seeds([trial.more[split] for trial in trials]) for split in trials[0].more
        },
    )


def _best(fits: Sequence[Trial]) -> Trial | None:
    """The best fit on dev (on test where there is no dev)."""
    if not fits:
        return None
    return max(fits, key=lambda fit: fit.merit)


def _curve(fit: Trial) -> LearningCurve:
    points = (
        CurvePoint(epoch=epoch.epoch, train_loss=epoch.train_loss, dev=epoch.dev[fit.metric])
        for epoch in fit.epochs
        if fit.metric in epoch.dev
    )
    return LearningCurve(system=fit.system, seed=fit.seed, points=tuple(points))


def _comparisons(task: TaskRecord, fits: Sequence[Trial]) -> list[Comparison]:
    """Every pre-trained way against its random twin and each baseline; on test if labelled."""
    split = "test" if all(fit.test for fit in fits) else "dev"
    metric = task.metrics[0]
    figures: dict[str, dict[int, float]] = {}
    for fit in fits:
        if metric in getattr(fit, split):
            figures.setdefault(fit.system, {})[fit.seed] = getattr(fit, split)[metric]
    baselines = {
        baseline.name: {0: getattr(baseline, split)[metric]}
        for baseline in task.baselines
        if metric in getattr(baseline, split)
    }
    found = []
    for system, ours in figures.items():
        twin = system.replace(PRETRAINED, RANDOM, 1)
        if system != twin:
            others = baselines | ({twin: figures[twin]} if twin in figures else {})
            found += [
                _compare((system, ours), (name, theirs), (metric, split))
                for name, theirs in others.items()
            ]
    return found


class Difference(NamedTuple):
    """Mean of one system minus mean of another."""

    mean: float
    standard_error: float
    paired: bool


def difference(ours: Mapping[int, float], theirs: Mapping[int, float]) -> Difference:
    """The difference of two systems' figures by seed, with its standard error over seeds.

    With the same two or more seeds on both sides it is paired: what they share (the order of the
    data) cancels. Otherwise the two standard errors add in quadrature; a system without random
    numbers (one value) adds nothing.
    """
    mean = statistics.fmean(ours.values()) - statistics.fmean(theirs.values())
    if len(ours) > 1 and ours.keys() == theirs.keys():
        gaps = [ours[seed] - theirs[seed] for seed in sorted(ours)]
        return Difference(mean, standard_error(gaps), paired=True)
    apart = math.hypot(standard_error([*ours.values()]), standard_error([*theirs.values()]))
    return Difference(mean, apart, paired=False)


def _compare(
    ours: tuple[str, Mapping[int, float]],
    theirs: tuple[str, Mapping[int, float]],
    where: tuple[str, str],
) -> Comparison:
    """The verdict; `where` is the metric and the split."""
    gap = difference(ours[1], theirs[1])
    seeds = len(ours[1])
    metric, split = where
    return Comparison(
        system=ours[0],
        against=theirs[0],
        metric=metric,
        split=split,
        difference=gap.mean,
        standard_error=gap.standard_error,
        paired=gap.paired,
        wins=_is_clear(gap, seeds) and gap.mean >= WIN_DIFFERENCE,
        statement=_verdict(gap, seeds, system=ours[0], against=theirs[0]),
    )


def _is_clear(gap: Difference, seeds: int) -> bool:
    """More than chance; a single seed shows nothing."""
    return seeds > 1 and abs(gap.mean) >= WIN_STANDARD_ERRORS * gap.standard_error


def _verdict(gap: Difference, seeds: int, *, system: str, against: str) -> str:
    points = f"{100 * gap.mean:+.1f} ± {100 * gap.standard_error:.1f} points, {seeds} seeds"
    if not _is_clear(gap, seeds):
        return f"no clear difference between {system} and {against}: {points}"
    if gap.mean < 0:
        return f"{system} loses to {against}: {points}"
    if gap.mean < WIN_DIFFERENCE:
        return f"{system} is ahead of {against} by less than 3 points: {points}"
    return f"{system} wins over {against}: {points}"
