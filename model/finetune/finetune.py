"""Stage finetune: every task × way × seed in one launch.

In:  an encoder artifact, and labelled data: a labels artifact, or files.
Out: one record a fit with its predictions, `fits.json` with every run's figures, and, where asked,
     the weights of each task's best fit.

One process loads torch once and runs all fits; several ranks share the fits among them. A fit that
an interrupted attempt has finished is not run again. Wall-clock goes to the records, so that the
artifact's bytes do not depend on it.
"""

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch

from artifacts.config import parse
from artifacts.errors import IntegrityError, UsageError
from artifacts.manifest import FileEntry
from artifacts.program import run_program
from artifacts.progress import Progress, say
from artifacts.results import TaskRecord, Trials
from artifacts.stage import StageTable
from artifacts.store import Artifact, commit, finished_file, open_artifact, put_json
from model.config import FinetuneConfig, FinetuneStage, TaskConfig, TrainingMachine
from model.evaluation.task_baselines import baselines
from model.finetune.initial_encoder import Beginning, read_beginning
from model.finetune.jobs import Series, all_series
from model.finetune.launch import Launch, read_record
from model.finetune.local_optimizer import MakeUpdates
from model.finetune.runner import Runner
from model.finetune.vocabulary_pruning import compact
from model.finetune.workers import Seat, together
from model.inference.hugging_face_config import encoder_config
from model.inference.source import open_source
from model.tasks.base import Problem
from model.tasks.problems import load_problem, load_tables
from model.training.distributed import World, join_world
from model.training.environment import threads_per_rank

SMALL_WIDTH = 256
"""Up to this width one fit a core is faster than all cores on one fit."""

LONGEST_WAIT = 7 * 24 * 3600.0
"""Seconds a rank waits for the fits of the others."""


Split = Callable[[World, TrainingMachine], MakeUpdates]
"""Makes the updates of ranks that share every fit's batches."""


@dataclass(frozen=True)
class Place:
    """Where this process stands."""

    world: World
    machine: TrainingMachine
    split: Split | None

    def splits(self, series: int) -> bool:
        """Whether ranks would be left without a fit, and can help with the others' instead."""
        return self.split is not None and self.world.ranks > series


def finetune(
    table: StageTable, engine_options: list[str], *, split: Split | None = None
) -> Artifact:
    """Run the stage. With `split`, ranks that would have no fit share the batches of all."""
    config = parse(FinetuneStage, table.config, source="stage table").finetune
    machine = parse(TrainingMachine, table.machine, source="stage table, machine")
    workers = worker_count(table, machine)
    place = Place(own_world(machine, workers), machine, split)
    launch, every = together(workers, lambda seat: _run_share(table, config, place, seat))
    place.world.barrier()
    if place.world.is_first:
        _finish(launch, every)
    place.world.barrier()
    return open_artifact(table.output)


def worker_count(table: StageTable, machine: TrainingMachine) -> int:
    """Processes that share the fits on CPU cores: one a core for an encoder that is small."""
    if torch.cuda.is_available() or int(os.environ.get("WORLD_SIZE", "1")) > 1:
        return 1
    source = open_source(table.input_path("encoder"))
    width = encoder_config(source.read_table("config.json"), source=source.directory).hidden_size
    return threads_per_rank(machine) if width <= SMALL_WIDTH else 1


def own_world(machine: TrainingMachine, workers: int) -> World:
    """This process among its ranks; alone, no process group is made."""
    threads = max(1, threads_per_rank(machine) // workers)
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        return join_world(threads=threads, timeout=LONGEST_WAIT)
    torch.set_num_threads(threads)
    return World(0, 1, torch.device("cuda" if torch.cuda.is_available() else "cpu"))


def _run_share(
    table: StageTable, config: FinetuneConfig, place: Place, seat: Seat
) -> tuple[Launch, tuple[Series, ...]]:
    """This process's share of the fits; ranks and workers never come together."""
    world, machine = place.world, place.machine
    number, size = world.rank + seat.number, world.ranks * seat.size
    beginnings = _beginnings(table, config)
    labels = open_artifact(table.input_path("labels")) if "labels" in table.inputs else None
    loaded = [_load(task, beginnings[0], labels, quiet=number > 0) for task in config.tasks]
    every = all_series(config, [problem for problem, _ in loaded])
    runner = Runner(config, beginnings, device=world.device, token_budget=machine.token_budget)
    records = {record.name: record for _, record in loaded}
    launch = Launch(table, config, runner, records, seat)
    ours, counted = every[number::size], every[world.rank :: world.ranks]
    if place.split is not None and place.splits(len(every)):
        ours = counted = every
        runner.make_updates = place.split(world, machine)
        launch.writes = world.is_first
    seat.progress = Progress("finetune", sum(series.steps for series in counted), unit="steps")
    for series in ours:
        launch.series(series)
    if launch.writes:
        put_json(table.output, launch.seconds, name=_seconds_name(number))
    return launch, every


def _seconds_name(number: int) -> str:
    return f"seconds-{number}.json"


def _beginnings(table: StageTable, config: FinetuneConfig) -> tuple[Beginning, ...]:
    first = read_beginning(table.input_path("encoder"))
    if not config.second_encoder:
        return (first,)
    second = read_beginning(config.second_encoder)
    if second.tokenizer.digest != first.tokenizer.digest:
        raise UsageError(
            f"{config.second_encoder}: its tokenizer is {second.tokenizer.digest[:12]}, the first "
            f"encoder's is {first.tokenizer.digest[:12]}; train both on the same examples"
        )
    return first, second


def _load(
    task: TaskConfig, beginning: Beginning, labels: Artifact | None, *, quiet: bool
) -> tuple[Problem, TaskRecord]:
    if task.max_seq_length > beginning.config.max_position_embeddings:
        raise UsageError(
            f"task {task.name}: max_seq_length {task.max_seq_length}, but the encoder has "
            f"{beginning.config.max_position_embeddings} positions; lower max_seq_length"
        )
    tables = load_tables(task, labels)
    problem = load_problem(task, beginning.tokenizer, tables)
    compact(problem)
    record = TaskRecord(
        name=task.name,
        glue=task.glue,
        kind=task.kind,
        metrics=problem.metrics,
        labels=problem.labels,
        examples={split: problem.examples(split) for split in problem.sequences},
        truncated=sum(sequences.truncated for sequences in problem.sequences.values()),
        notes=(*(note for name in tables for note in tables[name].notes()), *problem.notes),
        baselines=baselines(problem, tables),
    )
    if not quiet:
        _introduce(record)
    return problem, record


def _introduce(record: TaskRecord) -> None:
    counts = ", ".join(f"{split} {count:,}" for split, count in record.examples.items())
    say(f"finetune {record.name}: {record.kind}, {counts}, {record.truncated} inputs truncated")
    for note in record.notes:
        say(f"finetune {record.name}: {note}")


def _finish(launch: Launch, every: tuple[Series, ...]) -> None:
    """Gather all ranks' records and commit."""
    table = launch.table
    jobs = [job for series in every for job in (*series.points, *series.jobs)]
    entries = [_finished(table.output, job.name) for job in jobs]
    records = [read_record(table.output, entry) for entry in entries]
    fitted = list(zip(jobs, records, strict=True))
    models = [*launch.models(fitted), *launch.submissions(fitted)]
    shown = tuple(record.model_copy(update={"predictions": {}}) for record in records)
    fits = Trials(tasks=tuple(launch.tasks.values()), fits=shown)
    summary = put_json(table.output, fits.model_dump(mode="json"), name="fits.json")
    times = list(_seconds_files(table.output))
    commit(
        table,
        [*entries, *models, summary],
        statistics={"fits": len(entries), "steps": sum(record.steps for record in records)},
        records=times,
    )


def _seconds_files(directory: str) -> Iterator[FileEntry]:
    """What each process has written of its fits' times."""
    number = 0
    while (entry := finished_file(directory, _seconds_name(number))) is not None:
        yield entry
        number += 1


def _finished(directory: str, name: str) -> FileEntry:
    entry = finished_file(directory, name)
    if entry is None:
        raise IntegrityError(f"{directory}: {name} is missing; run the stage again")
    return entry


if __name__ == "__main__":
    run_program(finetune)
