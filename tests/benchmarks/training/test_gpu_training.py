"""The logic of the GPU programs, run tiny on a CPU, so that it does not break unnoticed."""

import dataclasses
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks.training import gpu_training
from benchmarks.training.gpu_training import Case, Outcome
from benchmarks.training.transformers_steps import micro_batches
from benchmarks.training.workload import Workload

SCRIPT = Path(__file__).resolve().parents[3] / "benchmarks" / "gpu_first_hour.sh"


@pytest.mark.slow
@pytest.mark.long
def test_the_first_hours_self_test_passes_every_part(tmp_path: Path) -> None:
    run = subprocess.run(
        [str(SCRIPT), "--self-test", str(tmp_path)],
        check=False,
        capture_output=True,
        text=True,
        timeout=1200,
        env={**os.environ, "PYTHON": sys.executable},
    )
    assert run.returncode == 0, run.stderr
    parts = {part["part"]: part for part in json.loads((tmp_path / "summary.json").read_text())}
    assert list(parts) == ["syncs", "parity", "shapes", "profile", "benchmark"]
    apart = parts["parity"]["found"]["largest_difference"]
    assert apart == {"bert": 0, "modern": 0, "modern muon": 0}
    assert set(parts["syncs"]["found"]["waits_a_step"]) == {"bert", "modern"}
    assert parts["profile"]["found"]["top"]
    results = json.loads((tmp_path / "benchmark.json").read_text())["results"]
    for name in ("tiny 128 ours_eager", "tiny 128 huggingface"):
        assert results[name]["examples_per_second"] > 0
        assert results[name]["micro_batch_tokens"] in (512, 1024)
        assert 90 < results[name]["mean_length"] < 118
    assert results["tiny 128-full ours_fp8"]["mean_length"] == 128
    for side in ("ours_muon", "huggingface"):
        assert results[f"modern-tiny 128-full {side}"]["mean_length"] == 128
    assert "not_run" in results["tiny 128 padding_free"]  # flash-attn is not installed
    assert "| tiny | 128 | ours_eager |" in run.stdout


def test_the_first_hour_runs_every_part_even_if_one_fails(
    tmp_path: Path,
) -> None:
    called = tmp_path / "called"
    stand_in = tmp_path / "python"
    stand_in.write_text(
        f"""#!/bin/sh
[ "$1" != - ] || exec {sys.executable} "$@"
echo "$TORCH_LOGS" "$@" >>{called}
echo '{{"found": true}}'
[ "$3" != parity ]
"""
    )
    stand_in.chmod(0o755)
    (tmp_path / "nvidia-smi").write_text("#!/bin/sh\necho one GPU\n")
    (tmp_path / "nvidia-smi").chmod(0o755)
    folder = tmp_path / "found"
    run = subprocess.run(
        [str(SCRIPT), str(folder)],
        check=False,
        capture_output=True,
        text=True,
        timeout=120,
        env={"PATH": f"{tmp_path}:{os.environ['PATH']}", "PYTHON": str(stand_in)},
    )
    assert run.returncode == 1, run.stderr
    parts = {part["part"]: part for part in json.loads((folder / "summary.json").read_text())}
    names = ["machine", "tests", "syncs", "parity", "shapes", "profile", "benchmark"]
    assert list(parts) == names
    assert [name for name in names if parts[name]["outcome"] != "passed"] == ["parity"]
    assert parts["benchmark"]["found"] == {"found": True}
    checks = [f" -m benchmarks.gpu.checks {name}" for name in names[2:6]]
    checks[2] = f"recompiles,graph_breaks{checks[2]}"
    assert called.read_text().splitlines() == [
        " -m pytest -q -m gpu -p no:cacheprovider tests/model",
        *checks,
        f" benchmarks/training/gpu_training.py --minutes 20 --out {folder}/benchmark.json",
    ]
    minutes = re.findall(r"^\w+ \(at most (\d+) minutes\)", run.stderr, re.M)
    assert len(minutes) == len(names)
    assert sum(map(int, minutes)) < 40


def test_all_tests_that_need_a_gpu_are_where_the_first_hour_looks() -> None:
    tests = SCRIPT.parents[1] / "tests"
    mark = "pytest.mark." + "gpu"
    marked = [path for path in tests.rglob("*.py") if mark in path.read_text()]
    assert marked
    assert all(path.is_relative_to(tests / "model") for path in marked)


@pytest.mark.parametrize(
    ("end", "reason"),
    [
        (subprocess.CompletedProcess("", 1, "", "Traceback\nCUDA error: no kernel\n"), "no kernel"),
        (subprocess.CompletedProcess("", -11, "", ""), "exit code -11"),
        (subprocess.TimeoutExpired("", 5.0), "not done after"),
    ],
)
def test_a_failed_case_costs_one_figure_and_results_are_written_after_each(
    end: Any, reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "found.json"
    kept: list[int] = []

    def run(command: list[str], **_: Any) -> Any:
        kept.append(len(json.loads(out.read_text())["results"]) if out.exists() else 0)
        if "ours_fp8" in command[3]:
            if isinstance(end, Exception):
                raise end
            return end
        found: Outcome = {"examples_per_second": 2.0, "mean_length": 100.0, "tflops": 1.0}
        found["micro_batch_tokens"] = 8
        return subprocess.CompletedProcess(command, 0, json.dumps(found), "")

    monkeypatch.setattr(gpu_training.platform, "processor", lambda: "")  # starts a program
    monkeypatch.setattr(gpu_training.subprocess, "run", run)
    cases = tuple(Case("tiny", "128", side) for side in ("ours", "ours_fp8", "huggingface"))
    scale = dataclasses.replace(gpu_training.SELF_TEST, cases=cases)
    record = gpu_training.run(scale, minutes=5.0, out=str(out))
    assert kept == [0, 0, 1, 2]  # the first is the matrix rate
    assert reason in record["results"]["tiny 128 ours_fp8"]["not_run"]
    assert json.loads(out.read_text()) == record
    table = gpu_training.table(record)
    assert "| tiny | 128 | huggingface | 2 | 100 | 8 |" in table
    assert "not run: " in table


def test_cases_that_the_time_budget_does_not_cover_are_listed(tmp_path: Path) -> None:
    scale = dataclasses.replace(gpu_training.SELF_TEST, limit=0.01)
    record = gpu_training.run(scale, minutes=0.0, out=str(tmp_path / "found.json"))
    assert all("s were left" in found["not_run"] for found in record["results"].values())


def test_no_micro_batch_of_any_side_exceeds_its_token_budget() -> None:
    work = Workload("tiny", 128, 64)
    batch = work.batches[0]
    tokens = {}
    for side in ("huggingface", "grouped", "padding_free"):
        parts = micro_batches(side, work, batch, 1024)
        shapes = [part["input_ids"].shape for part in parts]  # type: ignore[union-attr]
        assert all(rows * width <= 1024 for rows, width in shapes)
        tokens[side] = sum(rows * width for rows, width in shapes)
    assert tokens["padding_free"] == work.lengths[0].sum()
    assert tokens["padding_free"] < tokens["grouped"] < tokens["huggingface"]
