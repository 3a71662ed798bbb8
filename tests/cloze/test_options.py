"""`--set`: fields of the run and of the machine; runs, artifacts and models by name."""

import subprocess
import sys
from pathlib import Path

import pytest

from cloze.artifacts.errors import ClozeError, UsageError
from cloze.flows.config import MachineConfig, RunConfig
from cloze.flows.workspace import RunRecord, StageRecord, workspace, write_record
from cloze.named import model_directory, named_artifact, vectors_directory
from cloze.options import Target
from tests.conftest import SMOKE

CONFIG = Path(SMOKE[0])


def test_a_setting_is_assigned_by_its_table() -> None:
    target = Target(set=["training.tensorboard=logs", "pretrain.steps=5", "workspace=elsewhere"])
    assert target.read(CONFIG)[0].pretrain.steps == 5
    assert target.machine().training.tensorboard == "logs"
    assert target.machine().workspace == "elsewhere"


def test_run_and_machine_have_no_table_in_common() -> None:
    assert not RunConfig.model_fields.keys() & MachineConfig.model_fields.keys()


def test_a_wrong_setting_of_the_machine_is_named() -> None:
    with pytest.raises(UsageError, match=r"--set: training\.zero_stage"):
        Target(set=["training.zero_stage=9"]).machine()


def test_a_runs_folder_is_no_model_and_the_error_gives_its_name(tmp_path: Path) -> None:
    folder = tmp_path / "runs" / "demo"
    folder.mkdir(parents=True)
    (folder / "run.json").write_text("{}")
    others = workspace(str(tmp_path / "others"))
    with pytest.raises(UsageError, match=rf"use the run's name, demo, .*{folder.parent} if"):
        model_directory(f"{folder}/", others)


def test_a_directory_that_is_no_run_is_used_directly(tmp_path: Path) -> None:
    assert model_directory(str(tmp_path), workspace(str(tmp_path / "runs"))) == str(tmp_path)


def test_a_run_named_where_an_artifact_is_wanted_lists_its_artifacts(tmp_path: Path) -> None:
    space = workspace(str(tmp_path))
    (tmp_path / "demo").mkdir()
    record = RunRecord(name="demo", state="running", config={}, machine={}, started_at="")
    write_record(record, space)
    with pytest.raises(UsageError, match="demo: this is a run; name one of its artifacts"):
        named_artifact("demo", space)


def test_names_are_looked_up_without_the_packages_of_the_command_line() -> None:
    code = "import sys, cloze.named; print({'cyclopts', 'rich', 'torch'} & sys.modules.keys())"
    done = subprocess.run(
        [sys.executable, "-P", "-c", code], capture_output=True, text=True, check=True
    )
    assert done.stdout == "set()\n"


@pytest.mark.parametrize(
    ("kind", "save", "stage"),
    [
        ("retrieval", "best", "finetune"),
        ("retrieval", "none", "pretrain"),
        ("span", "best", "pretrain"),
    ],
)
def test_texts_are_compared_by_the_encoder_that_a_run_saved_for_it(
    tmp_path: Path, kind: str, save: str, stage: str
) -> None:
    """Also of a record that another version has written."""
    space = workspace(str(tmp_path))
    tuned = {"tasks": [{"kind": "tagging"}, {"kind": kind, "unknown": 1}], "save": save}
    made = StageRecord(key="k", digest="d", state="made")
    record = RunRecord(
        name="demo",
        state="finished",
        config={"finetune": tuned},
        machine={},
        started_at="",
        stages={"pretrain": made, "finetune": made},
    )
    write_record(record, space)
    with pytest.raises(ClozeError, match=f"artifacts/{stage}/k"):  # it is not there
        vectors_directory("demo", space)
