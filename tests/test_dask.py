"""All of preparation on a Dask cluster, whose workers die on the way."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.cloze.execution.test_text_folder import text
from tests.conftest import cloze, command
from tests.engines import configuration
from tests.network import ADDRESSES, can_make_networks, two_machines
from tests.waiting import PATIENCE, free_port, wait_for

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(find_spec("distributed") is None, reason="wants the extra `dask`"),
]

MACHINE = """
[pipeline]
runner = "DaskRunner"
[pipeline.options]
dask_client_address = "tcp://{host}:{port}"
dask_npartitions = 4
"""
WORKER = ("--nthreads", "1", "--no-nanny", "--no-dashboard")

KEYS = 100_000


@dataclass
class Cluster:
    """A scheduler, its workers, and a corpus to prepare."""

    folder: Path
    port: int
    host: str = "127.0.0.1"
    """The scheduler's address."""
    processes: "list[subprocess.Popen[bytes]]" = field(default_factory=list)
    """The scheduler, and workers in the order of their start."""

    def start(self, program: str, *options: str, machine: str = "") -> None:
        """A program of Dask's, which logs to a file; on another machine, if one is named."""
        number = len(self.processes)
        argv = [sys.executable, "-P", "-m", f"distributed.cli.dask_{program}", *options]
        argv = [*_on(machine), *argv]
        with (self.folder / f"{program}-{number}.log").open("wb") as log:
            environment = {**os.environ, "TMPDIR": str(self.folder)}
            self.processes.append(
                subprocess.Popen(argv, stdout=log, stderr=log, cwd=self.folder, env=environment)
            )

    def start_scheduler(self, machine: str = "") -> None:
        """The scheduler, or another one in its place."""
        where = ("--host", self.host, "--port", str(self.port))
        self.start("scheduler", *where, "--no-dashboard", machine=machine)

    def start_worker(self, machine: str = "") -> None:
        """One more, which dies alone if it is killed."""
        self.start("worker", f"tcp://{self.host}:{self.port}", *WORKER, machine=machine)

    @property
    def said(self) -> str:
        """The scheduler's log."""
        return (self.folder / "scheduler-0.log").read_text()

    def prepare(self, machine: str = "") -> "subprocess.Popen[str]":
        """`cloze prepare` on the cluster."""
        address = {"port": self.port, "host": self.host}
        (self.folder / "machine.toml").write_text(MACHINE.format(**address))
        argv, environment = command(
            *("prepare", "local.toml", "--on", "machine.toml", "--workspace", "runs", "--json")
        )
        return subprocess.Popen(
            [*_on(machine), *argv],
            env=environment,
            cwd=self.folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def wait_for_file(self, pattern: str) -> None:
        """Until the job has written one."""
        wait_for(lambda: [*self.folder.glob(f"runs/artifacts/{pattern}")], what=pattern)


def _on(machine: str) -> list[str]:
    return ["ip", "netns", "exec", machine] if machine else []


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    (tmp_path / "texts").mkdir()
    for number in range(200):
        (tmp_path / "texts" / f"{number}.txt").write_text(text(number, 5))
    (tmp_path / "local.toml").write_text(configuration())
    made = Cluster(tmp_path, free_port())
    try:
        yield made
    finally:
        for process in made.processes:
            process.kill()
            process.wait()


def digests(stdout: str) -> dict[str, str]:
    """By stage, of `cloze prepare --json`."""
    return {name: stage["digest"] for name, stage in json.loads(stdout).items()}


def test_a_cluster_whose_workers_die_makes_the_bytes_that_are_made_here(cluster: Cluster) -> None:
    local = cloze("prepare", "local.toml", "--json", "--workspace", "here", cwd=cluster.folder)
    assert local.returncode == 0, local.stderr
    cluster.start_scheduler()
    cluster.start_worker()
    cluster.start_worker()
    with cluster.prepare() as running:
        cluster.wait_for_file("tokens/**/shuffle_plan.json")
        _, first, second = cluster.processes
        first.send_signal(signal.SIGKILL)
        cluster.start_worker()
        cluster.wait_for_file("tokens/*/*.arrow")
        second.send_signal(signal.SIGKILL)
        output, said = running.communicate(timeout=2 * PATIENCE)
    assert running.returncode == 0, said
    assert "dedup: made" in said and "dedup: made" in local.stderr
    assert digests(output) == digests(local.stdout)
    assert cluster.said.count("Remove worker") >= 2


def test_a_command_that_is_terminated_leaves_no_job(cluster: Cluster) -> None:
    cluster.start_scheduler()
    with cluster.prepare() as running:  # nobody works on it
        wait_for(lambda: "Receive client connection" in cluster.said, what="the job")
        running.terminate()
        _, said = running.communicate(timeout=PATIENCE)
    assert running.returncode == 143, said
    wait_for(lambda: "Remove client" in cluster.said, what="its end")


def test_a_scheduler_that_is_not_there_is_one_line(cluster: Cluster) -> None:
    cluster.port = 1
    with cluster.prepare() as running:
        _, said = running.communicate(timeout=PATIENCE)
    assert running.returncode == 1
    assert "start the scheduler, or correct dask_client_address" in said
    assert "Traceback" not in said


def test_every_one_of_100000_seeded_keys_is_one_group_with_all_its_values(cluster: Cluster) -> None:
    cluster.start_scheduler()
    cluster.start_worker()
    cluster.start_worker()
    file = cluster.folder / "groups.json"
    program = str(Path(__file__).with_name("dask_groups.py"))
    where = (f"tcp://127.0.0.1:{cluster.port}", str(KEYS), str(file), str(cluster.folder / "out"))
    done = subprocess.run(
        [sys.executable, program, *where],
        capture_output=True,
        text=True,
        check=False,
        timeout=4 * PATIENCE,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    groups = json.loads(file.read_text())
    assert len(groups) == len({key for key, _ in groups}) == KEYS
    assert {len(set(values)) for _, values in groups} == {4}


@pytest.mark.skipif(not can_make_networks(), reason="network namespaces need root and `ip`")
def test_two_hosts_that_lose_a_worker_and_then_the_scheduler_make_the_bytes_that_are_made_here(
    cluster: Cluster,
) -> None:
    local = cloze("prepare", "local.toml", "--json", "--workspace", "here", cwd=cluster.folder)
    assert local.returncode == 0, local.stderr
    with two_machines() as (first, second):
        cluster.host = ADDRESSES[0]
        cluster.start_scheduler(first)
        cluster.start_worker(first)
        cluster.start_worker(second)
        with cluster.prepare(first) as running:
            cluster.wait_for_file("tokens/**/shuffle_plan.json")
            scheduler, _, there = cluster.processes
            there.send_signal(signal.SIGKILL)
            cluster.start_worker(second)
            cluster.wait_for_file("tokens/*/*.arrow")
            scheduler.send_signal(signal.SIGKILL)
            _, said = running.communicate(timeout=2 * PATIENCE)
        assert running.returncode == 1, said
        assert "the same command" in said
        assert "Traceback" not in said
        for process in cluster.processes:
            process.kill()
            process.wait()
        cluster.start_scheduler(first)
        cluster.start_worker(first)
        cluster.start_worker(second)
        with cluster.prepare(first) as running:
            output, said = running.communicate(timeout=2 * PATIENCE)
        assert running.returncode == 0, said
    assert "vocabulary: reused" in said
    assert digests(output) == digests(local.stdout)
