"""Trials: which ones a configuration defines, and one process's share of them.

In:  `FinetuneConfig`, the loaded problems and the encoders; the records of earlier attempts.
Out: `TrialGroup`s, each run by one process: a single trial, or a grid and the seeds that depend on
     it; one record per trial in the unfinished artifact, and the weights of the best ones.
"""

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import product
from typing import get_args

import torch
from safetensors.torch import load, save
from torch import Tensor

from cloze.artifacts import filesystem
from cloze.artifacts.errors import IntegrityError, UsageError
from cloze.artifacts.manifest import FileEntry
from cloze.artifacts.progress import say
from cloze.artifacts.results import LabelError, LabelErrorCounts, TaskRecord, Trial, trial_label
from cloze.artifacts.rng import address
from cloze.artifacts.store import WORK, finished_file, put_bytes, put_json
from cloze.model.config import (
    ApproachName,
    ChoiceConfig,
    FeatureConfig,
    FinetuneConfig,
    GridConfig,
    Shortened,
    TaskConfig,
)
from cloze.model.encoder.models import Encoder, HeadInput, SentenceModel, TaskModel
from cloze.model.encoder.scaled_linear import ScaledLinear
from cloze.model.finetune.approaches import FineTuning
from cloze.model.finetune.choice import Chosen, CrossValidation, more_passes
from cloze.model.finetune.contrast import FrozenLayers, telling_names, tuned_by_contrast
from cloze.model.finetune.error_analysis import confusion, errors, scored_split
from cloze.model.finetune.feature_based import LAYERS, FeatureBased, FeatureCache, FeatureHead
from cloze.model.finetune.sentence_heads import (
    HeadTrainer,
    VectorCache,
    Vectors,
    approaches_for,
    chosen_penalty,
    fit_head,
)
from cloze.model.finetune.trainer import Advance, Recipe, TrialResult, TrialTrainer, trial_result
from cloze.model.hugging_face.model_files import ENCODER_PREFIX, WORD_EMBEDDINGS, EncoderFiles
from cloze.model.tasks.base import Logits, Problem
from cloze.model.tasks.features import Places
from cloze.model.training.distributed import World
from cloze.model.training.health import Deadline
from cloze.model.uncertainty.held_out import held_out_rows
from cloze.model.uncertainty.held_out_figures import label_errors, uncertainty
from cloze.model.uncertainty.thresholds import tuned_thresholds

Weights = dict[str, Tensor]

MOST_WEAKENED = 2.0
"""The penalty of a head for all rows becomes so many times weaker in a fold at most: with fewer
than half of the rows, as for a learning curve, they need it."""


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

    chosen: Chosen | None = None
    """The approach, if it was chosen; None: fine-tuning, or that of `feature`."""

    inverse_penalty: float | None = None
    """That of a head on vectors; None: chosen for the rows of `problem`."""

    shortened: Shortened | None = None
    """How its time limit has shortened it, if it is repeated."""

    after: "TrialPlan | None" = None
    """The trial whose encoder this one starts from; None: the encoder given to the stage."""

    @property
    def system(self) -> str:
        """`pretrained`, or a feature-based system such as `pretrained-last-linear`."""
        if self.feature is None:
            return self.initialisation
        return f"{self.initialisation}-{self.feature.layers}-{self.feature.head}"

    @property
    def label(self) -> str:
        """As that of its record, a `Trial`."""
        return trial_label(self.task.name, self.system, self.seed, self.point)

    @property
    def name(self) -> str:
        """File name of its record."""
        return f"trials/{self.label}.json"

    @property
    def logits(self) -> str:
        """File name of its logits, which an ensemble needs."""
        return f"logits/{trial_label(self.task.name, self.system, self.seed)}.safetensors"

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

    choice: ChoiceConfig | None = None
    """How the approach of the seeds is chosen."""

    @property
    def plans(self) -> tuple[TrialPlan, ...]:
        """All trials, in the order in which they run."""
        return (*self.points, *self.seeds)

    @property
    def steps(self) -> int:
        """Optimizer steps; with a grid, the most that there can be."""
        if not self.points:
            return sum(plan.steps for plan in self.seeds)
        return sum(plan.steps for plan in self.points) + len(self.seeds) * self._most_of_a_point

    def saved_by(self, best: TrialPlan) -> int:
        """Steps that no seed makes if the best point of the grid has fewer than another."""
        return len(self.seeds) * (self._most_of_a_point - best.steps)

    @property
    def _most_of_a_point(self) -> int:
        return max(plan.steps for plan in self.points)


def plan_trials(config: FinetuneConfig, problems: list[Problem]) -> tuple[TrialGroup, ...]:
    """Trial groups by task, then system, then seed, in the configured order.

    The trials of a task with `after` join the groups of that task, seed by seed: they need the
    weights that the same process has just trained.
    """
    first = {problem.config.name: problem for problem in problems}
    followers: dict[str, list[Problem]] = {}
    for problem in problems:
        # the first task of its chain, whose group it joins
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
        # `followers` come in the order of the configuration, in which a task stands behind the one
        # it starts from, so `plans` already has what each needs.
        yield from plans.values()

    def groups(problem: Problem, initialisation: str) -> Iterator[TrialGroup]:
        task = problem.config
        # Tasks with `after` are in the groups of their roots.
        if config.fine_tuning and not task.after:
            seeds = tuple(TrialPlan(problem, task, initialisation, seed) for seed in config.seeds)
            # With a choice or a grid, all seeds wait for its result and are one group; else each
            # is a group.
            if choice := config.choice_for(task):
                yield TrialGroup(seeds, choice=choice)
            elif config.grid:
                yield TrialGroup(seeds, grid_points(seeds[0], config.grid))
            else:
                yield from (TrialGroup(tuple(staged(seed))) for seed in seeds)
        for feature in config.features:
            recipe = {"learning_rate": feature.learning_rate, "epochs": feature.epochs}
            trained = task.model_copy(update=recipe)
            for seed in config.seeds:
                yield TrialGroup((TrialPlan(problem, trained, initialisation, seed, feature),))

    planned = tuple(
        group
        for problem, initialisation in product(problems, config.initialisations)
        for group in groups(problem, initialisation)
    )
    known = [plan.label for group in planned for plan in group.plans]
    if unknown := sorted(config.shortened.keys() - set(known)):
        raise UsageError(
            f"finetune.shortened: {unknown[0]}: no trial of this run; expected one of "
            f"{', '.join(known)}"
        )
    return planned


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


@dataclass(kw_only=True)
class TrialRunner:
    """Runs trials in one process, and keeps the weights of each task's best."""

    output: str
    """The unfinished artifact."""

    config: FinetuneConfig
    encoders: tuple[EncoderFiles, ...]
    """The encoder and, for concatenated features as in ELMo, a second one."""

    tasks: dict[str, TaskRecord]
    """By name."""

    advance: Callable[[int, str], None]
    """Counts steps of this process; called with the title of their trial."""

    spare: Callable[[int, str], None]
    """Counts planned steps that are not made."""

    world: World
    """The ranks that share the batches of every trial."""

    token_budget: int
    """Tokens per micro-batch."""

    trials: int = 1
    """The trials of this process, which share the time in `finetune.minutes`."""

    writes: bool = True
    """False for ranks that only share the batches of the first rank's trials."""

    seconds: dict[str, float] = field(default_factory=dict)
    """Wall-clock time of each trial that this process has run, by file name."""

    _began: float = field(default_factory=time.monotonic)
    _run: int = 0
    """Trials that are done, by this or an earlier attempt."""

    _best: dict[str, tuple[Trial, Weights]] = field(default_factory=dict)
    """By task: the best trial of this process so far, and its weights."""

    _latest: "Trained | None" = None
    """The trial trained last."""

    _frozen: "FrozenEncoder | None" = None

    _cached: tuple[tuple[str, str, str, int], FeatureCache] | None = None
    """The last frozen encoders' features, and their key."""

    def run_group(self, group: TrialGroup) -> None:
        """Run the grid points if there are any, then the seeds with the best of them.

        Or choose the approach, then run the seeds with it.
        """
        seeds = group.seeds
        if group.choice:
            # every rank that shares the group chooses alone, since ranks must not disagree
            self.world, shared = self.world.alone(), self.world
            # The choice is part of every seed's record: it is made again only for a seed that has
            # none, and comes out the same, as all of its numbers are drawn by address.
            if not all(finished_file(self.output, seed.name) for seed in seeds):
                chosen = self.choose(seeds[0], group.choice)
                seeds = tuple(replace(seed, chosen=chosen) for seed in seeds)
            for plan in seeds:
                self.run(plan)
            self.world = shared
            return
        # All points with the first seed; the best one's hyper-parameters are those of every seed.
        trained: Trained | None = None
        if group.points:
            best, trained = self.search(group.points)
            say(f"finetune {best.task.name} {best.system}: best on dev is {best.point}")
            self.spare(group.saved_by(best), f"{best.title}: the best")
            seeds = tuple(replace(seed, task=best.task) for seed in seeds)
        for number, plan in enumerate(seeds):
            self.run(plan, None if number else trained)

    def search(self, points: Sequence[TrialPlan]) -> "tuple[TrialPlan, Trained | None]":
        """The grid point that is best on dev, and what it has trained, to be taken as it is.

        None if an earlier attempt has trained it, whose weights were not kept.
        """
        best, kept, highest = points[0], None, -math.inf
        for plan in points:
            trial = self.run(plan)
            score = trial.dev.get(trial.metric, 0.0)
            # With the first of equals, the order of the grid decides.
            if score > highest:
                latest = self._latest
                kept = latest if latest and latest.name == plan.name else None
                best, highest = plan, score
        return best, kept

    def choose(self, plan: TrialPlan, config: ChoiceConfig) -> Chosen:
        """The approach for a task, by cross-validation with the plan's seed."""

        def train(problem: Problem, approach: ApproachName) -> Mapping[str, Logits]:
            task = more_passes(problem.config, problem.units("train"), config)
            # The losses of all rows are summed: on fewer rows, the same penalty would be stronger.
            share = min(plan.problem.units("train") / problem.units("train"), MOST_WEAKENED)
            weaker = penalty and penalty * share
            fold = replace(plan, problem=problem, task=task, inverse_penalty=weaker)
            return self._trainer(fold, self.encoders[0], 0, approach).run(lambda steps: None).logits

        # Before the first fold, so that all have that of the model trained on all rows.
        penalty = None
        if "linear" in plan.problem.approaches:
            vectors = self._frozen_encoder().vectors.of(plan.problem, "train")
            penalty = chosen_penalty(plan.problem, vectors)

        table = plan.problem.table("train")
        if self.encoders[0].modules and len(table) < config.fine_tuning_rows:
            others = tuple(name for name in config.approaches if name != "fine_tuning")
            if approaches_for(plan.problem, others):
                config = config.model_copy(update={"approaches": others})
        tokenizer = self.encoders[0].tokenizer
        validation = CrossValidation(plan.problem, table, tokenizer, config, train)
        found = validation.choose(self.seconds)
        if found.approach != "contrastive":
            return found
        # The texts that its model will be trained on belong to how it was made.
        names = telling_names(plan.problem, self._frozen_encoder().vectors, tokenizer)
        if names is not None:
            say(f"finetune {plan.title}: the labels' names are trained on, too")
        record = found.record.model_copy(update={"label_names": names is not None})
        return replace(found, record=record)

    def run(self, plan: TrialPlan, trained: "Trained | None" = None) -> Trial:
        """The trial's record, from an earlier attempt if one has finished it.

        trained: the same training under another name, which is not repeated.
        """
        if finished_file(self.output, plan.name) is not None:
            self.advance(plan.steps, f"{plan.name} already finished")
            # An earlier attempt has used its share of the time.
            # As if this process had begun earlier by that share, so what is left is divided among
            # the rest.
            self._began -= 60 * self.config.minutes / self.trials
            self._run += 1
            return self.finished(plan)[0]
        if trained is None:
            made = 0

            def advance(steps: int) -> None:
                nonlocal made
                made += steps
                self.advance(steps, plan.title)

            trained = self.train(plan, advance)
            trial = trained.trial
            # Fewer than planned if a head was fitted at once, or if the time was over.
            self.spare(plan.steps - made, plan.title)
        else:
            self.advance(plan.steps, f"{plan.title}: as in the grid")
            trial = trial_record(plan, trained.result, restarts=trained.trial.restarts)
        weights, result = trained.weights, trained.result
        self._run += 1
        if self.writes:
            if self.config.ensemble and plan.can_be_saved:
                tensors = {split: torch.from_numpy(v) for split, v in result.logits.items()}
                put_bytes(self.output, save(tensors), name=plan.logits)
            put_json(self.output, trial.model_dump(mode="json"), name=plan.name)
            self.seconds[plan.name] = round(result.seconds, 3)
            if self.config.save != "none" and plan.can_be_saved:
                best = self._best.get(plan.task.name)
                # One set of weights for each task in memory, however many trials.
                if best is None or trial.merit > best[0].merit:
                    self._best[plan.task.name] = (trial, weights)
            splits = {"dev": trial.dev, "test": trial.test, **trial.more}
            found = ", ".join(
                f"{split} {trial.metric} {scores[trial.metric]:.4f}"
                for split, scores in splits.items()
                if trial.metric in scores
            )
            say(f"finetune {plan.title}: {found}")
        return trial

    def train(self, plan: TrialPlan, advance: Advance) -> "Trained":
        """Train and score one trial.

        A run that ends no better than the majority on dev is restarted, up to `restarts` times
        (paper, 4.1).
        """
        headline = plan.problem.headline
        # The majority baseline comes first; without restarts its score does not matter.
        simplest = self.tasks[plan.task.name].baselines[:1]
        floor = simplest[0].dev.get(headline) if simplest and self.config.restarts else None
        initial = self.encoders[0]
        if plan.after is not None:
            # An earlier attempt made that trial, but its weights were not kept.
            if self._latest is None or self._latest.name != plan.after.name:
                say(f"finetune: {plan.after.name} is trained again for its weights")
                self.train(plan.after, lambda steps: None)
            latest = self._latest.weights if self._latest else {}
            # The encoder's weights only: the head is new.
            kept = {n: value for n, value in latest.items() if n.startswith(ENCODER_PREFIX)}
            initial = replace(initial, parameters=kept)
        thresholds: tuple[float, ...] = ()
        for attempt in range(self.config.restarts + 1):
            approach = plan.chosen.approach if plan.chosen else None
            trainer = self._trainer(plan, initial, attempt, approach)
            result = trainer.run(advance)
            reached = result.scores.get("dev", {}).get(headline)
            if floor is None or reached is None or reached > floor:
                break
        module = trainer.approach.module
        for layer in module.modules():
            if isinstance(layer, ScaledLinear):
                layer.fold()
        weights = module.state_dict()
        # Pruned rows go back, decayed as if they had been trained without a gradient.
        embeddings = f"encoder.{WORD_EMBEDDINGS}"
        if embeddings in weights and len(weights[embeddings]) < initial.tokenizer.size:
            weights[embeddings] = plan.problem.restore_rows(
                initial.parameters[embeddings],
                weights[embeddings],
                decay=trainer.missed_decay(result),
            )
        if plan.chosen:
            result = with_predicted_logits(plan, plan.chosen, result)
            result, thresholds = with_thresholds(plan.problem, result)
        trial = trial_record(plan, result, restarts=attempt)
        if thresholds:
            trial = trial.model_copy(update={"thresholds": thresholds})
        self._latest = Trained(plan.name, trial, weights, result)
        return self._latest

    def finished(self, plan: TrialPlan) -> tuple[Trial, FileEntry]:
        """The record written by this or another process, and its file."""
        entry = finished_file(self.output, plan.name)
        if entry is None:
            raise IntegrityError(f"{self.output}: {plan.name} is missing; run the stage again")
        return Trial.model_validate_json(self.content(entry)), entry

    def content(self, entry: FileEntry) -> bytes:
        """The content of a file in the unfinished artifact."""
        return filesystem.read_bytes(filesystem.join(self.output, entry.stored_name))

    def leave_best(self) -> None:
        """Write the weights of this process's best trials for the first process to read."""
        for trial, weights in self._best.values():
            contiguous = {name: value.cpu().contiguous() for name, value in weights.items()}
            put_bytes(self.output, save(contiguous), name=_left(trial))

    def weights(self, plan: TrialPlan, trial: Trial) -> Weights:
        """The weights kept by some process; trained again if that was in an earlier attempt."""
        best = self._best.get(plan.task.name)
        # This process's own, another's, or none: then the trial is repeated, which gives the same.
        if best is not None and (best[0].seed, best[0].system) == (trial.seed, trial.system):
            return best[1]
        left = finished_file(self.output, _left(trial))
        if left is not None:
            return load(self.content(left))
        say(f"finetune: {plan.name} is trained again for its weights")
        self.world = self.world.alone()  # the other ranks are done
        if trial.choice:
            names = {name: name for name in get_args(ApproachName)}
            again = replace(plan, chosen=Chosen(names[trial.choice.chosen], trial.choice))
            return self.train(again, lambda steps: None).weights
        # Without a clock, and shortened at the steps at which the clock has shortened it then.
        if self.config.minutes:
            return self.train(replace(plan, shortened=trial.shortened), lambda steps: None).weights
        chosen = {"batch_size": trial.batch_size, "learning_rate": trial.learning_rate}
        task = plan.task.model_copy(update=chosen)  # possibly from the grid
        # The record has steps instead of epochs; steps of one epoch at this batch size divide them.
        epochs = trial.steps // replace(plan, task=task.model_copy(update={"epochs": 1})).steps
        again = replace(plan, task=task.model_copy(update={"epochs": epochs}))
        return self.train(again, lambda steps: None).weights

    def _trainer(
        self,
        plan: TrialPlan,
        initial: EncoderFiles,
        attempt: int,
        approach: ApproachName | None = None,
    ) -> TrialTrainer | HeadTrainer:
        """What trains the plan: by its chosen `approach`, else as configured."""
        task = plan.task
        if plan.chosen and self.config.choose:
            task = more_passes(task, plan.problem.units("train"), self.config.choose)
        shortened = plan.shortened
        if shortened is None:
            shortened = self.config.shortened.get(plan.label, ())
        recipe = Recipe(
            config=self.config,
            task=task,
            seed=plan.seed,
            attempt=attempt,
            token_budget=self.token_budget,
            shortened=shortened,
            deadline=self._deadline(plan),
        )
        problem, world = plan.problem, self.world
        # Fine-tuning, too, starts from a head fitted to vectors if the encoder came with a way to
        # make them: with few labels it starts where the linear head ends.
        if approach and (approach != "fine_tuning" or initial.modules):
            return self._on_vectors(plan, initial, recipe, approach)
        if plan.feature is not None:
            cache = self._features(plan, plan.feature)
            # The head's weights come from torch's global generator.
            torch.manual_seed(recipe.seed_for("head"))
            head = FeatureHead(
                plan.feature, depth=cache.depth, width=cache.width, outputs=problem.outputs
            )
            problem.start_head(head.output)
            frozen = FeatureBased(problem, head.to(world.device), cache)
            # so small a head is trained by every rank alone
            return TrialTrainer(problem, frozen, recipe, world.alone())
        encoder = initial.encoder(
            # After another task, the encoder is the one that it has trained.
            pretrained=plan.initialisation == "pretrained" or plan.after is not None,
            seed=recipe.seed_for("encoder"),
            used_ids=problem.used_ids,
        )
        torch.manual_seed(recipe.seed_for("head"))
        model: SentenceModel | TaskModel
        if problem.reads == "vectors":
            model = SentenceModel(encoder, pooling=initial.pooling)
        else:
            model = TaskModel(
                encoder,
                outputs=problem.outputs,
                head_dropout=problem.head_dropout,
                bilstm=self.config.bilstm,
                pooling=fine_tuned_pooling(plan.task),
            )
            problem.start_head(model.head)
        tuned = FineTuning(problem, model.to(world.device), precision=self.config.precision)
        return TrialTrainer(problem, tuned, recipe, world)

    def _deadline(self, plan: TrialPlan) -> Deadline | None:
        """The share of the plan in the time left, from now on; None without a limit."""
        if not self.config.minutes or plan.shortened is not None:
            return None
        left = 60 * self.config.minutes - (time.monotonic() - self._began)
        problem = plan.problem
        evaluated = sum(problem.units(split) for split in problem.sequences if split != "train")
        # A forward pass takes a third of a step.
        evaluation = evaluated / plan.task.batch_size / 3
        # An equal share of what is left: what an earlier trial has saved or overdrawn is spread
        # evenly.
        return Deadline(max(left, 0.0) / max(self.trials - self._run, 1), evaluation)

    def _on_vectors(
        self, plan: TrialPlan, initial: EncoderFiles, recipe: Recipe, approach: ApproachName
    ) -> TrialTrainer | HeadTrainer:
        """A head on sentence vectors, of an encoder that is frozen or tuned before or after."""
        problem, pooling, device = plan.problem, initial.pooling, self.world.device

        def encoder(used_ids: Places | None) -> Encoder:
            seed = recipe.seed_for("encoder")
            return initial.encoder(pretrained=True, seed=seed, used_ids=used_ids).to(device)

        def model(encoder: Encoder) -> TaskModel:
            torch.manual_seed(recipe.seed_for("head"))
            found = TaskModel(
                encoder,
                outputs=problem.outputs,
                head_dropout=problem.head_dropout,
                pooling=pooling,
            )
            problem.start_head(found.head)
            return found.to(device)

        frozen = self._frozen_encoder()
        vectors: Callable[[str], Vectors] = partial(frozen.vectors.of, problem)
        if approach == "class_means":
            return HeadTrainer(problem, model(frozen.encoder), vectors, means=True)
        penalty = plan.inverse_penalty or chosen_penalty(problem, vectors("train"))
        if approach == "linear":
            return HeadTrainer(problem, model(frozen.encoder), vectors, inverse_penalty=penalty)
        # The encoder moves, so its vectors belong to this trial alone and are not cached.
        if approach == "contrastive":
            names = telling_names(problem, frozen.vectors, initial.tokenizer)
            moved, vectors = tuned_by_contrast(problem, frozen.lower, recipe, self.world, names)
            return HeadTrainer(problem, model(moved), vectors, inverse_penalty=penalty)
        started = model(encoder(problem.used_ids))
        # From the linear head, trained further with the whole encoder (linear probing, then fine-
        # tuning).
        fit_head(problem, vectors("train"), inverse_penalty=penalty).install(started)
        tuned = FineTuning(problem, started, precision=self.config.precision)
        return TrialTrainer(problem, tuned, recipe, self.world)

    def _frozen_encoder(self) -> "FrozenEncoder":
        """The first encoder as it was given, and what is kept of its results."""
        if self._frozen is None:
            initial = self.encoders[0]
            # With the whole vocabulary, so that one cache serves all tasks and folds: pruned ids
            # differ.
            encoder = initial.encoder(pretrained=True, seed=0, used_ids=None).to(self.world.device)
            pooling, precision = initial.pooling, self.config.precision
            self._frozen = FrozenEncoder(
                encoder,
                VectorCache(encoder, pooling=pooling, precision=precision),
                FrozenLayers(encoder, pooling=pooling, precision=precision),
            )
        return self._frozen

    def _features(self, plan: TrialPlan, feature: FeatureConfig) -> FeatureCache:
        """Layers of the frozen encoders; the most recent ones are cached.

        All seeds share those of a pre-trained encoder; a random encoder differs by seed.
        """
        pretrained = plan.initialisation == "pretrained"
        seed = 0 if pretrained else plan.seed
        key = (plan.task.name, plan.initialisation, feature.layers, seed)
        if self._cached is None or self._cached[0] != key:
            encoders = [
                initial.encoder(
                    pretrained=pretrained,
                    seed=address(seed, "frozen encoder", number) >> 2,
                    used_ids=plan.problem.used_ids,
                ).to(self.world.device)
                for number, initial in enumerate(self.encoders)
            ]
            layers, precision = LAYERS[feature.layers], self.config.precision
            cache = FeatureCache(plan.problem, encoders, layers, precision=precision)
            self._cached = (key, cache)
        return self._cached[1]


@dataclass(frozen=True)
class Trained:
    """What this process has trained."""

    name: str
    """The file of the trial's record."""

    trial: Trial
    weights: Weights
    result: TrialResult


@dataclass(frozen=True)
class FrozenEncoder:
    """An encoder that no trial trains."""

    encoder: Encoder
    vectors: VectorCache
    lower: FrozenLayers


def _left(trial: Trial) -> str:
    return f"{WORK}/{trial_label(trial.task, trial.system, trial.seed)}.safetensors"


def with_predicted_logits(plan: TrialPlan, chosen: Chosen, result: TrialResult) -> TrialResult:
    """The result, in which the cross-validation has predicted dev if that is part of train.

    The scores of its epochs, of rows that are trained on, are left out.
    """
    if chosen.logits is None or plan.problem.table("dev").whole is not plan.problem.table("train"):
        return result
    found = trial_result(
        plan.problem, {**result.logits, "dev": chosen.logits}, epoch=result.chosen_epoch
    )
    epochs = tuple(epoch.model_copy(update={"dev": {}}) for epoch in result.epochs)
    return replace(found, epochs=epochs, steps=result.steps, seconds=result.seconds)


def with_thresholds(problem: Problem, result: TrialResult) -> tuple[TrialResult, tuple[float, ...]]:
    """The result with a threshold for each label, and these; as it is if none were found.

    Dev, to which they are fitted, is judged in parts, by those that suit the others.
    """
    task = problem.config
    configured = task.thresholds or task.threshold != 0.5
    rows = None
    if problem.predicts == "labels" and not configured and "dev" in result.logits:
        rows = held_out_rows(problem, "dev", result.logits["dev"])
    found = tuned_thresholds(rows, task.threshold) if rows else None
    if found is None:
        return result, ()
    thresholds, by_row = found
    predictions = {
        split: problem.labels_above(logits, by_row if split == "dev" else thresholds)
        for split, logits in result.logits.items()
    }
    scores = {
        split: problem.score(split, guesses) if problem.labelled(split) else {}
        for split, guesses in predictions.items()
    }
    return replace(result, predictions=predictions, scores=scores), tuple(thresholds.tolist())


def suspicious_rows(
    plan: TrialPlan, result: TrialResult
) -> tuple[tuple[LabelError, ...], LabelErrorCounts | None]:
    """Probably mislabelled rows: of train if it was cross-validated whole, else of dev."""
    problem, chosen = plan.problem, plan.chosen
    if chosen and chosen.logits is not None and len(chosen.logits) == problem.units("train"):
        # Every approach has predicted these rows anyway, and together they find more.
        split, every = "train", (chosen.logits, *chosen.others)
    elif "dev" in result.logits:
        split, every = "dev", (result.logits["dev"],)
    else:
        return (), None
    models = [held_out_rows(problem, split, logits) for logits in every]
    return label_errors(problem, split, [one for one in models if one])


def trial_pooling(trial: Trial, task: TaskConfig, initial: EncoderFiles) -> HeadInput:
    """What the head of a trial's model reads."""
    if trial.choice and (trial.choice.chosen != "fine_tuning" or initial.modules):
        return initial.pooling
    return fine_tuned_pooling(task)


def fine_tuned_pooling(task: TaskConfig) -> HeadInput:
    """What the head of a fine-tuned model reads."""
    return "comparison" if task.compare_texts else "pooler"


def trial_record(plan: TrialPlan, result: TrialResult, *, restarts: int) -> Trial:
    """The record of a trial's scores, errors and predictions."""
    problem, task = plan.problem, plan.task
    split = scored_split(problem)
    predictions = result.predictions[split] if split else []
    scores = dict(result.scores)
    suspected, counts = suspicious_rows(plan, result) if plan.can_be_saved else ((), None)
    return Trial(
        task=task.name,
        kind=task.kind,
        metric=problem.headline,
        system=plan.system,
        seed=plan.seed,
        point=plan.point,
        batch_size=task.batch_size,
        learning_rate=task.learning_rate,
        steps=result.steps,
        shortened=result.shortened,
        epochs=result.epochs,
        chosen_epoch=result.chosen_epoch,
        dev=scores.pop("dev", {}),
        test=scores.pop("test", {}),
        more={name: values for name, values in scores.items() if values},
        restarts=restarts,
        confusion=confusion(problem, split, predictions) if split else None,
        errors=errors(problem, split, predictions) if split else (),
        choice=plan.chosen.record if plan.chosen else None,
        label_errors=suspected,
        label_error_counts=counts,
        **(uncertainty(problem, result.logits) if plan.can_be_saved else {}),
        predictions=result.predictions,
    )
