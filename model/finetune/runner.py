"""Runs fits: builds the model, trains it, makes the record.

In:  a `Job`, the encoders to begin from.
Out: `Trial`, and the trained weights where they are wanted.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from artifacts.results import EpochRecord, Trial
from artifacts.rng import address
from model.config import FeatureConfig, FinetuneConfig
from model.finetune.error_analysis import confusion, errors, judged_split
from model.finetune.feature_head import LAYERS, FeatureHead
from model.finetune.fit import Advance, Fit, FitResult, Recipe
from model.finetune.initial_encoder import Beginning
from model.finetune.jobs import Job
from model.finetune.local_optimizer import MakeUpdates, OwnUpdates, missed_decay
from model.finetune.readers import FeatureCache, Features, FineTuning, Reader
from model.finetune.task_model import TaskModel
from model.finetune.vocabulary_pruning import WORD_EMBEDDINGS, restored

CacheKey = tuple[str, str, str, int]


@dataclass
class Finished:
    """A fit that has run in this process."""

    record: Trial
    weights: dict[str, Tensor]
    seconds: float


class Runner:
    """Everything that fits share."""

    def __init__(
        self,
        config: FinetuneConfig,
        beginnings: tuple[Beginning, ...],
        *,
        device: torch.device,
        token_budget: int,
        make_updates: MakeUpdates = OwnUpdates,
    ) -> None:
        """`beginnings`: the encoder, and the second one of ELMo's way where there is one."""
        self.config = config
        self.beginnings = beginnings
        self.device = device
        self.token_budget = token_budget or 16384
        self.make_updates = make_updates
        self._cache: tuple[CacheKey, FeatureCache] | None = None

    def run(self, job: Job, baseline: float | None, advance: Advance) -> Finished:
        """The fit; one that ends no better than `baseline` on dev is started again."""
        for attempt in range(self.config.restarts + 1):
            result, weights = self._attempt(job, attempt, advance)
            reached = result.scores.get("dev", {}).get(job.problem.headline)
            if baseline is None or reached is None or reached > baseline:
                break
        record = _record(job, result).model_copy(update={"restarts": attempt})
        return Finished(record, weights, result.seconds)

    def _attempt(
        self, job: Job, attempt: int, advance: Advance
    ) -> tuple[FitResult, dict[str, Tensor]]:
        recipe = self._recipe(job, attempt)
        if job.feature:
            reader = self._features(job, job.feature, recipe)
        else:
            reader = self._tuning(job, recipe)
        fit = Fit(job.problem, reader, recipe, self.make_updates)
        result = fit.run(advance)
        return result, self._weights(job, fit)

    def _weights(self, job: Job, fit: Fit) -> dict[str, Tensor]:
        """The trained parameters, with the word-pieces that the data lack put back."""
        weights = fit.reader.module.state_dict()
        name, used = f"encoder.{WORD_EMBEDDINGS}", job.problem.used_ids
        if used is not None and name in weights:
            weights[name] = restored(
                self.beginnings[0].word_embeddings,
                weights[name],
                used,
                decay=missed_decay(fit.schedule, steps=fit.steps),
            )
        return weights

    def _recipe(self, job: Job, attempt: int) -> Recipe:
        return Recipe(
            task=job.task,
            optimizer=self.config.optimizer,
            warmup_share=self.config.warmup_share,
            precision=self.config.precision,
            seed=job.seed,
            attempt=attempt,
            evaluations=self.config.evaluations,
            select=self.config.select,
            token_budget=self.token_budget,
        )

    def _tuning(self, job: Job, recipe: Recipe) -> Reader:
        encoder = self.beginnings[0].encoder(
            pretrained=job.initialisation == "pretrained",
            seed=recipe.chance("encoder"),
            used_ids=job.problem.used_ids,
        )
        torch.manual_seed(recipe.chance("head"))
        problem = job.problem
        model = TaskModel(
            encoder,
            outputs=problem.outputs,
            head_dropout=problem.head_dropout,
            bilstm=self.config.bilstm,
        )
        return FineTuning(problem, model.to(self.device), precision=self.config.precision)

    def _features(self, job: Job, feature: FeatureConfig, recipe: Recipe) -> Reader:
        cache = self._feature_cache(job, feature)
        torch.manual_seed(recipe.chance("head"))
        head = FeatureHead(
            feature, depth=cache.depth, width=cache.width, outputs=job.problem.outputs
        )
        return Features(job.problem, head.to(self.device), cache)

    def _feature_cache(self, job: Job, feature: FeatureConfig) -> FeatureCache:
        """The frozen layers; the last ones asked for are kept, and all seeds ask for the same.

        A random encoder differs by seed, like everything that is drawn.
        """
        pretrained = job.initialisation == "pretrained"
        seed = 0 if pretrained else job.seed
        key = (job.task.name, job.initialisation, feature.layers, seed)
        if self._cache is None or self._cache[0] != key:
            encoders = [
                beginning.encoder(
                    pretrained=pretrained,
                    seed=address(seed, "frozen encoder", number) >> 2,
                    used_ids=job.problem.used_ids,
                ).to(self.device)
                for number, beginning in enumerate(self.beginnings)
            ]
            cache = FeatureCache(
                job.problem, encoders, LAYERS[feature.layers], precision=self.config.precision
            )
            self._cache = (key, cache)
        return self._cache[1]


def _record(job: Job, result: FitResult) -> Trial:
    problem, task = job.problem, job.task
    split = judged_split(problem)
    guesses = result.predictions[split] if split else []
    scores = dict(result.scores)
    return Trial(
        task=task.name,
        kind=task.kind,
        metric=problem.headline,
        system=job.system,
        seed=job.seed,
        point=job.point,
        batch_size=task.batch_size,
        learning_rate=task.learning_rate,
        steps=result.steps,
        epochs=tuple(
            EpochRecord(epoch=epoch.epoch, train_loss=epoch.train_loss, dev=epoch.dev)
            for epoch in result.epochs
        ),
        chosen_epoch=result.chosen_epoch,
        dev=scores.pop("dev", {}),
        test=scores.pop("test", {}),
        more={name: values for name, values in scores.items() if values},
        confusion=confusion(problem, split, guesses) if split else None,
        errors=errors(problem, split, guesses) if split else (),
        predictions=result.predictions,
    )
