"""The training step, and the engine that keeps every parameter whole on every rank.

In:  a model, a schedule of learning rates; losses.
Out: `Engine`, with which pre-training, fine-tuning and retrieval train; `Replicated`, its form for
     ZeRO 0. `cloze.model.training.sharded` has the form for ZeRO 1 to 3.

A step accumulates the gradients of all micro-batches and updates once:

    for micro, micro_batch in enumerate(micro_batches):
        engine.backward(loss_of(micro_batch), last=micro + 1 == len(micro_batches))
    outcome = engine.step(number, sums)

The engine sets the learning rate, sums gradients over ranks, clips them by their global norm and
counts updates. The caller's losses are divided by the counts of the global batch, so that neither
ranks nor micro-batches change more than rounding.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

import torch
from torch import Tensor, nn

from cloze.model.data.batch import PackedBatch
from cloze.model.encoder.losses import PretrainingSums
from cloze.model.encoder.operations.dropout import Noise
from cloze.model.encoder.precision import Rounded
from cloze.model.training.checkpoints import PARTS, ParameterState
from cloze.model.training.distributed import GradientBuckets, World, gradient_buckets
from cloze.model.training.optimizer import AdamW, Lamb, Schedule, build_optimizer, clip

MOMENTS = PARTS[1:]


class StepOutcome(NamedTuple):
    """The result of a training step, the same on all ranks; its tensors are float64."""

    applied: bool
    """False: the gradient was not finite, and nothing changed on any rank."""

    learning_rate: float
    gradient_norm: Tensor
    """[]: global, before clipping."""

    sums: Tensor
    """[K]: the caller's values summed over ranks."""


class Engine(ABC):
    """A model under training, on one rank."""

    def __init__(
        self,
        model: nn.Module,
        computed: Callable[..., PretrainingSums],
        optimizer: AdamW | Lamb,
        *,
        world: World,
        schedule: Schedule,
    ) -> None:
        """`computed` is what computes with the parameters of `model`."""
        self.model = model
        self.schedule = schedule
        self.updates = 0
        """Steps made, without those whose gradient was not finite."""

        self._computed = computed
        self._optimizer = optimizer
        self._world = world

    def forward(self, batch: PackedBatch, *, dropout: int | Noise | None) -> PretrainingSums:
        """The sums of a `PretrainingModel`; without `dropout`, as in evaluation, no gradients."""
        training = dropout is not None
        # `train` visits every module of the model, so it is called only where the mode changes:
        # before and after an evaluation.
        if self.model.training != training:
            self.model.train(training)
        with torch.set_grad_enabled(training):
            return self._computed(batch.to(self._world.device), dropout)

    @abstractmethod
    def backward(self, loss: Tensor, *, last: bool = False) -> None:
        """Accumulate the gradient of `loss`, this rank's part of a sum over ranks.

        `last`: `step` comes next, so gradients are reduced as this pass completes them.
        """

    @abstractmethod
    def step(self, number: int, sums: Tensor) -> StepOutcome:
        """Reduce, clip, update at the rate of step `number`, from 0; `sums`, [K], cross ranks.

        A gradient that is not finite changes nothing on any rank.
        """

    @abstractmethod
    def state(self) -> Iterator[tuple[str, ParameterState]]:
        """The state of every parameter, one at a time; collective, so all ranks must consume it.

        On the device and not copied: the next step changes it.
        """

    @abstractmethod
    def restore(self, state: Mapping[str, ParameterState], *, updates: int) -> None:
        """Restore a saved state after `updates` updates, from any world size and ZeRO stage."""

    def _set_rate(self, number: int) -> float:
        """Prepare the optimizer for step `number`; returns its learning rate."""
        rate = self.schedule(number)
        for group in self._optimizer.param_groups:
            group["lr"] = rate
        if isinstance(self._optimizer, AdamW):
            self._optimizer.updates = self.updates
        return rate


class Replicated(Engine):
    """ZeRO 0: parameters and moments are whole and fp32 on every rank.

    The model computes with them or, in bf16, with rounded copies. Each rank sums gradients over all
    ranks and makes the same update; a single rank shares nothing.
    """

    def __init__(
        self,
        computed: nn.Module,
        *,
        world: World,
        schedule: Schedule,
        keeps_gradients: bool = False,
        skips_nonfinite: bool = True,
    ) -> None:
        """`computed`: the model, or `Rounded` around it.

        keeps_gradients: set gradients to zero instead of freeing them, for CUDA graphs.
        skips_nonfinite: False applies every update, so the host never waits for a GPU; NaN then
        reaches parameters, losses and the norm, which the caller reads when it likes.
        """
        rounded = computed if isinstance(computed, Rounded) else None
        model = rounded.module if rounded else computed
        optimizer = build_optimizer(
            model.named_parameters(),
            config=schedule.optimizer,
            precision="bf16" if rounded else "fp32",
        )
        super().__init__(model, computed, optimizer, world=world, schedule=schedule)
        self._keeps_gradients = keeps_gradients
        self._skips_nonfinite = skips_nonfinite
        self._reduction: GradientBuckets | None = None
        # With several ranks, gradients must reach the fp32 parameters within the backward pass, to
        # be reduced. A single rank's optimizer can instead read the last bf16 gradients as they
        # are.
        if world.ranks > 1:
            buckets = gradient_buckets(model.parameters())
            self._reduction = GradientBuckets(buckets)
            if rounded:
                rounded.deliver_early(buckets)
        elif isinstance(optimizer, AdamW):
            optimizer.compute_with(computed)

    def backward(self, loss: Tensor, *, last: bool = False) -> None:
        """Accumulate the gradient of `loss`; while the `last` pass continues, reduce."""
        if last and self._reduction is not None:
            self._reduction.begin()
        torch.autograd.backward(loss)

    def step(self, number: int, sums: Tensor) -> StepOutcome:
        """Reduce, clip, update; see `Engine.step`.

        Norm and sums are read before the update, which then hides the host's work until the next
        forward pass: the only point in a step where the host waits for a GPU.
        """
        rate = self._set_rate(number)
        if self._reduction is not None:
            self._reduction.finish()
        max_norm = self.schedule.optimizer.max_grad_norm
        if isinstance(self._optimizer, AdamW):
            norm = self._optimizer.shorten(max_norm)
        else:
            norm = clip([p.grad for p in self.model.parameters() if p.grad is not None], max_norm)
        # One exchange for the caller's sums and the norm. The norm is the same on all ranks, hence
        # divided by their number below; NaN on any rank is NaN on all.
        values = self._world.sum_tensor(torch.cat([sums, norm[None]]).double())
        if self._skips_nonfinite:
            # reads the values: here the host waits
            values = torch.tensor(values.tolist(), dtype=torch.float64)
        applied = not self._skips_nonfinite or bool(values[-1].isfinite())
        if applied:
            self._optimizer.step()
        self.updates += applied
        # Captured graphs hold the addresses of the gradients, so these are kept.
        if self._keeps_gradients:
            torch._foreach_zero_([p.grad for p in self.model.parameters() if p.grad is not None])
        else:
            self._optimizer.zero_grad()
        return StepOutcome(applied, rate, values[-1] / self._world.ranks, values[:-1])

    def state(self) -> Iterator[tuple[str, ParameterState]]:
        """The state of every parameter, one at a time; not copied."""
        # A parameter that was never updated has no moments yet. Zeros are what it would begin with,
        # so every checkpoint has all three parts.
        for name, parameter in self.model.named_parameters():
            kept = self._optimizer.state.get(parameter, {})
            moments = [kept[m] if m in kept else torch.zeros_like(parameter) for m in MOMENTS]
            yield name, ParameterState(*(tensor.detach() for tensor in (parameter, *moments)))

    def restore(self, state: Mapping[str, ParameterState], *, updates: int) -> None:
        """Restore a saved state after `updates` updates."""
        # A fresh optimizer has no moments to copy into; before the first update none are needed.
        if updates:
            self._optimizer.create_state()
        for name, parameter in self.model.named_parameters():
            parameter.data.copy_(state[name].master)
            if updates:
                kept = self._optimizer.state[parameter]
                kept["step"].fill_(updates)
                for part in MOMENTS:
                    kept[part].copy_(getattr(state[name], part))
        if isinstance(self._optimizer, AdamW):
            self._optimizer.kept.copies.clear()  # of the parameters before
        self.updates = updates
