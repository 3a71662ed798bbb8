"""Expected durations of stages, from earlier runs or rates."""

import json
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from flows.config import MachineConfig, RunConfig
from flows.executor import execute
from flows.expected import (
    BF16_GAIN,
    CPU_SHARE,
    START_SECONDS,
    ExpectedTime,
    Work,
    expected_times,
    matrix_rate,
)
from flows.workspace import read_record, workspace, write_record
from tests.conftest import PROJECT

MEASURED = {
    "smoke": {
        **{"vocabulary": 1.67, "tokens": 1.28, "examples": 0.92, "pretrain": 7.5},
        **{"labels": 1.56, "finetune": 6.9, "evaluate": 4.3, "report": 1.8},
    },
    "demo": {
        **{"vocabulary": 7.1, "tokens": 2.6, "examples": 1.7, "pretrain": 424.0},
        **{"labels": 12.6, "finetune": 139.0, "evaluate": 22.0, "report": 2.5},
    },
}
"""Seconds on two idle cores of an AVX-512 BF16 processor, for the demo as it was then: with five
seeds and an encoder of half the width."""

MEASURED_WITH_AMX = {"pretrain": 386.0, "finetune": 69.0, "evaluate": 26.0}
"""Seconds for the current demo on two cores with AMX, at 370 GFLOP/s in fp32."""

TRAINED = ("pretrain", "finetune")
PRETRAIN = {"steps": 40, "batch_size": 16, "phases": [{"max_seq_length": 128, "share": 1.0}]}


@pytest.fixture
def small(run_table: dict[str, Any]) -> dict[str, Any]:
    return {**run_table, "encoder": {"preset": "tiny"}, "pretrain": PRETRAIN}


def expected(
    table: dict[str, Any], machine: MachineConfig, *stages: str
) -> dict[str, ExpectedTime]:
    run = RunConfig.model_validate(table)
    found = expected_times(run, machine, stages, space=workspace(machine.workspace))
    return {one.stage: one for one in found}


@pytest.fixture
def took_a_minute(
    inline: Callable[..., None], small: dict[str, Any], machine: MachineConfig
) -> None:
    """A finished run, whose pre-training took a minute."""
    execute(RunConfig.model_validate(small), machine)
    space = workspace(machine.workspace)
    record = read_record(space, "try")
    minute = record.stages["pretrain"].model_copy(update={"seconds": 60.0})
    stages = {**record.stages, "pretrain": minute}
    write_record(record.model_copy(update={"stages": stages}), space)


@pytest.mark.usefixtures("took_a_minute")
def test_the_same_run_takes_what_it_took_before(
    small: dict[str, Any], machine: MachineConfig
) -> None:
    found = expected(small, machine, "pretrain", "report")
    assert found["pretrain"] == ExpectedTime("pretrain", 60.0, "as in run try")
    assert found["report"].seconds == 1.5


@pytest.mark.usefixtures("took_a_minute")
def test_what_is_beyond_the_start_grows_with_the_work(
    small: dict[str, Any], machine: MachineConfig
) -> None:
    longer = {**small, "pretrain": {**PRETRAIN, "steps": 400, "evaluate_every": 4000}}
    found = expected(longer, machine, "pretrain")["pretrain"]
    start = START_SECONDS["pretrain"]
    assert found.seconds == pytest.approx(start + 10 * (60.0 - start))
    assert found.basis == "scaled from run try"


@pytest.mark.usefixtures("took_a_minute")
def test_a_run_that_hardly_did_more_than_start_says_nothing_of_more_work(
    small: dict[str, Any], machine: MachineConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("flows.expected.has_gpu", lambda: False)
    monkeypatch.setattr("flows.expected.matrix_rate", lambda: 50e9)
    longer = {**small, "finetune": {**small["finetune"], "seeds": list(range(500))}}
    found = expected(longer, machine, "finetune")["finetune"]
    assert found.basis.startswith("no GPU")
    assert found.seconds > 2 * START_SECONDS["finetune"]


def test_every_stage_of_smoke_and_demo_takes_what_it_took_within_a_factor_of_one_and_a_half(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    megabytes = {"fsspec": 0.8, "networkx": 6.47, "joblib": 0.86, "numpy": 9.12, "scipy": 20.76}
    megabytes |= {"pandas": 24.54, "scikit-learn": 13.44, "statsmodels": 15.34, "xarray": 6.94}
    others = 172.4 / 15  # the demo's other packages have 268.6 together
    monkeypatch.setattr("flows.expected._source_bytes", lambda p: 1e6 * megabytes.get(p, others))
    monkeypatch.setattr("flows.expected.has_gpu", lambda: False)
    monkeypatch.setattr("flows.expected.matrix_rate", lambda: 216e9)
    monkeypatch.setattr("flows.expected.bf16_gain", lambda: 1.9)
    monkeypatch.setattr("flows.expected.parsed_distributions", lambda: 1000)
    machine = MachineConfig.model_validate({"pipeline": {"workers": 2}, "workspace": str(tmp_path)})
    space = workspace(machine.workspace)
    for name, seconds in MEASURED.items():
        table = tomllib.loads((PROJECT / "configs" / f"{name}.toml").read_text())
        for part in TRAINED:  # as `auto` was decided on that machine
            table[part].setdefault("precision", "bf16")
        if name == "demo":
            table["finetune"]["seeds"] = list(range(5))
            table["encoder"] |= {"hidden_size": 128, "num_attention_heads": 2}
            table["encoder"] |= {"intermediate_size": 512}
        run = RunConfig.model_validate(table)
        for found in expected_times(run, machine, seconds, space=space):
            share = found.seconds / seconds[found.stage]
            assert 1 / 1.5 < share < 1.5, (name, found, seconds[found.stage])


def test_the_demo_takes_with_amx_what_it_took_within_a_factor_of_one_and_a_half(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("flows.expected._source_bytes", lambda p: 20e6)
    monkeypatch.setattr("flows.expected.has_gpu", lambda: False)
    monkeypatch.setattr("flows.expected.matrix_rate", lambda: 370e9)
    monkeypatch.setattr("flows.expected.bf16_gain", lambda: BF16_GAIN["AMX"])
    machine = MachineConfig.model_validate({"pipeline": {"workers": 2}, "workspace": str(tmp_path)})
    table = tomllib.loads((PROJECT / "configs" / "demo.toml").read_text())
    for part in TRAINED:
        table[part].setdefault("precision", "bf16")
    for stage, found in zip(
        MEASURED_WITH_AMX, expected(table, machine, *MEASURED_WITH_AMX).values(), strict=True
    ):
        assert 1 / 1.5 < found.seconds / MEASURED_WITH_AMX[stage] < 1.5, found


def test_without_a_gpu_and_an_earlier_run_this_machines_rate_is_measured(
    small: dict[str, Any], machine: MachineConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("flows.expected.has_gpu", lambda: False)
    monkeypatch.setattr("flows.expected.matrix_rate", lambda: 50e9)
    monkeypatch.setattr("flows.expected.bf16_gain", lambda: 2.0)
    small = {**small, **{part: {**small[part], "precision": "bf16"} for part in TRAINED}}
    found = expected(small, machine, "vocabulary", "pretrain", "finetune", "evaluate")
    assert found["pretrain"].basis == "no GPU; 100 GFLOP/s measured on this machine"
    flops = Work(RunConfig.model_validate(small)).of("pretrain")
    steps = 40 * 0.004
    start = START_SECONDS["pretrain"]
    assert found["pretrain"].seconds == pytest.approx(start + steps + flops / (CPU_SHARE * 100e9))
    assert all(one.seconds > START_SECONDS[one.stage] for one in found.values())


def test_the_work_of_fine_tuning_a_given_encoder_is_that_of_its_shape(tmp_path: Path) -> None:
    def flops(width: int) -> float:
        sizes = {"hidden_size": width, "intermediate_size": 4 * width}
        heads = {"num_hidden_layers": 2, "num_attention_heads": 2}
        (tmp_path / f"h{width}").mkdir(exist_ok=True)
        (tmp_path / f"h{width}" / "config.json").write_text(json.dumps({**sizes, **heads}))
        task = {"name": "t", "kind": "classification", "train": "t.csv"}
        table = {"encoder": str(tmp_path / f"h{width}"), "tasks": [task]}
        return Work(RunConfig.model_validate({"name": "r", "finetune": table})).of("finetune")

    assert 3.0 * flops(64) < flops(128) < 4.5 * flops(64)


def test_the_work_of_fine_tuning_grows_with_the_text_of_its_file(tmp_path: Path) -> None:
    def flops(name: str, content: str, kind: str = "classification") -> float:
        (tmp_path / name).write_text(content)
        task = {"name": "t", "kind": kind, "train": str(tmp_path / name)}
        table = {"encoder": str(tmp_path / "none"), "tasks": [task]}
        return Work(RunConfig.model_validate({"name": "r", "finetune": table})).of("finetune")

    short, long = (flops("t.tsv", f"good\t{'fine ' * words}\n" * 100) for words in (5, 50))
    assert 4 * short < long < 12 * short
    sentences = flops("t.conll", ("word O\n" * 10 + "\n") * 100, kind="tagging")
    assert sentences < 2 * long, "a line of a tagged file is a word, no example"


def test_without_a_corpus_the_evaluation_judges_no_held_out_text() -> None:
    task = {"name": "t", "kind": "classification", "train": "t.csv"}
    table = {"name": "r", "finetune": {"encoder": "given", "tasks": [task]}}
    assert Work(RunConfig.model_validate(table)).of("evaluate") == 0.0


def test_a_gpu_is_reckoned_with_at_its_configured_rate(
    small: dict[str, Any], machine: MachineConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("flows.expected.has_gpu", lambda: True)
    found = expected(small, machine, "pretrain")["pretrain"]
    assert found.basis == "300 TFLOP/s (rates.gpu_tflops)"


def test_seeds_and_initialisations_multiply_the_work_of_fine_tuning(small: dict[str, Any]) -> None:
    def flops(**finetune: object) -> float:
        table = {**small, "finetune": {**small["finetune"], **finetune}}
        return Work(RunConfig.model_validate(table)).of("finetune")

    both = ("pretrained", "random")
    assert flops(seeds=[0, 1], initialisations=both) == pytest.approx(4 * flops(seeds=[0]))


def test_the_measured_rate_is_one_that_a_processor_can_have() -> None:
    assert 1e8 < matrix_rate() < 1e14
