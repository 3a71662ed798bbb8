"""Programs on this machine.

In:  an argv and a job directory.
Out: DIRECTORY/log, and the exit code in DIRECTORY/exit.

Each program has a supervisor (flows/launchers/supervisor.py), so that none outlives the flow. Both
are forked from a warm process (flows/launchers/warm.py) where there is one for the program.
"""

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from artifacts.runtime.processes import Child, ProcessId
from flows.launchers.launcher import LOST, Job, child_environment
from flows.launchers.warm import WarmProcess


class LocalJob(Job):
    """A job on this machine."""

    argv: tuple[str, ...]
    """What was started."""

    supervisor: ProcessId
    """Its supervisor (flows/launchers/supervisor.py)."""


class LocalLauncher:
    """Programs on this machine, each with a supervisor, so that none outlives us."""

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
        supervising = [
            *(sys.executable, "-P", "-m", "flows.launchers.supervisor"),
            *("--job", str(job), "--grace", str(self.grace), "--owner", str(os.getpid())),
            *("--", *argv),
        ]
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
        except (FileNotFoundError, ValueError):  # a killed supervisor, or a full disk
            if code is not None and code >= 0:
                return code
            running = LocalJob.read(job)
            return None if running and running.supervisor.alive else LOST

    def queued(self, job: Path) -> bool:
        """Never: programs start at once here."""
        return False

    def cancel(self, job: Path) -> None:
        """Terminate the supervisor, which ends everything, and make sure that it did."""
        if job in self._supervisors:  # whatever another program has written over job.json since
            supervisor = self._supervisors.pop(job)
            ProcessId.of(supervisor.pid).end(grace=self.grace + 10.0)
            supervisor.wait()
        elif found := LocalJob.read(job):
            found.supervisor.end(grace=self.grace + 10.0)
