"""Two nodes: a hostfile, DeepSpeed's own launcher on each, and a network between them."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from network import ADDRESSES, can_make_networks, two_machines
from training_fixtures import examples_artifact, losses, run_ranks, stage_table

from artifacts.store import open_artifact

PORT = "29631"


def _start_node(name: str, node: int, table: Path, hostfile: Path) -> "subprocess.Popen[str]":
    supervised = ["model.training.supervisor", "model.training.pretrain", "--config", str(table)]
    launcher = ["--hostfile", str(hostfile), "--no_ssh", "--node_rank", str(node)]
    master = ["--master_addr", ADDRESSES[0], "--master_port", PORT]
    return subprocess.Popen(
        ["ip", "netns", "exec", name, sys.executable, "-P", "-m", *supervised, *launcher, *master],
        env={**os.environ, "GLOO_SOCKET_IFNAME": "eth0", "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.mark.slow
@pytest.mark.skipif(not can_make_networks(), reason="network namespaces need root and `ip`")
def test_two_nodes_end_with_the_same_bytes_as_two_ranks_on_one(tmp_path: Path) -> None:
    examples = examples_artifact(tmp_path / "examples")
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
    (rank, _) = run_ranks(2, [{"table": str(stage_table(tmp_path / "one", examples))}])
    assert rank.ends == [{"end": "done", "message": ""}]
    hostfile = tmp_path / "hostfile"
    hostfile.write_text("".join(f"{address} slots=1\n" for address in ADDRESSES))
    table = stage_table(tmp_path / "two", examples)
    with two_machines() as machines:
        nodes = [_start_node(m, node, table, hostfile) for node, m in enumerate(machines)]
        try:
            said = [node.communicate(timeout=400) for node in nodes]
        finally:
            for node in nodes:
                node.kill()
    assert [node.returncode for node in nodes] == [0, 0], said
    assert losses(tmp_path / "two") == losses(tmp_path / "one")
    one, two = (open_artifact(str(tmp_path / name / "out")) for name in ("one", "two"))
    assert one.digest == two.digest
