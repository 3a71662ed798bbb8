"""The fits of one launch, as one rank runs them.

In:  series of jobs; what earlier attempts have finished.
Out: one record a fit in the unfinished artifact; models and submissions of the best ones.
"""

from dataclasses import dataclass, field

from torch import Tensor

from artifacts import filesystem
from artifacts.manifest import FileEntry
from artifacts.progress import say
from artifacts.results import TaskRecord, Trial
from artifacts.stage import StageTable
from artifacts.store import finished_file, put_bytes, put_json
from model.config import FinetuneConfig
from model.finetune.jobs import Job, Series
from model.finetune.local_optimizer import OwnUpdates
from model.finetune.runner import Finished, Runner
from model.finetune.saved import save_model
from model.finetune.submission import submissions
from model.finetune.workers import Seat

Weights = dict[str, Tensor]


@dataclass
class Launch:
    """One run of the stage, as this rank sees it."""

    table: StageTable
    config: FinetuneConfig
    runner: Runner
    tasks: dict[str, TaskRecord]
    seat: Seat
    writes: bool = True
    """False for ranks that help with the first one's fits."""

    seconds: dict[str, float] = field(default_factory=dict)
    weights: dict[str, tuple[str, Weights]] = field(default_factory=dict)
    """By task: the best fit so far in this process, and its weights."""
    _merits: dict[str, float] = field(default_factory=dict)

    def record(self, job: Job) -> Trial:
        """The job's record; run only if no earlier attempt has finished it."""
        done = finished_file(self.table.output, job.name)
        if done is not None:
            self.seat.advance(job.steps, f"{job.name} is there")
            return read_record(self.table.output, done)
        note = f"{job.task.name} {job.system} seed {job.seed} {job.point}".rstrip()
        finished = self.runner.run(
            job, self._floor(job), lambda steps: self.seat.advance(steps, note)
        )
        if self.writes:
            put_json(self.table.output, finished.record.model_dump(mode="json"), name=job.name)
            self.seconds[job.name] = round(finished.seconds, 3)
            self._keep(job, finished)
            say(f"finetune {note}: {_figures(finished.record)}")
        return finished.record

    def series(self, series: Series) -> list[Job]:
        """Run the grid's points, then the seeds with the best of them; the jobs that were run."""
        tried = [(self.record(job), job) for job in series.points]
        jobs = series.jobs
        if tried:
            best = max(tried, key=lambda pair: pair[0].dev.get(pair[0].metric, 0.0))[1]
            say(f"finetune {best.task.name} {best.system}: best on dev is {best.point}")
            jobs = series.chosen(best.task)
        for job in jobs:
            self.record(job)
        return [*series.points, *jobs]

    def models(self, fits: list[tuple[Job, Trial]]) -> list[FileEntry]:
        """Files of each task's best pre-trained fit; trained again if another process has it."""
        if self.config.save == "none":
            return []
        entries = []
        for task in self.tasks:
            best = _best(fits, task)
            if best is not None:
                job, record = best
                learnt = job.problem.learnt(record.predictions.get("dev"))
                weights = self._weights_of(job)
                entries += save_model(
                    self.table.output,
                    (job.problem, learnt),
                    weights,
                    self.runner.beginnings[0],
                )
        return entries

    def submissions(self, fits: list[tuple[Job, Trial]]) -> list[FileEntry]:
        """Files for the official servers, of each task's best pre-trained fit."""
        entries = []
        for task in self.tasks:
            best = _best(fits, task)
            if best is not None:
                job, record = best
                files = submissions(job.problem, record.predictions)
                entries += [
                    put_bytes(self.table.output, content, name=f"submissions/{task}/{name}")
                    for name, content in files.items()
                ]
        return entries

    def _weights_of(self, job: Job) -> Weights:
        name, weights = self.weights.get(job.task.name, ("", {}))
        if name == job.name:
            return weights
        say(f"finetune: {job.name} is trained again for its weights")
        self.runner.make_updates = OwnUpdates  # the other ranks have gone on
        return self.runner.run(job, self._floor(job), lambda steps: None).weights

    def _keep(self, job: Job, finished: Finished) -> None:
        """Hold on to the weights of the best fit so far."""
        if self.config.save == "none" or not _can_be_saved(job):
            return
        merit = finished.record.merit
        if merit > self._merits.get(job.task.name, float("-inf")):
            self._merits[job.task.name] = merit
            self.weights[job.task.name] = (job.name, finished.weights)

    def _floor(self, job: Job) -> float | None:
        """What a fit must beat on dev not to be an early failure: the majority."""
        if not self.config.restarts:
            return None
        simplest = self.tasks[job.task.name].baselines[:1]
        return simplest[0].dev.get(job.problem.headline) if simplest else None


def _can_be_saved(job: Job) -> bool:
    return job.initialisation == "pretrained" and job.feature is None and not job.point


def _best(fits: list[tuple[Job, Trial]], task: str) -> tuple[Job, Trial] | None:
    """The fine-tuned pre-trained fit of a task that is best on dev."""
    of_task = [(j, r) for j, r in fits if j.task.name == task and _can_be_saved(j)]
    return max(of_task, key=lambda pair: pair[1].merit) if of_task else None


def _figures(record: Trial) -> str:
    scores = {"dev": record.dev, "test": record.test, **record.more}
    return ", ".join(
        f"{split} {record.metric} {values[record.metric]:.4f}"
        for split, values in scores.items()
        if record.metric in values
    )


def read_record(directory: str, entry: FileEntry) -> Trial:
    """A fit's record, from an artifact that may be unfinished."""
    return Trial.model_validate_json(
        filesystem.read_bytes(filesystem.join(directory, entry.stored_name))
    )
