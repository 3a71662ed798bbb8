"""Programs on this machine.

In:  an argv and a job directory.
Out: DIRECTORY/log, and the exit code in DIRECTORY/exit.

Each program has a supervisor (flows/launchers/supervisor.py), so that none outlives the flow. Both
are forked from a warm process (flows/launchers/warm.py) if it has loaded the program.
"""

import os
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from artifacts.runtime.processes import Child, ProcessId
from flows.launchers.launcher import LOST, Job, child_environment, supervisor_argv
from flows.launchers.warm import WarmProcess


class LocalJob(Job):
    """A job on this machine."""

    argv: tuple[str, ...]
    """The program's command."""

    supervisor: ProcessId
    """The process of its supervisor."""


class LocalLauncher:
    """Starts programs on this machine, each with a supervisor, so that none outlives us."""

    def __init__(
        self,
        *,
        grace: float,
        environment: Mapping[str, str] | None = None,
        warm: WarmProcess | None = None,
    ) -> None:
        self.grace = grace
        self.environment = environment or {}
        self.warm = warm
        self._supervisors: dict[Path, Child] = {}

    def start(self, argv: Sequence[str], *, job: Path) -> None:
        """Start `argv` under a supervisor in a session of its own."""
        job.mkdir(parents=True, exist_ok=True)
        (job / "exit").unlink(missing_ok=True)
        environment = {**child_environment(), **self.environment}
        owner = ("--owner", str(os.getpid()))
        supervising = [*supervisor_argv(job, grace=self.grace), *owner, "--", *argv]
        forked = self.warm and self.warm.fork(supervising, environment)
        supervisor: Child = forked or subprocess.Popen(
            supervising,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            start_new_session=True,
            env=environment,
        )
        self._supervisors[job] = supervisor
        started = LocalJob(argv=tuple(argv), supervisor=ProcessId.of(supervisor.pid))
        started.write(job)

    def poll(self, job: Path) -> int | None:
        """The exit code once the supervisor has written it."""
        code = None
        if job in self._supervisors:
            code = self._supervisors[job].poll()
            if code is None:
                return None
            del self._supervisors[job]
        try:
            return int((job / "exit").read_text())
        except (FileNotFoundError, ValueError):  # the supervisor was killed, or the disk is full
            if code is not None and code >= 0:
                return code
            running = LocalJob.read(job)
            return None if running and running.supervisor.alive else LOST

    def queued(self, job: Path) -> bool:
        """Always False: local programs start immediately."""
        return False

    def cancel(self, job: Path) -> None:
        """Terminate the supervisor, which ends the program, and wait for it."""
        if job in self._supervisors:  # even if another program has overwritten job.json since
            supervisor = self._supervisors.pop(job)
            ProcessId.of(supervisor.pid).end(grace=self.grace + 10.0)
            supervisor.wait()
        elif found := LocalJob.read(job):
            found.supervisor.end(grace=self.grace + 10.0)
