"""Two nodes: a hostfile, DeepSpeed's own launcher on each, and a network between them."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from cloze.artifacts.store import Artifact, open_artifact
from tests.model.training.training_fixtures import examples_artifact, losses, run_ranks, stage_table
from tests.network import ADDRESSES, can_make_networks, ssh_between, two_machines
from tests.waiting import PATIENCE

PORT = "29631"


def _start_node(name: str, node: int, table: Path, hostfile: Path) -> "subprocess.Popen[str]":
    supervised = [
        "cloze.model.training.supervisor",
        "cloze.model.training.pretrain",
        "--config",
        str(table),
    ]
    launcher = ["--hostfile", str(hostfile), "--no_ssh", "--node_rank", str(node)]
    master = ["--master_addr", ADDRESSES[0], "--master_port", PORT]
    return subprocess.Popen(
        ["ip", "netns", "exec", name, sys.executable, "-P", "-m", *supervised, *launcher, *master],
        env={**os.environ, "GLOO_SOCKET_IFNAME": "eth0", "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


needs_networks = pytest.mark.skipif(
    not can_make_networks(), reason="network namespaces need root and `ip`"
)
needs_pdsh = pytest.mark.skipif(
    not (shutil.which("pdsh") and shutil.which("sshd")), reason="pdsh or sshd is not installed"
)


@pytest.fixture
def hostfile(tmp_path: Path) -> Path:
    path = tmp_path / "hostfile"
    path.write_text("".join(f"{address} slots=1\n" for address in ADDRESSES))
    return path


@pytest.fixture
def examples(tmp_path: Path) -> Artifact:
    return examples_artifact(tmp_path / "examples")


@pytest.fixture
def one_node(tmp_path: Path, examples: Artifact) -> Path:
    """The output of training with two ranks on this machine."""
    folder = tmp_path / "one"
    folder.mkdir()
    (rank, _) = run_ranks(2, [{"table": str(stage_table(folder, examples))}])
    assert rank.ends == [{"end": "done", "message": ""}]
    return folder


@pytest.fixture
def table(tmp_path: Path, examples: Artifact) -> Path:
    """The same run for two machines."""
    folder = tmp_path / "two"
    folder.mkdir()
    return stage_table(folder, examples)


@pytest.mark.slow
@needs_networks
def test_two_nodes_end_with_the_same_bytes_as_two_ranks_on_one(
    one_node: Path, table: Path, hostfile: Path
) -> None:
    with two_machines() as machines:
        nodes = [
            _start_node(machine, node, table, hostfile) for node, machine in enumerate(machines)
        ]
        try:
            said = [node.communicate(timeout=2 * PATIENCE) for node in nodes]
        finally:
            for node in nodes:
                node.kill()
    assert [node.returncode for node in nodes] == [0, 0], said
    _assert_equal_runs(one_node, table.parent)


@pytest.mark.slow
@needs_networks
@needs_pdsh
def test_a_launch_through_ssh_ends_with_the_same_bytes(
    one_node: Path, table: Path, hostfile: Path, tmp_path: Path
) -> None:
    (tmp_path / ".deepspeed_env").write_text("GLOO_SOCKET_IFNAME=eth0\nOMP_NUM_THREADS=1\n")
    with two_machines() as machines, ssh_between(machines, tmp_path) as config:
        on_the_first = ["ip", "netns", "exec", machines[0], sys.executable, "-m"]
        launcher = ["deepspeed.launcher.runner", "--hostfile", str(hostfile), "--launcher", "pdsh"]
        master = ["--no_ssh_check", "--master_addr", ADDRESSES[0], "--master_port", PORT]
        program = ["--module", "cloze.model.training.pretrain", "--config", str(table)]
        done = subprocess.run(
            [*on_the_first, *launcher, *master, *program],
            env={**os.environ, "PDSH_SSH_ARGS_APPEND": f"-F {config}"},
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=2 * PATIENCE,
            check=False,
        )
    assert done.returncode == 0, done.stderr[-3000:]
    _assert_equal_runs(one_node, table.parent)


def _assert_equal_runs(one_node: Path, two_nodes: Path) -> None:
    assert losses(two_nodes) == losses(one_node)
    one, two = (open_artifact(str(folder / "out")) for folder in (one_node, two_nodes))
    assert one.digest == two.digest
