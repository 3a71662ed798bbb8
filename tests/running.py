"""A run as its tests see it from outside: its folder and its processes.

In:  a workspace in which configs/smoke.toml runs.
Out: what the run is doing now, its digests at the end; and ways to disturb it.
"""

import json
import os
import shutil
import signal
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from cloze.artifacts.runtime.processes import ProcessId, descendants
from cloze.flows.launchers.local import LocalJob
from tests.waiting import wait_for

VICTIMS = {
    "vocabulary": "program",
    "tokens": "Beam worker",
    "examples": "flow",
    "pretrain": "trainer",
    "labels": "supervisor",
    "finetune": "flow",
    "evaluate": "program",
    "report": "flow",
}
"""Who is killed in each stage."""

GENERATION = {"flow": -1, "supervisor": 0, "program": 1, "trainer": 1, "Beam worker": 3}
"""How many births after the supervisor: a lone trainer is its stage's program; a Beam worker is a
child of the runner, which is one of the program."""


def all_gone(pids: list[int]) -> None:
    """Wait until none of these processes runs."""
    wait_for(lambda: not any(ProcessId.of(pid).alive for pid in pids), what=f"the end of {pids}")


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
        job = LocalJob.read(self.job(stage))
        alive = job is not None and job.supervisor.alive and list(descendants(job.supervisor.pid))
        return job if alive else None

    def job_at_work(self, stage: str) -> LocalJob | None:
        """The same, once it has said or written something."""
        log = self.job(stage) / "log"
        said = log.exists() and log.stat().st_size > 0
        written = any((self.workspace / "artifacts" / stage).rglob("*"))
        return self.running_job(stage) if said or written else None

    def processes_at_work(self, stage: str) -> list[int]:
        """The stage's supervisor and all below it, once it shows work."""
        job = wait_for(lambda: self.job_at_work(stage), what=f"{stage} at work")
        assert job
        return [job.supervisor.pid, *descendants(job.supervisor.pid)]

    def processes(self) -> list[str]:
        """The command lines of all processes that name the workspace."""
        lines = (one.info["cmdline"] or [] for one in psutil.process_iter(["cmdline"]))
        return [" ".join(line) for line in lines if str(self.workspace) in " ".join(line)]

    def strike(self, stage: str) -> list[int]:
        """SIGKILL the stage's victim as soon as it is there; the processes that were there.

        All but a Beam worker, which may live for half a second only, have shown work before.
        """
        generation = GENERATION[VICTIMS[stage]]
        there = self.running_job if VICTIMS[stage] == "Beam worker" else self.job_at_work
        job = wait_for(lambda: there(stage), what=stage)
        assert job

        def killed() -> list[int]:
            for victim in born(job.supervisor.pid, generation)[:1]:
                found = [job.supervisor.pid, *descendants(job.supervisor.pid)]
                with suppress(ProcessLookupError):  # it has ended meanwhile; the next one then
                    os.kill(victim, signal.SIGKILL)
                    return found
            return []

        return wait_for(killed, what=VICTIMS[stage])

    def started_again(self, stage: str, *, supervisor: int) -> None:
        """Wait until the stage has another supervisor than this one."""

        def another() -> bool:
            job = LocalJob.read(self.job(stage))
            return job is not None and job.supervisor.pid != supervisor

        wait_for(another, what=f"{stage} again")


def born(supervisor: int, generation: int) -> list[int]:
    """The processes so many births after the supervisor; one before it is the flow's."""
    if generation < 0:
        return [psutil.Process(supervisor).ppid()]
    with suppress(psutil.NoSuchProcess):
        family = [psutil.Process(supervisor)]
        for _ in range(generation):
            family = [child for one in family for child in one.children()]
        return [one.pid for one in family]
    return []
