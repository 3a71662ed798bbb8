"""A team's server: PostgreSQL, `prefect deploy`, a process pool, and a worker that dies."""

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread
from typing import Any
from urllib.request import urlopen
from uuid import UUID

import pytest

from cloze.artifacts.runtime.processes import descendants
from cloze.flows.prefect.server import QUIET
from tests.conftest import PROJECT, GoldenRun
from tests.deployed import Deployment
from tests.running import RunFolder, all_gone
from tests.waiting import PATIENCE, free_port, wait_for

pytestmark = pytest.mark.slow

SECRET = "team:of-these-tests"

POSTGRES = sorted(Path("/usr/lib/postgresql").glob("*/bin"))


def succeeds(argv: list[str]) -> bool:
    return subprocess.run(argv, capture_output=True, check=False).returncode == 0


def ended(running: "subprocess.Popen[bytes]") -> None:
    """Ask a program to end, and see that it does."""
    below = [*descendants(running.pid), running.pid]
    running.terminate()
    try:
        running.wait(PATIENCE)
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
        wait_for(lambda: succeeds(create))
        yield f"postgresql+asyncpg://postgres@127.0.0.1:{port}/prefect"
        running.terminate()
    shutil.rmtree(folder)


@dataclass(frozen=True)
class Team(Deployment):
    """A server with our deployments, its workers, and a copy of the golden workspace."""

    config: dict[str, Any]
    workers: "list[subprocess.Popen[bytes]]" = field(default_factory=list)

    def start_worker(self) -> None:
        argv = [sys.executable, "-P", "-m", "prefect", "worker", "start", "--pool", "cloze"]
        worker = subprocess.Popen(
            [*argv, "--type", "process"],
            env=self.environment,
            cwd=self.run.workspace.parent,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        self.workers.append(worker)

    def start(self) -> UUID:
        """Trigger the golden run's configuration on the default machine.

        Its workspace is `runs`, beside which the worker was started.
        """
        return self.trigger("--params", json.dumps({"run": self.config}))


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
        "PREFECT_SERVER_API_AUTH_STRING": SECRET,
        "PREFECT_API_AUTH_STRING": SECRET,
    }
    run = RunFolder(workspace)
    server = [sys.executable, "-P", "-m", "prefect", "server", "start", "--port", str(port)]
    with subprocess.Popen(server, env=environment, stdout=subprocess.DEVNULL) as running:
        team = Team("cloze", url, environment, run, run.record()["config"])
        try:
            wait_for(lambda: healthy(url))
            team.prefect("work-pool", "create", "cloze", "--type", "process")
            team.prefect("deploy", "--all")
            team.start_worker()
            yield team
        finally:
            for worker in team.workers:
                ended(worker)
            ended(running)


def healthy(url: str) -> bool:
    try:
        with urlopen(f"{url}/health", timeout=5.0) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


def test_every_flow_is_deployed_with_a_described_form(team: Team) -> None:
    with team.client() as client:
        found = {deployment.name: deployment for deployment in client.read_deployments()}
        names = {flow.name for flow in client.read_flows()}
    assert set(found) == {"cloze"}
    assert names == {"end-to-end", "prepare", "pretrain", "finetune", "evaluate", "ablations"}
    schema = found["cloze"].parameter_openapi_schema
    assert schema["definitions"]["PretrainRunConfig"]["properties"]["steps"]["description"]


def test_a_server_takes_the_pool_whose_flows_are_pods(team: Team) -> None:
    template = PROJECT / "infra" / "kubernetes" / "pool.json"
    kind = ["--type", "kubernetes", "--base-job-template", str(template)]
    team.prefect("work-pool", "create", "pods", *kind)
    with team.client() as client:
        taken = client.read_work_pool("pods").base_job_template
    assert taken["variables"]["properties"]["image"]["default"] == "cloze-flows:0.1.0"


def test_a_run_from_the_pool_reuses_what_another_server_saw_made(team: Team) -> None:
    assert team.ended(team.start()) == "Completed"
    assert {stage["state"] for stage in team.run.record()["stages"].values()} == {"reused"}


def test_a_run_cancelled_on_a_worker_leaves_no_process(team: Team) -> None:
    team.run.forget("pretrain")
    assert team.cancelled_at_work(team.start(), "pretrain") == "Cancelled"


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


@pytest.mark.long
def test_a_run_killed_with_its_worker_is_told_of_and_resumed_by_the_other_worker(
    team: Team, golden: GoldenRun, tmp_path: Path
) -> None:
    automations = PROJECT / "infra" / "prefect"
    quick = (automations / "zombies.yaml").read_text().replace("within: 600", "within: 60")
    (tmp_path / "zombies.yaml").write_text(quick)
    team.prefect("automation", "create", "--from-file", str(tmp_path / "zombies.yaml"))
    team.prefect("automation", "create", "--from-file", str(automations / "resume.yaml"))
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

    team.run.forget("pretrain")
    run = team.start()
    below = team.run.processes_at_work("pretrain")
    worker = team.workers.pop()
    team.start_worker()
    killed([worker.pid, *(pid for pid in descendants(worker.pid) if pid not in below)])
    worker.wait()
    all_gone(below)
    assert team.state(run) == "Running"  # nobody is left to say otherwise
    assert team.ended(run) == "Completed"
    assert team.run.digests() == golden.digests()
    wait_for(lambda: any("Lost" in message for message in Messages.heard))
    listener.shutdown()
    listener.server_close()


def test_what_the_readme_makes_for_notifications_is_taken_and_its_teardown_is_of_ours_alone(
    team: Team, tmp_path: Path
) -> None:
    folder = PROJECT / "infra" / "prefect"
    blocks = (folder / "README.md").read_text().split("```")
    (notify,) = (block for block in blocks if "BLOCK_ID" in block)
    (teardown,) = (block for block in blocks if "deployment delete" in block)
    (tmp_path / "infra").symlink_to(PROJECT / "infra")
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"

    def shell(source: str, typed: str = "") -> None:
        subprocess.run(
            ["bash", "-euc", source],
            env={**team.environment, "PATH": path},
            input=typed,
            text=True,
            cwd=tmp_path,
            check=True,
            start_new_session=True,  # without a terminal, on which the webhook would be asked for
        )

    team.prefect("automation", "delete", "--all")
    for name in ("zombies", "resume"):
        team.prefect("automation", "create", "--from-file", str(folder / f"{name}.yaml"))
    shell(notify, "https://hooks.example.org/a\n")
    with team.client() as client:
        flow = client.read_deployment_by_name("end-to-end/cloze").flow_id
        client.create_deployment(flow_id=flow, name="theirs")
    assert "cloze-notify" in team.prefect("automation", "ls")
    shell(teardown)
    with team.client() as client:
        assert {one.name for one in client.read_deployments()} == {"theirs"}
    assert "cloze-" not in team.prefect("automation", "ls")
