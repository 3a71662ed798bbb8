"""Stage evaluate: scores of the encoder and of the baselines it must beat.

In:  the encoder. If it was pre-trained on a corpus: held-out examples, the training tokens, and the
     initial checkpoint if there was one. If it was fine-tuned: the trials.
Out: `scores.json` and `masked_sentences.json` (schema: artifacts/results.py).

A `TaskScore` has means and standard errors over seeds, comparisons, learning curves, and the
published scores of an encoder of the same size.
"""

import statistics
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from cloze.artifacts.config import JsonObject, parse
from cloze.artifacts.progress import Progress
from cloze.artifacts.results import (
    WIN_DIFFERENCE,
    Comparison,
    CurvePoint,
    LearningCurve,
    MaskedSentences,
    Outcome,
    ReferenceScore,
    Scores,
    SeedScores,
    Split,
    SystemScore,
    TaskRecord,
    TaskScore,
    Trial,
    Trials,
    plus_minus,
)
from cloze.artifacts.runtime.program import run_program
from cloze.artifacts.significance import MIN_SEEDS, gap, holm, is_real
from cloze.artifacts.stage import StageTable
from cloze.artifacts.store import Artifact, commit, open_artifact, put_json
from cloze.model.config import PRESETS, Benchmark, EncoderConfig, EvaluateStage, TrainingMachine
from cloze.model.evaluation.language_model import HeldOutResults, evaluate_language_model
from cloze.model.glue import IN_AVERAGE, MISMATCHED
from cloze.model.hugging_face.model_files import EncoderFiles, read_encoder_files
from cloze.model.training.distributed import start_world
from cloze.model.training.start import restart_prepared, threads_per_rank
from cloze.model.training.waiting import patient_threads

PRETRAINED = "pretrained"
RANDOM = "random"

REFERENCE: JsonObject = tomllib.loads(
    Path(__file__).with_name("reference_scores.toml").read_text("utf-8")
)
"""Published scores, table by table."""


def make_scores(table: StageTable, engine_options: list[str]) -> Artifact:
    """Run the stage."""
    stage = parse(EvaluateStage, table.config, source="stage table")
    machine = parse(TrainingMachine, table.machine, source="stage table, machine")
    threads = threads_per_rank(machine)
    world = start_world(machine, threads=threads)
    encoder = read_encoder_files(table.input_path("encoder"))
    has_corpus = "examples" in table.inputs
    progress = Progress("evaluate", total=4 if has_corpus else 1, unit="parts", interval=0.0)
    with patient_threads(threads):
        found = HeldOutResults()
        if has_corpus:
            found = evaluate_language_model(table, stage, encoder, progress, world=world)
    if world.is_first:
        commit_scores(table, stage, encoder, found, progress)
    # The others wait for the commit, or they would look for an artifact that is not there yet.
    world.barrier()
    return open_artifact(table.output)


def commit_scores(
    table: StageTable,
    stage: EvaluateStage,
    encoder: EncoderFiles,
    held_out: HeldOutResults,
    progress: Progress,
) -> None:
    """Score the tasks, and commit the artifact."""
    # Without fine-tuning there are no task scores; the artifact has the same form.
    trials = Trials(tasks=(), trials=())
    if "finetune" in table.inputs:
        found = open_artifact(table.input_path("finetune")).read_json("trials.json")
        trials = Trials.model_validate(found)
    tasks = task_scores(trials, encoder.config, published=stage.published)
    progress.advance(1, "task scores")
    scores = Scores(
        parameters=encoder.parameter_count,
        language_model=held_out.scores,
        tasks=tasks,
        glue_average=glue_average(trials, tasks),
    )
    filled = MaskedSentences(sentences=held_out.sentences).model_dump(
        mode="json", exclude_defaults=True
    )
    files = [
        put_json(table.output, scores.model_dump(mode="json"), name="scores.json"),
        put_json(table.output, filled, name="masked_sentences.json"),
    ]
    commit(table, files)


def task_scores(
    trials: Trials, encoder: EncoderConfig, *, published: Mapping[str, Benchmark]
) -> tuple[TaskScore, ...]:
    """One score per task; `published`: the published names of tasks outside GLUE."""
    scores = []
    for task in trials.tasks:
        # Grid points are not reported; the rest are the seeds of all systems.
        found = [trial for trial in trials.trials if trial.task == task.name and not trial.point]
        pretrained = (trial for trial in found if trial.system == PRETRAINED)
        # Details are shown of one trial, the best on dev.
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
                choice=best.choice if best else None,
                calibration=best.calibration if best else None,
                reliance=best.reliance if best else None,
                label_errors=best.label_errors if best else (),
                label_error_counts=best.label_error_counts if best else None,
                published=reference_scores(published.get(task.name, task.glue), encoder),
            )
        )
    return with_verdicts(scores)


def _curve(trial: Trial) -> LearningCurve:
    # An epoch without this metric (not scored, or undefined) is left out rather than drawn as 0.
    points = tuple(
        CurvePoint(epoch=one.epoch, train_loss=one.train_loss, dev=one.dev[trial.metric])
        for one in trial.epochs
        if trial.metric in one.dev
    )
    return LearningCurve(system=trial.system, seed=trial.seed, points=points)


def glue_average(trials: Trials, scores: tuple[TaskScore, ...]) -> float | None:
    """Mean headline metric of the pre-trained encoder over Table 1's columns of the GLUE tasks run.

    MNLI has two of the nine columns, matched and mismatched; WNLI has none. Computed on dev: only
    the official server has the test labels.
    """
    glue = {task.name for task in trials.tasks if task.glue in IN_AVERAGE}
    columns = [
        split[score.metric].mean
        for score in scores
        for system in score.systems
        if score.name in glue and system.name == PRETRAINED
        for split in (system.dev, system.more.get(MISMATCHED, {}))
        if score.metric in split
    ]
    return statistics.fmean(columns) if columns else None


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
    # Random systems first, then by name: the order in which reports read.
    for name in sorted({t.system for t in trials}, key=lambda n: (not n.startswith(RANDOM), n)):
        seeds = [trial for trial in trials if trial.system == name]
        found.append(
            SystemScore(
                name=name,
                role="random" if name.startswith(RANDOM) else "pretrained",
                trials=len(seeds),
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
    # The same split for all systems, or their scores could not be compared.
    split: Split = "test" if all(trial.test for trial in trials) else "dev"
    metric = task.metrics[0]
    scored = [(one.name, 0, one.test if split == "test" else one.dev) for one in task.baselines]
    scored += [(one.system, one.seed, one.test if split == "test" else one.dev) for one in trials]
    by_seed: dict[str, dict[int, float]] = {}
    for name, seed, scores in scored:
        if metric in scores:
            by_seed.setdefault(name, {})[seed] = scores[metric]
    # A baseline stands for a single seed, so it is compared with the mean of ours; a random system
    # has the same seeds, which are compared one by one.
    baselines = [baseline.name for baseline in task.baselines]
    return [
        compare_systems(
            SystemScores(system, by_seed[system]),
            SystemScores(against, by_seed[against]),
            metric=metric,
            split=split,
        )
        for system in dict.fromkeys(trial.system for trial in trials)
        if system.startswith(PRETRAINED)
        # the same system from random weights
        for against in (*baselines, system.replace(PRETRAINED, RANDOM, 1))
        if system in by_seed and against in by_seed
    ]


def with_verdicts(scores: Sequence[TaskScore]) -> tuple[TaskScore, ...]:
    """The scores with verdicts on their comparisons, corrected for the number of tasks.

    A table is what a reader sees together: one system over all tasks against its random
    counterpart, or against the baselines without an encoder.
    """
    tables: dict[tuple[str, bool], list[Comparison]] = {}
    for one in (comparison for task in scores for comparison in task.comparisons):
        tables.setdefault((one.system, one.against.startswith(RANDOM)), []).append(one)
    # Holm's correction counts the comparisons of a table; verdicts are put back in order below.
    verdicts = {
        key: iter(
            [
                _judged(one, p_value)
                for one, p_value in zip(table, holm([one.p_value for one in table]), strict=True)
            ]
        )
        for key, table in tables.items()
    }
    return tuple(
        task.model_copy(
            update={
                "comparisons": tuple(
                    next(verdicts[one.system, one.against.startswith(RANDOM)])
                    for one in task.comparisons
                )
            }
        )
        for task in scores
    )


class SystemScores(NamedTuple):
    """A system and its scores by seed."""

    name: str
    by_seed: Mapping[int, float]


def compare_systems(
    ours: SystemScores, theirs: SystemScores, *, metric: str, split: Split
) -> Comparison:
    """Two systems by their scores per seed, yet without a verdict; a baseline has only seed 0."""
    found = gap(ours.by_seed, theirs.by_seed)
    # A baseline has no seeds, so only our own count.
    with_seeds = [ours, theirs] if theirs.name.startswith(RANDOM) else [ours]
    return Comparison(
        system=ours.name,
        against=theirs.name,
        metric=metric,
        split=split,
        difference=found.mean,
        standard_error=found.standard_error,
        paired=found.paired,
        seeds=min(len(one.by_seed) for one in with_seeds),
        interval=found.interval,
        p_value=found.p_value,
    )


def _judged(one: Comparison, p_value: float | None) -> Comparison:
    """The comparison with its verdict, given its corrected p-value."""
    real, sides = is_real(p_value, seeds=one.seeds), f"{one.system} and {one.against}"
    # In this order: whether anything can be said, whether there is a difference, in which
    # direction, and whether it is large enough to matter.
    outcome: Outcome
    if real is None:
        why = (
            f"fewer than {MIN_SEEDS} seeds"
            if one.seeds < MIN_SEEDS
            else "equal differences for all seeds"
        )
        outcome, verdict = "undecided", f"no verdict on {sides} with {why}"
    elif not real:
        outcome, verdict = "none", f"no clear difference between {sides}"
    elif one.difference < 0:
        outcome, verdict = "loss", f"{one.system} loses to {one.against}"
    elif one.difference < WIN_DIFFERENCE:
        short = f"{100 * WIN_DIFFERENCE:.0f} points"
        outcome, verdict = "gain", f"{one.system} is ahead of {one.against} by less than {short}"
    else:
        outcome, verdict = "win", f"{one.system} wins over {one.against}"
    error = plus_minus(one.standard_error)
    significance = "" if p_value is None else f", p = {p_value:.2g}"
    seeds = f"{one.seeds} seed{'s' * (one.seeds != 1)}"
    statement = f"{verdict}: {100 * one.difference:+.1f}{error} points, {seeds}{significance}"
    return one.model_copy(update={"outcome": outcome, "corrected": p_value, "statement": statement})


def reference_scores(task: str, encoder: EncoderConfig) -> tuple[ReferenceScore, ...]:
    """Published scores of the preset with the encoder's shape; empty if there are none."""
    shape = (
        encoder.num_hidden_layers,
        encoder.hidden_size,
        encoder.num_attention_heads,
        encoder.intermediate_size,
    )
    known = PRESETS if encoder.family == "bert" else {}
    # Published scores are those of one of the published sizes.
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
