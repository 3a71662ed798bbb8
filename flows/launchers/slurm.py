"""Programs on a Slurm cluster whose nodes share the workspace's file system.

In:  an argv and a job directory.
Out: a batch job under a supervisor; its exit code in DIRECTORY/exit.

If the job is pre-empted, runs out of time or loses its node, it is requeued, and its program
resumes its work; if somebody cancels it (`scancel`), it ends with `CANCELLED`. If the flow that
submitted it dies, the next one finds the job through DIRECTORY/job.json and waits for it.
"""

import shlex
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

from pydantic import Field

from cloze.artifacts.config import Config
from cloze.artifacts.errors import ClozeError
from cloze.flows.launchers.launcher import (
    CANCELLED,
    LOST,
    Job,
    child_environment,
    identity,
    packaged,
    supervisor_argv,
)

QUERY_SECONDS = 5.0
"""Seconds between queries to the scheduler; the file with the exit code is always checked."""

VANISHED_SECONDS = 60.0
"""After a job has left the queue, its exit code may take this long to appear (NFS)."""

PENDING = ("PENDING", "REQUEUED", "REQUEUE_HOLD", "CONFIGURING", "SUSPENDED")

SCRIPT = "slurm.sh.template"

SEVERAL_NODES = """\
hosts="$job/hosts-$SLURM_JOB_ID"
scontrol show hostnames "$SLURM_JOB_NODELIST" | sed "s/\\$/ slots={slots}/" >"$hosts"
MASTER=$(head -n 1 "$hosts" | cut -d" " -f1)
export MASTER HOSTS="$hosts"
"""

ON_EVERY_NODE = (
    'exec "$@" --hostfile "$HOSTS" --no_ssh --node_rank "$SLURM_NODEID" '
    '--master_addr "$MASTER" --master_port 29500'
)
"""Run by srun on each node, where the node's rank is known."""


class SlurmConfig(Config):
    """Slurm (`jobs.launcher = "slurm"`); the workspace is on a file system shared by all nodes."""

    nodes: int = Field(default=1, ge=1)
    """Number of nodes, each with `training.ranks` processes."""

    options: tuple[str, ...] = ()
    """Options of sbatch, for example `["--partition=gpu", "--gpus-per-node=8"]`."""

    setup: str = ""
    """Shell commands to run before the program, for example `module load cuda`."""


class SlurmJob(Job):
    """A job of the cluster."""

    slurm_id: str
    """The scheduler's job id."""

    identity: str
    """Digest of its argv and stage table; a job with another digest is replaced."""


class SlurmLauncher:
    """Submits, watches and cancels batch jobs."""

    def __init__(self, config: SlurmConfig, *, grace: float, ranks: int) -> None:
        self.config = config
        self.grace = grace
        self.ranks = ranks
        self._queried_at = 0.0
        self._state = ""
        self._gone_since = 0.0

    def start(self, argv: Sequence[str], *, job: Path) -> None:
        """Submit `argv`, unless the same job is in the queue already."""
        found = SlurmJob.read(job)
        # An earlier flow's job that is still queued or running: wait for it if it is the same,
        # replace any other.
        if found and self._query(found) != "":
            if found.identity == identity(argv) and not (job / "cancelled").exists():
                return
            self.cancel(job)
        job.mkdir(parents=True, exist_ok=True)
        for name in ("exit", "cancelled"):
            (job / name).unlink(missing_ok=True)
        (job / "batch.sh").write_text(self.script(argv, job=job), "utf-8")
        ours = (
            f"--job-name=cloze-{job.name}",
            f"--nodes={self.config.nodes}",
            # DeepSpeed's launcher, one for each node, starts the ranks itself.
            "--ntasks-per-node=1",
            "--requeue",
            # A job that is put back into the queue goes on with its log.
            "--open-mode=append",
            f"--output={job / 'slurm.log'}",
            # To the batch shell alone (B), which passes it on, early enough to save and leave
            # before the time limit, at which Slurm kills.
            f"--signal=B:TERM@{round(self.grace) + 60}",
        )
        answer = _run("sbatch", "--parsable", *ours, *self.config.options, str(job / "batch.sh"))
        # The answer is ID or ID;CLUSTER.
        slurm_id = answer.strip().partition(";")[0]
        SlurmJob(slurm_id=slurm_id, identity=identity(argv)).write(job)
        self._state, self._gone_since = "", 0.0

    def poll(self, job: Path) -> int | None:
        """The exit code; None while the job is queued or running."""
        if (job / "exit").exists():
            return int((job / "exit").read_text())
        found = SlurmJob.read(job)
        if found is None:
            return LOST
        if time.monotonic() - self._queried_at >= QUERY_SECONDS:
            self._state, self._queried_at = self._query(found), time.monotonic()
            # No longer in the queue: cancelled, or ended, and its exit code on its way.
            if self._state == "":
                self._state = _squeue(found, "--states=CANCELLED") or ""
            # Since when it has been gone; a job that is requeued is back.
            self._gone_since = self._gone_since or self._queried_at if self._state == "" else 0.0
        if self._state == "CANCELLED":
            return CANCELLED
        gone = self._gone_since and time.monotonic() - self._gone_since > VANISHED_SECONDS
        return LOST if gone else None

    def queued(self, job: Path) -> bool:
        """Whether it is waiting for nodes."""
        return self._state in PENDING

    def cancel(self, job: Path) -> None:
        """Cancel the job, and wait until the scheduler has released it."""
        found = SlurmJob.read(job)
        if found is None:
            return
        # Before `scancel`: the batch script puts a job that was terminated back into the queue,
        # unless it finds this mark, and `start` does not wait for a job that has it.
        (job / "cancelled").touch()
        _run("scancel", found.slurm_id)
        deadline = time.monotonic() + self.grace + VANISHED_SECONDS
        while self._query(found) != "" and time.monotonic() < deadline:
            time.sleep(0.5)

    def script(self, argv: Sequence[str], *, job: Path) -> str:
        """The batch script."""
        several = self.config.nodes > 1
        spread = ("srun", "--kill-on-bad-exit=1", "bash", "-c", ON_EVERY_NODE, "node")
        return packaged(SCRIPT).format(
            setup=self.config.setup,
            job=shlex.quote(str(job)),
            nodes=SEVERAL_NODES.format(slots=self.ranks) if several else "",
            supervisor=shlex.join(supervisor_argv(job, grace=self.grace)),
            program=shlex.join((*(spread if several else ()), *argv)),
        )

    def _query(self, job: SlurmJob) -> str:
        """The job's state as reported by the scheduler; empty if it has ended."""
        state = _squeue(job)
        # A scheduler that does not answer says nothing about the job.
        return (self._state or "UNKNOWN") if state is None else state


def _squeue(job: SlurmJob, *options: str) -> str | None:
    """The state of a job that is in the queue, or in one of `--states=…`; otherwise empty.

    States of ended jobs are remembered for minutes (MinJobAge). None: the scheduler is temporarily
    unavailable.
    """
    query = ("squeue", "--noheader", f"--jobs={job.slurm_id}", "--format=%T", *options)
    done = subprocess.run(query, capture_output=True, text=True, check=False)
    if done.returncode and "Invalid job id" not in done.stderr:
        return None
    return done.stdout.strip()


def _run(*argv: str) -> str:
    try:
        done = subprocess.run(
            argv, capture_output=True, text=True, check=False, env=child_environment()
        )
    except FileNotFoundError:
        raise ClozeError(
            f"{argv[0]} not found; run on a node with Slurm's commands, or set jobs.launcher"
        ) from None
    if done.returncode:
        raise ClozeError(f"{argv[0]}: {done.stderr.strip() or f'exit code {done.returncode}'}")
    return done.stdout
