"""The artifact of all trials: their records, and each task's model, errors and submissions.

In:  the groups of trials and one process's `TrialRunner`, when all processes have finished.
Out: the committed artifact.

If only the seeds have changed since an earlier artifact, the records of the trials that both share
are copied into this one, as if this launch had trained them, and so is the model of one that is
still the best.
"""

from collections.abc import Iterator, Mapping, Sequence
from itertools import count, takewhile

import torch
from safetensors.torch import load

from artifacts import filesystem
from artifacts.config import assign
from artifacts.errors import ClozeError, IntegrityError
from artifacts.manifest import FileEntry
from artifacts.progress import say
from artifacts.results import UNTOUCHED, Baseline, Trial, Trials
from artifacts.stage import StageTable
from artifacts.store import (
    Artifact,
    clear_work,
    commit,
    finished_file,
    open_artifact,
    put_bytes,
    put_json,
)
from model.encoder.models import SentenceModel
from model.finetune.approaches import FineTuning, split_logits
from model.finetune.error_analysis import mistakes, scored_split
from model.finetune.trainer import decoded
from model.finetune.trials import TrialGroup, TrialPlan, TrialRunner, trial_record
from model.hugging_face.model_files import save_model
from model.tasks.base import Problem

ENSEMBLE = "pretrained-ensemble"
"""The system whose logits are the mean of those of all seeds."""

SEEDS = "finetune.seeds"


def take_over(table: StageTable, seeds: Sequence[int]) -> Artifact | None:
    """Copy the records from the artifact that shares most trials with `seeds`, and return it.

    A grid is searched with the first seed, which must therefore be the same.
    """
    found: dict[str, bytes] = {}
    nearest: Artifact | None = None
    for earlier in same_but_for_seeds(table):
        records = {
            entry.name: earlier.read_bytes(entry.name)
            for entry in earlier.manifest.files
            if entry.name.startswith("fits/")
        }
        trials = {name: Trial.model_validate_json(text) for name, text in records.items()}
        if any(trial.point and trial.seed != seeds[0] for trial in trials.values()):
            continue
        shared = {name: records[name] for name, trial in trials.items() if trial.seed in seeds}
        if len(shared) > len(found):
            found, nearest = shared, earlier
    if nearest:  # an ensemble also needs the logits of its members
        names = (name.removeprefix("fits/").removesuffix(".json") for name in found)
        wanted = {f"logits/{name}.safetensors" for name in names}
        kept = [entry.name for entry in nearest.manifest.files if entry.name in wanted]
        found_files = {**{name: nearest.read_bytes(name) for name in kept}, **found}
        for name, content in found_files.items():
            if finished_file(table.output, name) is None:
                put_bytes(table.output, content, name=name)
        say(f"finetune: {len(found)} trials reused from {nearest.directory}")
    return nearest


def same_but_for_seeds(table: StageTable) -> Iterator[Artifact]:
    """The artifacts next to this one that differ from it in their seeds only."""
    folder, _, own = table.output.rpartition("/")
    inputs = {role: reference.digest for role, reference in table.inputs.items()}
    wanted = assign({**table.keyed_config}, SEEDS, [])
    for name in filesystem.list_names(folder):
        if name == own:
            continue
        try:
            earlier = open_artifact(filesystem.join(folder, name))
        except (ClozeError, OSError):
            continue
        made = earlier.manifest
        same = (made.stage, made.format_version, made.inputs)
        if same == (table.stage, table.format_version, inputs) and (
            assign(made.config, SEEDS, []) == wanted
        ):
            yield earlier


def commit_trials(
    table: StageTable,
    runner: TrialRunner,
    groups: tuple[TrialGroup, ...],
    earlier: Artifact | None,
) -> None:
    """Collect the records of all processes and commit the artifact.

    `earlier`: the artifact whose trials are reused, which may contain the best one's model.
    """
    plans = [plan for group in groups for plan in group.plans]
    finished = [runner.finished(plan) for plan in plans]
    found = [trial for trial, _ in finished]
    means, logits = ensembles(runner, plans)
    files = task_files(runner, list(zip(plans, found, strict=True)), means, earlier)
    problems = {plan.task.name: plan.problem for plan in plans}
    trials = Trials(
        tasks=tuple(
            record.model_copy(
                update={"baselines": (*record.baselines, *untouched(runner, problems[name]))}
            )
            for name, record in runner.tasks.items()
        ),
        fits=tuple(
            trial.model_copy(update={"predictions": {}}) for trial in (*found, *means.values())
        ),
    )
    summary = put_json(table.output, trials.model_dump(mode="json"), name="fits.json")
    seconds = (finished_file(table.output, f"seconds-{number}.json") for number in count())
    commit(
        table,
        [*(entry for _, entry in finished), *logits, *files, summary],
        statistics={"fits": len(found), "steps": sum(trial.steps for trial in found)},
        records=[entry for entry in takewhile(bool, seconds) if entry],
    )
    clear_work(table.output)


def ensembles(
    runner: TrialRunner, plans: Sequence[TrialPlan]
) -> tuple[dict[str, Trial], list[FileEntry]]:
    """By task: a trial from the mean of all seeds' logits; and the files of these logits."""
    trials: dict[str, Trial] = {}
    files: list[FileEntry] = []
    if not runner.config.ensemble:
        return trials, files
    for task in runner.tasks:
        members = [plan for plan in plans if plan.task.name == task and plan.can_be_saved]
        entries = [finished_file(runner.output, plan.logits) for plan in members]
        each = [load(runner.content(entry)) for entry in entries if entry is not None]
        if not members or len(each) < len(members):
            raise IntegrityError(f"{runner.output}: {task} has no logits; run the stage again")
        mean = {
            split: torch.stack([one[split] for one in each]).mean(0).numpy() for split in each[0]
        }
        trial = trial_record(members[0], decoded(members[0].problem, mean), restarts=0)
        trials[task] = trial.model_copy(update={"system": ENSEMBLE})
        files += [entry for entry in entries if entry is not None]
    return trials, files


def untouched(runner: TrialRunner, problem: Problem) -> tuple[Baseline, ...]:
    """Scores of the encoder's vectors before training, for tasks that compare vectors."""
    if problem.reads != "vectors":
        return ()
    given = runner.encoders[0]
    encoder = given.encoder(pretrained=True, seed=0, used_ids=problem.used_ids)
    model = SentenceModel(encoder, pooling=given.pooling).to(runner.device)
    approach = FineTuning(problem, model, precision=runner.config.precision)
    scores = {
        split: problem.score(
            split, problem.predictions(split, split_logits(problem, approach, split))
        )
        for split in ("dev", "test")
        if split in problem.sequences
    }
    return (Baseline(name=UNTOUCHED, **scores),)


def task_files(
    runner: TrialRunner,
    trials: Sequence[tuple[TrialPlan, Trial]],
    means: Mapping[str, Trial],
    earlier: Artifact | None,
) -> list[FileEntry]:
    """Write each task's model, errors and submissions, from its best pre-trained trial.

    Submissions are the ensemble's if there is one (`means`).
    """
    entries = []
    for task in runner.tasks:
        candidates = [pair for pair in trials if pair[0].task.name == task and pair[0].can_be_saved]
        if not candidates:
            continue
        plan, trial = max(candidates, key=lambda pair: pair[1].merit)
        problem = plan.problem
        if runner.config.save != "none":
            model = earlier_model(earlier, trial, output=runner.output) if earlier else []
            if not model:
                kept = problem.calibrated(trial.predictions.get("dev"))
                weights = runner.weights(plan, trial)
                model = save_model(runner.output, problem, kept, weights, runner.encoders[0])
            entries += model
        split = scored_split(problem)
        if split:
            content = mistakes(problem, split, trial.predictions[split])
            name = f"mistakes/{task}-{split}.csv"
            entries.append(put_bytes(runner.output, content, name=name))
        for split, predictions in means.get(task, trial).predictions.items():
            for name, content in problem.submission(split, predictions).items():
                file = f"submissions/{task}/{name}"
                entries.append(put_bytes(runner.output, content, name=file))
    return entries


def earlier_model(earlier: Artifact, trial: Trial, *, output: str) -> list[FileEntry]:
    """Copy the files of `models/TASK/` if they are those of `trial`; else none."""
    best = max(
        (
            one
            for one in Trials.model_validate(earlier.read_json("fits.json")).fits
            if (one.task, one.system, one.point) == (trial.task, trial.system, "")
        ),
        key=lambda one: one.merit,
        default=trial,
    )
    return [
        put_bytes(output, earlier.read_bytes(entry.name), name=entry.name)
        for entry in earlier.manifest.files
        if best.seed == trial.seed and entry.name.startswith(f"models/{trial.task}/")
    ]
