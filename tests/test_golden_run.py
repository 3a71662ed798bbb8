"""The whole way, every real stage: configs/smoke.toml under Prefect, and what follows from it."""

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

import cloze as api
from cloze.artifacts.config import read_toml
from cloze.flows.config import RunConfig
from cloze.model.data.torch_dataset import PretrainingBatches
from tests.conftest import SMOKE, GoldenRun, cloze

STAGES = [
    *("vocabulary", "tokens", "examples", "pretrain"),
    *("labels", "finetune", "evaluate", "report"),
]


def answer(golden: GoldenRun, *arguments: str) -> Any:
    done = cloze(*arguments, "--workspace", str(golden.workspace), "--json")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_the_run_makes_every_stage_and_names_its_report(golden: GoldenRun) -> None:
    report = golden.workspace / "smoke" / "report.html"
    assert golden.stdout.splitlines()[-1] == f"report: {report}"
    assert report.exists()
    record = json.loads((golden.workspace / "smoke" / "run.json").read_text())
    assert record["state"] == "finished"
    assert {stage: found["state"] for stage, found in record["stages"].items()} == dict.fromkeys(
        STAGES, "made"
    )
    assert 0 < record["peak_memory"] < 6 * 2**30


def test_the_report_is_one_file_that_loads_nothing(golden: GoldenRun) -> None:
    page = (golden.workspace / "smoke" / "report.html").read_text()
    assert "<script src" not in page
    assert "<link" not in page
    assert "http://" not in page.replace("http://www.w3.org", "")


def test_the_batches_of_the_run_are_there_for_a_loop_of_ones_own(golden: GoldenRun) -> None:
    batches = api.load_batches("smoke", workspace=str(golden.workspace), padded=True)
    batch = next(iter(batches))
    assert batch["input_ids"].shape == batch["labels"].shape
    run = RunConfig.model_validate(read_toml(SMOKE[0]))
    assert len(batches) == run.pretrain.steps
    (examples,) = golden.workspace.glob("artifacts/examples/*")
    own, other = (
        next(iter(PretrainingBatches(str(examples), run.pretrain, seed=seed, padded=True)))
        for seed in (run.seed, 0)
    )
    assert torch.equal(batch["input_ids"], own["input_ids"])  # the order of the run itself
    assert not torch.equal(batch["input_ids"], other["input_ids"])


def test_run_again_everything_is_reused(golden: GoldenRun) -> None:
    stages = answer(golden, "run", *SMOKE)["stages"]
    assert {found["state"] for found in stages.values()} == {"reused"}


@pytest.mark.slow
def test_an_altered_and_a_deleted_output_are_made_again_and_nothing_else(
    golden: GoldenRun, tmp_path: Path
) -> None:
    workspace = tmp_path / "runs"
    shutil.copytree(golden.workspace, workspace, ignore=shutil.ignore_patterns("prefect"))
    (altered,) = workspace.glob("artifacts/tokens/*/train-00000.*.arrow")
    content = bytearray(altered.read_bytes())
    content[len(content) // 2] ^= 1
    altered.write_bytes(content)
    (deleted,) = workspace.glob("artifacts/labels/*/manifest.json")
    deleted.unlink()
    done = cloze("run", *SMOKE, "--workspace", str(workspace), "--without-prefect", "--json")
    assert done.returncode == 0, done.stderr
    assert "has sha256" in done.stderr
    stages = json.loads(done.stdout)["stages"]
    made = {stage for stage, found in stages.items() if found["state"] == "made"}
    assert made == {"tokens", "labels"}
    record = json.loads((golden.workspace / "smoke" / "run.json").read_text())
    assert {stage: found["digest"] for stage, found in stages.items()} == {
        stage: found["digest"] for stage, found in record["stages"].items()
    }


def test_with_only_fine_tuning_changed_only_what_depends_on_it_would_run(
    golden: GoldenRun,
) -> None:
    planned = answer(golden, "plan", *SMOKE, "--set", "finetune.seeds=[0]")["stages"]
    assert [stage["stage"] for stage in planned if stage["action"] == "run"] == [
        "finetune",
        "evaluate",
        "report",
    ]


def test_a_stage_can_be_repeated_by_hand_from_its_table(golden: GoldenRun, tmp_path: Path) -> None:
    table = json.loads((golden.workspace / "smoke" / "stages" / "examples.json").read_text())
    (tmp_path / "examples.json").write_text(json.dumps({**table, "output": str(tmp_path / "out")}))
    argv = [sys.executable, "-P", "-m", "cloze.pipeline.examples", "--config"]
    done = subprocess.run(
        [*argv, str(tmp_path / "examples.json")], capture_output=True, text=True, check=True
    )
    record = json.loads((golden.workspace / "smoke" / "run.json").read_text())
    assert done.stdout.split()[-1] == record["stages"]["examples"]["digest"]


def test_examples_can_be_read_with_their_masks(golden: GoldenRun) -> None:
    found = answer(golden, "inspect", "smoke/examples", "--rows", "3")
    assert len(found["rows"]) == 3
    assert all("[MASK:" in row["text"] for row in found["rows"])


def test_a_document_can_be_asked_for_by_its_digest(golden: GoldenRun) -> None:
    (first, *_) = answer(golden, "inspect", "smoke/tokens", "--rows", "1")["rows"]
    digest = first["title"].split()[1].rstrip(",")
    (found,) = answer(golden, "inspect", "smoke/tokens", "--document", digest[:10])["rows"]
    assert found == first


@pytest.mark.parametrize("row", [0, 1000])
def test_a_score_is_traced_to_the_document(golden: GoldenRun, row: int) -> None:
    story = answer(golden, "trace", "smoke", "--row", str(row))
    assert [step["what"] for step in story] == [
        *("score", "model", "weights", "examples", "shard"),
        *("example", "tokens", "shard", "document", "text", "file"),
    ]
    document = answer(golden, "inspect", "smoke/tokens", "--document", story[8]["digest"])
    assert document["rows"][0]["text"].replace("\n", " ") == story[-2]["words"]
    assert re.fullmatch(r"(fsspec|networkx), document \d+", story[-1]["words"])
    told = answer(golden, "trace", "smoke", "--row", str(row), "--without-file")
    assert told == story[:-1]


def test_runs_are_listed_shown_and_compared(golden: GoldenRun) -> None:
    (run,) = answer(golden, "runs")["runs"]
    assert (run["run"], run["state"], run["stages"]) == ("smoke", "finished", 8)
    figures = answer(golden, "show", "smoke")["figures"]
    assert {"package mlm_loss", "heldout mlm_loss"} <= set(figures)
    compared = answer(golden, "compare", "smoke", "smoke")
    assert compared["configuration"] == {}
    assert compared["figures"]["package mlm_loss"] == [figures["package mlm_loss"]] * 2


def test_nothing_of_a_run_is_rubbish_but_what_its_making_left_over(golden: GoldenRun) -> None:
    found = answer(golden, "gc")["found"]
    assert {item["reason"] for item in found} <= {"left over from making pretrain"}


def test_a_runs_name_is_a_model(golden: GoldenRun, tmp_path: Path) -> None:
    (answered,) = answer(golden, "fill-mask", "smoke", "The [MASK] of a [MASK].", "--top-k", "3")
    assert [len(fills) for fills in answered["masks"]] == [3, 3]
    exported = answer(golden, "export", "smoke", str(tmp_path / "encoder"))
    names = {Path(path).name for path in exported["files"]}
    assert {"config.json", "model.safetensors", "tokenizer.json", "vocab.txt"} <= names
    again = answer(golden, "fill-mask", exported["directory"], "The [MASK] of a [MASK].")
    assert again[0]["masks"][0][:3] == answered["masks"][0]
    vectors = answer(golden, "embed", "smoke", "a graph", "a number")
    assert vectors["shape"] == [2, 64]


def test_a_run_can_begin_from_another_runs_encoder(golden: GoldenRun) -> None:
    planned = answer(golden, "plan", *SMOKE, "--set", "pretrain.init=smoke")["stages"]
    (pretrain,) = [stage for stage in planned if stage["stage"] == "pretrain"]
    assert any(reason.startswith("input init: absent") for reason in pretrain["reasons"])


@pytest.mark.slow
def test_a_finished_run_is_given_more_steps_as_a_run_of_its_own(
    golden: GoldenRun, tmp_path: Path
) -> None:
    workspace = tmp_path / "runs"
    shutil.copytree(golden.workspace, workspace, ignore=shutil.ignore_patterns("prefect"))
    more = ("--set", "pretrain.continue_from=smoke", "--workspace", str(workspace))
    itself = cloze("pretrain", *SMOKE, *more, "--set", "pretrain.steps=44")
    assert itself.returncode == 2
    assert "a run cannot continue itself; give the longer run another name" in itself.stderr
    named = (*more, "--set", "name=longer")
    as_many = cloze("pretrain", *SMOKE, *named)
    assert as_many.returncode == 2
    assert "has done 40 steps, which pretrain.steps = 40 includes" in as_many.stderr
    done = cloze("pretrain", *SMOKE, *named, "--set", "pretrain.steps=44", "--json")
    assert done.returncode == 0, done.stderr
    assert "continuing after step 40" in done.stderr
    made = json.loads(done.stdout)["pretrain"]
    manifest = json.loads((Path(made["directory"]) / "manifest.json").read_text())
    before = answer(golden, "inspect", "smoke/pretrain")
    assert manifest["inputs"]["continued"] == before["digest"]
    again = cloze("pretrain", *SMOKE, *named, "--set", "pretrain.steps=44", "--json")
    assert json.loads(again.stdout)["pretrain"]["state"] == "reused"
    shutil.rmtree(workspace / "smoke")
    listed = json.loads(cloze("gc", "--workspace", str(workspace), "--json").stdout)["found"]
    doomed = {Path(item["path"]).parent.name for item in listed}
    assert "finetune" in doomed
    assert not doomed & {"pretrain", "examples"}, "the longer run was made from them"


def test_without_show_text_no_text_of_the_corpus_is_in_any_report_or_log(
    golden: GoldenRun, tmp_path: Path
) -> None:
    workspace = tmp_path / "runs"
    shutil.copytree(golden.workspace, workspace, ignore=shutil.ignore_patterns("prefect"))
    quiet = ("--set", "report.show_text=false", "--workspace", str(workspace))
    done = cloze("run", *SMOKE, *quiet, "--without-prefect")
    assert done.returncode == 0, done.stderr
    written = [path for path in (workspace / "smoke").rglob("*") if path.is_file()]
    said = {path.name: words_of(path.read_text()) for path in written}
    said["output"] = words_of(done.stdout + done.stderr)
    rows = answer(golden, "inspect", "smoke/tokens", "--rows", "400")["rows"]
    texts = [words_of(row["text"]) for row in rows]
    runs_of_words = {text[i : i + 6] for text in texts for i in range(len(text) - 6)}
    for name, words in said.items():
        found = {words[i : i + 6] for i in range(len(words) - 6)} & runs_of_words
        assert not found, f"{name} holds {next(iter(found))}"


def words_of(text: str) -> tuple[str, ...]:
    """Lower-case words, as the tokenizer would part them."""
    return tuple(re.findall(r"[a-z]+", text.lower()))


@pytest.mark.slow
def test_training_works_without_compiler_ninja_and_numactl(
    golden: GoldenRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bare = tmp_path / "bin"
    bare.mkdir()
    for tool in ("sh", "bash", "env", "uname", "rm", "cat", "ls"):
        (bare / tool).symlink_to(str(shutil.which(tool)))
    workspace = tmp_path / "runs"
    shutil.copytree(golden.workspace, workspace, ignore=shutil.ignore_patterns("prefect"))
    monkeypatch.setenv("PATH", str(bare))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))  # no kernel compiled before
    assert not any(shutil.which(tool) for tool in ("gcc", "g++", "cc", "ninja", "numactl"))
    done = cloze(
        *("run", *SMOKE, "--workspace", str(workspace), "--without-prefect", "--json"),
        *("--set", "pretrain.steps=20", "--set", "pretrain.evaluate_every=20"),
    )
    assert done.returncode == 0, done.stderr
    stages = json.loads(done.stdout)["stages"]
    made = {stage for stage, found in stages.items() if found["state"] == "made"}
    assert made == {"pretrain", "finetune", "evaluate", "report"}
