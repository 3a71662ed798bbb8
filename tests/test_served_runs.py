"""A served deployment: triggered, cancelled, killed and continued, on a real Prefect server."""

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from uuid import UUID

import psutil
import pytest

from cloze.artifacts.runtime.processes import ProcessId, descendants
from tests.browser import browser
from tests.conftest import PROJECT, SMOKE, GoldenRun
from tests.deployed import Deployment
from tests.running import VICTIMS, RunFolder, all_gone
from tests.waiting import PATIENCE, free_port


@pytest.fixture(scope="module")
def served(golden: GoldenRun, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    """A process that serves the flows, on a copy of the golden workspace."""
    workspace = tmp_path_factory.mktemp("served") / "runs"
    shutil.copytree(golden.workspace, workspace, ignore=shutil.ignore_patterns("prefect"))
    port = free_port()
    source = "from cloze.command import main; main()"
    where = ["--workspace", str(workspace), "--port", str(port)]
    environment = {name: value for name, value in os.environ.items() if name != "PREFECT_API_URL"}
    with subprocess.Popen(
        [sys.executable, "-P", "-c", source, "serve", *SMOKE, *where],
        stderr=subprocess.PIPE,
        text=True,
        cwd=PROJECT,
        env=environment,
    ) as running:
        try:
            assert running.stderr
            lines = [running.stderr.readline() for _ in range(3)]
            assert "prefect deployment run end-to-end/smoke" in lines[2], lines
            secret = (workspace / "prefect" / "secret").read_text().strip()
            environment["PREFECT_API_AUTH_STRING"] = secret
            api = f"http://127.0.0.1:{port}/api"
            yield Deployment("smoke", api, environment, RunFolder(workspace))
        finally:
            below = list(descendants(running.pid))
            running.terminate()
            running.communicate(timeout=PATIENCE)
    assert [pid for pid in below if ProcessId.of(pid).alive] == []


@pytest.fixture(scope="module")
def finished(served: Deployment) -> UUID:
    """A flow run that was triggered and has finished."""
    flow_run = served.trigger()
    assert served.ended(flow_run) == "Completed"
    return flow_run


@pytest.mark.slow
@pytest.mark.usefixtures("finished")
def test_a_triggered_run_reuses_everything(served: Deployment) -> None:
    assert {stage["state"] for stage in served.run.record()["stages"].values()} == {"reused"}


@pytest.mark.slow
def test_people_see_the_run_its_tables_and_a_described_form(
    served: Deployment, finished: UUID
) -> None:
    ui = served.url.removesuffix("/api")
    secret = served.environment["PREFECT_API_AUTH_STRING"]
    with served.client() as client:
        deployment = client.read_deployment_by_name("end-to-end/smoke").id
        tables = {artifact.key: artifact.id for artifact in client.read_artifacts()}
    with browser() as page:
        page.open(ui)
        page.text("Login")
        page.evaluate(f"localStorage.setItem('prefect-password', btoa({json.dumps(secret)}))")
        page.open(f"{ui}/runs/flow-run/{finished}", height=2000)
        page.text("end-to-end", "Completed", *(f"{stage} reused" for stage in VICTIMS))
        page.open(f"{ui}/artifacts/artifact/{tables['smoke-stages']}", height=2000)
        page.text("Stages of run smoke, finished", "reused", *VICTIMS)
        page.open(f"{ui}/artifacts/artifact/{tables['smoke-figures']}", height=2000)
        page.text("Results of run smoke", "pairs pretrained accuracy", "tokens seen")
        page.open(f"{ui}/artifacts/artifact/{tables['smoke-page']}", height=2000)
        page.text("Report of smoke")
        page.open(f"{ui}/deployments/deployment/{deployment}/run")
        page.text("Masked Lm Prob", "Seed for all random numbers of the run.")


@pytest.mark.slow
def test_a_run_cancelled_while_training_leaves_no_process(served: Deployment) -> None:
    served.run.forget("pretrain")
    assert served.cancelled_at_work(served.trigger(), "pretrain") == "Cancelled"


@pytest.mark.slow
def test_a_flow_killed_while_training_is_continued_to_the_same_digests(
    served: Deployment, golden: GoldenRun
) -> None:
    served.run.forget("pretrain")
    flow_run = served.trigger()
    supervisor, *below = served.run.processes_at_work("pretrain")
    os.kill(psutil.Process(supervisor).ppid(), signal.SIGKILL)
    all_gone([supervisor, *below])
    assert served.ended(flow_run) == "Crashed"
    assert served.ended(served.trigger()) == "Completed"
    assert served.run.digests() == golden.digests()


@pytest.mark.slow
@pytest.mark.long
def test_killed_in_every_stage_a_served_run_ends_with_the_same_digests(
    served: Deployment, golden: GoldenRun
) -> None:
    served.run.forget(*VICTIMS)
    flow_run = served.trigger()
    for stage, victim in VICTIMS.items():
        struck = served.run.strike(stage)
        if victim != "flow":  # the flow itself makes it good
            served.run.started_again(stage, supervisor=struck[0])
        else:
            assert served.ended(flow_run) == "Crashed"
            all_gone(struck)
            flow_run = served.trigger()
    assert served.ended(flow_run) == "Completed"
    assert served.run.digests() == golden.digests()
