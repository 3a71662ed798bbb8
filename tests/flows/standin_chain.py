"""A run of stand-ins, started by the command, in any number of workspaces.

In:  an empty folder.
Out: processes of runs, and the digests of an undisturbed run.
"""

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.conftest import PROJECT
from tests.waiting import PATIENCE

RUN = """
name = "try"
corpus.sources = [{{reader = "text", path = "{texts}"}}]
finetune.tasks = [{{name = "parts", kind = "tagging"}}]
labels = {{packages = ["rich"], test_packages = ["fsspec"]}}
"""


@dataclass(frozen=True)
class Chain:
    """A run of stand-ins: its folder, and its digests if it is not disturbed."""

    folder: Path
    expected: dict[str, str]
    module: str = "tests.flows.standin_cloze"
    """The command with stand-ins for all stages, or `cloze` itself."""

    configuration: tuple[str, ...] = ()
    """A configuration and overrides; empty: `run.toml` in the folder."""

    def workspace(self, name: str) -> Path:
        """An empty workspace."""
        return self.folder / name

    def begin(
        self,
        name: str,
        *options: str,
        verb: str = "run",
        api: str = "",
        run: str = "try",
        machine: str = "",
    ) -> "subprocess.Popen[str]":
        """`cloze run`, or `verb`, in the workspace called `name`, as the run called `run`.

        With `machine`, on a simulated machine that only shares an object store with others.
        """
        workspace = f"{'faulty://' if machine else ''}{self.workspace(name)}"
        environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join((str(PROJECT), str(PROJECT / "tests" / "object_store"))),
            "PREFECT_API_URL": api,
            "XDG_STATE_HOME": str(self.folder / f"state-{machine}"),
        }
        return subprocess.Popen(
            [
                *(sys.executable, "-P", "-m", self.module, verb),
                *(self.configuration or (str(self.folder / "run.toml"),)),
                *("--workspace", workspace, "--set", f"name={run}", *options),
            ],
            cwd=PROJECT,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def digests(self, name: str, *, run: str = "try") -> dict[str, str]:
        """The digests of the stages of a run in a workspace."""
        return {stage: found["digest"] for stage, found in self.stages(name, run=run).items()}

    def stages(self, name: str, *, run: str = "try") -> dict[str, dict[str, str]]:
        """The stages in the record of a run in a workspace."""
        record = json.loads((self.workspace(name) / run / "run.json").read_text())
        return dict(record["stages"])


def ends(runs: "list[subprocess.Popen[str]]") -> list[tuple[int, str]]:
    """Exit code and standard error of each process; fails if one of them hangs."""
    found = []
    for run in runs:
        try:
            _, said = run.communicate(timeout=PATIENCE)
        except subprocess.TimeoutExpired:
            run.kill()
            pytest.fail(f"a run hangs; it said {run.communicate()[1]}")
        found.append((run.returncode, said))
    return found


def make_chain(folder: Path) -> Chain:
    """A chain in `folder`, run once."""
    (folder / "texts").mkdir()
    (folder / "texts" / "one.txt").write_text("The first document.\n")
    (folder / "run.toml").write_text(RUN.format(texts=folder / "texts"))
    chain = Chain(folder, {})
    ((code, said),) = ends([chain.begin("undisturbed", "--without-prefect")])
    assert code == 0, said
    return Chain(folder, chain.digests("undisturbed"))
