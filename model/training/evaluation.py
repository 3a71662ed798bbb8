"""Held-out loss and accuracy: a fixed set of examples, seen by the model as it is.

In:  an engine and a source of batches over a held-out split.
Out: `Scores`, equal on all ranks.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from model.data.micro_batches import BatchSource
from model.training.distributed import World
from model.training.engine import Engine
from model.training.monitoring.health import Watchdog


@dataclass(frozen=True)
class Scores:
    """Means over a set of examples, losses in nats."""

    masked_lm_loss: float
    masked_lm_accuracy: float
    next_sentence_loss: float
    next_sentence_accuracy: float

    @staticmethod
    def of(sums: Sequence[float], *, masked: int, labelled: int) -> "Scores":
        """From the four sums of `PretrainingSums` over `masked` tokens and `labelled` examples."""
        mlm_loss, nsp_loss, mlm_correct, nsp_correct = sums
        return Scores(
            masked_lm_loss=mlm_loss / max(masked, 1),
            masked_lm_accuracy=mlm_correct / max(masked, 1),
            next_sentence_loss=nsp_loss / max(labelled, 1),
            next_sentence_accuracy=nsp_correct / max(labelled, 1),
        )


def evaluate(
    engine: Engine, source: BatchSource, *, world: World, watchdog: Watchdog, step: int
) -> Scores:
    """Scores after `step` steps over all batches of `source`; every rank computes its share."""
    sums, masked, labelled = torch.zeros(4, dtype=torch.float64, device=world.device), 0, 0
    for number in range(source.curriculum.steps):
        watchdog.reached("evaluation", step)  # a large encoder takes its time
        batch = source(number)
        for micro_batch in batch.micro_batches:
            found = engine.forward(micro_batch, dropout_seed=None)
            sums += torch.stack([value.double() for value in found])
        masked += batch.masked
        labelled += batch.labelled
    return Scores.of(world.sum(sums), masked=masked, labelled=labelled)
