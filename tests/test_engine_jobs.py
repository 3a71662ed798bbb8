"""A job of Beam's own job service, whose workers begin when the test lets them.

The service outlives the command, as an engine does. What it cannot do is end the workers of a job
that is cancelled, or tell a job's counters before its end.
"""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

from tests.cloze.execution.test_text_folder import text
from tests.conftest import cloze, command
from tests.waiting import PATIENCE, wait_for

pytestmark = pytest.mark.slow

CONFIG = """
name = "engine_jobs"
[[corpus.sources]]
reader = "text"
path = "texts"
[corpus]
heldout_share = 0.2
[vocabulary]
size = 300
"""
MACHINE = """
[pipeline]
runner = "PortableRunner"
start_timeout = {start_timeout}
[pipeline.options]
job_endpoint = "localhost:{service}"
environment_type = "EXTERNAL"
environment_config = "localhost:{pool}"
"""
POOL = """
import os, sys, time
from concurrent.futures import ThreadPoolExecutor
import grpc
from apache_beam.portability.api import beam_fn_api_pb2_grpc as service
from apache_beam.runners.worker.worker_pool_main import BeamFnExternalWorkerPoolServicer
class Pool(BeamFnExternalWorkerPoolServicer):
    def StartWorker(self, request, context):
        while not os.path.exists(sys.argv[1]):
            time.sleep(0.05)
        return super().StartWorker(request, context)
server = grpc.server(ThreadPoolExecutor(4))
service.add_BeamFnExternalWorkerPoolServicer_to_server(Pool(), server)
print(server.add_insecure_port("localhost:0"), flush=True)
server.start()
server.wait_for_termination()
"""
STATES = """
import sys, grpc
from apache_beam.portability.api import beam_job_api_pb2 as api, beam_job_api_pb2_grpc as service
with grpc.insecure_channel(f"localhost:{sys.argv[1]}") as channel:
    jobs = service.JobServiceStub(channel).GetJobs(api.GetJobsRequest()).job_info
print(*(api.JobState.Enum.Name(job.state) for job in jobs))
"""


@dataclass(frozen=True)
class Engine:
    """A job service and a pool of workers, and a corpus to prepare."""

    folder: Path
    service: str
    """The service's port."""
    pool: str
    """The pool's."""

    def states(self) -> list[str]:
        """Of all jobs."""
        asked = [sys.executable, "-P", "-c", STATES, self.service]
        done = subprocess.run(asked, check=True, capture_output=True, text=True, timeout=PATIENCE)
        return done.stdout.split()

    @property
    def temporary(self) -> Path:
        """The command's TMPDIR."""
        return self.folder / "temporary"

    def let_workers_begin(self) -> None:
        """From now on the pool starts workers."""
        (self.folder / "gate").touch()

    def start(self, *options: str, start_timeout: float = 900.0) -> "subprocess.Popen[str]":
        """`cloze prepare` on this engine."""
        machine = MACHINE.format(start_timeout=start_timeout, service=self.service, pool=self.pool)
        (self.folder / "machine.toml").write_text(machine)
        argv, environment = command(
            *("prepare", "local.toml", "--on", "machine.toml", "--workspace", "runs", "--json"),
            *options,
        )
        self.temporary.mkdir(exist_ok=True)
        return subprocess.Popen(
            argv,
            env={**environment, "TMPDIR": str(self.temporary)},
            cwd=self.folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[Engine]:
    (tmp_path / "texts").mkdir()
    for number in range(5):
        (tmp_path / "texts" / f"{number}.txt").write_text(text(number, 20))
    (tmp_path / "local.toml").write_text(CONFIG)
    port_file = tmp_path / "port"
    module = "apache_beam.runners.portability.local_job_service_main"
    service = [sys.executable, "-P", "-m", module, "--port_file", str(port_file)]
    pool = [sys.executable, "-P", "-c", POOL, str(tmp_path / "gate")]
    quiet, pipe = subprocess.DEVNULL, subprocess.PIPE
    theirs = {**os.environ, "TMPDIR": str(tmp_path)}
    with (
        subprocess.Popen(service, stderr=quiet, env=theirs) as server,
        subprocess.Popen(pool, stdout=pipe, stderr=quiet, text=True, env=theirs) as workers,
    ):
        try:
            assert workers.stdout
            port = workers.stdout.readline().strip()
            wait_for(lambda: port_file.exists() and port_file.read_text(), what="the job service")
            yield Engine(tmp_path, port_file.read_text(), port)
        finally:
            server.kill()
            workers.kill()


def kill_whole(command: "subprocess.Popen[str]") -> None:
    """Kill -9 the command and all its children, none of which can do anything about it."""
    process = psutil.Process(command.pid)
    family = [process, *process.children(recursive=True)]
    for member in family:
        member.suspend()
    for member in family:
        member.send_signal(signal.SIGKILL)
    command.communicate(timeout=PATIENCE)


def digests(stdout: str) -> dict[str, str]:
    """By stage."""
    return {name: stage["digest"] for name, stage in json.loads(stdout).items()}


def test_a_command_that_is_terminated_cancels_its_job_first(engine: Engine) -> None:
    with engine.start() as running:
        wait_for(lambda: engine.states() == ["RUNNING"], what="the job")
        running.terminate()
        _, said = running.communicate(timeout=PATIENCE)
    assert running.returncode == 143, said
    assert not [*engine.temporary.iterdir()]
    assert engine.states() == ["CANCELLED"]


def test_a_job_is_found_again_after_kill_9_of_the_launcher(engine: Engine) -> None:
    with engine.start() as first:
        noted = "runs/**/engine_job.json"
        wait_for(lambda: [*engine.folder.glob(noted)], what="the job's name")
        kill_whole(first)
    assert engine.states() == ["RUNNING"]
    assert [*engine.temporary.iterdir()]
    engine.let_workers_begin()
    with engine.start() as second:
        output, said = second.communicate(timeout=PATIENCE)
    assert second.returncode == 0, said
    assert "found again" in said
    assert engine.states() == ["DONE"] * 3
    local = cloze("prepare", "local.toml", "--json", "--workspace", "here", cwd=engine.folder)
    assert digests(output) == digests(local.stdout)
    assert not [*engine.folder.glob(noted)]
    assert not [*engine.temporary.iterdir()]


def test_a_job_that_no_worker_begins_is_cancelled_and_named(engine: Engine) -> None:
    with engine.start(start_timeout=2.0) as running:
        _, said = running.communicate(timeout=PATIENCE)
    assert running.returncode == 1
    assert "cancelled, because no worker" in said and "started within 2 s" in said
    assert f"environment_type = EXTERNAL, localhost:{engine.pool}" in said
    assert "Traceback" not in said
    assert set(engine.states()) == {"CANCELLED"}


def test_workers_counters_move_the_progress_line(engine: Engine) -> None:
    engine.let_workers_begin()
    with engine.start() as running:
        _, said = running.communicate(timeout=PATIENCE)
    assert running.returncode == 0, said
    assert "5 documents" in said


def test_a_job_service_that_is_not_there_is_one_line(engine: Engine) -> None:
    with engine.start("--", "--job_endpoint=localhost:1", "--job_server_timeout=1") as running:
        _, said = running.communicate(timeout=PATIENCE)
    assert running.returncode == 1
    assert "no job service answers at localhost:1" in said
    assert not [*engine.temporary.iterdir()]
    assert "Traceback" not in said
