"""Which fits a configuration asks for.

In:  `FinetuneConfig` and the loaded problems.
Out: `Series`: what one process runs: a fit, or a grid's points and the seeds that wait for them.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace

from model.config import FeatureConfig, FinetuneConfig, GridConfig, TaskConfig
from model.tasks.base import Problem


@dataclass(frozen=True)
class Job:
    """One fit to run."""

    problem: Problem
    task: TaskConfig
    """The task's configuration with this fit's own hyper-parameters."""

    initialisation: str
    seed: int
    feature: FeatureConfig | None = None
    point: str = ""
    """The grid point that is tried; empty for a fit that counts."""

    @property
    def system(self) -> str:
        """`pretrained`, or `pretrained-last-linear` for a feature-based way."""
        if self.feature is None:
            return self.initialisation
        return f"{self.initialisation}-{self.feature.layers}-{self.feature.head}"

    @property
    def name(self) -> str:
        """File of its record."""
        point = f"-{self.point}" if self.point else ""
        return f"fits/{self.task.name}-{self.system}-{self.seed}{point}.json"

    @property
    def steps(self) -> int:
        """Updates it will make."""
        return self.task.epochs * -(-self.problem.units("train") // self.task.batch_size)


@dataclass(frozen=True)
class Series:
    """Fits that belong together: first the grid's points, then the seeds with the best of them."""

    jobs: tuple[Job, ...]
    points: tuple[Job, ...] = ()

    @property
    def steps(self) -> int:
        """Updates, as far as is known before the grid has chosen."""
        return sum(job.steps for job in (*self.jobs, *self.points))

    def chosen(self, task: TaskConfig) -> tuple[Job, ...]:
        """The seeds' jobs with the hyper-parameters of `task`."""
        return tuple(replace(job, task=task) for job in self.jobs)


def all_series(config: FinetuneConfig, problems: list[Problem]) -> tuple[Series, ...]:
    """Tasks, then ways, then seeds, in the configured order."""
    return tuple(
        series
        for problem in problems
        for initialisation in config.initialisations
        for series in _of_initialisation(config, problem, initialisation)
    )


def _of_initialisation(
    config: FinetuneConfig, problem: Problem, initialisation: str
) -> Iterator[Series]:
    task = problem.config
    if config.fine_tuning:
        jobs = tuple(Job(problem, task, initialisation, seed) for seed in config.seeds)
        if config.grid:
            yield Series(jobs, grid_points(jobs[0], config.grid))
        else:
            yield from (Series((job,)) for job in jobs)
    for feature in config.features:
        trained = task.model_copy(
            update={"learning_rate": feature.learning_rate, "epochs": feature.epochs}
        )
        yield from (
            Series((Job(problem, trained, initialisation, seed, feature=feature),))
            for seed in config.seeds
        )


def grid_points(job: Job, grid: GridConfig) -> tuple[Job, ...]:
    """The job with every combination of the grid."""
    combinations = (
        (size, rate, epochs)
        for size in grid.batch_sizes
        for rate in grid.learning_rates
        for epochs in grid.epochs
    )
    return tuple(
        replace(
            job,
            task=job.task.model_copy(
                update={"batch_size": size, "learning_rate": rate, "epochs": epochs}
            ),
            point=f"b{size}-lr{rate:g}-e{epochs}",
        )
        for size, rate, epochs in combinations
    )
