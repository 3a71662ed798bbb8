"""Programs on this machine.

In:  an argv and a job directory.
Out: DIRECTORY/log, and the exit code in DIRECTORY/exit.

Each program has a keeper (flows/launchers/supervisor.py), so that none outlives the flow.
"""

import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from pydantic import ValidationError

from artifacts.config import Config
from flows.launchers.launcher import LOST, child_environment
from flows.launchers.processes import Process, process


class LocalJob(Config):
    """A job on this machine."""

    argv: tuple[str, ...]
    """What was started."""

    keeper: Process
    """The keeper that owns it (flows/launchers/supervisor.py)."""


class LocalLauncher:
    """Programs on this machine, each with a keeper, so that none outlives us."""

    def __init__(self, *, grace: float, environment: Mapping[str, str] | None = None) -> None:
        self.grace = grace
        self.environment = environment or {}
        self._keepers: dict[Path, subprocess.Popen[bytes]] = {}

    def start(self, argv: Sequence[str], *, job: Path) -> None:
        """Start `argv` under a keeper of its own session."""
        job.mkdir(parents=True, exist_ok=True)
        (job / "exit").unlink(missing_ok=True)
        keeper = subprocess.Popen(
            [
                *(sys.executable, "-P", "-m", "flows.launchers.supervisor"),
                *("--job", str(job), "--grace", str(self.grace), "--", *argv),
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            start_new_session=True,
            env={**child_environment(), **self.environment},
        )
        self._keepers[job] = keeper
        started = LocalJob(argv=tuple(argv), keeper=process(keeper.pid))
        (job / "job.json").write_text(started.model_dump_json(indent=1) + "\n")

    def poll(self, job: Path) -> int | None:
        """The exit code once the keeper has written it."""
        if job in self._keepers and self._keepers[job].poll() is None:
            return None
        try:
            return int((job / "exit").read_text())
        except FileNotFoundError:
            running = local_job(job)
            return None if running and running.keeper.alive else LOST

    def queued(self, job: Path) -> bool:
        """Never: what is started here runs."""
        return False

    def cancel(self, job: Path) -> None:
        """Tell the keeper, which ends everything; then make sure that it did."""
        found = local_job(job)
        if found:
            found.keeper.end(grace=self.grace + 10.0)
        if job in self._keepers:
            self._keepers.pop(job).wait()


def local_job(job: Path) -> LocalJob | None:
    """What `job.json` says, if it can be read."""
    try:
        return LocalJob.model_validate_json((job / "job.json").read_bytes())
    except (FileNotFoundError, ValidationError):
        return None
