"""A real Slurm cluster on this machine.

In:  Debian's slurm-wlm, and root to run it.
Out: its daemons, one of them for every node, and `SLURM_CONF` for its commands.
"""

import os
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from socket import gethostname

import pytest

from tests.waiting import PATIENCE, free_port, wait_for

CONFIGURATION = """
ClusterName=here
SlurmctldHost={host}(127.0.0.1)
AuthType=auth/none
CredType=cred/none
AuthInfo=cred_expire=5
SlurmUser=root
SlurmdUser=root
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmctldPort={port}
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
MpiDefault=none
ReturnToService=2
KillWait=30
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
SchedulerParameters=batch_sched_delay=0,sched_interval=1
{nodes}
PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE State=UP PriorityTier=1
PartitionName=ended Nodes=ALL MaxTime=INFINITE State=UP PriorityTier=1 PreemptMode=CANCEL
PartitionName=urgent Nodes=ALL MaxTime=INFINITE State=UP PriorityTier=2
"""

NODE = "NodeName={name} NodeHostname={host} NodeAddr={name} Port={port} CPUs=2 State=UNKNOWN"


@contextmanager
def slurm_cluster(folder: Path, *, nodes: Sequence[str] = ("127.0.0.1",)) -> Iterator[None]:
    """A cluster with these nodes, whose names are addresses of this machine."""
    if not shutil.which("slurmctld") or os.getuid() != 0:
        pytest.skip("wants Debian's slurm-wlm, and root to run it")
    host = gethostname().partition(".")[0]
    for name in ("state", *nodes):
        (folder / name).mkdir()
    lines = [NODE.format(name=name, host=host, port=free_port()) for name in nodes]
    values = {"folder": folder, "host": host, "port": free_port(), "nodes": "\n".join(lines)}
    (folder / "slurm.conf").write_text(CONFIGURATION.format(**values))
    before = os.environ.get("SLURM_CONF")
    os.environ["SLURM_CONF"] = str(folder / "slurm.conf")
    daemons = [
        subprocess.Popen(argv, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        for argv in (["slurmctld", "-D"], *(["slurmd", "-D", "-N", name] for name in nodes))
    ]
    try:
        wait_for(
            lambda: output("sinfo", "--noheader", "--format=%D %t").startswith(f"{len(nodes)} idle")
        )
        yield
    finally:
        for daemon in reversed(daemons):
            daemon.terminate()
            daemon.wait(PATIENCE)
        os.environ.pop("SLURM_CONF")
        if before is not None:
            os.environ["SLURM_CONF"] = before


def output(*argv: str) -> str:
    """What a command prints, even if it fails."""
    return subprocess.run(argv, capture_output=True, text=True, check=False).stdout
