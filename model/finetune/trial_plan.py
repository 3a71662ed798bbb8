"""The trials that a configuration defines.

In:  `FinetuneConfig` and the loaded problems.
Out: `TrialGroup`s, each run by one process: a single trial, or a grid and the seeds that depend on
     it.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import product

from model.config import FeatureConfig, FinetuneConfig, GridConfig, TaskConfig
from model.tasks.base import Problem


@dataclass(frozen=True)
class TrialPlan:
    """One trial to run."""

    problem: Problem
    task: TaskConfig
    """The task's configuration with the hyper-parameters of this trial."""

    initialisation: str
    seed: int
    feature: FeatureConfig | None = None
    point: str = ""
    """Grid point; empty for a trial whose score is reported."""

    after: "TrialPlan | None" = None
    """The trial whose encoder this one starts from; None: the encoder given to the stage."""

    @property
    def system(self) -> str:
        """`pretrained`, or a feature-based system such as `pretrained-last-linear`."""
        if self.feature is None:
            return self.initialisation
        return f"{self.initialisation}-{self.feature.layers}-{self.feature.head}"

    @property
    def name(self) -> str:
        """File name of its record."""
        point = f"-{self.point}" if self.point else ""
        return f"fits/{self.task.name}-{self.system}-{self.seed}{point}.json"

    @property
    def logits(self) -> str:
        """File name of its logits, which an ensemble needs."""
        return f"logits/{self.task.name}-{self.system}-{self.seed}.safetensors"

    @property
    def title(self) -> str:
        """Its name in messages."""
        return f"{self.task.name} {self.system} seed {self.seed} {self.point}".rstrip()

    @property
    def steps(self) -> int:
        """Number of optimizer steps."""
        return self.task.epochs * -(-self.problem.units("train") // self.task.batch_size)

    @property
    def can_be_saved(self) -> bool:
        """Whether its weights may be kept: only those of a fine-tuned, pre-trained encoder."""
        return self.initialisation == "pretrained" and self.feature is None and not self.point


@dataclass(frozen=True)
class TrialGroup:
    """Trials that one process runs in order.

    Grid points, then the seeds with the best of them; or the trials of one seed, each starting from
    the encoder of an earlier one.
    """

    seeds: tuple[TrialPlan, ...]
    points: tuple[TrialPlan, ...] = ()

    @property
    def plans(self) -> tuple[TrialPlan, ...]:
        """All trials, in the order in which they run."""
        return (*self.points, *self.seeds)

    @property
    def steps(self) -> int:
        """Optimizer steps, as far as known before the grid search."""
        return sum(plan.steps for plan in self.plans)


def plan_trials(config: FinetuneConfig, problems: list[Problem]) -> tuple[TrialGroup, ...]:
    """Trial groups by task, then system, then seed, in the configured order.

    The trials of a task with `after` join the groups of that task, seed by seed: they need the
    weights that the same process has just trained.
    """
    first = {problem.config.name: problem for problem in problems}
    followers: dict[str, list[Problem]] = {}
    for problem in problems:
        root = problem.config
        while root.after:
            root = first[root.after].config
        if problem.config.after:
            followers.setdefault(root.name, []).append(problem)

    def staged(plan: TrialPlan) -> Iterator[TrialPlan]:
        """The plan, and all plans that start from it, directly or indirectly."""
        plans = {plan.task.name: plan}
        for problem in followers.get(plan.task.name, ()):
            task = problem.config
            plans[task.name] = TrialPlan(
                problem, task, plan.initialisation, plan.seed, after=plans[task.after]
            )
        yield from plans.values()

    def groups(problem: Problem, initialisation: str) -> Iterator[TrialGroup]:
        task = problem.config
        if config.fine_tuning and not task.after:
            seeds = tuple(TrialPlan(problem, task, initialisation, seed) for seed in config.seeds)
            if config.grid:
                yield TrialGroup(seeds, grid_points(seeds[0], config.grid))
            else:
                yield from (TrialGroup(tuple(staged(seed))) for seed in seeds)
        for feature in config.features:
            recipe = {"learning_rate": feature.learning_rate, "epochs": feature.epochs}
            trained = task.model_copy(update=recipe)
            for seed in config.seeds:
                yield TrialGroup((TrialPlan(problem, trained, initialisation, seed, feature),))

    return tuple(
        group
        for problem, initialisation in product(problems, config.initialisations)
        for group in groups(problem, initialisation)
    )


def grid_points(plan: TrialPlan, grid: GridConfig) -> tuple[TrialPlan, ...]:
    """The plan, once for every combination of hyper-parameters in the grid."""
    return tuple(
        replace(
            plan,
            task=plan.task.model_copy(
                update={"batch_size": size, "learning_rate": rate, "epochs": epochs}
            ),
            point=f"b{size}-lr{rate:g}-e{epochs}",
        )
        for size, rate, epochs in product(grid.batch_sizes, grid.learning_rates, grid.epochs)
    )
