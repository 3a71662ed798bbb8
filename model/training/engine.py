"""The training engine: all of DeepSpeed behind a small interface.

In:  our model, optimizer and configuration.
Out: `Engine`: backward, step, and the full fp32 state of every named parameter, at any ZeRO stage.

There are two modes. At ZeRO 0, parameters and moments are whole and fp32 on every rank, the model
computes with bf16 copies, and we reduce and clip; a single rank runs without DeepSpeed (`OneRank`)
unless `training.deepspeed` is set. At ZeRO 1 to 3, DeepSpeed holds sharded fp32 masters and bf16
weights, reduces and clips.
"""

import contextlib
import math
import sys
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from types import ModuleType
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from cloze.artifacts.errors import UsageError
from cloze.model.config import MEASURING, OptimizerConfig, TrainingMachine
from cloze.model.data.batch import PackedBatch, empty_micro_batch
from cloze.model.encoder.losses import PretrainingSums
from cloze.model.encoder.operations.dropout import Noise
from cloze.model.training.checkpoints import PARTS, ParameterState
from cloze.model.training.distributed import GradientBuckets, World, gradient_buckets
from cloze.model.training.optimizer import AdamW, Lamb, Slices, build_optimizer, clip
from cloze.model.training.precision import Rounded

# DeepSpeed calls collectives by names that torch 2.13 deprecates; users cannot do anything about
# it.
warnings.filterwarnings("ignore", message=".*_tensor` is deprecated", category=FutureWarning)

MOMENTS = PARTS[1:]

REDUCED_AT_ONCE = 25_000_000
"""Elements of a bucket at ZeRO 2 and 3: a layer of BERT-large has 13 million."""


@cache
def deepspeed() -> ModuleType:
    """DeepSpeed, imported on first use: a rank that does without it starts sooner."""
    with contextlib.redirect_stdout(sys.stderr):  # it logs to the standard output of import time
        import deepspeed
        import deepspeed.ops
        import deepspeed.utils
    # Its JIT-compiled operator for reductions within a machine needs a compiler; gloo suffices.
    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
    library: ModuleType = deepspeed
    return library


class StepOutcome(NamedTuple):
    """The result of an optimizer step, the same on all ranks."""

    applied: bool
    """False: the gradient was not finite, and nothing changed on any rank."""

    gradient_norm: float
    """Global, before clipping."""

    sums: list[float]
    """The caller's values summed over ranks."""


def engine_configuration(
    machine: TrainingMachine, optimizer: OptimizerConfig, *, precision: str, on_gpu: bool = False
) -> dict[str, object]:
    """DeepSpeed's configuration, derived from ours and overridden by `machine.deepspeed`."""
    bf16 = precision != "fp32" and machine.zero_stage > 0
    zero: dict[str, object] = {"stage": machine.zero_stage, "overlap_comm": False}
    if on_gpu and machine.zero_stage > 1:  # at 1 it reduces in `step`: nothing overlaps
        # The default of 500 million would buffer all of BERT-large until the end.
        zero.update(overlap_comm=True, reduce_bucket_size=REDUCED_AT_ONCE)
    if machine.offload_optimizer:
        if not machine.zero_stage:
            raise UsageError(
                "training.offload_optimizer with training.zero_stage 0: only ZeRO 1 to 3 can "
                "offload the optimizer's state; set zero_stage = 1, 2 or 3"
            )
        if optimizer.name in MEASURING:
            raise UsageError(
                f"optimizer {optimizer.name} with training.offload_optimizer: its update "
                "reduces over ranks and needs the masters on the GPU; remove offload_optimizer"
            )
        zero["offload_optimizer"] = {"device": "cpu"}
    derived: dict[str, object] = {
        # Sizes that DeepSpeed requires but does not use: batches and loss scales are ours.
        "train_micro_batch_size_per_gpu": 1,
        "gradient_accumulation_steps": 1,
        "managed_gradient_accumulation": False,  # we determine where a step ends
        "gradient_clipping": optimizer.max_grad_norm if machine.zero_stage else 0.0,
        "bf16": {"enabled": bf16, **({"check_grad_overflow": True} if bf16 else {})},
        "data_types": {"grad_accum_dtype": "fp32"},
        "communication_data_type": "fp32",
        "zero_optimization": zero,
        "zero_allow_untested_optimizer": True,  # our subclass of torch's AdamW
        "zero_force_ds_cpu_optimizer": False,  # DeepSpeed's own does not resume bit for bit
        "steps_per_print": None,
        "timers": {"throughput": {"enabled": False}},  # it would wait for the GPU at every step
    }
    return _merged(derived, machine.deepspeed)


def _merged(base: Mapping[str, object], over: Mapping[str, object]) -> dict[str, object]:
    result = dict(base)
    for key, value in over.items():
        inner = result.get(key)
        both = isinstance(inner, dict) and isinstance(value, dict)
        result[key] = _merged(inner, value) if both else value  # type: ignore[arg-type]  # both are dicts
    return result


@dataclass(frozen=True)
class OneRank:
    """The parts of DeepSpeed's interface that `Engine` uses, for a single rank.

    The results are the same, without the per-step overhead of DeepSpeed's hooks.
    """

    module: nn.Module
    optimizer: torch.optim.Optimizer
    keeps_gradients: bool
    """Set gradients to zero instead of freeing them."""

    def __call__(self, *arguments: object) -> object:
        """The output of the module."""
        return self.module(*arguments)

    def train(self, mode: bool) -> None:
        """Enable or disable dropout."""
        self.module.train(mode)

    def backward(self, loss: Tensor) -> None:
        """Accumulate the gradients of `loss`."""
        torch.autograd.backward(loss)

    def step(self) -> None:
        """Update the parameters and clear the gradients."""
        self.optimizer.step()
        self.zero_grad()

    def zero_grad(self) -> None:
        """Clear the gradients."""
        if self.keeps_gradients:
            torch._foreach_zero_([p.grad for p in self.module.parameters() if p.grad is not None])
        else:
            self.optimizer.zero_grad()


class Engine:
    """A model under training."""

    def __init__(
        self,
        model: nn.Module,
        *,
        world: World,
        machine: TrainingMachine,
        optimizer: OptimizerConfig,
        precision: str,
    ) -> None:
        """`precision`: `bf16` or `fp32`; the engine treats `fp8` as bf16."""
        self.model = model
        self.updates = 0
        self._world = world
        self._zero_stage = machine.zero_stage
        self._optimizer = build_optimizer(
            model.named_parameters(),
            config=optimizer,
            zero_stage=machine.zero_stage,
            precision=precision,
        )
        self._max_grad_norm = optimizer.max_grad_norm
        buckets = gradient_buckets(model.parameters())
        reduced = not machine.zero_stage and world.ranks > 1
        self._reduction = GradientBuckets(buckets) if reduced else None
        masters = {name: p.detach().clone() for name, p in model.named_parameters()}
        rounded = not machine.zero_stage and precision != "fp32"
        computed = Rounded(model, buckets if reduced else None) if rounded else model
        on_gpu = world.device.type == "cuda"
        configuration = engine_configuration(machine, optimizer, precision=precision, on_gpu=on_gpu)
        self._engine: Any = OneRank(computed, self._optimizer, machine.cuda_graphs)
        if world.ranks > 1 or machine.zero_stage or machine.deepspeed:
            with contextlib.redirect_stdout(sys.stderr):
                self._engine, *_ = deepspeed().initialize(
                    model=computed, optimizer=self._optimizer, config=configuration
                )
                if not machine.zero_stage:  # `GradientBuckets` does that
                    self._engine.enable_backward_allreduce = False
        elif isinstance(self._optimizer, AdamW):
            self._optimizer.compute_with(computed)
        if machine.zero_stage in (1, 2):
            self._optimizer.create_state()  # DeepSpeed finds it only if all groups have state
        if machine.zero_stage and isinstance(self._optimizer, Lamb):
            parts = [self._part(parameter) for parameter in model.parameters()]
            sizes = [master.numel() for master in masters.values()]
            self._optimizer.slices = Slices(parts, sizes, world)
        self._set_masters(masters)  # DeepSpeed created its own from weights rounded to bf16

    def forward(self, batch: PackedBatch, *arguments: object, dropout: int | Noise | None) -> Any:
        """The output of the model: in training mode, or without `dropout` and gradients.

        `arguments` of the model stand between the batch and its dropout.
        """
        training = dropout is not None
        if self.model.training != training:
            self._engine.train(training)
        with torch.set_grad_enabled(training):
            return self._engine(batch.to(self._world.device), *arguments, dropout)

    def backward(self, loss: Tensor, *, last: bool = False) -> None:
        """Accumulate the gradient of `loss`, this rank's part of a sum over ranks.

        `last`: `step` comes next, so gradients are reduced as this pass completes them.
        """
        if self._zero_stage:
            loss = loss * self._world.ranks  # DeepSpeed averages over ranks
        elif self._reduction is not None and last:
            self._reduction.begin()
        self._engine.backward(loss)

    def step(self, learning_rate: float, sums: Tensor | None = None) -> StepOutcome:
        """Reduce, clip, update; a non-finite gradient changes nothing on any rank.

        `sums`, [K], are added over ranks and returned along with the norm: reading them is the only
        point in a step where the host waits for a GPU. At ZeRO 0 this happens before the update,
        which then hides the host's work until the next forward pass.
        """
        for group in self._optimizer.param_groups:
            group["lr"] = learning_rate
        if isinstance(self._optimizer, AdamW):
            self._optimizer.updates = self.updates
        if self._zero_stage:
            self._engine.step()
            applied = bool(self._engine.was_step_applied())
            norm = float(self._engine.get_global_grad_norm()) if applied else math.nan
            found = torch.full((), norm, device=self._world.device)
        else:
            if self._reduction is not None:
                self._reduction.finish()
            if isinstance(self._optimizer, AdamW) and self._world.device.type == "cpu":
                found = self._optimizer.shorten(self._max_grad_norm)
            else:
                gradients = [p.grad for p in self.model.parameters() if p.grad is not None]
                found = clip(gradients, self._max_grad_norm)
        values = found[None] if sums is None else torch.cat([sums, found[None]])
        *totals, norms = self._world.sum(values)
        norm = norms / self._world.ranks  # the same on all ranks
        finite = math.isfinite(norm)
        if not self._zero_stage and finite:
            self._engine.step()
        elif not self._zero_stage:
            self._engine.zero_grad()
        self.updates += finite
        return StepOutcome(finite, norm, totals)

    def state(self) -> Iterator[tuple[str, ParameterState]]:
        """The state of every parameter, one at a time; collective, so all ranks must consume it.

        On the device and not copied: the next step changes it.
        """
        for name, parameter in self.model.named_parameters():
            master, kept = parameter, self._optimizer.state.get(parameter, {})
            if self._zero_stage:
                read = deepspeed().utils.safe_get_full_optimizer_state
                master = deepspeed().utils.safe_get_full_fp32_param(parameter)
                kept = {part: read(parameter, part) for part in MOMENTS if self.updates}
            moments = [kept[m] if m in kept else torch.zeros_like(master) for m in MOMENTS]
            yield name, ParameterState(*(tensor.detach() for tensor in (master, *moments)))

    def restore(self, state: Mapping[str, ParameterState], *, updates: int) -> None:
        """Restore a saved state after `updates` updates, from any world size and ZeRO stage."""
        if updates:
            # The wrapped optimizers create and link their state in their first step only. A step
            # with rate 0 on a loss of 0 changes nothing.
            nothing: PretrainingSums = self.forward(empty_micro_batch(0, 0), dropout=0)
            self.backward((nothing.masked_lm_loss + nothing.next_sentence_loss) * 0.0)
            self.step(0.0)
            for name, parameter in self.model.named_parameters():
                for part in MOMENTS:
                    moment = getattr(state[name], part).to(self._world.device)
                    if not self._zero_stage:
                        self._optimizer.state[parameter][part].copy_(moment)
                    elif self._zero_stage == 3:
                        own = self._slice(parameter, moment)
                        deepspeed().utils.safe_set_local_optimizer_state(parameter, own, part)
                    else:
                        deepspeed().utils.safe_set_full_optimizer_state(parameter, moment, part)
            for kept in self._optimizer.state.values():
                kept["step"].fill_(updates)
        self._set_masters({name: kept.master for name, kept in state.items()})
        self.updates = updates

    def _set_masters(self, masters: Mapping[str, Tensor]) -> None:
        if isinstance(self._optimizer, AdamW):
            self._optimizer.kept.copies.clear()
        for name, parameter in self.model.named_parameters():
            master = masters[name].to(self._world.device)
            if not self._zero_stage:
                parameter.data.copy_(master)
            elif self._zero_stage == 3:
                deepspeed().utils.safe_set_local_fp32_param(
                    parameter, self._slice(parameter, master)
                )
            else:
                deepspeed().utils.safe_set_full_fp32_param(parameter, master)

    def _part(self, parameter: nn.Parameter) -> Tensor | None:
        """ZeRO 1 to 3: this rank's part of the fp32 master as a view; None if it has none."""
        if self._zero_stage == 3:
            part: Tensor = deepspeed().utils.safe_get_local_fp32_param(parameter)
            return part
        mapping: Any = parameter._hp_mapping  # type: ignore[attr-defined]  # DeepSpeed's
        found: Tensor | None = mapping and mapping.hp_fragment
        return found

    def _slice(self, parameter: nn.Parameter, whole: Tensor) -> Tensor:
        """ZeRO 3: this rank's part of a whole tensor.

        DeepSpeed's setters for whole tensors fail if the number of ranks does not divide their
        size.
        """
        size = deepspeed().utils.safe_get_local_fp32_param(parameter).numel()
        padding = size * self._world.ranks - whole.numel()
        padded = torch.nn.functional.pad(whole.flatten(), (0, padding))
        return padded.narrow(0, size * self._world.rank, size)
