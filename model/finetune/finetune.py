"""Stage finetune: every task × system × seed in one launch.

In:  an encoder artifact, and labelled data: a labels artifact, or files.
Out: one record per trial with its predictions, `trials.json` with the scores of all trials, and the
     weights of each task's best trial unless configured otherwise.

One process loads torch once and runs all trials; several ranks, on one node or more, share them.
The matrices of a small encoder are too small for more than one core, so its trials run in parallel
instead, in workers that each rank forks before any computation. If there are fewer trials than
ranks, all ranks share the batches of each trial, with the engine of pre-training. Trials that an
interrupted attempt has finished are not run again, with however many ranks it ran.
Wall-clock times go to the records, so that the artifact's bytes do not depend on them.

If only the seeds have changed since an earlier artifact, the records of the trials that both share
are copied into this one, as if this launch had trained them, and so is the model of one that is
still the best.
"""

import gc
import mmap
import pkgutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import count, takewhile
from typing import TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.torch import load
from torch import Tensor

from cloze.artifacts import filesystem
from cloze.artifacts.config import assign, parse
from cloze.artifacts.errors import ClozeError, DiskFull, IntegrityError, UsageError
from cloze.artifacts.manifest import FileEntry
from cloze.artifacts.progress import Progress, say
from cloze.artifacts.results import UNTOUCHED, Baseline, TaskRecord, Trial, Trials
from cloze.artifacts.runtime.children import Workers
from cloze.artifacts.runtime.program import run_program
from cloze.artifacts.stage import StageTable
from cloze.artifacts.store import (
    Artifact,
    clear_work,
    commit,
    finished_file,
    open_artifact,
    put_bytes,
    put_json,
)
from cloze.artifacts.tokenizer import read_tokenizer_json
from cloze.model.config import (
    ChoiceConfig,
    FinetuneConfig,
    FinetuneStage,
    TaskConfig,
    TrainingMachine,
)
from cloze.model.encoder.models import Encoder, HeadInput, SentenceModel, TaskModel, shapes_alone
from cloze.model.finetune.approaches import FineTuning, split_logits
from cloze.model.finetune.choice import with_headline, with_predicted_dev
from cloze.model.finetune.error_analysis import (
    SHOWN_ERRORS,
    errors_table,
    label_errors_table,
    scored_split,
)
from cloze.model.finetune.sentence_heads import whole_vocabulary
from cloze.model.finetune.trainer import trial_result
from cloze.model.finetune.trials import (
    TrialGroup,
    TrialPlan,
    TrialRunner,
    plan_trials,
    trial_pooling,
    trial_record,
)
from cloze.model.hugging_face.changed_vocabulary import with_vocabulary
from cloze.model.hugging_face.layout import encoder_config
from cloze.model.hugging_face.model_files import (
    BILSTM,
    MODELS,
    EncoderFiles,
    TrainedModel,
    read_encoder_files,
    save_model,
)
from cloze.model.hugging_face.sentence_modules import DOCUMENT, QUERY
from cloze.model.hugging_face.source import open_source
from cloze.model.tasks.base import Prediction, Problem
from cloze.model.tasks.baselines import baselines
from cloze.model.tasks.files.task_table import TaskTable, data_notes
from cloze.model.tasks.problems import check_lone_rows, for_all, load_problem, load_tables
from cloze.model.training.distributed import World, start_world, training_device
from cloze.model.training.start import give_back_memory, restart_prepared, threads_per_rank
from cloze.model.training.waiting import patient_threads
from cloze.model.uncertainty.calibration import folded
from cloze.model.uncertainty.confidence import CONFIDENCE, Confidence
from cloze.model.uncertainty.familiarity import kept_rows, read_vectors

SERVER_FORMATS = "cloze.paper.server_formats:submission"
"""Makes files for official servers, beside the core: `module:function`, imported on use."""

Submission = Callable[[Problem, str, Sequence[Prediction]], Mapping[str, bytes]]
"""The files by name for a problem, a split and its predictions."""

DEFAULT_TOKEN_BUDGET = 16384
"""Tokens per micro-batch."""

SMALL_WIDTH = 256
"""Up to this hidden size, one trial per core is faster than all cores on one trial."""

ENSEMBLE = "pretrained-ensemble"
"""The system whose logits are the mean of those of all seeds."""

SEEDS = "finetune.seeds"

POLL_SECONDS = 0.2
"""Between two checks for workers that have finished."""

Result = TypeVar("Result")


def make_trials(table: StageTable, engine_options: list[str]) -> Artifact:
    """Run the stage."""
    config = parse(FinetuneStage, table.config, source="stage table").finetune
    machine = parse(TrainingMachine, table.machine, source="stage table, machine")
    encoder = table.input_path("encoder")
    # Ranks come from a launcher, on any number of nodes; each forks its workers here.
    # Two levels. Ranks, by a launcher, share what one machine cannot hold or finish; the workers of
    # a rank, forked here, share its cores. Trial groups are dealt to all of them in turn, and
    # nothing is sent between them: each trial is the same whoever runs it.
    workers = worker_count(encoder, machine)
    threads = max(1, threads_per_rank(machine) // workers)
    world = start_world(machine, threads=threads)
    # Copied before anybody looks for finished trials.
    earlier = take_over(table, config.seeds) if world.is_first else None
    world.barrier()
    given = read_encoders(encoder, config)
    encoders = with_words(given, table)
    loaded = prepared_tasks(table, config, encoders[0], quiet=not world.is_first)
    before = loaded
    if encoders is not given:  # compared with the encoder that reads with its own vocabulary
        before = prepared_tasks(table, config, given[0], quiet=True)
    groups = plan_trials(config, [problem for problem, _ in loaded])
    deal = Deal(groups, world)
    if deal.is_shared:  # all cores of a rank are in the same trial
        workers, threads = 1, threads_per_rank(machine)
        torch.set_num_threads(threads)

    def run_share(worker: Worker) -> TrialRunner:
        """Run this process's share of the trials; ranks and workers do not communicate."""
        # Fixed before anything runs, so that no two processes have to agree on who does what.
        own = deal.of_worker(worker)
        runner = TrialRunner(
            output=table.output,
            config=config,
            encoders=encoders,
            tasks={record.name: record for _, record in loaded},
            advance=worker.advance,
            spare=worker.spare,
            trials=sum(len(group.plans) for group in own),
            world=world if deal.is_shared else world.alone(),
            token_budget=machine.token_budget or DEFAULT_TOKEN_BUDGET,
            writes=world.is_first or not deal.is_shared,
        )
        steps = sum(group.steps for group in deal.of_rank())
        worker.progress = Progress("finetune", steps, unit="steps")
        if deal.is_shared:  # all ranks are in the same trial, and fail together
            for group in own:
                runner.run_group(group)
        else:
            run_each(own, runner.run_group)
        number = deal.number(worker)
        if runner.writes:
            put_json(table.output, runner.seconds, name=f"seconds-{number}.json")
        # The first process collects the weights that others leave.
        if number:
            runner.leave_best()
        return runner

    with patient_threads(threads):
        runner = in_all_ranks(world, lambda: run_workers(workers, run_share))
        if world.is_first:
            first = [untouched(runner, given[0], problem) for problem, _ in before]
            commit_trials(table, runner, groups, earlier, untouched=first)
        world.barrier()
    return open_artifact(table.output)


@dataclass(frozen=True)
class Deal:
    """Which groups of trials are whose: of a rank, and of each of its workers."""

    groups: Sequence[TrialGroup]
    world: World

    @property
    def is_shared(self) -> bool:
        """Whether there are too few groups: then all ranks share each trial's batches instead."""
        return self.world.ranks > len(self.groups)

    def number(self, worker: "Worker") -> int:
        """The number of a process among those of all ranks.

        The first workers of all ranks come before the second ones: with few groups, every rank gets
        one before any gets two.
        """
        return self.world.rank + self.world.ranks * worker.number

    def of_worker(self, worker: "Worker") -> Sequence[TrialGroup]:
        """The groups that a worker of this rank trains."""
        processes = self.world.ranks * worker.size
        return self.groups if self.is_shared else self.groups[self.number(worker) :: processes]

    def of_rank(self) -> Sequence[TrialGroup]:
        """Those of all workers of this rank."""
        return self.groups if self.is_shared else self.groups[self.world.rank :: self.world.ranks]


def in_all_ranks(world: World, work: Callable[[], Result]) -> Result:
    """Run `work`, and return its result once all ranks have theirs.

    A rank that fails waits for the others, whose trials would otherwise end with it.
    """
    if world.ranks == 1:
        return work()
    failed: ClozeError | None = None
    try:
        result = work()
    except DiskFull:
        raise
    except ClozeError as error:
        failed = error
    # All ranks come here, failed or not; whoever did not fail learns here that another has, so that
    # no rank waits in a collective for one that is gone.
    others = [rank for rank, message in enumerate(world.gather(str(failed or ""))) if message]
    if failed:
        raise failed
    if others:
        raise ClozeError(f"rank {others[0]} failed: see its message above")
    return result


def run_each(groups: Sequence[TrialGroup], run: Callable[[TrialGroup], None]) -> None:
    """Run every group; one that fails does not end the others, and is raised at the end."""
    failed: ClozeError | None = None
    for group in groups:
        try:
            run(group)
        except DiskFull:
            # no other task would fare better
            raise
        except ClozeError as error:
            failed = failed or error
            name = group.plans[0].task.name
            say(f"finetune {name}: failed, the other tasks go on and are kept: {error}")
    if failed:
        raise failed


def worker_count(encoder: str, machine: TrainingMachine) -> int:
    """Number of processes that share a rank's trials: one per core for a small one on a CPU."""
    # A GPU is shared badly by processes.
    if training_device(machine.device).type == "cuda":
        return 1
    source = open_source(encoder)
    width = encoder_config(source.read_table("config.json"), source=source.directory).hidden_size
    return threads_per_rank(machine) if width <= SMALL_WIDTH else 1


@dataclass
class Worker:
    """One process among the workers."""

    number: int
    """0 is the process that forked the others."""

    size: int
    done: NDArray[np.int64]
    """[size] optimizer steps made by each worker; shared memory."""

    spared: NDArray[np.int64]
    """[size] steps that were planned, and that no worker has to make; shared memory."""

    progress: Progress | None = None
    """Logs the steps of all workers, in the first process."""

    def advance(self, steps: int, note: str = "") -> None:
        """Count steps of this process."""
        self.done[self.number] += steps
        if self.number == 0:
            self.report(note)

    def spare(self, steps: int, note: str = "") -> None:
        """Count planned steps of this process that are not made."""
        self.spared[self.number] += steps
        if self.number == 0:
            self.report(note)

    def report(self, note: str = "") -> None:
        """Log the progress since the last report."""
        # Heads that are fitted at once make no steps, of which there is nothing to log.
        if self.progress is not None and self.done.any():
            spared = float(self.spared.sum()) - self.progress.spared
            self.progress.advance(float(self.done.sum()) - self.progress.done, note, spared=spared)


def run_workers(size: int, work: Callable[[Worker], Result]) -> Result:
    """Run `work` in this process and in `size` - 1 forked ones; return this one's result.

    The launch ends if a worker fails.
    """
    # anonymous shared memory: forked workers count into it
    done, spared = np.frombuffer(mmap.mmap(-1, 2 * 8 * size), np.int64).reshape(2, size)
    # Workers share these pages: what is left of loading would count for all of them, and garbage
    # collections write to every object that they visit.
    give_back_memory()
    gc.freeze()
    first, *others = (Worker(number, size, done, spared) for number in range(size))
    with Workers(partial(work, other) for other in others) as forked:
        result = work(first)
        while forked.running():
            first.report()
            time.sleep(POLL_SECONDS)
    first.report()
    return result


def read_encoders(location: str, config: FinetuneConfig) -> tuple[EncoderFiles, ...]:
    """The encoder and, if configured, a second one whose features are concatenated."""
    first = read_encoder_files(location)
    if not config.second_encoder:
        return (first,)
    second = read_encoder_files(config.second_encoder)
    if second.tokenizer.digest != first.tokenizer.digest:
        raise UsageError(
            f"{config.second_encoder}: its tokenizer is {second.tokenizer.digest[:12]}, the first "
            f"encoder's is {first.tokenizer.digest[:12]}; train both on the same examples"
        )
    return first, second


def with_words(encoders: tuple[EncoderFiles, ...], table: StageTable) -> tuple[EncoderFiles, ...]:
    """The encoders with the words that the run adds to their vocabulary, if it does."""
    if "vocabulary" not in table.inputs:
        return encoders
    vocabulary = open_artifact(table.input_path("vocabulary"))
    tokenizer = read_tokenizer_json(vocabulary.path("tokenizer.json"))
    if not tokenizer.extends(encoders[0].tokenizer):
        raise UsageError(
            f"vocabulary.path: another vocabulary than that of {table.input_path('encoder')}, to "
            "which the words are to be added; give the encoder's own"
        )
    return tuple(with_vocabulary(encoder, tokenizer) for encoder in encoders)


def prepared_tasks(
    table: StageTable, config: FinetuneConfig, initial: EncoderFiles, *, quiet: bool
) -> list[tuple[Problem, TaskRecord]]:
    """Every task, from its own files or from the artifacts of labels and negatives."""
    labels, mined = (
        open_artifact(table.input_path(role)) if role in table.inputs else None
        for role in ("labels", "negatives")
    )

    def load(task: TaskConfig) -> tuple[Problem, TaskRecord]:
        choice = config.choice_for(task)
        tables = load_tables(task, labels, mined=mined, holds_out=choice is None)
        return prepared_task(task, tables, initial, choice=choice, quiet=quiet)

    return for_all(config.tasks, load)


def prepared_task(
    task: TaskConfig,
    tables: Mapping[str, TaskTable],
    initial: EncoderFiles,
    *,
    choice: ChoiceConfig | None,
    quiet: bool,
) -> tuple[Problem, TaskRecord]:
    """The task with its vocabulary pruned, and a record of its data and baselines."""
    task.check_positions(initial.config.max_position_embeddings)
    if task.family.compares_vectors:
        task = with_prompts(task, initial)
    scored = tables  # by the baselines, which are not cross-validated
    if choice is not None:
        check_lone_rows(task, tables["train"])
        task = with_headline(task, tables["train"])
        tables = with_predicted_dev(tables, choice)
    problem = load_problem(task, initial.tokenizer, tables)
    problem.prune_vocabulary()
    record = TaskRecord(
        name=task.name,
        glue=task.glue,
        kind=task.kind,
        metrics=problem.metrics,
        labels=problem.labels,
        examples={split: problem.examples(split) for split in problem.sequences},
        truncated=sum(sequences.truncated for sequences in problem.sequences.values()),
        notes=(
            *(remark for table in tables.values() for remark in table.remarks),
            *data_notes(tables, classes=problem.predicts != "number"),
            *problem.notes,
            *(
                ("the encoder has no pooler, which classifiers read: it starts at random",)
                if problem.reads == "pooled" and not initial.has_pooler
                else ()
            ),
        ),
        baselines=baselines(problem, scored),
    )
    if not quiet:
        counts = ", ".join(f"{split} {number:,}" for split, number in record.examples.items())
        say(f"finetune {task.name}: {task.kind}, {counts}, {record.truncated} inputs truncated")
        for note in record.notes:
            say(f"finetune {task.name}: {note}")
    return problem, record


def with_prompts(task: TaskConfig, initial: EncoderFiles) -> TaskConfig:
    """The task with the prompts of the encoder, unless it has its own."""
    _ = initial.pooling  # raises for vectors that cannot be trained
    given, own = initial.modules, task.retrieval
    prompts = {
        name: chosen if chosen is not None else (given.prompt(theirs) if given else "")
        for name, theirs, chosen in (
            ("query_prompt", QUERY, own.query_prompt),
            ("passage_prompt", DOCUMENT, own.passage_prompt),
        )
    }
    return task.model_copy(update={"retrieval": own.model_copy(update=prompts)})


def take_over(table: StageTable, seeds: Sequence[int]) -> Artifact | None:
    """Copy the records from the artifact that shares most trials with `seeds`, and return it.

    A grid is searched with the first seed, which must therefore be the same.
    """
    # Trials depend on the configuration but for the list of seeds: with seeds added or removed,
    # those in common need not be trained again.
    found: dict[str, bytes] = {}
    nearest: Artifact | None = None
    for earlier in same_but_for_seeds(table):
        records = {
            entry.name: earlier.read_bytes(entry.name)
            for entry in earlier.manifest.files
            if entry.name.startswith("trials/")
        }
        trials = {name: Trial.model_validate_json(text) for name, text in records.items()}
        # A grid searched with another first seed may have chosen another point for all.
        if any(trial.point and trial.seed != seeds[0] for trial in trials.values()):
            continue
        shared = {name: records[name] for name, trial in trials.items() if trial.seed in seeds}
        if len(shared) > len(found):
            found, nearest = shared, earlier
    if nearest:  # an ensemble also needs the logits of its members
        names = (name.removeprefix("trials/").removesuffix(".json") for name in found)
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
        # Same stage, format and inputs, and configurations that are equal without the seeds.
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
    *,
    untouched: Sequence[tuple[Baseline, ...]],
) -> None:
    """Collect the records of all processes and commit the artifact.

    `earlier`: the artifact whose trials are reused, which may contain the best one's model.
    `untouched`: by task, scores of the encoder as it was given.
    """
    plans = [plan for group in groups for plan in group.plans]
    finished = [runner.finished(plan) for plan in plans]
    found = [trial for trial, _ in finished]
    means, logits = ensembles(runner, plans)
    files = task_files(runner, list(zip(plans, found, strict=True)), means, earlier)
    # The artifact keeps each trial's predictions in its record; the summary goes without.
    trials = Trials(
        tasks=tuple(
            record.model_copy(update={"baselines": (*record.baselines, *more)})
            for record, more in zip(runner.tasks.values(), untouched, strict=True)
        ),
        trials=tuple(
            trial.model_copy(
                update={
                    "predictions": {},
                    "nonconformity": (),
                    "label_errors": trial.label_errors[:SHOWN_ERRORS],
                }
            )
            for trial in (*found, *means.values())
        ),
    )
    summary = put_json(table.output, trials.model_dump(mode="json"), name="trials.json")
    seconds = (finished_file(table.output, f"seconds-{number}.json") for number in count())
    commit(
        table,
        [*(entry for _, entry in finished), *logits, *files, summary],
        statistics={"trials": len(found), "steps": sum(trial.steps for trial in found)},
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
        # Only saved systems have logits kept: fine-tuned, pre-trained, outside the grid.
        members = [plan for plan in plans if plan.task.name == task and plan.can_be_saved]
        entries = [finished_file(runner.output, plan.logits) for plan in members]
        each = [load(runner.content(entry)) for entry in entries if entry is not None]
        if not members or len(each) < len(members):
            raise IntegrityError(f"{runner.output}: {task} has no logits; run the stage again")
        mean = {
            split: torch.stack([one[split] for one in each]).mean(0).numpy() for split in each[0]
        }
        trial = trial_record(members[0], trial_result(members[0].problem, mean), restarts=0)
        trials[task] = trial.model_copy(update={"system": ENSEMBLE})
        files += [entry for entry in entries if entry is not None]
    return trials, files


def untouched(runner: TrialRunner, given: EncoderFiles, problem: Problem) -> tuple[Baseline, ...]:
    """Scores of the vectors of the `given` encoder, for tasks that compare vectors."""
    if problem.reads != "vectors":
        return ()
    encoder = given.encoder(pretrained=True, seed=0, used_ids=problem.used_ids)
    model = SentenceModel(encoder, pooling=given.pooling).to(runner.world.device)
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
    submission: Submission = pkgutil.resolve_name(SERVER_FORMATS)
    for task in runner.tasks:
        candidates = [pair for pair in trials if pair[0].task.name == task and pair[0].can_be_saved]
        if not candidates:
            continue
        # `merit`: what the best trial is chosen by, on dev.
        plan, trial = max(candidates, key=lambda pair: pair[1].merit)
        problem = plan.problem
        if runner.config.save != "none":
            model = earlier_model(earlier, trial, output=runner.output) if earlier else []
            # An earlier launch's best trial may still be the best: its model is copied.
            if not model:
                kept = problem.calibrated(trial.predictions.get("dev"))
                if trial.thresholds:
                    kept = kept.model_copy(update={"thresholds": trial.thresholds})
                weights = runner.weights(plan, trial)
                # Temperatures go into the weights and, where labels are decided by a threshold,
                # into that: the decisions stay as they were scored.
                if trial.calibration:
                    temperatures = trial.calibration.temperatures
                    kept = problem.at_temperatures(kept, temperatures)
                    weights = folded(weights, temperatures)
                initial = runner.encoders[0]
                pooling = trial_pooling(trial, problem.config, initial)
                trained = TrainedModel(problem, kept, weights, pooling)
                model = save_model(runner.output, trained, initial)
                if trial.nonconformity:
                    model.append(save_confidence(runner, problem, weights, trial))
            entries += model
        split = scored_split(problem)
        if split:
            content = errors_table(problem, split, trial.predictions[split])
            name = f"errors/{task}-{split}.csv"
            entries.append(put_bytes(runner.output, content, name=name))
        if trial.label_errors:
            content = label_errors_table(trial.label_errors)
            entries.append(put_bytes(runner.output, content, name=f"label_errors/{task}.csv"))
        for split, predictions in means.get(task, trial).predictions.items():
            for name, content in submission(problem, split, predictions).items():
                file = f"submissions/{task}/{name}"
                entries.append(put_bytes(runner.output, content, name=file))
    return entries


def save_confidence(
    runner: TrialRunner, problem: Problem, weights: Mapping[str, Tensor], trial: Trial
) -> FileEntry:
    """Write what `predict --confidence` needs beside the model whose `weights` are those saved."""
    initial = runner.encoders[0]
    pooling = trial_pooling(trial, problem.config, initial)
    model = task_model(problem, weights, initial, pooling=pooling)
    model.to(runner.world.device)
    sequences = whole_vocabulary(problem, "train")
    rows = kept_rows(len(sequences))
    known = Confidence(trial.nonconformity, read_vectors(model, sequences, rows))
    folder = f"{MODELS}{problem.config.name}"
    return put_bytes(runner.output, known.to_bytes(), name=f"{folder}/{CONFIDENCE}")


def task_model(
    problem: Problem,
    weights: Mapping[str, Tensor],
    initial: EncoderFiles,
    *,
    pooling: HeadInput,
) -> TaskModel:
    """A fine-tuned model with its whole vocabulary."""
    with shapes_alone():
        model = TaskModel(
            Encoder(initial.config, initial.tokenizer.size),
            outputs=problem.outputs,
            bilstm=any(name.startswith(BILSTM) for name in weights),
            pooling=pooling,
        )
    model.load_state_dict(weights, assign=True)
    return model.eval()


def earlier_model(earlier: Artifact, trial: Trial, *, output: str) -> list[FileEntry]:
    """Copy the files of `models/TASK/` if they are those of `trial`; else none."""
    best = max(
        (
            one
            for one in Trials.model_validate(earlier.read_json("trials.json")).trials
            if (one.task, one.system, one.point) == (trial.task, trial.system, "")
        ),
        key=lambda one: one.merit,
        default=trial,
    )
    return [
        put_bytes(output, earlier.read_bytes(entry.name), name=entry.name)
        for entry in earlier.manifest.files
        # only if that launch kept the same trial
        if best.seed == trial.seed and entry.name.startswith(f"models/{trial.task}/")
    ]


if __name__ == "__main__":
    restart_prepared()
    run_program(make_trials)
