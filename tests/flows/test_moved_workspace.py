"""A workspace that is moved or copied: all commands still work on it."""

import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from cloze.artifacts.filesystem import join
from cloze.command import exit_code
from cloze.execution import preflight

CONFIG = """
name = "{name}"
corpus.sources = [{{reader = "text", path = "texts"}}]
finetune.tasks = [{{name = "parts", kind = "tagging"}}]
labels = {{packages = ["rich"], test_packages = ["fsspec"]}}
"""

Answers = Callable[..., dict[str, object]]


@pytest.fixture
def answer(
    inline: Callable[..., None],
    capfd: pytest.CaptureFixture[str],
    texts: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Answers:
    """The JSON output of `cloze ...` with stand-ins for all stages."""
    # the encoder of a stand-in has no architecture to compare
    monkeypatch.setattr(preflight, "_check_pretraining", lambda plan: None)

    def call(*arguments: str) -> dict[str, object]:
        code = exit_code([*arguments, "--json"])
        captured = capfd.readouterr()
        assert code == 0, captured.err
        return dict(json.loads(captured.out))

    return call


@pytest.fixture
def made(answer: Answers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A workspace with a finished run, and one that continues its pre-training."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "try.toml").write_text(CONFIG.format(name="try"))
    (tmp_path / "more.toml").write_text(CONFIG.format(name="more") + "pretrain.init = 'try'\n")
    answer("report", "try.toml")
    answer("report", "more.toml")
    return tmp_path / "runs"


def test_a_run_record_names_no_place_on_this_machine(made: Path) -> None:
    for run in ("try", "more"):
        told = json.loads((made / run / "run.json").read_text())
        assert [word for word in words(told) if str(made) in word or sys.prefix in word] == []
    assert told["config"]["pretrain"]["init"].startswith("{workspace}/artifacts/pretrain/")


@pytest.mark.parametrize("way", ["moved", "copied"])
def test_what_was_made_is_reused_and_shown_where_the_workspace_lies_now(
    made: Path, way: str, answer: Answers
) -> None:
    there = made.parent / "elsewhere" / "runs"
    there.parent.mkdir()
    if way == "moved":
        made.rename(there)
    else:
        shutil.copytree(made, there)
        shutil.rmtree(made)
    place = ("--workspace", str(there))
    for config in ("try.toml", "more.toml"):
        (report,) = answer("report", config, *place).values()
        assert isinstance(report, dict)
        assert report["state"] == "reused"
        assert report["directory"].startswith(f"{there}/artifacts/report/")
    assert not made.exists(), "nothing was written where the workspace was"

    runs = answer("runs", *place)["runs"]
    assert isinstance(runs, list)
    assert {run["run"]: run["state"] for run in runs} == {"try": "finished", "more": "finished"}
    looked = answer("inspect", "more/pretrain", *place)
    assert str(looked["directory"]).startswith(f"{there}/artifacts/pretrain/")
    shown = answer("show", "try", *place)["record"]
    assert isinstance(shown, dict)
    assert shown["stages"]["tokens"]["directory"].startswith(str(there))
    assert answer("gc", *place)["found"] == []


def test_a_copy_does_not_read_the_original(made: Path, answer: Answers) -> None:
    there = made.parent / "copy"
    shutil.copytree(made, there)
    looked = answer("inspect", "try/pretrain", "--workspace", str(there))
    assert str(looked["directory"]).startswith(f"{there}/")


def test_a_record_with_absolute_directories_of_an_earlier_version_is_read(
    made: Path, answer: Answers
) -> None:
    file = made / "try" / "run.json"
    told = json.loads(file.read_text().replace("{workspace}", str(made)))
    for stage, found in told["stages"].items():
        found["directory"] = join(str(made), f"artifacts/{stage}/{found['key']}")
    file.write_text(json.dumps(told))
    there = made.rename(made.parent / "elsewhere")
    looked = answer("inspect", "try/pretrain", "--workspace", str(there))
    assert str(looked["directory"]).startswith(f"{there}/artifacts/pretrain/")


def words(value: object) -> list[str]:
    """Every string in a JSON value."""
    if isinstance(value, str):
        return [value]
    inside = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return [word for item in inside for word in words(item)]


def test_a_backup_put_back_is_reused_and_what_it_lacks_is_made_again(
    made: Path, answer: Answers, tmp_path: Path
) -> None:
    """The backup is a tar file; the second one lacks what can be made again."""
    whole = shutil.make_archive(str(tmp_path / "whole"), "tar", made.parent, "runs")
    shutil.rmtree(made / "artifacts" / "examples")
    few = shutil.make_archive(str(tmp_path / "few"), "tar", made.parent, "runs")
    (victim,) = (made / "artifacts" / "tokens").glob("*/content.*.json")
    for backup, again in ((whole, set()), (few, {"examples"})):
        shutil.rmtree(made)
        shutil.unpack_archive(backup, made.parent, filter="data")
        found = answer("report", "try.toml", "--workspace", str(made))
        assert found
        record = json.loads((made / "try" / "run.json").read_text())
        states = {stage: one["state"] for stage, one in record["stages"].items()}
        assert {stage for stage, state in states.items() if state == "made"} == again

    # damage done on the way is found, and mended
    victim.write_text("{}")
    answer("report", "try.toml", "--workspace", str(made))
    record = json.loads((made / "try" / "run.json").read_text())
    assert record["stages"]["tokens"]["state"] == "made"
    assert record["stages"]["examples"]["state"] == "reused"
