"""One job: what is started, by which launcher, and how it is followed to its end.

In:  a stage's configuration, its table's file, and the machine.
Out: `JobResult`; or `StageFailed`, which says whether retrying could help.

Anything that interrupts the wait (Ctrl-C, cancellation, an error) ends the program as well.
"""

import contextlib
import os
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from artifacts.config import StageConfig
from artifacts.errors import ClozeError
from artifacts.progress import clock
from artifacts.runtime.processes import descendants
from flows.config import MachineConfig
from flows.events import OutputLog
from flows.launchers.kubernetes import KubernetesLauncher
from flows.launchers.launcher import Launcher
from flows.launchers.local import LocalLauncher
from flows.launchers.slurm import SlurmLauncher
from flows.launchers.warm import WarmProcess

POLL_SECONDS = 0.05
MEMORY_SECONDS = 1.0
MEMORY_SHARE = 0.02
"""Largest share of time spent on measuring memory, which slows the measured programs down."""
KIB = 1024

SIGNALLED = (128 + 9, 128 + 15)
"""Exit codes with which a shell, a scheduler or a supervisor reports SIGKILL and SIGTERM."""

SUPERVISED = ("pretrain",)
"""Stages whose program may run as several ranks, and may be restarted where it died."""

RANKS_SUPERVISOR = "model.training.supervisor"

PREPARED = ("pretrain", "finetune", "evaluate")
"""Stages whose program computes with torch and needs environment variables of its own."""

PREPARE = "model.training.start"


class StageFailed(ClozeError):
    """A stage's program did not finish."""

    def __init__(self, message: str, *, exit_code: int, retryable: bool) -> None:
        super().__init__(message)
        self.exit_code = exit_code
        self.retryable = retryable
        """Whether it was killed (pre-emption, lost node, hang) rather than failing by itself."""


@dataclass(frozen=True)
class JobResult:
    """How a program ran."""

    seconds: float
    """Wall-clock time."""
    peak_memory: int
    """Largest PSS in bytes of this process and all below it, measured once a second at most."""


def program_argv(
    config: StageConfig, file: str, *, machine: MachineConfig, options: Sequence[str] = ()
) -> tuple[str, ...]:
    """What a person would type to repeat the stage whose table lies in `file`.

    `options` go to the engine: to Beam, or to DeepSpeed's launcher. Programs run with -P: a
    `model/` folder in the user's working directory must not be imported instead of ours.
    """
    training = machine.training
    nodes = machine.slurm.nodes if machine.jobs.launcher == "slurm" else 1
    several = training.ranks > 1 or nodes > 1 or training.max_restarts > 0 or options
    program: tuple[str, ...] = (config.program,)
    if config.stage in PREPARED:
        supervised = config.stage in SUPERVISED and several
        program = (RANKS_SUPERVISOR if supervised else PREPARE, *program)
    return (sys.executable, "-P", "-m", *program, "--config", file, *options)


def launcher_for(stage: str, machine: MachineConfig, *, warm: WarmProcess) -> Launcher:
    """The machine's launcher for the stages in `jobs.stages`, this machine for the others."""
    jobs = machine.jobs
    if jobs.launcher == "slurm" and stage in jobs.stages:
        return SlurmLauncher(machine.slurm, grace=jobs.grace, ranks=machine.training.ranks)
    if jobs.launcher == "kubernetes" and stage in jobs.stages:
        return KubernetesLauncher(machine.kubernetes, grace=jobs.grace)
    return LocalLauncher(grace=jobs.grace, warm=warm)


def run_job(
    argv: Sequence[str], *, folder: Path, launcher: Launcher, stall_timeout: float
) -> JobResult:
    """Run `argv` as the job in `folder` and log its output; returns if it ended with code 0."""
    started = time.monotonic()
    follower = Follower(folder)
    try:
        launcher.start(argv, job=folder)
        while (code := launcher.poll(folder)) is None:
            follower.read()
            follower.check_stall(stall_timeout, queued=launcher.queued(folder))
            time.sleep(POLL_SECONDS)
    except BaseException:
        launcher.cancel(folder)
        raise
    follower.read()
    if code != 0:
        raise follower.failure(code)
    return JobResult(time.monotonic() - started, follower.peak_memory)


class Follower:
    """What is known about a running job: its output so far, its last error, its memory."""

    def __init__(self, folder: Path) -> None:
        self.name = folder.name
        self.log = folder / "log"
        self.peak_memory = 0
        self._tail = Tail(self.log, offset=self.log.stat().st_size if self.log.exists() else 0)
        self._output = OutputLog(folder.name)
        self._last_output = time.monotonic()
        self._measured_next = 0.0
        self._error = ""
        self._last_line = "none"

    def read(self) -> None:
        """Log new lines, remember the last error, measure memory now and then."""
        now = time.monotonic()
        for line in self._tail.lines():
            self._last_output, self._last_line = now, line
            if line.startswith("error: "):
                self._error = line.removeprefix("error: ")
            self._output.line(line)
        if now >= self._measured_next:
            self.peak_memory = max(self.peak_memory, tree_pss(os.getpid()))
            took = time.monotonic() - now
            self._measured_next = now + max(MEMORY_SECONDS, took / MEMORY_SHARE)

    def check_stall(self, timeout: float, *, queued: bool) -> None:
        """Raise if the job has been silent for `timeout` seconds, unless it still waits in line."""
        if queued:
            self._last_output = time.monotonic()
        if time.monotonic() - self._last_output > timeout:
            raise StageFailed(
                f"{self.name}: no output for {clock(timeout)} (jobs.stall_timeout), so it was "
                f"ended as hung; last line: {self._last_line}; log: {self.log}",
                exit_code=1,
                retryable=True,
            )

    def failure(self, code: int) -> StageFailed:
        """The error for a job that ended with `code`."""
        killed = code < 0 or code in SIGNALLED
        ended = (
            f"killed by signal {-code if code < 0 else code - 128}" if killed else f"exit {code}"
        )
        reason = self._error or f"{ended}; last line: {self._last_line}"
        return StageFailed(
            f"{self.name}: {reason} (log: {self.log})",
            exit_code=2 if code == 2 else 1,
            retryable=killed,
        )


class Tail:
    """Reads a growing file from where it was read last."""

    def __init__(self, path: Path, *, offset: int = 0) -> None:
        self.path = path
        self.offset = offset
        self._rest = b""

    def lines(self) -> list[str]:
        """The lines completed since the last call; a bare carriage return ends one, too."""
        try:
            with open(self.path, "rb") as file:
                file.seek(self.offset)
                new = file.read()
        except FileNotFoundError:
            return []
        self.offset += len(new)
        *complete, self._rest = (self._rest + new).replace(b"\r", b"\n").split(b"\n")
        return [line.decode("utf-8", "replace") for line in complete if line.strip()]


def tree_pss(root: int) -> int:
    """Proportional set size in bytes of `root` and everything below it; 0 if it is not known.

    Shared pages are divided among the processes that share them, so the sum over forked workers is
    what they really occupy.
    """
    total = 0
    for process in (root, *descendants(root)):
        with contextlib.suppress(OSError):
            lines = Path(f"/proc/{process}/smaps_rollup").read_text().splitlines()
            total += KIB * sum(int(line.split()[1]) for line in lines if line.startswith("Pss:"))
    return total
