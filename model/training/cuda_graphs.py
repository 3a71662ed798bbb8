"""A micro-batch's forward and backward pass as one CUDA graph: one launch instead of hundreds.

In:  micro-batches of few shapes, the divisors of their losses, a seed.
Out: the sums of the pass, its gradients added to the parameters'; None where kernels have to be
     launched one by one.

Below a few thousand tokens, launching takes longer than computing. A graph repeats its kernels with
the same addresses and arguments, so inputs that change from pass to pass are copied into static
tensors: the batch and both divisors; every replay reads the generator's seed anew. Parameters
change in place, and gradients are accumulated in static tensors: such an engine sets them to zero
instead of freeing them. Kernels and their order are those of the eager pass.
"""

from collections import Counter
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from artifacts.errors import UsageError
from model.config import PretrainStage, TrainingMachine
from model.data.batch import PackedBatch, Shape
from model.encoder.operations.attention import backend_name
from model.encoder.operations.dropout import DeviceNoise
from model.training.distributed import World
from model.training.engine import Engine

MOST_GRAPHS = 32
"""Maximum number of shapes with a graph; the runs that graphs are for have a dozen
(docs/training.md).
"""

MOST_TOKENS = 20_480
"""Larger micro-batches take longer to compute than to launch."""


def require_graphs(stage: PretrainStage, machine: TrainingMachine, world: World) -> None:
    """Refuse `training.cuda_graphs` where a pass does not repeat its kernels and addresses."""
    dtype = torch.float32 if stage.pretrain.precision == "fp32" else torch.bfloat16
    reason = ""
    if world.device.type != "cuda":
        reason = f"on {world.device.type}: graphs are for GPUs"
    elif world.ranks > 1 or machine.zero_stage or machine.deepspeed:
        reason = (
            "with several ranks, ZeRO or keys for DeepSpeed: gradients are moved and reduced by "
            "the host, beside the backward pass"
        )
    elif machine.checkpoint_activations:
        reason = "with training.checkpoint_activations: it reads the generator's state"
    elif stage.encoder.layer_type == "lstm":
        reason = "with LSTM layers: their kernels are chosen by the host"
    elif backend_name(machine.attention, device=world.device, dtype=dtype) == "grouped":
        reason = "with attention in groups, as in fp32: the host makes new ones for every batch"
    if reason:
        raise UsageError(f"training.cuda_graphs {reason}; leave it out")


class Divisors(NamedTuple):
    """Divisors of a micro-batch's summed losses: counts of the global batch."""

    masked: float
    labelled: float
    """Infinity where the second loss is left out."""


@dataclass(frozen=True)
class _Graph:
    """One shape's pass."""

    graph: torch.cuda.CUDAGraph
    batch: PackedBatch
    divisors: Tensor
    """[2]."""

    sums: Tensor
    """[4]: written by each replay."""

    def replay(self, batch: PackedBatch, divisors: Divisors, *, seed: int) -> Tensor:
        """The sums of `batch`, valid until any graph is replayed again."""
        for ours, theirs in zip(self.batch.tensors(), batch.tensors(), strict=True):
            ours.copy_(theirs, non_blocking=True)
        for place, divisor in zip(self.divisors, divisors, strict=True):
            place.fill_(divisor)
        torch.cuda.manual_seed(seed)
        self.graph.replay()
        return self.sums


class StepGraphs:
    """The graphs of one engine, captured for recurring shapes."""

    def __init__(self, engine: Engine) -> None:
        """Makes `engine` keep its gradients' tensors."""
        engine.keep_gradients()
        self._engine = engine
        self._pool = torch.cuda.graph_pool_handle()
        """Memory shared by all graphs: only the sums outlive a replay."""
        self._seen: Counter[Shape] = Counter()
        self._graphs: dict[Shape, _Graph] = {}

    def micro_step(self, batch: PackedBatch, divisors: Divisors, *, seed: int) -> Tensor | None:
        """The sums of the pass, [4]; None: run it eagerly, which also warms up for a graph.

        The first pass of a shape compiles its layers, allocates gradients and loads kernels.
        """
        shape = batch.shape
        if shape not in self._graphs:
            self._seen[shape] += 1
            is_new = self._seen[shape] == 1
            if is_new or len(self._graphs) == MOST_GRAPHS or shape.tokens > MOST_TOKENS:
                return None
            self._graphs[shape] = self._captured(batch)
        return self._graphs[shape].replay(batch, divisors, seed=seed)

    def _captured(self, batch: PackedBatch) -> _Graph:
        """Capture the graph for batches of this shape; nothing is computed yet."""
        inputs = batch.cloned()
        divisors = torch.ones(2, device=batch.input_ids.device)
        graph = torch.cuda.CUDAGraph()
        # Other threads' work on the GPU meanwhile, copies of the next batches, is not captured.
        with torch.cuda.graph(graph, pool=self._pool, capture_error_mode="thread_local"):
            sums = self._engine.forward(inputs, dropout=DeviceNoise())
            self._engine.backward(sums.loss(*divisors.unbind()))
            written = torch.stack([value.detach().float() for value in sums])
        return _Graph(graph, inputs, divisors, written)
