"""A trial's optimizer: AdamW, linear warm-up and decay, gradients clipped by their global norm.

In:  losses, and the step's number.
Out: the module's parameters, updated (paper, A.3; reference: optimization.py).

A single process does without DeepSpeed, whose engine would copy every gradient back and forth for
nothing; `DistributedOptimizer` is its counterpart for several ranks.
"""

import math
from collections.abc import Callable
from typing import Protocol

import torch
from torch import Tensor

from model.config import OptimizerConfig
from model.finetune.approaches import Approach, FineTuning
from model.training.optimizer import AdamW, build_optimizer, clip, learning_rate


class TrialOptimizer(Protocol):
    """What a trial asks of its optimizer."""

    rank: int
    """Which part of every batch this process computes, …"""

    ranks: int
    """… of how many."""

    def backward(self, loss: Tensor) -> None:
        """Add the gradients of this rank's part of a loss."""

    def step(self, number: int) -> None:
        """Clip, update, zero the gradients. `number` counts from 0."""

    def sum(self, value: float) -> float:
        """The value summed over ranks."""

    def gather(self, rows: Tensor, *, first: int, total: int) -> Tensor:
        """[total, D]: the rows of all ranks; this rank's begin at `first`."""


MakeOptimizer = Callable[[Approach, OptimizerConfig, int, str], TrialOptimizer]
"""From a trial's approach, its schedule, its number of steps and its precision."""


def missed_decay(schedule: OptimizerConfig, *, steps: int) -> float:
    """The factor by which all steps scale a parameter that never has a gradient."""
    rates = (learning_rate(number, steps=steps, optimizer=schedule) for number in range(steps))
    return math.prod(1 - rate * schedule.weight_decay for rate in rates)


class LocalOptimizer:
    """The optimizer of a trial that runs on a single process."""

    rank = 0
    ranks = 1

    def __init__(
        self, approach: Approach, schedule: OptimizerConfig, steps: int, precision: str = ""
    ) -> None:
        self.schedule = schedule
        self.steps = steps
        self._parameters = list(approach.module.parameters())
        self._optimizer = build_optimizer(
            approach.module.named_parameters(),
            config=schedule,
            zero_stage=0,
            precision=precision or "fp32",
        )
        if isinstance(approach, FineTuning) and isinstance(self._optimizer, AdamW):
            self._optimizer.compute_with(approach.call)

    def backward(self, loss: Tensor) -> None:
        """Add the gradients of a part of the batch's loss."""
        torch.autograd.backward(loss)

    def sum(self, value: float) -> float:
        """The value itself."""
        return value

    def gather(self, rows: Tensor, *, first: int, total: int) -> Tensor:
        """The rows themselves."""
        return rows

    def step(self, number: int) -> None:
        """Clip, update, zero the gradients. `number` counts from 0."""
        rate = learning_rate(number, steps=self.steps, optimizer=self.schedule)
        for group in self._optimizer.param_groups:
            group["lr"] = rate
        if isinstance(self._optimizer, AdamW):
            self._optimizer.updates = number  # no step is skipped
            self._optimizer.shorten(self.schedule.max_grad_norm)
        else:
            clip(
                [p.grad for p in self._parameters if p.grad is not None],
                self.schedule.max_grad_norm,
            )
        self._optimizer.step()
        self._optimizer.zero_grad(set_to_none=True)
