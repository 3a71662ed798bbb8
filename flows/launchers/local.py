"""Programs on this machine.

In:  an argv and a job directory.
Out: DIRECTORY/log, and the exit code in DIRECTORY/exit.

Each program has a supervisor (flows/launchers/supervisor.py), so that none outlives the flow. A
supervisor runs the launcher's programs one after another, as long as they succeed.
"""

import json
import os
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from pydantic import JsonValue

from cloze.artifacts.runtime.processes import ProcessId
from cloze.artifacts.stage import read_stage_table
from cloze.flows.launchers.launcher import LOST, Job, child_environment
from cloze.flows.launchers.supervisor import PYTHON, module_of
from cloze.model.hardware import has_gpu

PRELOADED = ("cloze.pipeline.vocabulary", "cloze.pipeline.tokens", "cloze.pipeline.examples")
"""The programs that are forked, because their imports take longer than preparing a small corpus."""

TRAINING = "cloze.model.training.start"
"""The program that becomes, in the environment of its stage table, the one its argument names."""

TRAINED = (
    TRAINING,
    "cloze.model.training.pretrain",
    "cloze.model.finetune.finetune",
    "cloze.model.evaluation.evaluate",
)
"""The programs with torch are forked as well, from a supervisor that `TRAINING` has started with
the environment of their stage tables. Not beside a GPU, whose state does not survive a fork."""

SUPERVISOR_SECONDS = 10.0
"""Added to a program's grace period: time for its supervisor to react and to end its children."""


class LocalJob(Job):
    """A job on this machine."""

    argv: tuple[str, ...]
    """The program's command."""

    supervisor: ProcessId
    """The process of its supervisor."""


@dataclass(frozen=True)
class RunningSupervisor:
    """A supervisor that waits for jobs, or runs one."""

    process: subprocess.Popen[bytes]
    preloaded: tuple[str, ...]
    """The modules whose programs it forks."""
    machine: Mapping[str, JsonValue]
    """The machine of the stage tables in whose environment it is, for programs of training."""

    @classmethod
    def start(
        cls,
        preloaded: tuple[str, ...],
        *,
        grace: float,
        environment: Mapping[str, str],
        table: str = "",
    ) -> "RunningSupervisor":
        """Start one that is owned by this process, in a session of its own.

        With the file of a stage table, it has that table's environment.
        """
        argv = [*PYTHON, *([TRAINING] if table else []), "cloze.flows.launchers.supervisor"]
        options = ["--grace", str(grace), "--owner", str(os.getpid())]
        options += ["--config", table] if table else []
        process = subprocess.Popen(
            [*argv, *options, *(("--preload", *preloaded) if preloaded else ())],
            # New jobs arrive on its standard input.
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            start_new_session=True,
            env=environment,
            bufsize=0,
        )
        return cls(process, preloaded, machine_of(table))

    def take(self, job: Path) -> None:
        """Begin the job of this directory; nothing waits for the supervisor, which may hang."""
        assert self.process.stdin
        with suppress(BrokenPipeError):  # it was killed: its exit code says so
            self.process.stdin.write(json.dumps(str(job)).encode() + b"\n")

    def end(self, *, grace: float) -> None:
        """End it, and its program with it."""
        ProcessId.of(self.process.pid).end(grace=grace)
        self.process.communicate()


def machine_of(table: str) -> Mapping[str, JsonValue]:
    """The machine of the stage table in this file; empty without one."""
    return read_stage_table(table).machine if table else {}


def recorded(job: Path) -> int | None:
    """The exit code in a job's directory; None if there is none."""
    try:
        return int((job / "exit").read_text())
    except (FileNotFoundError, ValueError):
        return None


class LocalLauncher:
    """Runs programs on this machine under supervisors, so that none outlives us.

    Programs of the modules `preloaded` are forked. All run in the environment in which their
    supervisor was started.
    """

    def __init__(
        self,
        *,
        grace: float,
        environment: Mapping[str, str] | None = None,
        preloaded: tuple[str, ...] = PRELOADED,
    ) -> None:
        self.grace = grace
        self.environment = environment or {}
        self.preloaded = preloaded
        # By what they have preloaded.
        self._idle: dict[tuple[str, ...], RunningSupervisor] = {}
        self._running: dict[Path, RunningSupervisor] = {}

    def start(self, argv: Sequence[str], *, job: Path) -> None:
        """Start `argv` under a supervisor, in a session of its own."""
        job.mkdir(parents=True, exist_ok=True)
        (job / "exit").unlink(missing_ok=True)
        supervisor = self._supervisor(argv)
        started = LocalJob(argv=tuple(argv), supervisor=ProcessId.of(supervisor.process.pid))
        started.write(job)
        self._running[job] = supervisor
        supervisor.take(job)

    def _supervisor(self, argv: Sequence[str]) -> RunningSupervisor:
        """The one that waits for such a program, or a new one."""
        module, table = module_of(argv), ""
        preloaded = self.preloaded if module in self.preloaded else ()
        if self.preloaded and module == TRAINING and not has_gpu():
            program, *arguments = argv[len(PYTHON) + 1 :]
            if program in TRAINED:
                preloaded, table = TRAINED, arguments[arguments.index("--config") + 1]
        # Training needs the memory of what preparation has loaded; others need little or none.
        for other in self._idle.keys() - {(), preloaded or TRAINED}:
            self._idle.pop(other).end(grace=0.0)
        if idle := self._idle.pop(preloaded, None):
            # A killed one is a zombie while its last threads end, which poll() does not see yet.
            runs = idle.process.poll() is None and ProcessId.of(idle.process.pid).alive
            if runs and idle.machine == machine_of(table):
                return idle
            idle.end(grace=0.0)
        environment = {**child_environment(), **self.environment}
        return RunningSupervisor.start(
            preloaded, grace=self.grace, environment=environment, table=table
        )

    def poll(self, job: Path) -> int | None:
        """The exit code once the supervisor has written it."""
        supervisor = self._running.get(job)
        if supervisor is None:  # of an earlier flow, or polled before
            found = LocalJob.read(job)
            alive = found is not None and found.supervisor.alive
            code = recorded(job)
            return code if code is not None or alive else LOST
        ended = supervisor.process.poll()  # before the file is read, which it writes last
        code = recorded(job)
        if code is None and ended is None:
            return None
        del self._running[job]
        # A supervisor whose program has succeeded waits for the next one; any other is done.
        if code == 0 and ended is None and supervisor.preloaded not in self._idle:
            self._idle[supervisor.preloaded] = supervisor
        else:
            supervisor.end(grace=self.grace)
        if code is None:  # the supervisor was killed, or the disk is full
            return LOST if ended is None or ended < 0 else ended
        return code

    def queued(self, job: Path) -> bool:
        """Always False: local programs start immediately."""
        return False

    def cancel(self, job: Path) -> None:
        """Terminate the supervisor, which ends the program, and wait for it."""
        grace = self.grace + SUPERVISOR_SECONDS
        if job in self._running:  # even if another program has overwritten job.json since
            self._running.pop(job).end(grace=grace)
        elif not (job / "exit").exists() and (found := LocalJob.read(job)):
            found.supervisor.end(grace=grace)

    def close(self) -> None:
        """End the supervisors that wait for other jobs."""
        while self._idle:
            self._idle.popitem()[1].end(grace=0.0)
