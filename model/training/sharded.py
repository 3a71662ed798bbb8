"""The engine for ZeRO 1 to 3: DeepSpeed shards moments, gradients and parameters over the ranks.

In:  a model, a schedule of learning rates, `TrainingMachine`.
Out: `Sharded`, an `Engine`. Nothing else imports DeepSpeed.

DeepSpeed holds sharded fp32 masters and, in bf16, whole or sharded bf16 weights; it reduces, clips
and updates. Batches, learning rates, loss scales and checkpoints are ours.
"""

import contextlib
import math
import sys
import warnings
from collections.abc import Iterator, Mapping
from functools import cache
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn

from cloze.model.config import OptimizerConfig, TrainingMachine
from cloze.model.data.batch import empty_micro_batch
from cloze.model.training.checkpoints import ParameterState
from cloze.model.training.distributed import World
from cloze.model.training.engine import MOMENTS, Engine, StepOutcome
from cloze.model.training.optimizer import Lamb, Schedule, Slices, build_optimizer

# DeepSpeed calls collectives by names that torch 2.13 deprecates; users cannot do anything about
# it.
warnings.filterwarnings("ignore", message=".*_tensor` is deprecated", category=FutureWarning)

REDUCED_AT_ONCE = 25_000_000
"""Elements of a bucket at ZeRO 2 and 3: a layer of BERT-large has 13 million."""

MASTER = "master"


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


def engine_configuration(
    machine: TrainingMachine, optimizer: OptimizerConfig, *, precision: str, on_gpu: bool = False
) -> dict[str, object]:
    """DeepSpeed's configuration, derived from ours and overridden by `machine.deepspeed`."""
    bf16 = precision != "fp32"
    zero: dict[str, object] = {"stage": machine.zero_stage, "overlap_comm": False}
    if on_gpu and machine.zero_stage > 1:  # at 1 it reduces in `step`: nothing overlaps
        # The default of 500 million would buffer all of BERT-large until the end.
        zero.update(overlap_comm=True, reduce_bucket_size=REDUCED_AT_ONCE)
    if machine.offload_optimizer:
        zero["offload_optimizer"] = {"device": "cpu"}
    derived: dict[str, object] = {
        # Sizes that DeepSpeed requires but does not use: batches and loss scales are ours.
        "train_micro_batch_size_per_gpu": 1,
        "gradient_accumulation_steps": 1,
        "managed_gradient_accumulation": False,  # we determine where a step ends
        "gradient_clipping": optimizer.max_grad_norm,
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


class Sharded(Engine):
    """ZeRO 1 to 3, through DeepSpeed."""

    def __init__(
        self,
        model: nn.Module,
        *,
        world: World,
        schedule: Schedule,
        machine: TrainingMachine,
        precision: str,
    ) -> None:
        """`precision`: `bf16` or `fp32`; `fp8` counts as bf16."""
        on_gpu = world.device.type == "cuda"
        configuration = engine_configuration(
            machine, schedule.optimizer, precision=precision, on_gpu=on_gpu
        )
        optimizer = build_optimizer(
            model.named_parameters(),
            config=schedule.optimizer,
            precision=precision,
        )
        # In fp32, before DeepSpeed rounds the model's weights.
        masters = {name: p.detach().clone() for name, p in model.named_parameters()}
        with contextlib.redirect_stdout(sys.stderr):
            self._engine: Any
            self._engine, *_ = deepspeed().initialize(
                model=model, optimizer=optimizer, config=configuration
            )
        super().__init__(model, self._engine, optimizer, world=world, schedule=schedule)
        self._stage = machine.zero_stage
        if self._stage < 3:
            optimizer.create_state()  # DeepSpeed finds it only if all groups have state
        if isinstance(optimizer, Lamb):
            parts = [self._part(parameter) for parameter in model.parameters()]
            sizes = [master.numel() for master in masters.values()]
            optimizer.slices = Slices(parts, sizes, world)
        for name, parameter in model.named_parameters():
            self._put(MASTER, parameter, masters[name])  # DeepSpeed's are rounded to bf16

    def backward(self, loss: Tensor, *, last: bool = False) -> None:
        """Accumulate the gradient of `loss`."""
        self._engine.backward(loss * self._world.ranks)  # DeepSpeed averages over ranks

    def step(self, number: int, sums: Tensor) -> StepOutcome:
        """Reduce, clip, update; see `Engine.step`."""
        rate = self._set_rate(number)
        self._engine.step()
        # Whether a rank's own part was finite; the sum of the norms is NaN on all ranks if it is on
        # one.
        applied = bool(self._engine.was_step_applied())
        norm = float(self._engine.get_global_grad_norm()) if applied else math.nan
        values = torch.cat([sums, torch.full((1,), norm, device=self._world.device)])
        values = torch.tensor(self._world.sum(values), dtype=torch.float64)
        applied = bool(values[-1].isfinite())
        self.updates += applied
        return StepOutcome(applied, rate, values[-1] / self._world.ranks, values[:-1])

    def state(self) -> Iterator[tuple[str, ParameterState]]:
        """The state of every parameter, gathered one at a time; collective."""
        utils = deepspeed().utils
        for name, parameter in self.model.named_parameters():
            master = utils.safe_get_full_fp32_param(parameter)
            moments = [
                utils.safe_get_full_optimizer_state(parameter, part)
                if self.updates
                else torch.zeros_like(master)
                for part in MOMENTS
            ]
            yield name, ParameterState(*(tensor.detach() for tensor in (master, *moments)))

    def restore(self, state: Mapping[str, ParameterState], *, updates: int) -> None:
        """Restore a saved state after `updates` updates."""
        if updates:
            # The wrapped optimizers create and link their state in their first step only. A step
            # with rate 0 on a loss of 0 changes nothing.
            nothing = self.forward(empty_micro_batch(0, 0), dropout=0)
            self.backward((nothing.masked_lm_loss + nothing.next_sentence_loss) * 0.0)
            self._engine.step()
        for name, parameter in self.model.named_parameters():
            for part in MOMENTS if updates else ():
                self._put(part, parameter, getattr(state[name], part))
            self._put(MASTER, parameter, state[name].master)
        for kept in self._optimizer.state.values():
            kept["step"].fill_(updates)
        self.updates = updates

    def _part(self, parameter: nn.Parameter) -> Tensor | None:
        """This rank's part of the fp32 master as a view; None if it has none."""
        if self._stage == 3:
            part: Tensor = deepspeed().utils.safe_get_local_fp32_param(parameter)
            return part
        mapping: Any = parameter._hp_mapping  # type: ignore[attr-defined]  # DeepSpeed's
        found: Tensor | None = mapping and mapping.hp_fragment
        return found

    def _put(self, part: str, parameter: nn.Parameter, whole: Tensor) -> None:
        """Set the fp32 master or a moment of a parameter from a whole tensor.

        At ZeRO 3, DeepSpeed's setters for whole tensors fail if the number of ranks does not divide
        their size, so each rank sets its own part.
        """
        utils, value = deepspeed().utils, whole.to(self._world.device)
        set_master, set_moment = utils.safe_set_full_fp32_param, utils.safe_set_full_optimizer_state
        if self._stage == 3:
            size = utils.safe_get_local_fp32_param(parameter).numel()
            # DeepSpeed pads a parameter to equal parts, so the last ones may hold zeros.
            padding = (0, size * self._world.ranks - whole.numel())
            padded = torch.nn.functional.pad(value.flatten(), padding)
            value = padded.narrow(0, size * self._world.rank, size)
            set_master = utils.safe_set_local_fp32_param
            set_moment = utils.safe_set_local_optimizer_state
        if part == MASTER:
            set_master(parameter, value)
        else:
            set_moment(parameter, value, part)
