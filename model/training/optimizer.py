"""AdamW with and without bias correction, LAMB, and which parameters decay.

In:  named parameters and `OptimizerConfig`.
Out: a torch optimizer that DeepSpeed can wrap, equal bit for bit after a resume.

The reference's AdamW has no bias correction (optimization.py:130-151). Torch's fused kernel always
corrects; the same update is had from it by scaling its inputs, since with c1 = 1 - β1^t and
c2 = 1 - β2^t
    lr · m / (√v + ε)  =  [lr · c1/√c2] / c1 · m / (√v/√c2 + ε/√c2).
"""

import math
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor
from torch.nn import Parameter

from artifacts.errors import UsageError
from model.config import OptimizerConfig

NO_DECAY = ("LayerNorm", "layer_norm", "bias")
"""Parameters with one of these in their name are not decayed (optimization.py:65)."""


def parameter_groups(
    named: Iterable[tuple[str, Parameter]], *, weight_decay: float
) -> list[dict[str, Any]]:
    """Two groups, decayed and not; embeddings are decayed as in the reference."""
    decayed: list[Parameter] = []
    undecayed: list[Parameter] = []
    for name, parameter in named:
        (undecayed if any(part in name for part in NO_DECAY) else decayed).append(parameter)
    groups: list[dict[str, Any]] = [
        {"params": decayed, "weight_decay": weight_decay},
        {"params": undecayed, "weight_decay": 0.0},
    ]
    return [group for group in groups if group["params"]]


def build_optimizer(
    named: Iterable[tuple[str, Parameter]], *, config: OptimizerConfig, zero_stage: int
) -> "AdamW | Lamb":
    """The optimizer of `config` over `named` parameters, its learning rate still 0."""
    groups = parameter_groups(named, weight_decay=config.weight_decay)
    if config.name == "adamw":
        return AdamW(groups, config=config)
    if zero_stage > 0:
        raise UsageError(
            f"optimizer lamb with training.zero_stage {zero_stage}: ZeRO cuts tensors into slices, "
            "and LAMB's trust ratios need whole ones; set zero_stage = 0"
        )
    return Lamb(groups, config=config)


def _always() -> bool:
    """The gate of an optimizer whose gradients are clipped and checked by someone else."""
    return True


class AdamW(torch.optim.AdamW):
    """Torch's fused AdamW; without bias correction it is the reference's."""

    def __init__(self, groups: list[dict[str, Any]], *, config: OptimizerConfig) -> None:
        super().__init__(
            groups, lr=0.0, betas=(config.beta1, config.beta2), eps=config.eps, fused=True
        )
        self.bias_correction = config.bias_correction
        self.gate = _always

    def step(self, closure: Any = None) -> Any:
        """One update of every parameter that has a gradient, if the gate lets it."""
        if not self.gate():
            return None
        if self.bias_correction:
            return super().step(closure)
        given = [(group["lr"], group["eps"], group["weight_decay"]) for group in self.param_groups]
        for group in self.param_groups:
            self._undo_correction(group)
        try:
            return super().step(closure)
        finally:
            for group, (rate, eps, decay) in zip(self.param_groups, given, strict=True):
                group.update(lr=rate, eps=eps, weight_decay=decay)

    def create_state(self) -> None:
        """Moments of zero for every parameter, as the first update would make them."""
        for parameter in (p for group in self.param_groups for p in group["params"]):
            self.state[parameter] = {
                "step": torch.zeros((), device=parameter.device),
                "exp_avg": torch.zeros_like(parameter),
                "exp_avg_sq": torch.zeros_like(parameter),
            }

    def _undo_correction(self, group: dict[str, Any]) -> None:
        updates = 1 + self._updates_done(group)
        beta1, beta2 = group["betas"]
        root = math.sqrt(1 - beta2**updates)
        scale = (1 - beta1**updates) / root
        group.update(
            lr=group["lr"] * scale,
            eps=group["eps"] / root,
            weight_decay=group["weight_decay"] / scale,
        )

    def _updates_done(self, group: dict[str, Any]) -> int:
        for parameter in group["params"]:
            state = self.state.get(parameter)
            if state:
                return int(state["step"])
        return 0


class Lamb(torch.optim.Optimizer):
    """LAMB (You et al. 2020): AdamW's update, rescaled per tensor to the norm of its weights."""

    def __init__(self, groups: list[dict[str, Any]], *, config: OptimizerConfig) -> None:
        defaults = {"lr": 0.0, "betas": (config.beta1, config.beta2), "eps": config.eps}
        super().__init__(groups, defaults)
        self.bias_correction = config.bias_correction
        self.gate = _always

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]  # no loss to return
        """One update of every parameter that has a gradient, if the gate lets it."""
        if not self.gate():
            return
        for group in self.param_groups:
            parameters = [p for p in group["params"] if p.grad is not None]
            if parameters:
                self._update(parameters, group)

    def _update(self, parameters: list[Tensor], group: dict[str, Any]) -> None:
        states = [self._state_of(parameter) for parameter in parameters]
        directions = self._adam_directions([p.grad for p in parameters], states, group)
        torch._foreach_add_(directions, parameters, alpha=group["weight_decay"])
        weights = torch._foreach_norm(parameters)
        updates = torch._foreach_norm(directions)
        ratios = [
            torch.where((w > 0) & (u > 0), w / u, torch.ones_like(w)) * -group["lr"]
            for w, u in zip(weights, updates, strict=True)
        ]
        torch._foreach_mul_(directions, ratios)
        torch._foreach_add_(parameters, directions)

    def _state_of(self, parameter: Tensor) -> dict[str, Any]:
        state: dict[str, Any] = self.state[parameter]
        if not state:
            state["step"] = torch.zeros(())
            state["exp_avg"] = torch.zeros_like(parameter)
            state["exp_avg_sq"] = torch.zeros_like(parameter)
        state["step"] += 1
        return state

    def _adam_directions(
        self, gradients: list[Any], states: list[dict[str, Any]], group: dict[str, Any]
    ) -> list[Tensor]:
        beta1, beta2 = group["betas"]
        first = [state["exp_avg"] for state in states]
        second = [state["exp_avg_sq"] for state in states]
        torch._foreach_lerp_(first, gradients, 1 - beta1)
        torch._foreach_mul_(second, beta2)
        torch._foreach_addcmul_(second, gradients, gradients, 1 - beta2)
        updates = int(states[0]["step"]) if self.bias_correction else 0
        correct = (1 - beta1**updates, 1 - beta2**updates) if updates else (1.0, 1.0)
        denominators = list(torch._foreach_sqrt(second))
        torch._foreach_div_(denominators, math.sqrt(correct[1]))
        torch._foreach_add_(denominators, group["eps"])
        torch._foreach_mul_(denominators, correct[0])
        return list(torch._foreach_div(first, denominators))
