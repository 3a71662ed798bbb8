"""A family as somebody would add it: ratings (loss of CORAL, Cao et al. 2020), in this one module.

In:  columns text_a and label. The order of the labels is that of whole numbers, else `labels`.
Out: a `Problem` whose head has, for K labels, K-1 outputs: the logits of "above label k", whose
     weights are equal and whose biases are not.
"""

from collections.abc import Callable, Sequence
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from cloze.artifacts.errors import UsageError
from cloze.model.config import ApproachName
from cloze.model.tasks.base import Exported, Floats, Logits, Prediction
from cloze.model.tasks.classification import Classification, number_of

KAPPA, ERROR = "quadratic_weighted_kappa", "mean_absolute_error"


class Ordinal(Classification):
    """One of several ordered labels per text."""

    default_metrics: ClassVar[tuple[str, ...]] = (KAPPA, ERROR)
    uneven_metrics: ClassVar[tuple[str, ...]] = ()
    approaches: ClassVar[tuple[ApproachName, ...]] = ("linear", "fine_tuning")
    exported_as: ClassVar = Exported(problem_type="multi_label_classification")

    def _read(self) -> None:
        super()._read()
        self.outputs = len(self.labels) - 1
        if not self.config.labels and not all(map(number_of, self.labels)):
            raise UsageError(f"task {self.config.name}: name the labels in order: labels = [...]")

    @property
    def output_names(self) -> tuple[str, ...]:
        """One for each threshold."""
        return tuple(f"> {label}" for label in self.labels[:-1])

    def known_metrics(self) -> tuple[str, ...]:
        """Agreement beyond chance, and the mean error in steps between labels."""
        return self.default_metrics

    def start_head(self, head: nn.Linear) -> None:
        """All outputs have the weights of the first, for good; biases are training's log-odds."""
        above = self._targets["train"][:, None] > np.arange(self.outputs)
        odds = (above.sum(0) + 0.5) / ((~above).sum(0) + 0.5)
        with torch.no_grad():
            head.weight.copy_(head.weight[:1].expand_as(head.weight))
            head.bias.copy_(torch.from_numpy(np.log(odds)))
        tie: Callable[[Callable[[Tensor], Tensor]], object] = head.weight.register_hook
        tie(lambda change: change.mean(0, keepdim=True).expand_as(change))

    def loss(self, logits: Tensor, targets: Tensor) -> Tensor:
        """Binary cross-entropy of every threshold."""
        above = (targets[:, None] > torch.arange(self.outputs)).to(logits)
        return functional.binary_cross_entropy_with_logits(logits, above, reduction="sum")

    def label_logits(self, logits: Floats) -> Floats:
        """Of K labels: each is as likely as its lower threshold is above the next."""
        above = 1.0 / (1.0 + np.exp(-logits))
        steps = np.pad(above, ((0, 0), (1, 1)), constant_values=((0, 0), (1, 0)))
        found: Floats = np.log(np.maximum(steps[:, :-1] - steps[:, 1:], 1e-9))
        return found

    def predictions(self, split: str, logits: Logits) -> list[Prediction]:
        """The label above as many thresholds as the text."""
        return [self.labels[place] for place in (logits > 0).sum(-1)]

    def score(self, split: str, predictions: Sequence[Prediction]) -> dict[str, float]:
        """Kappa, 0 if it is undefined, and the mean error."""
        found = np.array([self.labels.index(str(label)) for label in predictions], np.float64)
        gold = self._targets[split].astype(np.float64)
        chance = ((gold[:, None] - found) ** 2).mean()
        kappa = 1.0 - ((gold - found) ** 2).mean() / chance if chance else 0.0
        every = {KAPPA: float(kappa), ERROR: float(np.abs(gold - found).mean())}
        return {name: every[name] for name in self.metrics}
