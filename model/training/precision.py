"""A model of fp32 parameters that computes in bf16.

In:  a module with fp32 parameters, its usual arguments.
Out: its usual result, computed with copies of the parameters rounded to bf16.

The parameters themselves are the masters: gradients reach them in fp32 and add up there over the
micro-batches. Rounding is one autograd node for all parameters, or one for each of several groups
whose gradients are wanted as soon as they are there; with `autocast` it would be one for each use
of each.

Where an optimizer can read and write bf16, copies are kept from step to step and the last
micro-batch's gradients stay as they are (`Kept`): on a CPU, rounding every parameter and widening
every gradient would take as long as the update.
"""

import copy
from collections.abc import Iterable, Sequence
from typing import TypeVar

import torch
from torch import Tensor, nn
from torch.autograd.function import FunctionCtx

from artifacts.errors import UsageError
from model.encoder.operations.products import apply

M = TypeVar("M", bound=nn.Module)

FP8_CAPABILITY = (8, 9)
"""Ada, Hopper and what came after them have FP8 products."""


def require_fp8(device: torch.device) -> None:
    """Refuse `pretrain.precision = "fp8"` where it would be computed by detours, or not at all."""
    found = device.type
    if device.type == "cuda":
        capability = torch.cuda.get_device_capability(device)
        if capability >= FP8_CAPABILITY:
            return
        found = f"{torch.cuda.get_device_name(device)} of {capability[0]}.{capability[1]}"
    raise UsageError(
        f'pretrain.precision = "fp8" on {found}: FP8 products want an NVIDIA GPU of compute '
        'capability 8.9 or higher; use "bf16", or "auto"'
    )


def rounded(module: M) -> M:
    """A copy of `module` with bf16 parameters, for computing without gradients."""
    return copy.deepcopy(module).to(torch.bfloat16)


class Rounded(nn.Module):
    """`module` with every parameter rounded to bf16 for each forward pass."""

    def __init__(
        self, module: nn.Module, groups: Sequence[Sequence[nn.Parameter]] | None = None
    ) -> None:
        """With `groups` a group's gradients reach it as soon as all of them are computed."""
        super().__init__()
        self.module = module
        places = {
            parameter: (owner._parameters, name)
            for owner in module.modules()
            for name, parameter in owner.named_parameters(recurse=False)
        }
        given = [list(places)] if groups is None else groups
        self._groups = [[places[parameter] for parameter in group] for group in given]
        self._early = groups is not None
        self._kept: Kept | None = None

    def keep(self) -> "Kept":
        """From now on keep both; whoever asks renews the copies and uses the gradients."""
        self._kept = Kept()
        return self._kept

    def forward(self, *arguments: object) -> object:
        """What `module` returns."""
        # As torch.func.functional_call, without finding its way by names in every step.
        masters = [[held[name] for held, name in group] for group in self._groups]
        early = self._early and torch.is_grad_enabled()
        try:
            for group, parameters in zip(self._groups, masters, strict=True):
                copies = (
                    _Group(parameters).leaves if early else apply(_Round, self._kept, *parameters)
                )
                for (held, name), copy_ in zip(group, copies, strict=True):
                    held[name] = copy_  # a tensor in a parameter's place
            return self.module(*arguments)
        finally:
            for group, parameters in zip(self._groups, masters, strict=True):
                for (held, name), parameter in zip(group, parameters, strict=True):
                    held[name] = parameter


class Kept:
    """bf16 copies that last from step to step, and gradients that are not yet the parameters'."""

    def __init__(self) -> None:
        self.copies: dict[Tensor, Tensor] = {}
        """By parameter; one that is missing is made by the next forward pass."""

        self.gradients: dict[Tensor, Tensor] = {}
        """By parameter: of the last backward pass, in bf16."""

    def settle(self, parameters: Iterable[Tensor]) -> None:
        """Add their kept gradients to those that they have, in fp32."""
        for parameter in parameters:
            gradient = self.gradients.pop(parameter, None)
            if gradient is None:
                continue
            if parameter.grad is None:
                parameter.grad = gradient.float()
            else:
                parameter.grad.add_(gradient)


class _Group:
    """Rounded copies of some parameters, which pass their gradients on together and early.

    Of what it could run next, autograd takes what was computed last in the forward pass, so nodes
    that round come after everything else. Only gradients of leaves are delivered at once: so the
    copies are leaves, and the nodes before them a graph of their own.
    """

    def __init__(self, masters: Sequence[nn.Parameter | None]) -> None:
        self._copies = list(apply(_Round, None, *masters))
        self.leaves = [each.detach().requires_grad_() for each in self._copies]
        self._missing = len(self.leaves)
        for leaf in self.leaves:
            leaf.register_post_accumulate_grad_hook(self._arrived)

    def _arrived(self, _: Tensor) -> None:
        if self._missing == len(self.leaves):  # some may never come: not every head is in use
            torch.autograd.Variable._execution_engine.queue_callback(self._pass_on)
        self._missing -= 1
        if not self._missing:
            self._pass_on()

    def _pass_on(self) -> None:
        """Let the masters have the gradients that are there, once."""
        gradients = [leaf.grad for leaf in self.leaves if leaf.grad is not None]
        pairs = zip(self._copies, self.leaves, strict=True)
        copies = [each for each, leaf in pairs if leaf.grad is not None]
        self._copies, self.leaves = [], []
        if copies:
            torch.autograd.backward(copies, gradients)


class _Context(FunctionCtx):
    masters: tuple[Tensor, ...]
    kept: Kept | None


class _Round(torch.autograd.Function):
    @staticmethod
    def forward(ctx: _Context, kept: Kept | None, *parameters: Tensor) -> tuple[Tensor, ...]:
        # What was not in use has zeros as its gradient, so that it decays like the rest: made here,
        # on the parameter's device, because autograd asks its own build for one.
        ctx.set_materialize_grads(False)
        ctx.masters, ctx.kept = parameters, kept
        known = {} if kept is None else kept.copies
        missing = [p for p in parameters if p not in known]
        if missing:
            copies = [torch.empty_like(p, dtype=torch.bfloat16) for p in missing]
            torch._foreach_copy_(copies, missing)
            known.update(zip(missing, copies, strict=True))
        # Kept ones by another name: every forward pass has a graph of its own.
        return tuple(known[p] if kept is None else known[p].detach() for p in parameters)

    @staticmethod
    def backward(ctx: _Context, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
        if ctx.kept is not None:
            ctx.kept.settle(ctx.masters)
            for parameter, gradient in zip(ctx.masters, gradients, strict=True):
                copy_ = ctx.kept.copies[parameter]
                ctx.kept.gradients[parameter] = (
                    torch.zeros_like(copy_) if gradient is None else gradient.contiguous()
                )
            return (None, *(None for _ in gradients))
        exact = [
            torch.zeros_like(p) if g is None else torch.empty_like(g, dtype=torch.float32)
            for p, g in zip(ctx.masters, gradients, strict=True)
        ]
        pairs = zip(exact, gradients, strict=True)
        there = [each for each, gradient in pairs if gradient is not None]
        torch._foreach_copy_(there, [g for g in gradients if g is not None])
        return (None, *exact)
