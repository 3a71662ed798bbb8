"""How a training process starts: its environment and its command line.

    python -P -m cloze.model.training.start cloze.model.training.pretrain --config TABLE

In:  `TrainingMachine`, the program's module, the path of the stage table.
Out: environment variables and an argv; as a program, the process becomes the module's program, with
     its process id, output and exit code. No framework is imported here.

OpenMP and glibc read the variables below when a process starts, so whoever starts it must set them:
the supervisor for several ranks, this program for a single process, `restart_prepared` for a
program started by hand. By default, glibc returns large blocks to the kernel and faults them in
again at every step; keeping them, in huge pages, makes training 1.2 to 1.7 times faster.
"""

import argparse
import contextlib
import ctypes
import os
import runpy
import socket
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from cloze.artifacts.config import parse
from cloze.artifacts.errors import ClozeError
from cloze.artifacts.progress import say
from cloze.artifacts.stage import read_stage_table
from cloze.model.config import TrainingMachine
from cloze.model.hardware import has_gpu

WAITING = {"OMP_WAIT_POLICY": "PASSIVE", "GOMP_SPINCOUNT": "300000"}
"""libgomp's threads spin for some milliseconds before they sleep, unless
`cloze.model.training.waiting` disables it. Other OpenMP runtimes support only the first variable
and let threads sleep."""

ALLOCATOR = {
    "MALLOC_MMAP_MAX_": "0",
    "MALLOC_TRIM_THRESHOLD_": "100000000000",
    "MALLOC_TOP_PAD_": "268435456",
    "GLIBC_TUNABLES": "glibc.malloc.hugetlb=1",
}
"""Keep freed memory, in huge pages."""

KERNEL_CACHES = {"ONEDNN_PRIMITIVE_CACHE_CAPACITY": "256", "LRU_CACHE_CAPACITY": "16"}
"""Number of matrix products for which oneDNN, and torch's layer above it, cache generated code. The
shapes of the ladder (`cloze.model.data.batch`) fit; with 64, oneDNN regenerated most products of
every step, and a small encoder trained at a third of its speed. torch's layer caches them a second
time, to no benefit."""

CUDA_ALLOCATOR = {"PYTORCH_ALLOC_CONF": "expandable_segments:True"}
"""Growable GPU memory segments: token counts vary from batch to batch, so fixed-size blocks would
fragment memory."""

ON_THE_CPU = {"DS_ACCELERATOR": "cpu"}
"""DeepSpeed moves a model to a GPU, if there is one, unless this is set."""


def give_back_memory() -> None:
    """Return freed memory to the kernel, including the middle of the heap; glibc only.

    With `ALLOCATOR`, glibc keeps all memory, and blocks of varying sizes fragment it.
    """
    with contextlib.suppress(AttributeError):
        ctypes.CDLL(None).malloc_trim(0)


def training_environment(machine: TrainingMachine) -> dict[str, str]:
    """Variables to add to the environment of a training process; existing ones take precedence."""
    wanted = {
        **ALLOCATOR,
        **WAITING,
        **KERNEL_CACHES,
        **CUDA_ALLOCATOR,
        **(ON_THE_CPU if machine.device == "cpu" else {}),
        "OMP_NUM_THREADS": str(threads_per_rank(machine)),
        "PYTHONSAFEPATH": "1",  # a `model/` folder of the user must not shadow ours
        "TOKENIZERS_PARALLELISM": "false",
        "DO_NOT_TRACK": "1",
    }
    return {name: os.environ.get(name, value) for name, value in wanted.items()}


def table_environment(arguments: Sequence[str]) -> dict[str, str]:
    """`training_environment` for the stage table given by `--config` in `arguments`."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--config", default="")
    return training_environment(machine_of(parser.parse_known_args(arguments)[0].config))


def machine_of(file: str) -> TrainingMachine:
    """The machine of a stage table."""
    table = read_stage_table(file)
    return parse(TrainingMachine, table.machine, source=f"{file}, machine")


def restart_prepared() -> None:
    """Restart this program in the environment of its table, unless it was started in it.

    An invalid command line or table is left to the program itself, which reports it.
    """
    with contextlib.suppress(ClozeError, OSError):
        wanted = table_environment(sys.argv[1:])
        # Names only: a variable with another value was set by somebody who meant it. After the
        # restart all are set, so that there is at most one.
        if not wanted.keys() <= os.environ.keys():
            # `orig_argv` still has the interpreter's own options, such as -P and -m. What Python
            # has buffered would be lost with the old program.
            sys.stdout.flush()
            command = [sys.executable, *sys.orig_argv[1:]]
            os.execve(sys.executable, command, {**os.environ, **wanted})


def threads_per_rank(machine: TrainingMachine) -> int:
    """CPU threads of a rank: as configured, else an equal share of this process's cores.

    A launcher that binds ranks to cores has already divided them.
    """
    cores = len(os.sched_getaffinity(0))
    # fewer cores than the machine has, given to one of several ranks: bound to them by a launcher
    bound = cores < (os.cpu_count() or cores) and "LOCAL_RANK" in os.environ
    return machine.threads or max(1, cores if bound else cores // machine.ranks)


@dataclass(frozen=True)
class Rank:
    """How one process of a training program is started."""

    argv: tuple[str, ...]
    environment: Mapping[str, str]
    """Variables to set besides those of this process."""
    cores: tuple[int, ...] = ()
    """The cores it is bound to, if any."""


def ranks_of(
    module: str, table: str, *, machine: TrainingMachine, launcher_options: Sequence[str] = ()
) -> tuple[Rank, ...]:
    """The processes that run `module` on a stage table: a machine's ranks, or DeepSpeed's launcher.

    With `launcher_options` (`--hostfile …`, `--no_ssh --node_rank 1 …`), which are passed to it as
    is, DeepSpeed's launcher starts the ranks, on several machines. It is not used on one: if it is
    killed, its own parent reports success.
    """
    program = ("--config", table)
    common = training_environment(machine)
    if launcher_options:
        launcher = (sys.executable, "-P", "-m", "deepspeed.launcher.runner", *launcher_options)
        return (Rank((*launcher, "--module", module, *program), common),)
    argv = (sys.executable, "-P", "-u", "-m", module, *program)
    if machine.ranks == 1:
        return (Rank(argv, common),)
    # A free port: any default would be the same for every run on a machine.
    with socket.socket() as probe:
        # The port is free again before the first rank binds it. If another program is faster, that
        # rank fails at its start, and nothing has been computed yet.
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    count = str(machine.ranks)
    # as DeepSpeed's launcher sets them
    world = {"WORLD_SIZE": count, "LOCAL_SIZE": count, "CROSS_RANK": "0", "CROSS_SIZE": "1"}
    found = []
    for rank, cores in enumerate(shares_of_cores(machine)):
        own = {
            "RANK": str(rank),
            "LOCAL_RANK": str(rank),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": port,
            **({"OMP_NUM_THREADS": str(len(cores))} if cores else {}),
        }
        found.append(Rank(argv, {**common, **world, **own}, cores))
    return tuple(found)


def shares_of_cores(machine: TrainingMachine) -> list[tuple[int, ...]]:
    """For each rank the cores to bind it to: equal shares of the physical ones, in their order.

    None are bound where GPUs compute, where threads are configured, or where a rank would have no
    core of its own.
    """
    unbound: list[tuple[int, ...]] = [()] * machine.ranks
    if sys.platform != "linux" or has_gpu() or machine.threads:
        return unbound
    # Threads of one core share it: one of them each, since products gain nothing from the others.
    cores: dict[str, int] = {}
    # The first thread of each core, by the list of the threads that share it.
    for cpu in sorted(os.sched_getaffinity(0)):
        siblings = Path(f"/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list")
        cores.setdefault(siblings.read_text() if siblings.exists() else str(cpu), cpu)
    share, chosen = len(cores) // machine.ranks, list(cores.values())
    if not share:
        return unbound
    return [tuple(chosen[rank * share : (rank + 1) * share]) for rank in range(machine.ranks)]


def main(module: str, arguments: list[str]) -> int:
    """Become the program; returns an exit code if its stage table cannot be read."""
    try:
        environment = {**os.environ, **table_environment(arguments)}
    except ClozeError as error:
        say(f"error: {error}")
        return error.exit_code
    # In a fork of a program that was started here, everything is set, and the module imported.
    if environment == os.environ:
        sys.argv = [module, *arguments]
        sys.modules.pop(module, None)  # it becomes __main__, as with `python -m`
        runpy.run_module(module, run_name="__main__", alter_sys=True)
        return 0
    os.execve(sys.executable, [sys.executable, "-P", "-m", module, *arguments], environment)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2:]))
