"""Which launcher starts a stage.

In:  a stage's name and the machine.
Out: a launcher.
"""

from flows.config import MachineConfig
from flows.launchers.kubernetes import KubernetesLauncher
from flows.launchers.launcher import Launcher
from flows.launchers.local import LocalLauncher
from flows.launchers.slurm import SlurmLauncher


def launcher_for(stage: str, machine: MachineConfig) -> Launcher:
    """The machine's launcher for the stages it is meant for, this machine for the others."""
    jobs = machine.jobs
    if jobs.launcher == "slurm" and stage in jobs.stages:
        return SlurmLauncher(machine.slurm, grace=jobs.grace, ranks=machine.training.ranks)
    if jobs.launcher == "kubernetes" and stage in jobs.stages:
        return KubernetesLauncher(machine.kubernetes, grace=jobs.grace)
    return LocalLauncher(grace=jobs.grace)
