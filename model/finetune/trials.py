"""One process's share of the trials.

In:  groups of planned trials; the records of earlier attempts.
Out: one record per trial in the unfinished artifact; models and submissions of the best ones.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch
from safetensors.torch import load, save
from torch import Tensor

from artifacts import filesystem
from artifacts.errors import IntegrityError
from artifacts.manifest import FileEntry
from artifacts.progress import say
from artifacts.results import UNTOUCHED, Baseline, TaskRecord, Trial
from artifacts.rng import address
from artifacts.store import WORK, Artifact, finished_file, put_bytes, put_json
from model.config import FeatureConfig, FinetuneConfig
from model.encoder.models import SentenceModel, TaskModel
from model.finetune.approaches import (
    LAYERS,
    Approach,
    FeatureBased,
    FeatureCache,
    FeatureHead,
    FineTuning,
    split_logits,
)
from model.finetune.error_analysis import confusion, errors, mistakes, scored_split
from model.finetune.trainer import (
    Advance,
    LocalOptimizer,
    MakeOptimizer,
    Recipe,
    Trainer,
    TrialResult,
    decoded,
    missed_decay,
)
from model.finetune.trial_plan import TrialGroup, TrialPlan, earlier_model
from model.hugging_face.model_files import ENCODER_PREFIX, WORD_EMBEDDINGS, EncoderFiles, save_model
from model.tasks.base import Problem

Weights = dict[str, Tensor]

ENSEMBLE = "pretrained-ensemble"
"""The system whose logits are the mean of those of all seeds."""


@dataclass(kw_only=True)
class TrialRunner:
    """Runs trials in one process, and collects the results of all processes."""

    output: str
    """The unfinished artifact."""

    config: FinetuneConfig
    encoders: tuple[EncoderFiles, ...]
    """The encoder and, for concatenated features as in ELMo, a second one."""

    tasks: dict[str, TaskRecord]
    """By name."""

    advance: Callable[[int, str], None]
    """Counts steps of this process; called with the title of their trial."""

    device: torch.device
    token_budget: int
    """Tokens per micro-batch."""

    make_optimizer: MakeOptimizer = LocalOptimizer
    writes: bool = True
    """False for ranks that only share the batches of the first rank's trials."""

    seconds: dict[str, float] = field(default_factory=dict)
    """Wall-clock time of each trial that this process has run, by file name."""

    _best: dict[str, tuple[Trial, Weights]] = field(default_factory=dict)
    """By task: the best trial of this process so far, and its weights."""

    _latest: tuple[str, Weights] | None = None
    """The file name of the trial trained last, and its weights."""

    _cached: tuple[tuple[str, str, str, int], FeatureCache] | None = None
    """The last frozen encoders' features, and their key."""

    def run_group(self, group: TrialGroup) -> None:
        """Run the grid points if there are any, then the seeds with the best of them."""
        seeds = group.seeds
        tried = [(self.run(plan), plan) for plan in group.points]
        if tried:
            best = max(tried, key=lambda pair: pair[0].dev.get(pair[0].metric, 0.0))[1]
            say(f"finetune {best.task.name} {best.system}: best on dev is {best.point}")
            seeds = tuple(replace(seed, task=best.task) for seed in seeds)
        for plan in seeds:
            self.run(plan)

    def run(self, plan: TrialPlan) -> Trial:
        """The trial's record, from an earlier attempt if one has finished it."""
        if finished_file(self.output, plan.name) is not None:
            self.advance(plan.steps, f"{plan.name} already finished")
            return self.finished(plan)[0]
        trial, weights, result = self.train(plan, lambda steps: self.advance(steps, plan.title))
        if self.writes:
            if self.config.ensemble and plan.can_be_saved:
                tensors = {split: torch.from_numpy(v) for split, v in result.logits.items()}
                put_bytes(self.output, save(tensors), name=plan.logits)
            put_json(self.output, trial.model_dump(mode="json"), name=plan.name)
            self.seconds[plan.name] = round(result.seconds, 3)
            if self.config.save != "none" and plan.can_be_saved:
                best = self._best.get(plan.task.name)
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

    def train(self, plan: TrialPlan, advance: Advance) -> tuple[Trial, Weights, TrialResult]:
        """Train and score one trial; return its record, its weights and all results.

        A run that ends no better than the majority on dev is restarted, up to `restarts` times
        (paper, 4.1).
        """
        headline = plan.problem.headline
        simplest = self.tasks[plan.task.name].baselines[:1]
        floor = simplest[0].dev.get(headline) if simplest and self.config.restarts else None
        initial = self.encoders[0]
        if plan.after is not None:
            if self._latest is None or self._latest[0] != plan.after.name:
                say(f"finetune: {plan.after.name} is trained again for its weights")
                self.train(plan.after, lambda steps: None)
            latest = self._latest[1] if self._latest else {}
            kept = {n: value for n, value in latest.items() if n.startswith(ENCODER_PREFIX)}
            initial = replace(initial, parameters=kept)
        for attempt in range(self.config.restarts + 1):
            trainer = self._trainer(plan, initial, attempt)
            result = trainer.run(advance)
            reached = result.scores.get("dev", {}).get(headline)
            if floor is None or reached is None or reached > floor:
                break
        weights = trainer.approach.module.state_dict()
        embeddings = f"encoder.{WORD_EMBEDDINGS}"
        if embeddings in weights:
            weights[embeddings] = plan.problem.restore_rows(
                initial.parameters[embeddings],
                weights[embeddings],
                decay=missed_decay(trainer.schedule, steps=trainer.steps),
            )
        trial = _record(plan, result, restarts=attempt)
        self._latest = (plan.name, weights)
        return trial, weights, result

    def finished(self, plan: TrialPlan) -> tuple[Trial, FileEntry]:
        """The record written by this or another process, and its file."""
        entry = finished_file(self.output, plan.name)
        if entry is None:
            raise IntegrityError(f"{self.output}: {plan.name} is missing; run the stage again")
        return Trial.model_validate_json(self._content(entry)), entry

    def _content(self, entry: FileEntry) -> bytes:
        return filesystem.read_bytes(filesystem.join(self.output, entry.stored_name))

    def ensembles(self, plans: Sequence[TrialPlan]) -> dict[str, tuple[Trial, list[FileEntry]]]:
        """By task: a trial from the mean of all seeds' logits, and the files of these logits."""
        if not self.config.ensemble:
            return {}
        found = {}
        for task in self.tasks:
            members = [plan for plan in plans if plan.task.name == task and plan.can_be_saved]
            entries = [finished_file(self.output, plan.logits) for plan in members]
            files = [entry for entry in entries if entry is not None]
            if not members or len(files) < len(members):
                raise IntegrityError(f"{self.output}: {task} has no logits; run the stage again")
            each = [load(self._content(entry)) for entry in files]
            mean = {
                split: torch.stack([one[split] for one in each]).mean(0).numpy()
                for split in each[0]
            }
            trial = _record(members[0], decoded(members[0].problem, mean), restarts=0)
            found[task] = (trial.model_copy(update={"system": ENSEMBLE}), files)
        return found

    def untouched(self, problem: Problem) -> tuple[Baseline, ...]:
        """Scores of the encoder's vectors before training, for tasks that compare vectors."""
        if problem.reads != "vectors":
            return ()
        given = self.encoders[0]
        encoder = given.encoder(pretrained=True, seed=0, used_ids=problem.used_ids)
        model = SentenceModel(encoder, pooling=given.pooling).to(self.device)
        approach = FineTuning(problem, model, precision=self.config.precision)
        splits = [split for split in ("dev", "test") if split in problem.sequences]
        scores = {
            split: problem.score(
                split, problem.predictions(split, split_logits(problem, approach, split))
            )
            for split in splits
        }
        return (Baseline(name=UNTOUCHED, **scores),)

    def results(
        self,
        trials: Sequence[tuple[TrialPlan, Trial]],
        ensembles: Mapping[str, Trial],
        earlier: Artifact | None = None,
    ) -> list[FileEntry]:
        """Write each task's model, errors and submissions, from its best pre-trained trial.

        Submissions are the ensemble's if there is one. `earlier`: the artifact whose trials are
        reused, which may contain the best one's model.
        """
        entries = []
        for task in self.tasks:
            candidates = [
                pair for pair in trials if pair[0].task.name == task and pair[0].can_be_saved
            ]
            if not candidates:
                continue
            plan, trial = max(candidates, key=lambda pair: pair[1].merit)
            if self.config.save != "none":
                model = earlier_model(earlier, trial, output=self.output) if earlier else []
                if not model:
                    kept = plan.problem.calibrated(trial.predictions.get("dev"))
                    weights = self._weights(plan, trial)
                    model = save_model(self.output, plan.problem, kept, weights, self.encoders[0])
                entries += model
            split = scored_split(plan.problem)
            if split:
                content = mistakes(plan.problem, split, trial.predictions[split])
                name = f"mistakes/{task}-{split}.csv"
                entries.append(put_bytes(self.output, content, name=name))
            for split, predictions in ensembles.get(task, trial).predictions.items():
                for name, content in plan.problem.submission(split, predictions).items():
                    file = f"submissions/{task}/{name}"
                    entries.append(put_bytes(self.output, content, name=file))
        return entries

    def leave_best(self) -> None:
        """Write the weights of this process's best trials for the first process to read."""
        for trial, weights in self._best.values():
            contiguous = {name: value.cpu().contiguous() for name, value in weights.items()}
            put_bytes(self.output, save(contiguous), name=_left(trial))

    def _weights(self, plan: TrialPlan, trial: Trial) -> Weights:
        """The weights kept by some process; trained again if that was in an earlier attempt."""
        best = self._best.get(plan.task.name)
        if best is not None and (best[0].seed, best[0].system) == (trial.seed, trial.system):
            return best[1]
        left = finished_file(self.output, _left(trial))
        if left is not None:
            return load(self._content(left))
        say(f"finetune: {plan.name} is trained again for its weights")
        self.make_optimizer = LocalOptimizer  # the other ranks are done
        chosen = {"batch_size": trial.batch_size, "learning_rate": trial.learning_rate}
        task = plan.task.model_copy(update=chosen)  # possibly from the grid
        epochs = trial.steps // replace(plan, task=task.model_copy(update={"epochs": 1})).steps
        again = replace(plan, task=task.model_copy(update={"epochs": epochs}))
        return self.train(again, lambda steps: None)[1]

    def _trainer(self, plan: TrialPlan, initial: EncoderFiles, attempt: int) -> Trainer:
        recipe = Recipe(
            config=self.config,
            task=plan.task,
            seed=plan.seed,
            attempt=attempt,
            token_budget=self.token_budget,
        )
        problem = plan.problem
        approach: Approach
        if plan.feature is not None:
            cache = self._features(plan, plan.feature)
            torch.manual_seed(recipe.seed_for("head"))
            head = FeatureHead(
                plan.feature, depth=cache.depth, width=cache.width, outputs=problem.outputs
            )
            approach = FeatureBased(problem, head.to(self.device), cache)
        else:
            encoder = initial.encoder(
                pretrained=plan.initialisation == "pretrained" or plan.after is not None,
                seed=recipe.seed_for("encoder"),
                used_ids=problem.used_ids,
            )
            torch.manual_seed(recipe.seed_for("head"))
            model = (
                SentenceModel(encoder, pooling=initial.pooling)
                if problem.reads == "vectors"
                else TaskModel(
                    encoder,
                    outputs=problem.outputs,
                    head_dropout=problem.head_dropout,
                    bilstm=self.config.bilstm,
                )
            )
            approach = FineTuning(problem, model.to(self.device), precision=self.config.precision)
        return Trainer(problem, approach, recipe, self.make_optimizer)

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
                ).to(self.device)
                for number, initial in enumerate(self.encoders)
            ]
            layers, precision = LAYERS[feature.layers], self.config.precision
            cache = FeatureCache(plan.problem, encoders, layers, precision=precision)
            self._cached = (key, cache)
        return self._cached[1]


def _left(trial: Trial) -> str:
    return f"{WORK}/{trial.task}-{trial.system}-{trial.seed}.safetensors"


def _record(plan: TrialPlan, result: TrialResult, *, restarts: int) -> Trial:
    problem, task = plan.problem, plan.task
    split = scored_split(problem)
    predictions = result.predictions[split] if split else []
    scores = dict(result.scores)
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
        epochs=result.epochs,
        chosen_epoch=result.chosen_epoch,
        dev=scores.pop("dev", {}),
        test=scores.pop("test", {}),
        more={name: values for name, values in scores.items() if values},
        restarts=restarts,
        confusion=confusion(problem, split, predictions) if split else None,
        errors=errors(problem, split, predictions) if split else (),
        predictions=result.predictions,
    )
