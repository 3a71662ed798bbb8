"""A run as its tests see it from outside: its folder and its processes.

In:  a workspace in which configs/smoke.toml runs.
Out: what the run is doing now, its digests at the end; and ways to disturb it.
"""

import json
import os
import shutil
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flows.jobs.keeper import descendants
from flows.jobs.local import LocalJob, local_job
from flows.jobs.processes import process

VICTIMS = {
    "vocabulary": "program",
    "tokens": "worker",
    "examples": "flow",
    "pretrain": "worker",
    "labels": "keeper",
    "finetune": "flow",
    "evaluate": "program",
    "report": "flow",
}
"""Who is killed in each stage. A worker is what the stage's program has started: Beam's, a rank."""


def wait_for(condition: Callable[[], Any], *, seconds: float, what: str = "it") -> Any:
    """The first true value of `condition`."""
    deadline = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < deadline, f"waited for {what} in vain"
        time.sleep(0.05)
    return found


def all_gone(pids: list[int], *, seconds: float = 45.0) -> None:
    """Wait until none of these processes runs."""
    wait_for(lambda: not any(process(pid).alive for pid in pids), seconds=seconds)


@dataclass(frozen=True)
class RunFolder:
    """The run `smoke` of a workspace."""

    workspace: Path

    def record(self) -> dict[str, Any]:
        """What run.json says."""
        return dict(json.loads((self.workspace / "smoke" / "run.json").read_text()))

    def digests(self) -> dict[str, str]:
        """Every stage's digest but the report's, which tells of times."""
        stages = self.record()["stages"]
        return {stage: found["digest"] for stage, found in stages.items() if stage != "report"}

    def job(self, stage: str) -> Path:
        """The stage's job directory."""
        return self.workspace / "smoke" / "jobs" / stage

    def forget(self, *stages: str) -> None:
        """As if these stages had never run."""
        for stage in stages:
            shutil.rmtree(self.workspace / "artifacts" / stage, ignore_errors=True)
            shutil.rmtree(self.job(stage), ignore_errors=True)

    def running_job(self, stage: str) -> LocalJob | None:
        """The stage's job, once its program is there."""
        job = local_job(self.job(stage))
        alive = job is not None and job.keeper.alive and list(descendants(job.keeper.pid))
        return job if alive else None

    def job_at_work(self, stage: str) -> LocalJob | None:
        """The same, once it has said or written something."""
        log = self.job(stage) / "log"
        said = log.exists() and log.stat().st_size > 0
        written = any((self.workspace / "artifacts" / stage).rglob("*"))
        return self.running_job(stage) if said or written else None

    def processes_at_work(self, stage: str, *, seconds: float = 120.0) -> list[int]:
        """The stage's keeper and all below it, once it shows work."""
        job = wait_for(lambda: self.job_at_work(stage), seconds=seconds, what=f"{stage} at work")
        return [job.keeper.pid, *descendants(job.keeper.pid)]

    def strike(self, stage: str) -> list[int]:
        """SIGKILL the stage's victim as soon as it shows work; the processes that were there."""
        keeper, *below = found = self.processes_at_work(stage)
        victims = {"flow": parent(keeper), "keeper": keeper, "program": below[0]}
        os.kill(victims.get(VICTIMS[stage], below[-1]), signal.SIGKILL)
        return found


def parent(pid: int) -> int:
    """Who started this process: a keeper's is the process in which the flow runs."""
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
