"""The processes of one run and their collective operations.

In:  RANK, LOCAL_RANK, WORLD_SIZE as set by launchers; without them, a single process.
Out: `World`: rank, sums over ranks, agreement. `GradientBuckets`: gradients summed over ranks while
     the backward pass continues.
"""

import atexit
import os
import socket
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import TypeVar

import torch
from torch import Tensor, distributed
from torch.distributed import HashStore, Store, TCPStore, Work  # type: ignore[attr-defined]  # there
from torch.nn import Parameter

from cloze.artifacts.errors import IntegrityError, UsageError
from cloze.artifacts.progress import say
from cloze.model.config import TrainingMachine
from cloze.model.hardware import has_gpu

GRADIENT_BUCKET_BYTES = 25 << 20
"""Bucket size, as in torch's DistributedDataParallel: large enough for full bandwidth, small enough
for the first reduction to start early in the backward pass."""

LONGEST_WAIT = 7 * 24 * 3600.0
"""Seconds that a rank of `start_world` waits for the shares of the others."""

LOOPBACK = ("127.0.0.1", "localhost", "::1")

Value = TypeVar("Value")


@dataclass(frozen=True)
class World:
    """This process among its peers."""

    rank: int
    ranks: int
    device: torch.device

    @property
    def is_first(self) -> bool:
        """Whether this rank writes."""
        return self.rank == 0

    def alone(self) -> "World":
        """This process without its peers."""
        return World(0, 1, self.device)

    def sum(self, values: Sequence[float] | Tensor) -> list[float]:
        """Each value summed over all ranks, in float64."""
        tensor = torch.as_tensor(values, dtype=torch.float64, device=self.device)
        summed: list[float] = self.sum_tensor(tensor).tolist()
        return summed

    def sum_tensor(self, tensor: Tensor) -> Tensor:
        """The tensor summed over all ranks, in place."""
        if self.ranks > 1:
            distributed.all_reduce(tensor)
        return tensor

    def gather_rows(self, rows: Tensor, *, first: int, total: int) -> Tensor:
        """[total, D]: the rows of all ranks; those of this rank begin at `first`."""
        if self.ranks == 1:
            return rows
        # Ranks have different numbers of rows, which all-gather does not allow; the sum of rows
        # that are 0 on all ranks but one does the same.
        whole = rows.new_zeros(total, rows.shape[1])
        whole[first : first + len(rows)] = rows
        return self.sum_tensor(whole)

    def gather(self, value: Value) -> list[Value]:
        """The values of all ranks, JSON-like."""
        values = [value] * self.ranks
        if self.ranks > 1:
            distributed.all_gather_object(values, value)
        return values

    def broadcast(self, value: Value) -> Value:
        """The first rank's value, JSON-like."""
        box = [value]
        if self.ranks > 1:
            distributed.broadcast_object_list(box)
        return box[0]

    def broadcast_tensor(self, tensor: Tensor) -> Tensor:
        """The first rank's tensor; `tensor` gives the shape."""
        if self.ranks == 1:
            return tensor
        there = tensor.to(self.device).contiguous()
        distributed.broadcast(there, src=0)
        return there.cpu()

    def barrier(self) -> None:
        """Wait for all ranks."""
        if self.ranks > 1:
            distributed.barrier()

    def require_agreement(self, facts: dict[str, str]) -> None:
        """Fail at the start if ranks have different inputs or configurations."""
        for rank, theirs in enumerate(self.gather(facts)):
            for name, ours in facts.items():
                if theirs[name] != ours:
                    raise IntegrityError(
                        f"rank {rank} has {name} {theirs[name][:12]}, rank {self.rank} has "
                        f"{ours[:12]}; give every node the same stage table and artifacts"
                    )


def gradient_buckets(
    parameters: Iterable[Parameter], *, bucket_bytes: int = GRADIENT_BUCKET_BYTES
) -> list[list[Parameter]]:
    """The parameters in the order of their gradients, in buckets of about `bucket_bytes`.

    That is the reverse order of the model: heads first, embeddings last.
    """
    buckets: list[list[Parameter]] = [[]]
    size = 0
    for parameter in reversed(list(parameters)):
        # Never an empty bucket: a parameter larger than the limit has one of its own.
        if buckets[-1] and size + parameter.nbytes > bucket_bytes:
            buckets.append([])
            size = 0
        buckets[-1].append(parameter)
        size += parameter.nbytes
    return buckets


class GradientBuckets:
    """Sums gradients over ranks, each bucket as soon as the backward pass has completed it.

    Reductions overlap with the rest of the pass, on NCCL's stream or in gloo's threads. Each bucket
    is copied into a flat tensor, and its gradients become views of it.
    """

    def __init__(self, buckets: Sequence[Sequence[Parameter]]) -> None:
        """`buckets`: the same on all ranks, in the order of reduction."""
        self._buckets = buckets
        self._missing = [0] * len(buckets)
        self._sums: list[Work] | None = None
        for index, bucket in enumerate(buckets):
            for parameter in bucket:
                arrived = partial(self._arrived, index)
                parameter.register_post_accumulate_grad_hook(arrived)  # type: ignore[no-untyped-call]  # torch has no types here

    def begin(self) -> None:
        """The next backward pass is the last of the step, so complete buckets may be reduced."""
        self._missing = [len(bucket) for bucket in self._buckets]
        self._sums = []

    def finish(self) -> None:
        """Reduce the remaining buckets (without `begin`, all of them) and wait for all sums.

        A parameter without a gradient counts as zeros, because another rank may have one.
        """
        sums = [] if self._sums is None else self._sums
        while len(sums) < len(self._buckets):
            sums.append(self._sum(self._buckets[len(sums)]))
        for work in sums:
            work.wait()  # on a GPU its stream waits, not the host
        self._sums = None

    def _arrived(self, index: int, _: Tensor) -> None:
        """Hook: a gradient of bucket `index` is complete; start the reductions that are due."""
        # Without `begin`: a micro-batch before the last, whose gradients are still being added up.
        if self._sums is None:
            return
        self._missing[index] -= 1
        # In order of the buckets, whatever the order of completion: all ranks must enter the same
        # reductions in the same order, or they would add different gradients.
        while len(self._sums) < len(self._buckets) and not self._missing[len(self._sums)]:
            self._sums.append(self._sum(self._buckets[len(self._sums)]))

    def _sum(self, bucket: Sequence[Parameter]) -> Work:
        gradients = [p.grad if p.grad is not None else torch.zeros_like(p) for p in bucket]
        flat = torch.cat([gradient.flatten() for gradient in gradients])
        parts = torch.split(flat, [gradient.numel() for gradient in gradients])
        # Gradients become views of the tensor that is reduced in place, so nothing is copied back.
        for parameter, part in zip(bucket, parts, strict=True):
            parameter.grad = part.view_as(parameter)
        work: Work = distributed.all_reduce(flat, async_op=True)
        return work


def training_device(wanted: str, *, local_rank: int = 0) -> torch.device:
    """The device of this rank: `training.device`, or a GPU if there is one.

    A GPU that is present but unusable is an error: training on the CPU instead would take weeks
    rather than hours.
    """
    usable = torch.cuda.device_count() if torch.cuda.is_available() else 0
    # An empty list hides the GPUs on purpose. Without one, a driver without usable GPUs is an
    # error.
    hidden = os.environ.get("CUDA_VISIBLE_DEVICES") in ("", "-1")
    if wanted == "cpu" or (wanted == "auto" and not usable and (hidden or not has_gpu())):
        return torch.device("cpu")
    if local_rank >= usable:
        driver = "an NVIDIA driver is loaded" if has_gpu() else "no NVIDIA driver is loaded"
        raise UsageError(
            f"training.device = {wanted}: rank {local_rank} of this machine has no GPU, torch "
            f"{torch.__version__} sees {usable} and {driver}; give the job its GPUs (a device "
            "plugin, --gpus), update the driver, install torch with CUDA, or set "
            "training.device = cpu"
        )
    return torch.device("cuda", local_rank)


def join_world(*, threads: int, timeout: float, device: str = "auto") -> World:
    """Join the process group; collective operations time out after `timeout` seconds."""
    rank = int(os.environ.setdefault("RANK", "0"))
    ranks = int(os.environ.setdefault("WORLD_SIZE", "1"))
    local_rank = int(os.environ.setdefault("LOCAL_RANK", "0"))
    torch.set_num_threads(threads)
    chosen = training_device(device, local_rank=local_rank)
    on_gpu = chosen.type == "cuda"
    if on_gpu:
        torch.cuda.set_device(chosen)
    if not distributed.is_initialized():
        # A single process opens no port, but DeepSpeed still reads the master address.
        os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
        os.environ.setdefault("MASTER_PORT", "29500")
        wait = timedelta(seconds=timeout)
        distributed.init_process_group(
            "nccl" if on_gpu else "gloo",
            rank=rank,
            world_size=ranks,
            store=HashStore() if ranks == 1 else _store_on_loopback(rank, ranks, timeout=wait),
            timeout=wait,
        )
        atexit.register(distributed.destroy_process_group)  # otherwise some ranks abort at exit
    if rank == 0:
        name = torch.cuda.get_device_name(chosen) if on_gpu else f"{threads} threads a rank"
        say(f"ranks={ranks} backend={distributed.get_backend()} device={chosen.type} ({name})")
    return World(rank, ranks, chosen)


def start_world(machine: TrainingMachine, *, threads: int) -> World:
    """The ranks of a stage whose ranks wait for one another as long as their shares take.

    A single process does without a process group.
    """
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        return join_world(threads=threads, timeout=LONGEST_WAIT, device=machine.device)
    torch.set_num_threads(threads)
    return World(0, 1, training_device(machine.device))


def _store_on_loopback(rank: int, ranks: int, *, timeout: timedelta) -> Store | None:
    """The rendezvous store of ranks on one machine: torch's own would listen on all interfaces.

    None for several machines: torch then creates its own at MASTER_ADDR.
    """
    host, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    if host not in LOOPBACK:
        return None
    # lo on Linux, lo0 on macOS
    interface = next(name for _, name in socket.if_nameindex() if name.startswith("lo"))
    for library in ("GLOO", "NCCL"):
        os.environ.setdefault(f"{library}_SOCKET_IFNAME", interface)
    address = ("127.0.0.1", port)
    return TCPStore(
        *address,
        ranks,
        is_master=not rank,
        timeout=timeout,
        wait_for_workers=False,
        # torch takes ownership of the first rank's socket
        master_listen_fd=None if rank else socket.create_server(address, backlog=ranks).detach(),
    )
