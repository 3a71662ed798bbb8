"""A team's server: PostgreSQL, `prefect deploy`, a process pool, and a worker that dies."""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread
from typing import Any
from urllib.request import urlopen
from uuid import UUID

import pytest
from prefect.client.orchestration import SyncPrefectClient
from prefect.states import Cancelling

from flows.jobs.keeper import descendants
from flows.jobs.local import local_job
from flows.jobs.processes import process
from flows.watching.server import QUIET
from tests.conftest import PROJECT, GoldenRun

pytestmark = pytest.mark.slow

POSTGRES = sorted(Path("/usr/lib/postgresql").glob("*/bin"))
FINAL = {"Completed", "Failed", "Crashed", "Cancelled"}


def wait_for(condition: Callable[[], Any], *, seconds: float) -> Any:
    deadline = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.2)
    return found


def free_port() -> int:
    with closing(socket.socket()) as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def succeeds(argv: list[str]) -> bool:
    return subprocess.run(argv, capture_output=True, check=False).returncode == 0


def ended(running: "subprocess.Popen[bytes]") -> None:
    """Ask a program to end, and see that it does."""
    below = [*descendants(running.pid), running.pid]
    running.terminate()
    try:
        running.wait(60)
    finally:
        killed(below)


def killed(pids: list[int]) -> None:
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


@pytest.fixture(scope="module")
def database() -> Iterator[str]:
    """Debian's PostgreSQL with an empty database; its URL."""
    if not POSTGRES or os.getuid() != 0:
        pytest.skip("wants Debian's postgresql, and root to run it as its user")
    folder = Path(tempfile.mkdtemp(prefix="cloze-postgres-"))
    shutil.chown(folder, "postgres", "postgres")
    port = free_port()
    as_user = ["setpriv", "--reuid=postgres", "--regid=postgres", "--clear-groups"]
    data = ["-D", str(folder / "data")]
    made = [*as_user, str(POSTGRES[-1] / "initdb"), *data, "--auth=trust", "--no-sync"]
    subprocess.run(made, check=True, capture_output=True, cwd=folder)
    server = [*as_user, str(POSTGRES[-1] / "postgres"), *data, "-p", str(port), "-k", str(folder)]
    with subprocess.Popen(server, cwd=folder, stderr=subprocess.DEVNULL) as running:
        here = ["-h", "127.0.0.1", "-p", str(port)]
        create = [*as_user, str(POSTGRES[-1] / "createdb"), *here, "prefect"]
        wait_for(lambda: succeeds(create), seconds=60)
        yield f"postgresql+asyncpg://postgres@127.0.0.1:{port}/prefect"
        running.terminate()
    shutil.rmtree(folder)


@dataclass
class Team:
    """A server with our deployments, one worker, and a copy of the golden workspace."""

    url: str
    environment: dict[str, str]
    workspace: Path
    config: dict[str, Any]
    worker: "subprocess.Popen[bytes] | None" = field(default=None)

    def prefect(self, *arguments: str) -> str:
        """`prefect …` as a person would type it."""
        argv = [sys.executable, "-P", "-m", "prefect", *arguments]
        done = subprocess.run(
            argv, env=self.environment, capture_output=True, text=True, cwd=PROJECT, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def start_worker(self) -> None:
        argv = [sys.executable, "-P", "-m", "prefect", "worker", "start", "--pool", "cloze"]
        self.worker = subprocess.Popen(
            [*argv, "--type", "process"],
            env=self.environment,
            cwd=self.workspace.parent,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )

    def trigger(self) -> UUID:
        # the machine is the default one: its workspace is `runs`, beside which the worker started
        parameters = json.dumps({"run": self.config})
        said = self.prefect("deployment", "run", "end-to-end/cloze", "--params", parameters)
        (line,) = [line for line in said.splitlines() if "UUID:" in line]
        return UUID(line.split("UUID:")[1].strip())

    def state(self, run: UUID) -> str:
        with SyncPrefectClient(self.url) as client:
            return client.read_flow_run(run).state_name or ""

    def ended(self, run: UUID, *, seconds: float) -> str:
        wait_for(lambda: self.state(run) in FINAL, seconds=seconds)
        return self.state(run)

    def record(self) -> dict[str, Any]:
        return dict(json.loads((self.workspace / "smoke" / "run.json").read_text()))

    def processes_of_training(self) -> list[int]:
        """The keeper and everything below it, once the trainer has said something."""
        folder = self.workspace / "smoke" / "jobs" / "pretrain"

        def begun() -> bool:
            log = folder / "log"
            return log.exists() and log.stat().st_size > 0 and local_job(folder) is not None

        wait_for(begun, seconds=180)
        job = local_job(folder)
        assert job
        return [job.keeper.pid, *descendants(job.keeper.pid)]

    def forget_training(self) -> None:
        """As if it had never run."""
        for folder in ("artifacts/pretrain", "smoke/jobs/pretrain"):
            shutil.rmtree(self.workspace / folder, ignore_errors=True)


@pytest.fixture(scope="module")
def team(
    golden: GoldenRun, database: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Team]:
    workspace = tmp_path_factory.mktemp("team") / "runs"
    shutil.copytree(golden.workspace, workspace, ignore=shutil.ignore_patterns("prefect"))
    port = free_port()
    url = f"http://127.0.0.1:{port}/api"
    environment = {
        **os.environ,
        **QUIET,
        "PREFECT_API_URL": url,
        "PREFECT_HOME": str(tmp_path_factory.mktemp("home")),
        "PREFECT_SERVER_DATABASE_CONNECTION_URL": database,
        "PREFECT_FLOWS_HEARTBEAT_FREQUENCY": "30",
    }
    config = json.loads((workspace / "smoke" / "run.json").read_text())["config"]
    server = [sys.executable, "-P", "-m", "prefect", "server", "start", "--port", str(port)]
    with subprocess.Popen(server, env=environment, stdout=subprocess.DEVNULL) as running:
        team = Team(url, environment, workspace, config)
        try:
            wait_for(lambda: healthy(url), seconds=120)
            team.prefect("work-pool", "create", "cloze", "--type", "process")
            team.prefect("deploy", "--all")
            team.start_worker()
            yield team
        finally:
            if team.worker:
                ended(team.worker)
            ended(running)


def healthy(url: str) -> bool:
    try:
        with urlopen(f"{url}/health", timeout=5.0) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


def test_every_flow_is_deployed_with_a_described_form(team: Team) -> None:
    with SyncPrefectClient(team.url) as client:
        found = {deployment.name: deployment for deployment in client.read_deployments()}
        names = {flow.name for flow in client.read_flows()}
    assert set(found) == {"cloze"}
    assert names == {"end-to-end", "prepare", "pretrain", "finetune", "evaluate", "ablations"}
    schema = found["cloze"].parameter_openapi_schema
    assert schema["definitions"]["PretrainConfig"]["properties"]["steps"]["description"]


def test_a_run_from_the_pool_reuses_what_another_server_saw_made(team: Team) -> None:
    assert team.ended(team.trigger(), seconds=180) == "Completed"
    assert {stage["state"] for stage in team.record()["stages"].values()} == {"reused"}


def test_a_run_cancelled_on_a_worker_leaves_no_process(team: Team) -> None:
    team.forget_training()
    run = team.trigger()
    below = team.processes_of_training()
    with SyncPrefectClient(team.url) as client:
        client.set_flow_run_state(run, Cancelling())
    wait_for(lambda: not any(process(pid).alive for pid in below), seconds=40)
    assert team.ended(run, seconds=120) == "Cancelled"


class Messages(BaseHTTPRequestHandler):
    """Keeps what is posted to it."""

    heard: list[str] = []  # noqa: RUF012 - one test's own server

    def do_POST(self) -> None:
        size = int(self.headers["Content-Length"])
        self.heard.append(self.rfile.read(size).decode())
        self.send_response(200)
        self.end_headers()

    def log_message(self, *_: Any) -> None:
        """Say nothing."""


BLOCK = """
from prefect.blocks.notifications import CustomWebhookNotificationBlock as Block
block = Block(name="cloze", url="http://127.0.0.1:{port}/", json_data={{"text": "{{{{body}}}}"}})
print(block.save("cloze"))
"""


def test_a_worker_killed_with_its_flow_is_noticed_told_of_and_continued_by_another(
    team: Team, golden: GoldenRun, tmp_path: Path
) -> None:
    automations = PROJECT / "infra" / "prefect"
    quick = (automations / "zombies.yaml").read_text().replace("within: 600", "within: 60")
    (tmp_path / "zombies.yaml").write_text(quick)
    team.prefect("automation", "create", "--from-file", str(tmp_path / "zombies.yaml"))
    listener = HTTPServer(("127.0.0.1", 0), Messages)
    Thread(target=listener.serve_forever, daemon=True).start()
    source = BLOCK.format(port=listener.server_port)
    made = subprocess.run(
        [sys.executable, "-P", "-c", source],
        env=team.environment,
        capture_output=True,
        text=True,
        check=True,
    )
    notify = (automations / "notify.yaml").read_text().replace("BLOCK_ID", made.stdout.strip())
    (tmp_path / "notify.yaml").write_text(notify)
    team.prefect("automation", "create", "--from-file", str(tmp_path / "notify.yaml"))

    team.forget_training()
    run = team.trigger()
    below = team.processes_of_training()
    assert team.worker
    killed([team.worker.pid, *(p for p in descendants(team.worker.pid) if p not in below)])
    team.worker.wait()
    wait_for(lambda: not any(process(pid).alive for pid in below), seconds=45)
    assert team.state(run) == "Running"  # nobody is left to say otherwise
    assert team.ended(run, seconds=240) == "Crashed"
    wait_for(lambda: any("Crashed" in message for message in Messages.heard), seconds=60)
    listener.shutdown()

    team.start_worker()
    assert team.ended(team.trigger(), seconds=600) == "Completed"
    made_now = {stage: found["digest"] for stage, found in team.record()["stages"].items()}
    record = json.loads((golden.workspace / "smoke" / "run.json").read_text())
    first = {stage: found["digest"] for stage, found in record["stages"].items()}
    assert {**made_now, "report": ""} == {**first, "report": ""}  # a report tells of times
