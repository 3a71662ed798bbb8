"""AdamW, LAMB, Muon and StableAdamW, learning-rate schedules, and weight decay groups.

In:  named parameters and `OptimizerConfig`.
Out: a torch optimizer that DeepSpeed can wrap, equal bit for bit after a resume; learning rates.

The reference's AdamW has no bias correction (optimization.py:130-151), but torch's fused kernel
always corrects. Scaling its inputs cancels the correction: with c1 = 1 - β1^t and c2 = 1 - β2^t,
    lr · m / (√v + ε)  =  [lr · c1/√c2] / c1 · m / (√v/√c2 + ε/√c2).
"""

import inspect
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pkgutil import resolve_name
from typing import Any

import torch
from torch import Tensor
from torch.nn import Parameter

from cloze.model.config import OPTIMIZERS, OptimizerConfig, Shortened
from cloze.model.encoder.operations.native_kernels import Kernels, kernels
from cloze.model.encoder.operations.products import orthogonalising_kernels, product
from cloze.model.encoder.precision import Kept, Rounded
from cloze.model.training.distributed import World

ParameterGroup = dict[str, Any]
"""A parameter group in torch's format: `params` and their settings."""

BLOCK = 4096
"""Squares are summed in blocks of this size (updates.c), so the norm does not depend on threads."""

NO_DECAY = ("LayerNorm", "layer_norm", "bias")
"""Parameters whose name contains one of these are not decayed (optimization.py:65)."""


def parameter_groups(
    named: Iterable[tuple[str, Parameter]], *, weight_decay: float
) -> list[ParameterGroup]:
    """Two groups, with and without weight decay; embeddings are decayed as in the reference."""
    groups: list[ParameterGroup] = [
        {"params": [], "weight_decay": decay} for decay in (weight_decay, 0.0)
    ]
    for name, parameter in named:
        # False is the index of the group that decays, True of the other one.
        groups[any(part in name for part in NO_DECAY)]["params"].append(parameter)
    return [group for group in groups if group["params"]]


@dataclass(frozen=True)
class Schedule:
    """The learning rate of every step of a run: linear warm-up, then the configured schedule.

    Linear decay counts from step 0: the rate is 0 at step 0 and drops from the peak to peak × (1 -
    warmup/N) at the end of the warm-up (reference: optimization.py:32-54), unlike in Hugging Face's
    schedule. `wsd` is constant, then peak × (1 - √t) with t from 0 to 1 in the last `decay_share`
    of the steps (Hägele et al. 2024, equation 1); `constant` stays constant.

    A schedule that is shortened on the way keeps its form: what is left of it is passed through in
    fewer steps, so that a decay still ends at 0.

    A run that continues a finished one, whose rate has decayed to 0, warms up again to the schedule
    of the longer run: a jump would destroy part of what was learnt (Gupta et al. 2023, "Continual
    pre-training of large language models: how to (re)warm").
    """

    optimizer: OptimizerConfig
    steps: int
    """Steps of the whole run."""

    steps_before: int = 0
    """Steps of the finished run that this one continues."""

    shortened: Shortened = ()
    """How a time limit has shortened it (`pretrain.shortened`)."""

    @property
    def end(self) -> int:
        """The number of steps after which the run ends."""
        return self.shortened[-1][1] if self.shortened else self.steps

    def ending_at(self, end: int, *, after: int) -> "Schedule":
        """The same up to `after` steps; the rest is passed through faster, to end at `end`."""
        return replace(self, shortened=(*self.shortened, (after, end)))

    def _place(self, step: int) -> float:
        """The step of the schedule as planned whose rate `step` has."""
        if not self.shortened:
            return step
        # A piecewise linear map from steps made to places in the schedule as planned. Each
        # shortening ends a piece, and from its place on, the rest up to the planned end is spread
        # over fewer steps: every piece aims at the planned end, and the last one reaches it.
        begin, end, place = 0, self.steps, 0.0
        for after, sooner in self.shortened:
            if after > step:
                break
            place += (after - begin) * (self.steps - place) / (end - begin)
            begin, end = after, sooner
        return place + (step - begin) * (self.steps - place) / max(end - begin, 1)

    def __call__(self, number: int) -> float:
        """The learning rate of step `number`, counted from 0."""
        optimizer, step = self.optimizer, self._place(number)
        # the share of the peak rate that is left at this step
        left = max(0.0, 1.0 - step / self.steps)
        if optimizer.schedule == "constant":
            left = 1.0
        elif optimizer.schedule == "wsd":
            falling = optimizer.decay_share * self.steps
            left = 1.0 - math.sqrt(min(1.0, max(0.0, 1.0 - (self.steps - step) / falling)))
        line = optimizer.learning_rate * left
        done = step - self.steps_before
        if done >= optimizer.warmup_steps:
            return line
        # A new run rises to the peak, from which the line has already fallen at the end of the
        # warm-up, as in the reference. A continued one rises to where the line is.
        peak = line if self.steps_before else optimizer.learning_rate
        return peak * done / optimizer.warmup_steps

    def missed_decay(self, steps: int) -> float:
        """The factor by which the decay of `steps` steps scales a parameter without a gradient."""
        rates = map(self, range(steps))
        return math.prod(1 - rate * self.optimizer.weight_decay for rate in rates)


def build_optimizer(
    named: Iterable[tuple[str, Parameter]],
    *,
    config: OptimizerConfig,
    precision: str = "fp32",
) -> "AdamW | Lamb":
    """The optimizer of `config` over `named` parameters, with learning rate 0.

    Muon's matrix products use bfloat16 unless `precision` is fp32. It orthogonalises whole
    matrices; `TrainingMachine.check_recipe` refuses it where ZeRO slices them.
    """
    if config.name == "muon":
        everything = dict(named)
        # Only the layers' matrices: embeddings and heads belong to AdamW (Jordan et al. 2024).
        matrices = {n: p for n, p in everything.items() if "layers." in n and p.ndim == 2}
        others = [(name, p) for name, p in everything.items() if name not in matrices]
        dtype = torch.float32 if precision == "fp32" else torch.bfloat16
        rest = parameter_groups(others, weight_decay=config.weight_decay)
        return Muon([*matrices.values()], rest, config=config, dtype=dtype)
    groups = parameter_groups(named, weight_decay=config.weight_decay)
    kind: type[AdamW | Lamb] = resolve_name(OPTIMIZERS[config.name])
    return kind(groups, config=config)


def clip(gradients: list[Tensor], max_norm: float) -> Tensor:
    """Scale `gradients` down to a global norm of `max_norm`; returns the norm before scaling."""
    norm = torch.nn.utils.get_total_norm(gradients, foreach=True)
    on_cpu = norm.device.type == "cpu"  # where reading a value is free
    if not on_cpu or norm > max_norm:
        # On a GPU the choice is made there, by a factor of 1 where nothing is to be clipped: an
        # `if` would wait for the norm.
        scale = torch.where(norm > max_norm, max_norm / (norm + 1e-6), 1.0)
        torch._foreach_mul_(gradients, scale)
    return norm


def _kernels_for_update(parameters: list[Tensor]) -> Kernels | None:
    """The kernels, if all `parameters` are float32 on the CPU."""
    fit = all(
        p.device.type == "cpu" and p.dtype == torch.float32 and p.is_contiguous()
        for p in parameters
    )
    return kernels() if fit else None


def _addresses(tensors: Iterable[Tensor | None]) -> Tensor:
    """Addresses of contiguous tensors, [N] int64; 0 for missing ones."""
    return torch.tensor([0 if each is None else each.data_ptr() for each in tensors])


# torch's optimizers import its compiler, which takes seconds, only to exclude themselves from
# compilation. Nothing compiled calls ours.
for _method in (
    *(torch.optim.Optimizer.add_param_group, torch.optim.Optimizer.zero_grad),
    *(torch.optim.Optimizer.state_dict, torch.optim.Optimizer.load_state_dict),
):
    _plain = inspect.unwrap(_method)
    setattr(_plain, "__dynamo_disable", _plain)


class AdamW(torch.optim.AdamW):
    """torch's fused AdamW, or our kernel on a CPU; by default without bias correction."""

    updates: int | None = None
    """Updates done before this step, if the caller counts them. None: read them from the state,
    which waits for a GPU."""

    def __init__(self, groups: list[ParameterGroup], *, config: OptimizerConfig) -> None:
        super().__init__(
            groups, lr=0.0, betas=(config.beta1, config.beta2), eps=config.eps, fused=True
        )
        self.bias_correction = config.bias_correction
        self.grad_scale: Tensor | None = None  # torch's kernel divides gradients by it
        self.kept = Kept()
        """bf16 copies of the parameters, updated along with them, and bf16 gradients; empty unless
        `compute_with` shares a module's."""

    def compute_with(self, module: object) -> None:
        """Update a `Rounded` module's copies as well, if the kernel can do both in one pass."""
        if isinstance(module, Rounded) and _kernels_for_update(self._parameters()):
            self.kept = module.keep()

    def shorten(self, max_norm: float) -> Tensor:
        """Have the next step scale gradients down to a norm of `max_norm`; returns their norm."""
        # Clipping by itself would read and write every gradient once more. Here they are only read:
        # the update multiplies by `grad_scale` as it goes. A block is summed by one thread and
        # always in the same order, so that the norm does not depend on the number of threads. The
        # kernel adds what is accumulated in fp32 and the last micro-batch's bf16 gradient, which
        # are never stored as a sum.
        parameters = self._parameters()
        native = _kernels_for_update(parameters)
        if native is not None:
            counts = [parameter.numel() for parameter in parameters]
            sums = torch.empty(sum(-(-count // BLOCK) for count in counts), dtype=torch.float64)
            addresses = self._gradient_addresses(parameters)
            native("squared_gradients", len(counts), torch.tensor(counts), *addresses, sums)
            norm = sums.sum().sqrt().float()
        else:
            gradients = [p.grad for p in parameters if p.grad is not None]
            norm = torch.nn.utils.get_total_norm(gradients, foreach=True)
        self.grad_scale = torch.clamp(norm / max_norm, min=1.0)
        return norm

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Clear all gradients."""
        super().zero_grad(set_to_none)
        self.kept.gradients.clear()

    def step(self, closure: None = None) -> None:  # type: ignore[override]  # no loss to return
        """Update every parameter that has a gradient."""
        native = _kernels_for_update(self._parameters())
        if native is not None:
            for group in self.param_groups:
                self._update(native, group)
            return
        given = [(group["lr"], group["eps"], group["weight_decay"]) for group in self.param_groups]
        try:
            # Undo torch's correction as derived at the top of the file: the kernel divides the
            # moments by c1 and c2, so rate and epsilon are given what cancels that. The weight
            # decay, which torch multiplies by the rate, must not change with it.
            for group in self.param_groups if not self.bias_correction else ():
                updates = 1 + self._updates_done(group)
                beta1, beta2 = group["betas"]
                root = math.sqrt(1 - beta2**updates)
                scale = (1 - beta1**updates) / root
                group["lr"] *= scale
                group["eps"] /= root
                group["weight_decay"] /= scale
            super().step(closure)
        finally:
            for group, (rate, eps, decay) in zip(self.param_groups, given, strict=True):
                group.update(lr=rate, eps=eps, weight_decay=decay)

    def _parameters(self) -> list[Tensor]:
        return [parameter for group in self.param_groups for parameter in group["params"]]

    def _update(self, native: Kernels, group: ParameterGroup) -> None:
        """Update with our kernel, which also renews the copies in the same pass."""
        parameters = self._with_gradients(group)
        if not parameters:
            return
        states = self._states(parameters)
        updates = 1 + self._updates_done(group)
        torch._foreach_add_([state["step"] for state in states], 1.0)
        # The kernel computes rate · m / (√v + ε). With correction, (m / c1) / (√(v / c2) + ε)
        # equals (√c2 / c1) · m / (√v + √c2 · ε), so rate and ε are given those factors.
        (beta1, beta2), root, scale = group["betas"], 1.0, 1.0
        if self.bias_correction:
            root = math.sqrt(1 - beta2**updates)
            scale = root / (1 - beta1**updates)
        native(
            "adamw",
            len(parameters),
            torch.tensor([parameter.numel() for parameter in parameters]),
            _addresses(parameters),
            _addresses(state["exp_avg"] for state in states),
            _addresses(state["exp_avg_sq"] for state in states),
            *self._gradient_addresses(parameters),
            self._copy_addresses(parameters),
            *(self._gradient_factor(), scale * group["lr"]),
            *(beta1, beta2, root * group["eps"], group["lr"] * group["weight_decay"]),
        )

    def _with_gradients(self, group: ParameterGroup) -> list[Tensor]:
        """Parameters of the group that have a gradient, in fp32 or in bf16."""
        return [p for p in group["params"] if p in self.kept.gradients or p.grad is not None]

    def _gradient_factor(self) -> float:
        """Factor that the next step applies to gradients."""
        return 1.0 if self.grad_scale is None else 1.0 / float(self.grad_scale)

    def _copy_addresses(self, parameters: list[Tensor]) -> Tensor:
        return _addresses(map(self.kept.copies.get, parameters))

    def _gradient_addresses(self, parameters: list[Tensor]) -> tuple[Tensor, Tensor]:
        """Addresses of the fp32 gradients, and of the bf16 ones."""
        rounded = map(self.kept.gradients.get, parameters)
        return _addresses(p.grad for p in parameters), _addresses(rounded)

    def _states(self, parameters: list[Tensor]) -> list[dict[str, Tensor]]:
        """States of parameters on one device, created if missing.

        Moments created together share a tensor, so that each thread clears one large part of it:
        threads clearing small tensors by turns wait for each other's pages, for twice the time.
        """
        # Created at the first update rather than with the optimizer: a resumed run brings its own.
        new = [parameter for parameter in parameters if not self.state[parameter]]
        if new:
            sizes = [parameter.numel() for parameter in new]
            moments = (half.split(sizes) for half in new[0].new_zeros(2, sum(sizes)))
            for parameter, first, second in zip(new, *moments, strict=True):
                self.state[parameter] = {
                    "step": torch.zeros(()),
                    "exp_avg": first.view_as(parameter),
                    "exp_avg_sq": second.view_as(parameter),
                }
        return [self.state[parameter] for parameter in parameters]

    def _updates_done(self, group: ParameterGroup) -> int:
        if self.updates is not None:
            return self.updates
        states = (self.state[p] for p in group["params"] if p in self.state)
        return next((int(state["step"]) for state in states if state), 0)

    def create_state(self) -> None:
        """Create zero moments for every parameter, as the first update would."""
        for parameter in self._parameters():
            self.state[parameter] = _zero_state(parameter, count_on=parameter.device)


MUON_MOMENTUM = 0.95
MUON_SCALE = 0.2
"""Root mean square of an AdamW update, relative to its learning rate."""

NEWTON_SCHULZ = (3.4445, -4.7750, 2.0315)
NEWTON_SCHULZ_STEPS = 5
"""Coefficients of the odd polynomial that, in five steps, moves singular values from [0.01, 1] into
[0.7, 1.2]."""


class Muon(AdamW):
    """Muon for the matrices of the layers (Jordan et al. 2024), AdamW for everything else.

    A matrix is updated by its orthogonalised momentum, so that rare directions count as much as
    frequent ones. Updates have the size of AdamW's (Liu et al. 2025, 2.2), so one learning rate
    serves both. Second moments of matrices stay 0.
    """

    def __init__(
        self,
        matrices: list[Parameter],
        rest: list[ParameterGroup],
        *,
        config: OptimizerConfig,
        dtype: torch.dtype,
    ) -> None:
        """`dtype`: of the products that orthogonalise a matrix."""
        group = {"params": matrices, "weight_decay": config.weight_decay, "matrices": True}
        super().__init__([group, *({"matrices": False, **g} for g in rest)], config=config)
        self._dtype = dtype

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]  # no loss to return
        """Update every parameter that has a gradient."""
        matrices, *rest = self.param_groups
        # Matrices of one shape are orthogonalised together, in batched products; an encoder has
        # dozens of matrices and a handful of shapes.
        by_shape: dict[torch.Size, list[Tensor]] = {}
        for parameter in self._with_gradients(matrices):
            by_shape.setdefault(parameter.shape, []).append(parameter)
        decay = matrices["lr"] * matrices["weight_decay"]
        for shape, parameters in by_shape.items():
            states = self._states(parameters)
            momenta = [state["exp_avg"] for state in states]
            torch._foreach_add_([state["step"] for state in states], 1.0)
            # An orthogonal matrix has entries of root mean square 1 / √(longer side), so this
            # factor brings them to `MUON_SCALE` times the rate.
            length = matrices["lr"] * MUON_SCALE * math.sqrt(max(shape))
            native = _kernels_for_update(parameters)
            if native is not None and (self.kept.gradients or self._dtype == torch.bfloat16):
                # The kernels do what the lines after `continue` do, in one pass over
                # gradients and momenta and one over parameters and copies.
                counts = torch.tensor([shape.numel()] * len(parameters))
                ahead = torch.empty(len(parameters), *shape, dtype=torch.bfloat16)
                native(
                    "muon_momentum",
                    *(len(parameters), counts, _addresses(momenta)),
                    *(*self._gradient_addresses(parameters), _addresses(ahead)),
                    *(self._gradient_factor(), MUON_MOMENTUM),
                )
                moves = orthogonal(ahead).contiguous()
                native(
                    "muon_move",
                    *(len(parameters), counts, _addresses(parameters), _addresses(moves)),
                    *(self._copy_addresses(parameters), length, decay),
                )
                continue
            gradients = [p.grad for p in parameters if p.grad is not None]
            if self.grad_scale is not None:  # AdamW's kernel divides by it itself
                torch._foreach_div_(gradients, self.grad_scale)
            # Momentum as a running mean, then Nesterov's step: gradient and new momentum mixed once
            # more.
            torch._foreach_lerp_(momenta, gradients, 1 - MUON_MOMENTUM)
            ahead = torch.stack(torch._foreach_lerp(gradients, momenta, MUON_MOMENTUM))
            moves = orthogonal(ahead.to(self._dtype)).to(ahead.dtype)
            torch._foreach_mul_(parameters, 1 - decay)
            torch._foreach_add_(parameters, list(moves.unbind()), alpha=-length)
        # AdamW sees only its own groups.
        try:
            self.param_groups = rest
            super().step(closure)
        finally:
            self.param_groups = [matrices, *rest]


def _zero_state(parameter: Tensor, *, count_on: torch.device | str = "cpu") -> dict[str, Tensor]:
    """The state of a parameter before its first update; the count stays on the host by default."""
    moments = {name: torch.zeros_like(parameter) for name in ("exp_avg", "exp_avg_sq")}
    return {"step": torch.zeros((), device=count_on), **moments}


def orthogonal(matrices_NIO: Tensor) -> Tensor:
    """U V^T of each matrix's singular value decomposition U S V^T, approximately; zero stays zero.

    Newton-Schulz iteration, which needs only matrix products, with Jordan's coefficients. In our
    kernels each thread iterates on matrices of its own: products so small are not worth dividing.
    """
    # Iterate on the form that is wider than high: its Gram matrix is the smaller one.
    tall = matrices_NIO.shape[1] > matrices_NIO.shape[2]
    x = matrices_NIO.mT if tall else matrices_NIO
    native = orthogonalising_kernels(x)
    if native is not None and len(x) >= torch.get_num_threads():
        moves = torch.empty_like(x, memory_format=torch.contiguous_format)
        native(
            "orthogonalise", *x.shape, x.contiguous(), moves, NEWTON_SCHULZ_STEPS, *NEWTON_SCHULZ
        )
        return moves.mT if tall else moves
    # The Frobenius norm is at least the largest singular value, so all values are now in [0, 1].
    x = x / x.norm(dim=(1, 2), keepdim=True).clamp(min=1e-7)
    if x.device.type == "cpu" and x.dtype == torch.float32:
        moves = torch.stack([product(_orthogonaliser(wide_IO), wide_IO) for wide_IO in x])
        return moves.mT if tall else moves
    # X <- a X + b (X X^T) X + c (X X^T)^2 X
    first, third, fifth = NEWTON_SCHULZ
    for _ in range(NEWTON_SCHULZ_STEPS):
        square = x @ x.mT
        both = torch.baddbmm(square, square, square, beta=third, alpha=fifth)
        x = torch.baddbmm(x, both, x, beta=first)
    return x.mT if tall else x


def _orthogonaliser(x_IO: Tensor) -> Tensor:
    """Q with Q X = U V^T, [I, I], where X has at least as many columns as rows.

    Every iteration multiplies X by a polynomial P of its Gram matrix G = X X^T, so it suffices to
    keep Q <- P Q and G <- P G P. These are square and, as they all commute, symmetric. bfloat16 is
    too coarse for G, whose eigenvalues are squares.
    """
    gram_II = product(x_IO, x_IO.mT, is_symmetric=True)
    total_II = factor_II = _polynomial(gram_II)
    for _ in range(NEWTON_SCHULZ_STEPS - 1):
        half_II = product(factor_II, gram_II, is_symmetric=True)
        gram_II = product(half_II, factor_II, is_symmetric=True)
        factor_II = _polynomial(gram_II)
        total_II = product(factor_II, total_II, is_symmetric=True)
    return total_II


def _polynomial(gram_II: Tensor) -> Tensor:
    """The factor of one iteration, [I, I]."""
    first, third, fifth = NEWTON_SCHULZ
    factor_II = product(gram_II, gram_II, is_symmetric=True)
    factor_II.mul_(fifth).add_(gram_II, alpha=third).diagonal().add_(first)
    return factor_II


@dataclass(frozen=True)
class Slices:
    """ZeRO's partition of the parameters into flat tensors, where this rank has a part of each."""

    parts: Sequence[Tensor | None]
    """This rank's part of each parameter, a view of a flat tensor; None if it has none."""

    sizes: Sequence[int]
    """Total elements of each parameter, over all ranks."""

    world: World

    def pieces(self, flat: Tensor) -> "_Pieces":
        """The parts within `flat`; padding counts as an additional parameter."""
        # DeepSpeed says which memory holds this rank's part of a parameter, but not where that is
        # in which flat tensor; an address within `flat` tells both.
        inside: list[tuple[int, int, int]] = []  # start, length and parameter index of each part
        for number, part in enumerate(self.parts):
            if part is not None and part.numel():
                start = (part.data_ptr() - flat.data_ptr()) // flat.element_size()
                if 0 <= start < flat.numel():
                    inside.append((start, part.numel(), number))
        # An update needs lengths that cover `flat` without gaps, so what no parameter claims,
        # between parts or behind the last, becomes a piece of an additional parameter of size 1.
        # Zero elements at the end stand for a part there, so that the loop closes the last gap,
        # too.
        filling, end = len(self.sizes), 0
        pieces: list[tuple[int, int]] = []  # length and parameter index
        for start, length, number in (*sorted(inside), (flat.numel(), 0, filling)):
            pieces += [(start - end, filling), (length, number)]
            end = start + length
        # most parts touch: no gap, no piece
        lengths = [length for length, _ in pieces if length > 0]
        numbers = [number for length, number in pieces if length > 0]
        sizes = torch.tensor([*self.sizes, 1])[numbers]
        there = (torch.as_tensor(each).to(flat.device) for each in (lengths, sizes, numbers))
        return _Pieces(lengths, *there)


@dataclass(frozen=True)
class _Pieces:
    """How the elements of an update divide into N parameters, or parts of parameters."""

    lengths: list[int]
    repeats: Tensor
    """[N] int64 on the device: `lengths`."""

    sizes: Tensor
    """[N] int64 on the device: elements of the whole parameters."""

    numbers: Tensor | None = None
    """[N] int64 on the device: the parameter that each part belongs to; None: they are whole."""

    def of(self, tensors: list[Tensor]) -> list[Tensor]:
        """`tensors` unchanged, or the pieces of the only one."""
        if self.numbers is None:
            return tensors
        (flat,) = tensors
        return list(torch.split(flat, self.lengths))


class Lamb(torch.optim.Optimizer):
    """LAMB (You et al. 2020, Algorithm 2): AdamW's update, rescaled per tensor by a trust ratio.

    As in the published algorithm, every tensor has a ratio, including biases and layer norms. By
    default, released implementations fix it at 1 for tensors without weight decay (TensorFlow
    Addons, `exclude_from_layer_adaptation`; NVIDIA Apex, `use_nvlamb=False`).

    With ZeRO, the squared norms behind the ratios are summed over ranks: one vector per group of
    parameters.
    """

    slices: Slices | None = None
    """Set if flat tensors replace the parameters."""

    def __init__(self, groups: list[ParameterGroup], *, config: OptimizerConfig) -> None:
        defaults = {"lr": 0.0, "betas": (config.beta1, config.beta2), "eps": config.eps}
        super().__init__(groups, defaults)
        self.bias_correction = config.bias_correction
        self._pieces: dict[tuple[int, ...], _Pieces] = {}

    def create_state(self) -> None:
        """Create zero moments for every parameter, as the first update would."""
        for parameter in (p for group in self.param_groups for p in group["params"]):
            self.state[parameter] = _zero_state(parameter)

    def counted_states(self, parameters: Sequence[Tensor]) -> list[dict[str, Tensor]]:
        """The states of parameters that are updated now, which is counted in `step`.

        Checkpoints and ZeRO expect both moments, `exp_avg` and `exp_avg_sq`, of every optimizer;
        one that has no use for them leaves them 0.
        """
        states = [self.state[parameter] for parameter in parameters]
        for parameter, state in zip(parameters, states, strict=True):
            if not state:
                state.update(_zero_state(parameter))
            state["step"] += 1
        return states

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]  # no loss to return
        """Update every parameter that has a gradient."""
        for group in self.param_groups:
            parameters = [p for p in group["params"] if p.grad is not None]
            if parameters:
                self._update(parameters, group)

    def _update(self, parameters: list[Tensor], group: ParameterGroup) -> None:
        gradients = [p.grad for p in parameters if p.grad is not None]
        states = self.counted_states(parameters)
        beta1, beta2 = group["betas"]
        first = [state["exp_avg"] for state in states]
        second = [state["exp_avg_sq"] for state in states]
        torch._foreach_lerp_(first, gradients, 1 - beta1)
        torch._foreach_mul_(second, beta2)
        torch._foreach_addcmul_(second, gradients, gradients, 1 - beta2)
        # Number of this update, for the correction (`correct`: c1 and c2); 0 for none.
        updates = int(states[0]["step"]) if self.bias_correction else 0
        correct = (1 - beta1**updates, 1 - beta2**updates) if updates else (1.0, 1.0)
        # c1 (√v / √c2 + ε): dividing m by it corrects both moments.
        denominators = list(torch._foreach_sqrt(second))
        torch._foreach_div_(denominators, math.sqrt(correct[1]))
        torch._foreach_add_(denominators, group["eps"])
        torch._foreach_mul_(denominators, correct[0])
        # The directions are views of one tensor, so that a single product can scale them all.
        sizes = [parameter.numel() for parameter in parameters]
        flat = parameters[0].new_empty(sum(sizes))
        directions = [
            part.view_as(parameter)
            for part, parameter in zip(torch.split(flat, sizes), parameters, strict=True)
        ]
        torch._foreach_copy_(directions, first)
        torch._foreach_div_(directions, denominators)
        # Decay belongs to the direction and hence to the norm that the ratio is computed from.
        torch._foreach_add_(directions, parameters, alpha=group["weight_decay"])
        pieces = self._pieces_of(parameters)
        ratios = self._ratios(
            pieces,
            *map(pieces.of, (parameters, directions, gradients, second)),
            correction=correct[1],
            eps=group["eps"],
        )
        ratios = ratios * -group["lr"]
        # Scale all tensors at once; individually, this would take some 400 kernels.
        flat.mul_(torch.repeat_interleave(ratios, pieces.repeats, output_size=len(flat)))
        torch._foreach_add_(parameters, directions)

    def _ratios(
        self, pieces: _Pieces, *tensors: list[Tensor], correction: float, eps: float
    ) -> Tensor:
        """Trust ratios: weight norms over update norms, or 1 if either is 0.

        `tensors`: parameters, update directions, gradients and second moments. `correction`: the
        divisor of the second moments, 1 without bias correction.
        """
        parameters, directions, *_ = tensors
        weights = torch.stack(torch._foreach_norm(parameters))
        changes = torch.stack(torch._foreach_norm(directions))
        if pieces.numbers is not None:
            squares = torch.stack([weights, changes]).square()
            weights, changes = self._over_ranks(squares, pieces).sqrt()
        return torch.where((weights > 0) & (changes > 0), weights / changes, 1.0)

    def _over_ranks(self, sums_KN: Tensor, pieces: _Pieces) -> Tensor:
        """For each piece, the sums of its parameter over all pieces of all ranks, [K, N]."""
        if self.slices is None or pieces.numbers is None:
            return sums_KN
        # A parameter may be cut over several ranks, whose pieces differ; parameters have the same
        # numbers everywhere. So the sums are spread over all of them, added over the ranks in one
        # exchange, and read back by piece. The last column takes the padding.
        totals = sums_KN.new_zeros(len(sums_KN), len(self.slices.sizes) + 1)
        totals.index_add_(1, pieces.numbers, sums_KN)
        return self.slices.world.sum_tensor(totals)[:, pieces.numbers]

    def _pieces_of(self, parameters: list[Tensor]) -> _Pieces:
        """The pieces of `parameters`, cached; copied to the device once."""
        sizes = [parameter.numel() for parameter in parameters]
        # The same parameters have gradients in nearly every step, so there are few keys.
        key = (id(parameters[0]), *sizes)
        if key not in self._pieces:
            if self.slices is not None:
                self._pieces[key] = self.slices.pieces(parameters[0])
            else:
                repeats = torch.tensor(sizes, device=parameters[0].device)
                self._pieces[key] = _Pieces(sizes, repeats, repeats)
        return self._pieces[key]


class StableAdamW(Lamb):
    """AdamW with shorter steps for tensors whose gradient outgrows its second moments.

    Wortsman et al. 2023, Algorithm 2: the learning rate of a tensor is divided by the root mean
    square of g² / max(v, ε²) if that exceeds 1. This avoids loss spikes and makes clipping
    unnecessary. `bias_correction` gives their debiased βs.
    """

    def _ratios(
        self, pieces: _Pieces, *tensors: list[Tensor], correction: float, eps: float
    ) -> Tensor:
        """The reciprocal of each tensor's root mean square, at most 1."""
        *_, gradients, second = tensors
        surprises = torch._foreach_mul(gradients, gradients)
        torch._foreach_div_(surprises, torch._foreach_clamp_min(second, correction * eps**2))
        if pieces.numbers is None:
            # g² / max(v / c2, ε²) as c2 · g² / max(v, c2 · ε²).
            means = torch.stack([surprise.mean() for surprise in surprises]) * correction
        else:
            sums = torch.stack([surprise.sum() for surprise in surprises])
            means = self._over_ranks(sums[None], pieces)[0] / pieces.sizes * correction
        return means.sqrt().clamp_min(1.0).reciprocal()
