"""Mixed precision: a model with fp32 parameters that computes in bf16.

In:  a module with fp32 parameters, its usual arguments.
Out: its usual result, computed with copies of the parameters rounded to bf16.

The parameters are the masters: gradients are accumulated in them in fp32 over the micro-batches.
Rounding is a single autograd node for all parameters, or one per group if gradients are needed as
soon as they are ready; with `autocast` there would be a node for every use.

If the optimizer can read and write bf16, the copies persist between steps and the last
micro-batch's gradients stay in bf16 (`Kept`): on a CPU, rounding every parameter and widening every
gradient would take as long as the update.
"""

import copy
from collections.abc import Iterable, Sequence
from typing import Literal, TypeVar

import torch
from torch import Tensor, nn
from torch.autograd.function import FunctionCtx

from cloze.artifacts.errors import UsageError
from cloze.model.encoder.operations.autograd import apply

M = TypeVar("M", bound=nn.Module)

Precision = Literal["auto", "fp32", "bf16", "int8"]
"""For inference. `auto`: bf16 on a GPU, where fp32 has neither FlashAttention nor fast products;
else fp32. `int8`: the products of a BERT's layers, on a CPU (packed_layers.py)."""

FP8_CAPABILITY = (8, 9)
"""Ada, Hopper and later GPUs support FP8 products."""


def require_fp8(device: torch.device) -> None:
    """Reject `pretrain.precision = "fp8"` where FP8 products are emulated or unsupported."""
    found = device.type
    if device.type == "cuda":
        capability = torch.cuda.get_device_capability(device)
        if capability >= FP8_CAPABILITY:
            return
        found = f"{torch.cuda.get_device_name(device)} of {capability[0]}.{capability[1]}"
    raise UsageError(
        f'pretrain.precision = "fp8" on {found}: FP8 products require an NVIDIA GPU of compute '
        'capability 8.9 or higher; use "bf16", or "auto"'
    )


def placed(device: str, precision: str) -> tuple[torch.device, str]:
    """Resolve `auto`: the device, and the precision used there.

    A device that this machine does not have is refused.
    """
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    found = ["cpu", *(f"cuda:{number}" for number in range(torch.cuda.device_count()))]
    if device not in (*found, found[-1].partition(":")[0]):
        raise UsageError(
            f"device {device!r}: this machine has {', '.join(found)}; name one of them, or auto"
        )
    where = torch.device(device)
    if precision == "auto":
        precision = "fp32" if where.type == "cpu" else "bf16"
    return where, precision


def computed_in(precision: str, module: nn.Module) -> nn.Module:
    """What computes with `module`'s fp32 parameters: itself in fp32, else `Rounded`."""
    return module if precision == "fp32" else Rounded(module)


def rounded(module: M) -> M:
    """A bf16 copy of `module`, for inference."""
    return copy.deepcopy(module).to(torch.bfloat16)


class Rounded(nn.Module):
    """`module` with all parameters rounded to bf16 for each forward pass."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module
        # A parameter is an entry in a dictionary of the module that owns it. With dictionary and
        # name at hand, every step exchanges all parameters in one loop, without walking the
        # modules.
        self._places = {
            parameter: (owner._parameters, name)
            for owner in module.modules()
            for name, parameter in owner.named_parameters(recurse=False)
        }
        self._groups = [list(self._places.values())]
        self._early = False
        self._kept: Kept | None = None

    def deliver_early(self, groups: Sequence[Sequence[nn.Parameter]]) -> None:
        """From now on, deliver gradients of a group as soon as all of them are ready."""
        self._groups = [[self._places[parameter] for parameter in group] for group in groups]
        self._early = True

    def keep(self) -> "Kept":
        """Keep copies and gradients from now on; the caller updates and uses them."""
        self._kept = Kept()
        return self._kept

    def forward(self, *arguments: object) -> object:
        """The output of `module`."""
        # As torch.func.functional_call, without looking up names in every step.
        # While the module runs, the rounded copies stand where its parameters were. They are
        # outputs of an autograd node whose inputs are the parameters (or lead there by `_Group`),
        # so the backward pass ends in these, in fp32; neither the module nor the optimizer knows of
        # the copies. Whatever happens, the parameters are put back.
        masters = [[held[name] for held, name in group] for group in self._groups]
        early = self._early and torch.is_grad_enabled()
        try:
            for group, parameters in zip(self._groups, masters, strict=True):
                copies = (
                    _Group(parameters).leaves if early else apply(_Round, self._kept, *parameters)
                )
                for (held, name), copy_ in zip(group, copies, strict=True):
                    held[name] = copy_  # a tensor replaces a parameter
            return self.module(*arguments)
        finally:
            for group, parameters in zip(self._groups, masters, strict=True):
                for (held, name), parameter in zip(group, parameters, strict=True):
                    held[name] = parameter


class Kept:
    """bf16 copies that persist between steps, and bf16 gradients not yet accumulated in fp32."""

    def __init__(self) -> None:
        self.copies: dict[Tensor, Tensor] = {}
        """By parameter; the next forward pass creates missing ones."""

        self.gradients: dict[Tensor, Tensor] = {}
        """By parameter, from the last backward pass; dense."""

        self._tables: dict[Tensor, tuple[Tensor, Tensor]] = {}
        """By parameter with sparse gradients: a dense tensor, and its rows that are not 0."""

    def put(self, parameter: Tensor, gradient: Tensor | None) -> None:
        """Keep a gradient, or 0 for a parameter that was not used."""
        if gradient is not None and gradient.is_sparse:
            self.gradients[parameter] = self._table(parameter, gradient.coalesce())
        elif gradient is not None:
            self.gradients[parameter] = gradient.contiguous()
        else:
            self.gradients[parameter] = torch.zeros_like(self.copies[parameter])

    def _table(self, parameter: Tensor, gradient: Tensor) -> Tensor:
        """A sparse gradient as a dense tensor, of which only the rows in use are written."""
        rows = gradient.indices()[0]
        # An embedding's gradient has as many rows as the batch has tokens, its table as many as the
        # vocabulary. So the table is kept, and only the last step's rows are cleared.
        if parameter in self._tables:
            table, earlier = self._tables[parameter]
            table[earlier] = 0
        else:
            table = torch.zeros_like(self.copies[parameter])
        table[rows] = gradient.values()
        self._tables[parameter] = table, rows
        return table

    def settle(self, parameters: Iterable[Tensor]) -> None:
        """Accumulate the kept gradients of `parameters` in fp32."""
        for parameter in parameters:
            gradient = self.gradients.pop(parameter, None)
            if gradient is None:
                continue
            if parameter.grad is None:
                parameter.grad = gradient.float()
            else:
                parameter.grad.add_(gradient)


class _Group:
    """Rounded copies of a group of parameters, whose gradients are delivered early and together.

    Autograd runs the nodes created last in the forward pass first, so rounding nodes would run
    after everything else. Only gradients of leaves are delivered immediately: so the copies are
    leaves, and the rounding is a graph of its own.
    """

    def __init__(self, masters: Sequence[nn.Parameter | None]) -> None:
        self._copies = list(apply(_Round, None, *masters))
        self.leaves = [each.detach().requires_grad_() for each in self._copies]
        self._missing = len(self.leaves)
        for leaf in self.leaves:
            leaf.register_post_accumulate_grad_hook(self._arrived)

    # On the first arrival, ask for a call at the end of the backward pass, for those that never
    # arrive; `_pass_on` then does nothing if it has already run.
    def _arrived(self, _: Tensor) -> None:
        if self._missing == len(self.leaves):  # some may never arrive: not every head is used
            torch.autograd.Variable._execution_engine.queue_callback(self._pass_on)
        self._missing -= 1
        if not self._missing:
            self._pass_on()

    def _pass_on(self) -> None:
        """Deliver the available gradients to the masters, once."""
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
        # Unused parameters get zero gradients, so that they decay like the rest. They are created
        # here, on the parameter's device, because autograd would require its own build for one.
        ctx.set_materialize_grads(False)
        ctx.masters, ctx.kept = parameters, kept
        known = {} if kept is None else kept.copies
        missing = [p for p in parameters if p not in known]
        if missing:
            copies = [torch.empty_like(p, dtype=torch.bfloat16) for p in missing]
            torch._foreach_copy_(copies, missing)
            known.update(zip(missing, copies, strict=True))
        # Detached, because every forward pass has its own graph.
        return tuple(known[p] if kept is None else known[p].detach() for p in parameters)

    @staticmethod
    def backward(ctx: _Context, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
        # An earlier micro-batch's gradients go to fp32 now; this one's stay in bf16 until the next
        # pass, or the update, which reads them as they are.
        if ctx.kept is not None:
            ctx.kept.settle(ctx.masters)
            for parameter, gradient in zip(ctx.masters, gradients, strict=True):
                ctx.kept.put(parameter, gradient)
            return (None, *(None for _ in gradients))
        dense = [None if g is None else g.to_dense() for g in gradients]  # embeddings' are sparse
        # zeros for parameters that were not used (see `forward`)
        exact = [
            torch.zeros_like(p) if g is None else torch.empty_like(g, dtype=torch.float32)
            for p, g in zip(ctx.masters, dense, strict=True)
        ]
        pairs = zip(exact, dense, strict=True)
        there = [each for each, gradient in pairs if gradient is not None]
        torch._foreach_copy_(there, [g for g in dense if g is not None])
        return (None, *exact)
