"""What a training process wants to find in its environment, and the command that starts it.

In:  `TrainingMachine`, the program's module, the stage table's path.
Out: environment variables and an argv. No framework is imported here.

Both kinds of variables below are read when a process starts, so they must be set by whoever starts
it: the supervisor for several ranks, `model.training.start` for one process, `restart_prepared` for
a program that was started by hand. Glibc gives large blocks back to the kernel and faults them in
again at every step; kept and in huge pages they made training 1.2 to 1.7 times faster.
"""

import argparse
import contextlib
import ctypes
import os
import shutil
import socket
import sys
from collections.abc import Sequence

from artifacts.config import parse
from artifacts.errors import ClozeError
from artifacts.stage import read_stage_table
from model.config import TrainingMachine
from model.hardware import DRIVER

WAITING = {"OMP_WAIT_POLICY": "PASSIVE", "GOMP_SPINCOUNT": "300000"}
"""libgomp's threads spin for some milliseconds, unless `model.training.waiting` has switched that
off; other OpenMP runtimes know the first variable only, and let threads sleep."""

ALLOCATOR = {
    "MALLOC_MMAP_MAX_": "0",
    "MALLOC_TRIM_THRESHOLD_": "100000000000",
    "MALLOC_TOP_PAD_": "268435456",
    "GLIBC_TUNABLES": "glibc.malloc.hugetlb=1",
}
"""Keep freed memory, in huge pages."""

KERNEL_CACHES = {"ONEDNN_PRIMITIVE_CACHE_CAPACITY": "256", "LRU_CACHE_CAPACITY": "16"}
"""Products that oneDNN, and torch's own layer above it, keep generated code for. The shapes of the
ladder (`model.data.batch`) fit; with 64 oneDNN generated most products of a step anew, and a small
encoder trained at a third of its speed. torch's layer keeps as many once more, for nothing."""

CUDA_ALLOCATOR = {"PYTORCH_ALLOC_CONF": "expandable_segments:True"}
"""Segments of a GPU's memory that grow: token counts differ from batch to batch, and blocks of
fixed sizes would leave gaps that nothing fits into."""

ON_THE_CPU = {"DS_ACCELERATOR": "cpu"}
"""DeepSpeed moves a model to a GPU wherever there is one, unless it is told otherwise."""


def give_back_memory() -> None:
    """Return freed memory to the kernel, from the middle of the heap too; only glibc can.

    With `ALLOCATOR` it keeps all it ever had, and blocks of ever other sizes leave gaps in it.
    """
    with contextlib.suppress(AttributeError):
        ctypes.CDLL(None).malloc_trim(0)


def training_environment(machine: TrainingMachine) -> dict[str, str]:
    """Variables to add to a training process's environment; those set already win."""
    wanted = {
        **ALLOCATOR,
        **WAITING,
        **KERNEL_CACHES,
        **CUDA_ALLOCATOR,
        **(ON_THE_CPU if machine.device == "cpu" else {}),
        "OMP_NUM_THREADS": str(threads_per_rank(machine)),
        "PYTHONSAFEPATH": "1",  # a user's own `model/` folder must not win over ours
        "TOKENIZERS_PARALLELISM": "false",
        "DO_NOT_TRACK": "1",
    }
    return {name: os.environ.get(name, value) for name, value in wanted.items()}


def table_environment(arguments: Sequence[str]) -> dict[str, str]:
    """`training_environment` for the stage table that `--config` names among `arguments`."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--config", default="")
    file = parser.parse_known_args(arguments)[0].config
    table = read_stage_table(file)
    return training_environment(parse(TrainingMachine, table.machine, source=f"{file}, machine"))


def restart_prepared() -> None:
    """Start this program over in its table's environment, unless it was started in it.

    A wrong command line or table is left to the program itself, which says so.
    """
    with contextlib.suppress(ClozeError, OSError):
        wanted = table_environment(sys.argv[1:])
        if not wanted.keys() <= os.environ.keys():
            sys.stdout.flush()
            command = [sys.executable, *sys.orig_argv[1:]]
            os.execve(sys.executable, command, {**os.environ, **wanted})


def threads_per_rank(machine: TrainingMachine) -> int:
    """CPU threads of one rank: what is configured, else an equal part of this process's cores.

    A launcher that binds a rank to its cores has done the division already.
    """
    cores = len(os.sched_getaffinity(0))
    bound = cores < (os.cpu_count() or cores) and "LOCAL_RANK" in os.environ
    return machine.threads or max(1, cores if bound else cores // machine.ranks)


def training_command(
    module: str, table: str, *, machine: TrainingMachine, launcher_options: Sequence[str] = ()
) -> list[str]:
    """The argv that runs `module` on a stage table: one process, or DeepSpeed's launcher.

    `launcher_options` (`--hostfile …`, `--no_ssh --node_rank 1 …`) go to the launcher as they are.
    """
    program = ["--config", table]
    if machine.ranks == 1 and not launcher_options:
        return [sys.executable, "-P", "-m", module, *program]
    launcher = [sys.executable, "-P", "-m", "deepspeed.launcher.runner"]
    options = [*launcher_options]
    if not options:
        # A port nobody listens on: DeepSpeed's default is the same for every run of a machine.
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = str(probe.getsockname()[1])
        options = ["--quiet", "--num_accelerators", str(machine.ranks), "--master_port", port]
        if shutil.which("numactl") and not DRIVER.exists() and not machine.threads:
            options.append("--bind_cores_to_rank")
    return [*launcher, *options, "--module", module, *program]
