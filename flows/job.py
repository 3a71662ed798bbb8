"""The jobs of a run: the command of a stage, its launcher, and following it until it exits.

In:  a machine; for each job a stage's configuration, and the file and key of its stage table.
Out: `JobResult`, or `StageFailed` with whether to retry; `attempts.json` beside the log, which adds
     up the time of all attempts at one artifact.

Anything that interrupts the wait (Ctrl-C, cancellation, an error) also ends the program.
"""

import contextlib
import os
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from socket import gethostname

from pydantic import ValidationError

from cloze.artifacts.config import Config, StageConfig
from cloze.artifacts.errors import ClozeError
from cloze.artifacts.progress import clock
from cloze.artifacts.runtime.processes import descendants
from cloze.flows.config import RANKED, MachineConfig
from cloze.flows.events import OutputLog, emit
from cloze.flows.launchers.kubernetes import KubernetesLauncher
from cloze.flows.launchers.launcher import CANCELLED, Launcher
from cloze.flows.launchers.local import SUPERVISOR_SECONDS, LocalJob, LocalLauncher
from cloze.flows.launchers.slurm import SlurmLauncher

POLL_SECONDS = 0.05
MEMORY_SECONDS = 1.0
MEMORY_SHARE = 0.02
"""At most this share of the time is spent measuring memory, which slows down the programs."""
KIB = 1024

ATTEMPTS_NAME = "attempts.json"

SIGNALLED = (128 + 9, 128 + 15)
"""Exit codes that report SIGKILL and SIGTERM: of a shell, a scheduler or a supervisor."""

RANKS_SUPERVISOR = "cloze.model.training.supervisor"
"""Starts the ranks, and starts them again after a crash."""

PREPARE = "cloze.model.training.start"
"""Sets the environment variables of a single rank."""


class StageFailed(ClozeError):
    """A stage's program failed or was killed."""

    def __init__(self, message: str, *, exit_code: int, retryable: bool) -> None:
        super().__init__(message)
        self.exit_code = exit_code
        self.retryable = retryable
        """Whether it was killed (pre-emption, lost node, hang) rather than failing on its own."""


def is_worth_retrying(stage: str, error: object) -> bool:
    """Whether `stage` was killed, which is logged; a program that failed would fail again."""
    killed = isinstance(error, StageFailed) and error.retryable
    if killed:
        emit(stage, "warning", f"{error}; trying again")
    return killed


@dataclass(frozen=True)
class JobResult:
    """Time and memory that a program took."""

    seconds: float
    """Wall-clock time of all attempts."""
    peak_memory: int
    """Peak PSS in bytes of the processes started for the job, sampled at most once a second."""


def program_argv(
    config: StageConfig, file: str, *, machine: MachineConfig, options: Sequence[str] = ()
) -> tuple[str, ...]:
    """The command that runs the stage whose table is in `file`, here or by hand.

    `options` are passed to Beam or to DeepSpeed's launcher. Programs run with -P, so that a
    `model/` folder in the user's working directory is not imported instead of ours.
    """
    training = machine.training
    nodes = machine.nodes(config.stage)
    # A single rank that is never restarted needs no supervisor of ranks.
    several = training.ranks > 1 or nodes > 1 or training.max_restarts > 0 or options
    program: tuple[str, ...] = (config.program,)
    if config.stage in RANKED:
        program = (RANKS_SUPERVISOR if several else PREPARE, *program)
    return (sys.executable, "-P", "-m", *program, "--config", file, *options)


class Jobs:
    """The jobs of one run on a machine: each has a folder that bears the name of its stage."""

    def __init__(self, machine: MachineConfig) -> None:
        self.machine = machine
        self._local = LocalLauncher(grace=machine.jobs.grace)

    def close(self) -> None:
        """End what still runs on this machine."""
        self._local.close()

    def run(self, argv: Sequence[str], *, key: str, folder: Path) -> JobResult:
        """Run `argv` as the job in `folder`, as `run_job`; says that it runs, or has failed."""
        emit(folder.name, "running", " ".join(argv))
        # The launcher of the stage, as only some of them are jobs of a cluster.
        launcher, timeout = self._launcher(folder.name), self.machine.jobs.stall_timeout
        try:
            return run_job(argv, key=key, folder=folder, launcher=launcher, stall_timeout=timeout)
        except ClozeError as error:
            emit(folder.name, "failed", str(error))
            raise

    def end_left(self, folders: Iterable[Path]) -> None:
        """End the programs that a killed run has left behind on this machine."""
        for folder in folders:
            job = LocalJob.read(folder)
            if job and job.supervisor.alive:
                text = f"ending process {job.supervisor.pid} of an earlier run"
                emit(folder.name, "output", text)
                job.supervisor.end(grace=self._grace)

    def outlast(self, folder: Path, *, host: str) -> None:
        """End the job that a killed run has left in `folder`; on another `host`, wait for it."""
        if host == gethostname():
            self._launcher(folder.name).cancel(folder)
        else:  # its supervisor needs at most this long
            time.sleep(self._grace)

    @property
    def _grace(self) -> float:
        """Seconds in which a job ends that is told to, or whose owner is gone."""
        return self.machine.jobs.grace + SUPERVISOR_SECONDS

    def _launcher(self, stage: str) -> Launcher:
        """The configured launcher for the stages in `jobs.stages`, this machine for the others."""
        machine, jobs = self.machine, self.machine.jobs
        if jobs.launcher == "slurm" and stage in jobs.stages:
            # One that does not run as ranks has one node, however many are configured.
            config = machine.slurm.model_copy(update={"nodes": machine.nodes(stage)})
            return SlurmLauncher(config, grace=jobs.grace, ranks=machine.training.ranks)
        if jobs.launcher == "kubernetes" and stage in jobs.stages:
            return KubernetesLauncher(machine.kubernetes, grace=jobs.grace)
        return self._local


def run_job(
    argv: Sequence[str], *, key: str, folder: Path, launcher: Launcher, stall_timeout: float
) -> JobResult:
    """Run `argv` as the job in `folder` and log its output; raises unless it exits with code 0.

    `key` is that of the stage table: the time includes earlier attempts at the same artifact.
    """
    attempts, follower = begin_attempt(folder, key), Follower(folder)
    started, code = time.monotonic(), None
    try:
        launcher.start(argv, job=folder)
        while (code := launcher.poll(folder)) is None:
            follower.read()
            follower.check_stall(stall_timeout, queued=launcher.queued(folder))
            time.sleep(POLL_SECONDS)
    except BaseException:
        # Whatever ends the wait ends the program: a job must not outlive the run.
        launcher.cancel(folder)
        raise
    finally:
        # By the clock that nobody sets: the other may jump, or the machine sleep for a night.
        spent = time.monotonic() - started
        seconds = end_attempt(folder, attempts, spent=spent, finished=code == 0)
    follower.read()
    if code != 0:
        raise follower.failure(code)
    return JobResult(seconds, follower.peak_memory)


class Attempts(Config):
    """The attempts so far at making one stage's artifact, stored beside its log."""

    key: str
    """Key of the stage table."""
    seconds: float = 0.0
    """Wall-clock time of the attempts that have ended."""
    started: float | None = None
    """Start of the current or killed attempt, in seconds since 1970."""


def begin_attempt(folder: Path, key: str) -> Attempts:
    """Record the start of another attempt by the job in `folder`.

    A killed run could not record its end, so its attempt is taken to end with the last output.
    """
    file, log = folder / ATTEMPTS_NAME, folder / "log"
    now, seconds = time.time(), 0.0
    with contextlib.suppress(FileNotFoundError, ValidationError):
        earlier = Attempts.model_validate_json(file.read_bytes())
        # The same folder serves one stage in all runs of this name; time spent on another artifact
        # is none of this one's.
        if earlier.key == key:
            last_line = log.stat().st_mtime if log.exists() else 0.0
            killed = max(0.0, last_line - earlier.started) if earlier.started else 0.0
            seconds = earlier.seconds + killed
    attempts = Attempts(key=key, seconds=seconds, started=now)
    folder.mkdir(parents=True, exist_ok=True)
    file.write_text(attempts.model_dump_json() + "\n", "utf-8")
    return attempts


def end_attempt(folder: Path, attempts: Attempts, *, spent: float, finished: bool) -> float:
    """Record the end of an attempt of `spent` seconds; returns the seconds of all attempts."""
    seconds = attempts.seconds + spent
    file = folder / ATTEMPTS_NAME
    if finished:
        # The artifact exists: another attempt in this folder will be at another one, or none.
        file.unlink(missing_ok=True)
    else:
        ended = attempts.model_copy(update={"seconds": seconds, "started": None})
        file.write_text(ended.model_dump_json() + "\n", "utf-8")
    return round(seconds, 3)


class Follower:
    """Follows a running job: its output, its last error, its memory."""

    def __init__(self, folder: Path) -> None:
        self.name = folder.name
        self.log = folder / "log"
        self.peak_memory = 0
        self._others = {os.getpid(), *descendants(os.getpid())}
        """Processes that are not the job's: ours, Prefect's server, a supervisor that waited."""

        # From the end of what earlier attempts have printed.
        self._new_lines = tail(self.log, offset=self.log.stat().st_size if self.log.exists() else 0)
        self._output = OutputLog(folder.name)
        self._last_output = time.monotonic()
        self._measured_next = 0.0
        self._error = ""
        self._last_line = "none"

    def read(self) -> None:
        """Log new lines, remember the last error, and sample the memory at intervals."""
        now = time.monotonic()
        for line in next(self._new_lines):
            self._last_output, self._last_line = now, line
            if line.startswith("error: "):
                self._error = line.removeprefix("error: ")
            self._output.line(line)
        if now >= self._measured_next:
            # A job may be any number of processes deep, and they come and go. Whatever has been
            # started since this follower was made, and is not one of ours, is taken to be the
            # job's.
            started_since = {*descendants(os.getpid())} - self._others
            self.peak_memory = max(self.peak_memory, pss_of(started_since))
            took = time.monotonic() - now
            self._measured_next = now + max(MEMORY_SECONDS, took / MEMORY_SHARE)

    def check_stall(self, timeout: float, *, queued: bool) -> None:
        """Raise if a job that is no longer queued has printed nothing for `timeout` seconds."""
        # A job in a queue prints nothing; its silence begins when it runs.
        if queued:
            self._last_output = time.monotonic()
        if time.monotonic() - self._last_output > timeout:
            raise StageFailed(
                f"{self.name}: no output for {clock(timeout)} (jobs.stall_timeout), ended as "
                f"hung; last line: {self._last_line}; log: {self.log}",
                exit_code=1,
                retryable=True,
            )

    def failure(self, code: int) -> StageFailed:
        """The error for a job that exited with `code`."""
        if code == CANCELLED:
            return StageFailed(
                f"{self.name}: cancelled; the same command resumes it (log: {self.log})",
                exit_code=1,
                retryable=False,
            )
        # By a signal: its negative number, or from a shell 128 more.
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


def tail(path: Path, *, offset: int = 0) -> Iterator[list[str]]:
    """At each step the lines of a growing file that were completed since the last step.

    A bare carriage return also ends a line; empty lines are left out.
    """
    rest = b""
    while True:
        new = b""
        with contextlib.suppress(FileNotFoundError), open(path, "rb") as file:
            file.seek(offset)
            new = file.read()
        offset += len(new)
        # The last piece has no line end yet and waits for the next step.
        *complete, rest = (rest + new).replace(b"\r", b"\n").split(b"\n")
        yield [line.decode("utf-8", "replace") for line in complete if line.strip()]


def pss_of(processes: Iterable[int]) -> int:
    """Proportional set size in bytes of these processes; ones that have ended count 0.

    PSS divides shared pages among the processes that share them, so the sum over forked workers is
    the memory they actually occupy.
    """
    total = 0
    for process in processes:
        with contextlib.suppress(OSError):
            lines = Path(f"/proc/{process}/smaps_rollup").read_text().splitlines()
            total += KIB * sum(int(line.split()[1]) for line in lines if line.startswith("Pss:"))
    return total
