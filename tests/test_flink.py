"""The cluster of infra/flink, and preparation on it where its programs are at hand.

`CLOZE_FLINK` names a folder with Flink's `lib/`, `CLOZE_FLINK_JOB_SERVER` the jar of Beam's job
server.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.cloze.execution.test_text_folder import text
from tests.conftest import cloze, command
from tests.engines import configuration
from tests.waiting import PATIENCE, free_port, wait_for

pytestmark = pytest.mark.slow

SCRIPT = Path(__file__).resolve().parent.parent / "infra" / "flink" / "cluster.sh"
FLINK, JAR = map(os.environ.get, ("CLOZE_FLINK", "CLOZE_FLINK_JOB_SERVER"))
wants_flink = pytest.mark.skipif(
    not (FLINK and shutil.which("java")), reason="wants Java, and CLOZE_FLINK, Flink's folder"
)
MACHINE = """
[pipeline]
runner = "FlinkRunner"
[pipeline.options]
job_endpoint = "127.0.0.1:{JOB_PORT}"
parallelism = 2
environment_type = "EXTERNAL"
environment_config = "localhost:{POOL_PORT}"
"""
PORTS = ("REST_PORT", "RPC_PORT", "JOB_PORT", "POOL_PORT")


@contextmanager
def cluster(folder: Path, *jar: str) -> Iterator[dict[str, int]]:
    """The script's programs, meanwhile; their ports."""
    ports = {name: free_port() for name in PORTS}
    given = {name: str(port) for name, port in ports.items()}
    environment = {**os.environ, **given, "FLINK": str(FLINK), "PYTHON": sys.executable}
    with subprocess.Popen([SCRIPT, folder, *jar], env=environment) as running:
        try:
            yield ports
        finally:
            running.terminate()
            assert running.wait(PATIENCE) == 143


def registered(ports: dict[str, int]) -> int:
    """How many TaskManagers the JobManager knows; -1 before it answers."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{ports['REST_PORT']}/overview") as answer:
            found: int = json.load(answer)["taskmanagers"]
            return found
    except OSError:
        return -1


def kill_task_manager(folder: Path) -> None:
    """As if its machine were gone."""
    os.kill(int((folder / "taskmanager-1.pid").read_text()), signal.SIGKILL)


def digests(stdout: str) -> dict[str, str]:
    """By stage, of `cloze prepare --json`."""
    return {name: stage["digest"] for name, stage in json.loads(stdout).items()}


def corpus(folder: Path) -> dict[str, str]:
    """Texts and their configuration; the digests of what is made of them here."""
    (folder / "texts").mkdir()
    for number in range(200):
        (folder / "texts" / f"{number}.txt").write_text(text(number, 5))
    (folder / "local.toml").write_text(configuration())
    local = cloze("prepare", "local.toml", "--json", "--workspace", "here", cwd=folder)
    assert local.returncode == 0, local.stderr
    return digests(local.stdout)


@wants_flink
def test_a_cluster_has_two_task_managers_and_notices_the_death_of_one(tmp_path: Path) -> None:
    with cluster(tmp_path / "flink") as ports:
        wait_for(lambda: registered(ports) == 2, what="two TaskManagers")
        kill_task_manager(tmp_path / "flink")
        wait_for(lambda: registered(ports) == 1, what="the loss of one")


@wants_flink
def test_a_job_server_that_is_not_there_is_named(tmp_path: Path) -> None:
    done = subprocess.run(
        [SCRIPT, tmp_path / "flink", tmp_path / "server.jar"],
        env={**os.environ, "FLINK": str(FLINK)},
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE,
    )
    assert done.returncode == 2
    assert "server.jar: no such file" in done.stderr


@wants_flink
@pytest.mark.skipif(not JAR, reason="wants CLOZE_FLINK_JOB_SERVER, the jar of Beam's job server")
def test_flink_makes_the_bytes_that_are_made_here_though_a_task_manager_dies(
    tmp_path: Path,
) -> None:
    expected = corpus(tmp_path)
    with cluster(tmp_path / "flink", str(JAR)) as ports:
        wait_for(lambda: registered(ports) == 2, what="two TaskManagers")
        (tmp_path / "machine.toml").write_text(MACHINE.format(**ports))
        argv, environment = command(
            *("prepare", "local.toml", "--on", "machine.toml", "--workspace", "runs", "--json")
        )
        with subprocess.Popen(
            argv,
            env=environment,
            cwd=tmp_path,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        ) as running:
            plan = "runs/artifacts/tokens/**/shuffle_plan.json"
            wait_for(
                lambda: [*tmp_path.glob(plan)] or running.poll() is not None, what="the shuffle"
            )
            kill_task_manager(tmp_path / "flink")
            output, said = running.communicate(timeout=2 * PATIENCE)
        assert running.returncode == 0, said
    assert digests(output) == expected
