"""Stage finetune: every task × system × seed in one launch.

In:  an encoder artifact, and labelled data: a labels artifact, or files.
Out: one record per trial with its predictions, `fits.json` with the scores of all trials, and the
     weights of each task's best trial unless configured otherwise.

One process loads torch once and runs all trials; several ranks (`deepspeed --module
model.finetune.finetune …`) or workers share them. The matrices of a small encoder are too small for
more than one core, so its trials run in parallel instead, in workers that are forked before any
computation. If there are fewer trials than ranks, all ranks share the batches of each trial, with
the engine of pre-training. Trials that an interrupted attempt has finished are not run again.
Wall-clock times go to the records, so that the artifact's bytes do not depend on them.
"""

import gc
import mmap
import os
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import torch
from numpy.typing import NDArray

from artifacts.config import parse
from artifacts.errors import ClozeError, UsageError
from artifacts.progress import Progress, say
from artifacts.results import TaskRecord
from artifacts.runtime.processes import die_with_parent
from artifacts.runtime.program import run_program
from artifacts.stage import StageTable
from artifacts.store import Artifact, open_artifact, put_json
from model.config import FinetuneConfig, FinetuneStage, TaskConfig, TrainingMachine
from model.finetune.results import commit_trials, take_over
from model.finetune.trainer import share_batches
from model.finetune.trials import TrialRunner, plan_trials
from model.hugging_face.layout import encoder_config
from model.hugging_face.model_files import EncoderFiles, read_encoder_files
from model.hugging_face.source import open_source
from model.tasks.base import Problem
from model.tasks.baselines import baselines
from model.tasks.problems import load_problem, load_tables
from model.tasks.task_table import data_notes
from model.training.distributed import World, join_world, training_device
from model.training.start import give_back_memory, restart_prepared, threads_per_rank
from model.training.waiting import patient_threads

DEFAULT_TOKEN_BUDGET = 16384
"""Tokens per micro-batch."""

SMALL_WIDTH = 256
"""Up to this hidden size, one trial per core is faster than all cores on one trial."""

LONGEST_WAIT = 7 * 24 * 3600.0
"""Seconds that a rank waits for the trials of the others."""

POLL_SECONDS = 0.2
"""Between two checks for workers that have finished."""

Result = TypeVar("Result")


def finetune(table: StageTable, engine_options: list[str]) -> Artifact:
    """Run the stage."""
    config = parse(FinetuneStage, table.config, source="stage table").finetune
    machine = parse(TrainingMachine, table.machine, source="stage table, machine")
    encoder = table.input_path("encoder")
    workers = worker_count(encoder, machine)
    threads = max(1, threads_per_rank(machine) // workers)
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        world = join_world(threads=threads, timeout=LONGEST_WAIT, device=machine.device)
    else:
        torch.set_num_threads(threads)
        world = World(0, 1, training_device(machine.device))
    earlier = take_over(table, config.seeds) if world.is_first else None
    world.barrier()
    encoders = read_encoders(encoder, config)
    labels = open_artifact(table.input_path("labels")) if "labels" in table.inputs else None
    quiet = not world.is_first
    loaded = [load_task(task, encoders[0], labels, quiet=quiet) for task in config.tasks]
    groups = plan_trials(config, [problem for problem, _ in loaded])
    shared = world.ranks > len(groups)

    def run_share(worker: Worker) -> TrialRunner:
        """Run this process's share of the trials; ranks and workers do not communicate."""
        number, size = world.rank + worker.number, world.ranks * worker.size
        runner = TrialRunner(
            output=table.output,
            config=config,
            encoders=encoders,
            tasks={record.name: record for _, record in loaded},
            advance=worker.advance,
            device=world.device,
            token_budget=machine.token_budget or DEFAULT_TOKEN_BUDGET,
            writes=world.is_first or not shared,
        )
        if shared:
            runner.make_optimizer = share_batches(world, machine)
        logged = groups if shared else groups[world.rank :: world.ranks]
        steps = sum(group.steps for group in logged)
        worker.progress = Progress("finetune", steps, unit="steps")
        for group in groups if shared else groups[number::size]:
            runner.run_group(group)
        if runner.writes:
            put_json(table.output, runner.seconds, name=f"seconds-{number}.json")
        if number:
            runner.leave_best()
        return runner

    with patient_threads(threads):
        runner = run_workers(workers, run_share)
        world.barrier()
        if world.is_first:
            commit_trials(table, runner, groups, earlier)
        world.barrier()
    return open_artifact(table.output)


def worker_count(encoder: str, machine: TrainingMachine) -> int:
    """Number of processes that share the trials: one per core for a small encoder on a CPU."""
    if torch.cuda.is_available() or int(os.environ.get("WORLD_SIZE", "1")) > 1:
        return 1
    source = open_source(encoder)
    width = encoder_config(source.read_table("config.json"), source=source.directory).hidden_size
    return threads_per_rank(machine) if width <= SMALL_WIDTH else 1


class WorkerKilled(ClozeError):
    """A worker process was killed."""

    exit_code = 128 + signal.SIGKILL
    """The same as if the program itself had been killed: a retry may help."""


@dataclass
class Worker:
    """One process among the workers."""

    number: int
    """0 is the process that forked the others."""

    size: int
    done: NDArray[np.int64]
    """[size] optimizer steps made by each worker; shared memory."""

    progress: Progress | None = None
    """Logs the steps of all workers, in the first process."""

    def advance(self, steps: int, note: str = "") -> None:
        """Count steps of this process."""
        self.done[self.number] += steps
        if self.number == 0:
            self.report(note)

    def report(self, note: str = "") -> None:
        """Log the progress since the last report."""
        if self.progress is not None:
            self.progress.advance(float(self.done.sum()) - self.progress.done, note)


def run_workers(size: int, work: Callable[[Worker], Result]) -> Result:
    """Run `work` in this process and in `size` - 1 forked ones; return this one's result.

    The launch ends if a worker fails.
    """
    shared = np.frombuffer(mmap.mmap(-1, 8 * size), np.int64)
    # Workers share these pages: what is left of loading would count for all of them, and garbage
    # collections write to every object that they visit.
    give_back_memory()
    gc.freeze()
    children = {_fork(work, Worker(number, size, shared)) for number in range(1, size)}
    first = Worker(0, size, shared)
    try:
        result = work(first)
        while children:
            for child in tuple(children):
                found, status = os.waitpid(child, os.WNOHANG)
                if not found:
                    continue
                children.remove(child)
                code = os.waitstatus_to_exitcode(status)
                if code < 0:
                    raise WorkerKilled(
                        f"a process of the launch was ended by {signal.Signals(-code).name}, "
                        "perhaps for memory; finished trials are kept"
                    )
                if code:
                    raise ClozeError(
                        f"a process of the launch ended with {code}; "
                        "its message is above; finished trials are kept"
                    )
            first.report()
            time.sleep(POLL_SECONDS if children else 0.0)
    finally:
        for child in children:
            os.kill(child, signal.SIGTERM)
    return result


def _fork(work: Callable[[Worker], object], worker: Worker) -> int:
    """Fork a process that runs `work` and exits; return its id."""
    sys.stderr.flush()
    first = os.getpid()
    child = os.fork()
    if child:
        return child
    die_with_parent(first)
    code = 1
    try:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        work(worker)
        code = 0
    except ClozeError as error:
        say(f"error: {error}")
    finally:
        sys.stderr.flush()
        os._exit(code)  # skips exit handlers inherited from the first process


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


def load_task(
    task: TaskConfig, initial: EncoderFiles, labels: Artifact | None, *, quiet: bool
) -> tuple[Problem, TaskRecord]:
    """The task with its vocabulary pruned, and a record of its data and baselines."""
    if task.max_seq_length > initial.config.max_position_embeddings:
        raise UsageError(
            f"task {task.name}: max_seq_length {task.max_seq_length}, but the encoder has "
            f"{initial.config.max_position_embeddings} positions; lower max_seq_length"
        )
    tables = load_tables(task, labels)
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
            *(note for table in tables.values() for note in table.notes()),
            *data_notes(tables),
            *problem.notes,
        ),
        baselines=baselines(problem, tables),
    )
    if not quiet:
        counts = ", ".join(f"{split} {number:,}" for split, number in record.examples.items())
        say(f"finetune {task.name}: {task.kind}, {counts}, {record.truncated} inputs truncated")
        for note in record.notes:
            say(f"finetune {task.name}: {note}")
    return problem, record


if __name__ == "__main__":
    restart_prepared()
    run_program(finetune)
