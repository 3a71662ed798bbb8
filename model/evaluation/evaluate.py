"""Stage evaluate: scores of the encoder and of the baselines it must beat.

In:  the encoder. If it was pre-trained on a corpus: held-out examples, the training tokens, and the
     initial checkpoint if there was one. If it was fine-tuned: the trials.
Out: `scores.json` and `masked_sentences.json` (schema: artifacts/results.py).

A `TaskScore` has means and standard errors over seeds, comparisons, learning curves, and the
published scores of an encoder of the same size.
"""

import math
import statistics
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch

from cloze.artifacts.config import parse
from cloze.artifacts.progress import Progress
from cloze.artifacts.results import (
    MIN_SEEDS,
    WIN_DIFFERENCE,
    Comparison,
    CurvePoint,
    LearningCurve,
    MaskedSentences,
    ReferenceScore,
    Scores,
    SeedScores,
    Split,
    SystemScore,
    TaskRecord,
    TaskScore,
    Trial,
    Trials,
    standard_error,
)
from cloze.artifacts.runtime.program import run_program
from cloze.artifacts.stage import StageTable
from cloze.artifacts.store import Artifact, commit, open_artifact, put_json
from cloze.model.config import PRESETS, Benchmark, EncoderConfig, EvaluateStage, TrainingMachine
from cloze.model.evaluation.language_model import evaluate_language_model
from cloze.model.glue import IN_AVERAGE
from cloze.model.hugging_face.model_files import read_encoder_files
from cloze.model.training.distributed import training_device
from cloze.model.training.start import restart_prepared, threads_per_rank
from cloze.model.training.waiting import patient_threads

PRETRAINED = "pretrained"
RANDOM = "random"

REFERENCE: dict[str, Any] = tomllib.loads(
    Path(__file__).with_name("reference_scores.toml").read_text("utf-8")
)
"""Published scores, table by table."""


def make_scores(table: StageTable, engine_options: list[str]) -> Artifact:
    """Run the stage."""
    stage = parse(EvaluateStage, table.config, source="stage table")
    machine = parse(TrainingMachine, table.machine, source="stage table, machine")
    threads = threads_per_rank(machine)
    torch.set_num_threads(threads)
    device = training_device(machine.device)
    encoder = read_encoder_files(table.input_path("encoder"))
    has_corpus = "examples" in table.inputs
    progress = Progress("evaluate", total=4 if has_corpus else 1, unit="parts", interval=0.0)
    with patient_threads(threads):
        language_model, sentences = (
            evaluate_language_model(table, stage, encoder, progress, device=device)
            if has_corpus
            else ((), ())
        )
    trials = Trials(tasks=(), fits=())
    if "finetune" in table.inputs:
        found = open_artifact(table.input_path("finetune")).read_json("fits.json")
        trials = Trials.model_validate(found)
    tasks = task_scores(trials, encoder.config, published=stage.published)
    progress.advance(1, "task scores")
    scores = Scores(
        parameters=encoder.parameter_count,
        language_model=language_model,
        tasks=tasks,
        glue_average=glue_average(trials, tasks),
    )
    filled = MaskedSentences(sentences=sentences).model_dump(mode="json", exclude_defaults=True)
    files = [
        put_json(table.output, scores.model_dump(mode="json"), name="scores.json"),
        put_json(table.output, filled, name="masked_sentences.json"),
    ]
    return commit(table, files)


def task_scores(
    trials: Trials, encoder: EncoderConfig, *, published: Mapping[str, Benchmark]
) -> tuple[TaskScore, ...]:
    """One score per task; `published`: the published names of tasks outside GLUE."""
    scores = []
    for task in trials.tasks:
        found = [trial for trial in trials.fits if trial.task == task.name and not trial.point]
        pretrained = (trial for trial in found if trial.system == PRETRAINED)
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
                curves=tuple(map(_curve, found)),
                confusion=best.confusion if best else None,
                errors=best.errors if best else (),
                published=reference_scores(published.get(task.name, task.glue), encoder),
            )
        )
    return tuple(scores)


def _curve(trial: Trial) -> LearningCurve:
    points = tuple(
        CurvePoint(epoch=one.epoch, train_loss=one.train_loss, dev=one.dev[trial.metric])
        for one in trial.epochs
        if trial.metric in one.dev
    )
    return LearningCurve(system=trial.system, seed=trial.seed, points=points)


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
        compare_systems(
            system, by_seed[system], against, by_seed[against], metric=metric, split=split
        )
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


def compare_systems(
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
            system=REFERENCE["systems"][preset],
            metric=metric,
            value=percent / 100,
            split=table["split"],
            source=table["source"],
        )
        for table in REFERENCE["tables"]
        if preset in table["rows"]
        for (name, metric), percent in zip(table["columns"], table["rows"][preset], strict=True)
        if name == task
    )


if __name__ == "__main__":
    restart_prepared()
    run_program(make_scores)
