"""A deployment on a real Prefect server, as a person triggers and watches it.

In:  the server's URL and the deployment's name.
Out: flow runs, their states and their ends.
"""

import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from uuid import UUID

from prefect.client.orchestration import SyncPrefectClient
from prefect.states import Cancelling

from tests.conftest import PROJECT
from tests.running import RunFolder, all_gone
from tests.waiting import PATIENCE, wait_for

FINAL = {"Completed", "Failed", "Crashed", "Cancelled"}


@dataclass(frozen=True)
class Deployment:
    """A deployment of the flow end-to-end on a real Prefect server, and its run's folder."""

    name: str
    url: str
    environment: Mapping[str, str]
    run: RunFolder

    def client(self) -> SyncPrefectClient:
        """Prefect's own, with the secret that the environment holds."""
        secret = self.environment.get("PREFECT_API_AUTH_STRING")
        return SyncPrefectClient(self.url, auth_string=secret)

    def trigger(self, *options: str) -> UUID:
        """Start a run as a person would, from the command line."""
        said = self.prefect("deployment", "run", f"end-to-end/{self.name}", *options)
        (line,) = [line for line in said.splitlines() if "UUID:" in line]
        return UUID(line.split("UUID:")[1].strip())

    def prefect(self, *arguments: str) -> str:
        """`prefect …` as a person would type it."""
        done = subprocess.run(
            [sys.executable, "-P", "-m", "prefect", *arguments],
            env={**self.environment, "PREFECT_API_URL": self.url},
            capture_output=True,
            text=True,
            check=False,
            cwd=PROJECT,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def cancelled_at_work(self, flow_run: UUID, stage: str) -> str:
        """The run's last state after the UI's button, which no process of the stage outlives."""
        below = self.run.processes_at_work(stage)
        with self.client() as client:
            client.set_flow_run_state(flow_run, Cancelling())
        all_gone(below)
        return self.ended(flow_run)

    def state(self, run: UUID) -> str:
        """Its state's name."""
        with self.client() as client:
            return client.read_flow_run(run).state_name or ""

    def ended(self, run: UUID) -> str:
        """Its last state, once it has one."""
        wait_for(lambda: self.state(run) in FINAL, seconds=2 * PATIENCE, what="the flow's end")
        return self.state(run)
