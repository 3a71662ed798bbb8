"""Which launcher starts a stage.

In:  a stage's name and the machine.
Out: a launcher.
"""

from flows.config import MachineConfig
from flows.jobs.kubernetes import KubernetesLauncher
from flows.jobs.launcher import Launcher
from flows.jobs.local import LocalLauncher
from flows.jobs.slurm import SlurmLauncher


def launcher_for(stage: str, machine: MachineConfig) -> Launcher:
    """The machine's launcher for the stages it is meant for, this machine for the others."""
    jobs = machine.jobs
    if jobs.launcher == "slurm" and stage in jobs.stages:
        return SlurmLauncher(machine.slurm, grace=jobs.grace, ranks=machine.training.ranks)
    if jobs.launcher == "kubernetes" and stage in jobs.stages:
        return KubernetesLauncher(machine.kubernetes, grace=jobs.grace)
    return LocalLauncher(grace=jobs.grace)
