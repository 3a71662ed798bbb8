"""The forward and backward pass of a micro-batch as one CUDA graph, launched at once.

In:  micro-batches of few shapes, the divisors of their losses, a seed.
Out: the sums of the pass, with gradients accumulated; None if kernels must be launched one by one.

Below a few thousand tokens, launching takes longer than computing. A graph replays its kernels with
the same addresses and arguments, so changing inputs (the batch and both divisors) are copied into
static tensors; every replay rereads the generator's seed. Parameters change in place, and
gradients accumulate in static tensors, which the engine sets to zero instead of freeing. Kernels
and their order are those of the eager pass.
"""

from collections import Counter
from dataclasses import dataclass

import torch
from torch import Tensor

from cloze.artifacts.errors import UsageError
from cloze.model.config import PretrainStage, TrainingMachine
from cloze.model.data.batch import PackedBatch, Shape
from cloze.model.encoder.operations.attention import backend_name
from cloze.model.encoder.operations.dropout import DeviceNoise
from cloze.model.training.distributed import World
from cloze.model.training.engine import Engine

MOST_GRAPHS = 32
"""Maximum number of shapes with a graph; runs that benefit have a dozen (docs/training.md)."""

MOST_TOKENS = 20_480
"""Larger micro-batches are not limited by launches."""


def require_graphs(stage: PretrainStage, machine: TrainingMachine, world: World) -> None:
    """Reject `training.cuda_graphs` where a pass would not repeat its kernels and addresses."""
    dtype = torch.float32 if stage.pretrain.precision == "fp32" else torch.bfloat16
    reason = ""
    if world.device.type != "cuda":
        reason = f"on {world.device.type}: graphs are for GPUs"
    elif world.ranks > 1 or machine.zero_stage:
        reason = (
            "with several ranks or ZeRO: the host moves and reduces gradients during the backward "
            "pass"
        )
    elif machine.checkpoint_activations:
        reason = "with training.checkpoint_activations: it saves the generator's state"
    elif stage.encoder.layer_type == "lstm":
        reason = "with LSTM layers: the host chooses their kernels"
    elif backend_name(machine.attention, device=world.device, dtype=dtype) == "grouped":
        reason = "with grouped attention, as in fp32: the host regroups every batch"
    if reason:
        raise UsageError(f"training.cuda_graphs {reason}; leave it out")


@dataclass(frozen=True)
class _Graph:
    """The captured pass of one shape."""

    graph: torch.cuda.CUDAGraph
    batch: PackedBatch
    divisors: Tensor  # [2]
    sums: Tensor
    """[4]: written by every replay."""

    def replay(self, batch: PackedBatch, divisors: tuple[float, float], *, seed: int) -> Tensor:
        """The sums of `batch`, valid until the next replay of any graph."""
        for name, tensor in batch.tensors().items():
            getattr(self.batch, name).copy_(tensor, non_blocking=True)
        for place, divisor in zip(self.divisors, divisors, strict=True):
            # The value travels as an argument of the kernel: no copy from the host that it would
            # wait for.
            place.fill_(divisor)
        torch.cuda.manual_seed(seed)
        self.graph.replay()
        return self.sums


class StepGraphs:
    """The graphs of one engine, captured for recurring shapes."""

    def __init__(self, engine: Engine) -> None:
        """`engine`: one that keeps gradient tensors."""
        self._engine = engine
        self._pool = torch.cuda.graph_pool_handle()
        """Memory shared by all graphs: only the sums outlive a replay."""
        self._seen: Counter[Shape] = Counter()
        self._graphs: dict[Shape, _Graph] = {}

    def micro_step(
        self, batch: PackedBatch, divisors: tuple[float, float], *, seed: int
    ) -> Tensor | None:
        """The sums of the pass, [4]; None: run it eagerly, which also warms up for a graph.

        `divisors`: those of `PretrainingSums.loss`, counts of the global batch.
        The first pass of a shape compiles its layers, allocates gradients and loads kernels.
        """
        shape = batch.shape
        # A shape's first pass always runs eagerly, to warm up; only shapes that recur are worth a
        # graph.
        if shape not in self._graphs:
            self._seen[shape] += 1
            is_new = self._seen[shape] == 1
            if is_new or len(self._graphs) == MOST_GRAPHS or shape.tokens > MOST_TOKENS:
                return None
            # The graph reads these tensors at every replay; `replay` copies each batch into them.
            inputs = batch.mapped(torch.clone)
            divisor_values = torch.ones(2, device=batch.input_ids.device)
            graph = torch.cuda.CUDAGraph()
            # Work queued meanwhile by other threads (copies of the next batches) is not captured.
            with torch.cuda.graph(graph, pool=self._pool, capture_error_mode="thread_local"):
                sums = self._engine.forward(inputs, dropout=DeviceNoise())
                # Without `last`: graphs are for a single rank, which has nothing to reduce.
                self._engine.backward(sums.loss(*divisor_values.unbind()))
                written = torch.stack([value.detach().float() for value in sums])
            self._graphs[shape] = _Graph(graph, inputs, divisor_values, written)
        return self._graphs[shape].replay(batch, divisors, seed=seed)
