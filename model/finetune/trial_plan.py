"""The trials that a configuration defines, and those that an earlier artifact already has.

In:  `FinetuneConfig` and the loaded problems; the stage's table.
Out: `TrialGroup`s, each run by one process: a single trial, or a grid and the seeds that depend on
     it. If only the seeds have changed since an earlier artifact: the records of the trials that
     both share, in the unfinished artifact, as if this launch had trained them, and the model of
     one that is still the best.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product

from artifacts import filesystem
from artifacts.config import assign
from artifacts.errors import ClozeError
from artifacts.manifest import FileEntry
from artifacts.progress import say
from artifacts.results import Trial, Trials
from artifacts.stage import StageTable
from artifacts.store import Artifact, finished_file, open_artifact, put_bytes
from model.config import FeatureConfig, FinetuneConfig, GridConfig, TaskConfig
from model.tasks.base import Problem

SEEDS = "finetune.seeds"


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
