"""The golden run once more, on a workspace behind a URL whose store fails now and then."""

import json
import os
from pathlib import Path

import pytest

from tests.conftest import SMOKE, GoldenRun, cloze
from tests.running import RunFolder


@pytest.mark.slow
def test_a_workspace_on_a_faulty_object_store_gives_the_same_digests(
    golden: GoldenRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plugin = str(Path(__file__).parent / "object_store")
    before = os.environ.get("PYTHONPATH")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, (plugin, before))))
    monkeypatch.setenv("FAULTY_EVERY", "7")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    workspace = f"faulty://{tmp_path}/store"
    done = cloze("run", *SMOKE, "--workspace", workspace, "--without-prefect")
    assert done.returncode == 0, done.stderr
    assert RunFolder(tmp_path / "store").digests() == golden.digests()
    again = cloze("run", *SMOKE, "--workspace", workspace, "--without-prefect", "--json")
    stages = json.loads(again.stdout)["stages"].values()
    assert {stage["state"] for stage in stages} == {"reused"}
