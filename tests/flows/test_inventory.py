"""Garbage: artifacts that no run refers to."""

import json
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cloze.artifacts.stage import InputRef, StageTable
from cloze.artifacts.store import WORK, Artifact, commit, put_json
from cloze.flows.config import MachineConfig, RunConfig
from cloze.flows.executor import execute
from cloze.flows.inventory import Retention, ancestors, garbage, remove_garbage
from cloze.flows.plan import Plan
from cloze.flows.workspace import Workspace, read_record, workspace, write_record


@pytest.fixture
def space(inline: Callable[..., None], run: RunConfig, machine: MachineConfig) -> Workspace:
    execute(Plan(run, machine))
    return workspace(machine.workspace)


def stages(space: Workspace) -> list[str]:
    return [Path(item.path).parent.name for item in garbage(space)]


def test_what_a_run_refers_to_is_no_garbage(space: Workspace) -> None:
    assert garbage(space) == []


def test_what_an_earlier_configuration_made_is(
    space: Workspace, run_table: dict[str, Any], machine: MachineConfig
) -> None:
    execute(Plan(RunConfig.model_validate({**run_table, "examples": {"copies": 2}}), machine))
    assert stages(space) == []  # it is kept as a separate run
    shutil.rmtree(space.local / "try.1")
    assert stages(space) == ["evaluate", "examples", "finetune", "pretrain", "report"]
    remove_garbage(garbage(space))
    assert garbage(space) == []
    again = execute(
        Plan(RunConfig.model_validate({**run_table, "examples": {"copies": 2}}), machine)
    )
    assert {stage.state for stage in again.stages.values()} == {"reused"}


def test_another_run_keeps_what_it_refers_to(
    space: Workspace, run_table: dict[str, Any], machine: MachineConfig
) -> None:
    changed = {**run_table, "name": "other", "examples": {"copies": 2}}
    execute(Plan(RunConfig.model_validate(changed), machine))
    assert garbage(space) == []


def test_unfinished_work_of_a_run_is_kept_and_of_nobody_is_not(space: Workspace) -> None:
    directory = next((space.local / "artifacts" / "tokens").iterdir())
    (directory / "manifest.json").unlink()
    assert garbage(space) == []
    nobody = space.local / "artifacts" / "tokens" / ("f" * 64)
    nobody.mkdir()
    (nobody / "part.arrow").write_text("12345")
    (found,) = garbage(space)
    assert (found.path, found.size) == (str(nobody), 5)
    assert found.reason == "unfinished artifact of tokens that no run refers to"


@pytest.mark.parametrize("name", ["checkpoints/step.safetensors", f"finished/{WORK}/part.json"])
def test_what_is_left_over_in_a_finished_artifact_goes_alone(space: Workspace, name: str) -> None:
    """Killed after its manifest was written, a stage leaves working files or records of them."""
    directory = next((space.local / "artifacts" / "tokens").iterdir())
    before = sorted(directory.rglob("*"))
    (directory / name).parent.mkdir()
    (directory / name).write_text("12345")
    (found,) = garbage(space)
    assert found.path == str((directory / name).parent)
    remove_garbage([found])
    assert sorted(directory.rglob("*")) == before


def test_ancestors_are_found_by_their_digests(space: Workspace, run: RunConfig) -> None:
    directory = next((space.local / "artifacts" / "pretrain").iterdir())
    found = ancestors(space.store.find("pretrain", directory.name), store=space.store)
    assert list(found) == ["pretrain", "examples", "tokens", "vocabulary"]


def test_no_link_is_followed_out_of_the_store(space: Workspace, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    (outside / ("a" * 64)).mkdir(parents=True)
    files = [outside / "manifest.json", outside / ("a" * 64) / "weights.bin"]
    for file in files:
        file.write_text("precious")
    artifacts = space.local / "artifacts"
    (artifacts / "stage").symlink_to(outside)
    (artifacts / "tokens" / ("b" * 64)).symlink_to(outside)
    (artifacts / "tokens" / ("c" * 64)).symlink_to(tmp_path / "nowhere")
    finished = next(path for path in (artifacts / "tokens").iterdir() if not path.is_symlink())
    (finished / "aside").symlink_to(outside)
    found = garbage(space)
    assert {Path(item.path).name for item in found} == {"b" * 64, "c" * 64, "aside"}
    assert sum(item.size for item in found) == 0
    remove_garbage(found)
    assert [file.read_text() for file in files] == ["precious", "precious"]
    assert garbage(space) == []


@pytest.mark.parametrize("where", ["digest", "finished", "folder", "artifact"])
def test_repairing_an_artifact_from_a_stranger_removes_nothing_elsewhere(
    space: Workspace, run: RunConfig, machine: MachineConfig, tmp_path: Path, where: str
) -> None:
    precious = tmp_path / "precious"
    precious.mkdir()
    artifact = next((space.local / "artifacts" / "tokens").iterdir())
    manifest = json.loads((artifact / "manifest.json").read_text())
    entry = manifest["files"][0]
    if where == "digest":  # then its stored name is <stem>./precious.<suffix>
        entry["sha256"] = "/precious"
        (artifact / f"{entry['name'].rpartition('.')[0]}.").symlink_to(tmp_path)
    if where == "folder":
        entry["name"] = "folder/part"
        (artifact / "folder").symlink_to(precious)
    if where == "finished":
        shutil.rmtree(artifact / "finished")
        (artifact / "finished").symlink_to(precious)
    stored = f"part.{entry['sha256'][:12]}"
    files = [precious / name for name in (stored, f"{entry['name']}.json", "weights.bin")]
    for file in files:
        file.parent.mkdir(exist_ok=True)
        file.write_text("precious")
    entry["size"] = 1
    if where == "artifact":
        (precious / "manifest.json").write_text(json.dumps(manifest))
        shutil.rmtree(artifact)
        artifact.symlink_to(precious)
    else:
        (artifact / "manifest.json").write_text(json.dumps(manifest))
    before = {path: path.read_bytes() for path in precious.rglob("*") if path.is_file()}
    record = execute(Plan(run, machine))
    assert record.stages["tokens"].state == "made"
    assert {path: path.read_bytes() for path in precious.rglob("*") if path.is_file()} == before


def test_a_model_that_was_imported_stays(space: Workspace) -> None:
    made = next((space.local / "artifacts" / "tokens").iterdir())
    shutil.copytree(made, space.local / "artifacts" / "import" / ("d" * 64))
    assert garbage(space) == []


def days_ago(days: float) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(time.time() - 86_400 * days))


def test_artifacts_of_old_runs_go_their_reports_stay_and_shared_ones_too(
    space: Workspace, run_table: dict[str, Any], machine: MachineConfig
) -> None:
    """The newer run has other examples of the same tokens."""
    changed = {**run_table, "name": "newer", "examples": {"copies": 2}}
    execute(Plan(RunConfig.model_validate(changed), machine))
    write_record(read_record(space, "try").model_copy(update={"finished_at": days_ago(91)}), space)
    assert garbage(space) == []
    assert garbage(space, Retention(runs=92)) == []
    found = garbage(space, Retention(runs=90))
    assert [Path(item.path).parent.name for item in found] == [
        *("evaluate", "examples", "finetune", "pretrain", "report")
    ]
    assert found[0].reason == "artifact of evaluate that no run of the last 90 days refers to"
    remove_garbage(found)
    assert read_record(space, "try").state == "finished"
    assert (space.local / "try" / "report.html").exists()
    assert {
        s.state for s in execute(Plan(RunConfig.model_validate(changed), machine)).stages.values()
    } == {"reused"}


def test_a_search_index_stays_for_days_with_what_it_was_made_from(space: Workspace) -> None:
    def index(stage: str, source: str, days: float, inputs: dict[str, InputRef]) -> Artifact:
        table = StageTable(
            stage=stage, format_version=1, config={"of": source}, inputs=inputs, output=""
        )
        output = space.store.directory(stage, table.key)
        table = table.model_copy(update={"output": output})
        made = commit(
            table, [put_json(output, [source], name="rows.json")], execution={"source": source}
        )
        path = Path(output) / "manifest.json"
        manifest = json.loads(path.read_text())
        manifest["execution"]["finished_at"] = days_ago(days)
        path.write_text(json.dumps(manifest))
        return made

    old = index("vectors", "guides", 40, {})
    index("vector_graph", "guides", 3, {"vectors": InputRef(digest=old.digest)})
    index("vectors", "notes", 29, {})
    index("vectors", "attic", 31, {})
    (found,) = garbage(space)
    assert found.reason == "vectors of attic, 31 days old"
    assert len(garbage(space, Retention(searches=1))) == 4
    assert garbage(space, Retention(searches=32)) == []
