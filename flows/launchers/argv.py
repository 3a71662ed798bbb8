"""The command line of a stage's program: what a person would type to repeat it.

In:  a stage, the file that holds its table, and the machine.
Out: an argv. Children run with -P: a `model/` folder of the user's own must not win over ours.
"""

import sys
from collections.abc import Sequence

from artifacts.config import StageConfig
from flows.config import MachineConfig

PYTHON = (sys.executable, "-P", "-m")
SUPERVISED = ("pretrain",)
"""Stages whose program may run as several ranks, and may be started again where it died."""

SUPERVISOR = "model.training.supervisor"


def program_argv(
    config: StageConfig, file: str, *, machine: MachineConfig, options: Sequence[str] = ()
) -> tuple[str, ...]:
    """Arguments that run the program of `config` on the stage table in `file`.

    `options` go to the engine: to Beam, or to DeepSpeed's launcher.
    """
    training = machine.training
    nodes = machine.slurm.nodes if machine.jobs.launcher == "slurm" else 1
    several = training.ranks > 1 or nodes > 1 or training.max_restarts > 0 or options
    supervisor = (SUPERVISOR,) if config.stage in SUPERVISED and several else ()
    return (*PYTHON, *supervisor, config.program, "--config", file, *options)
