"""`cloze plan`: a run's resources on this machine."""

import json
from collections.abc import Callable
from typing import Any

import pytest


def test_every_stage_to_run_has_an_expected_time_and_its_basis(
    cloze: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cloze.flows.config.has_gpu", lambda: False)
    done = cloze("plan", "try.toml", "--json")
    assert done.returncode == 0, done.stderr
    expected = {one["stage"]: one for one in json.loads(done.stdout)["expected"]}
    stages = ["vocabulary", "tokens", "examples", "pretrain", "evaluate", "report"]
    assert list(expected) == stages
    assert "measured on this machine" in expected["pretrain"]["basis"]
    lines = cloze("plan", "try.toml").stdout.splitlines()
    assert any(line.startswith("expected on this machine: ") for line in lines)


def test_device_and_precision_of_every_stage_are_those_of_the_machine_file(
    cloze: Callable[..., Any],
) -> None:
    on_gpus = ("plan", "try.toml", "--set", "training.device=cuda")
    told = json.loads(cloze(*on_gpus, "--json").stdout)
    where = {one["stage"]: (one["device"], one["precision"]) for one in told["stages"]}
    assert where["pretrain"] == ("cuda", "bf16")
    assert (where["evaluate"], where["tokens"]) == (("cuda", "fp32"), ("cpu", ""))
    basis = {one["stage"]: one["basis"] for one in told["expected"]}["pretrain"]
    assert basis == "300 TFLOP/s (rates.gpu_tflops)"
    lines = cloze(*on_gpus).stdout.splitlines()
    assert next(line for line in lines if line.startswith("pretrain ")).endswith("(cuda, bf16)")


def test_a_reused_stage_takes_no_time(cloze: Callable[..., Any]) -> None:
    assert cloze("vocabulary", "try.toml").returncode == 0
    expected = json.loads(cloze("plan", "try.toml", "--json").stdout)["expected"]
    assert next(one["stage"] for one in expected) == "tokens"


def test_widths_that_fp8_products_do_not_support_are_rejected(cloze: Callable[..., Any]) -> None:
    chosen = ("--set", "pretrain.precision=fp8", "--set", "encoder.intermediate_size=3000")
    done = cloze("plan", "try.toml", *chosen)
    assert done.returncode == 2
    assert 'multiples of 16; use "bf16"' in done.stderr
    assert cloze("plan", "try.toml", *chosen[:2]).returncode == 0
