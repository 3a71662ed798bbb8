"""`cloze plan`: a run's resources on this machine."""

import json
import re
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cloze.flows.config import RunConfig
from cloze.flows.expected import Work
from tests.conftest import PROJECT


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


def test_a_warm_up_that_outlasts_the_run_is_said(cloze: Callable[..., Any]) -> None:
    said = "warning: the learning rate never reaches 0.0001: optimizer.warmup_steps = 10,000 of 10,"
    assert said in cloze("plan", "try.toml", "--set", "pretrain.steps=10000").stdout
    assert said[:40] not in cloze("plan", "try.toml", "--set", "pretrain.steps=10001").stdout


def test_widths_that_fp8_products_do_not_support_are_rejected(cloze: Callable[..., Any]) -> None:
    chosen = ("--set", "pretrain.precision=fp8", "--set", "encoder.intermediate_size=3000")
    done = cloze("plan", "try.toml", *chosen)
    assert done.returncode == 2
    assert 'multiples of 16; use "bf16"' in done.stderr
    assert cloze("plan", "try.toml", *chosen[:2]).returncode == 0


PAPER = ("plan", str(PROJECT / "configs" / "wikipedia_books.toml"), "--gigabytes", "16")


def test_copies_for_the_epochs_storage_by_the_month_and_assumed_rates_are_said(
    cloze: Callable[..., Any], folder: Path
) -> None:
    """By hand: 900,000 steps of 256 over 47.1 million examples of 128 are 4.9 epochs."""
    told = cloze(*PAPER).stdout
    assert re.search(r"^storage: 26\d GB, \$5\.\d\d a month \(\$0\.02 per GB\)$", told, re.M)
    saved = "5 of 10 copies suffice for 4.9 epochs: --set examples.copies=5 saves 128 GB, $2.57"
    assert f"{saved} a month" in told
    longer = cloze(*PAPER, "--set", "pretrain.steps=4_000_000").stdout
    assert "19.6 epochs read each of 10 copies 2.0 times; 20 copies, or pretrain.masks" in longer
    enough = json.loads(cloze(*PAPER, "--set", "examples.copies=5", "--json").stdout)["storage"]
    assert (enough["copies"], enough["saved"]) == (5, 0.0)
    dynamic = json.loads(cloze(*PAPER, "--set", "pretrain.masks=dynamic", "--json").stdout)
    assert dynamic["storage"]["copies"] == 1

    assert "assumed, not measured here: gpu_tflops = 300, step_seconds = 0.01" in told
    rates = ("gpu_tflops", "step_seconds", "gpu_hour", "core_hour", "core_share")
    lines = [f"{name} = 1" for name in (*rates, "shuffle_gigabyte", "stored_gigabyte")]
    (folder / "mine.toml").write_text("[rates]\n" + "\n".join(lines))
    assert "assumed" not in cloze(*PAPER, "--on", "mine.toml").stdout


@pytest.mark.parametrize(("load", "is_said"), [(0.9, False), (3.2, True)])
def test_a_busy_machine_is_said_to_be_busy(
    cloze: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, load: float, is_said: bool
) -> None:
    monkeypatch.setattr("cloze.flows.expected.load_per_core", lambda: load)
    _, expected, *_ = cloze("plan", "try.toml").stdout.split("\n\n")
    assert ("\nthis machine is busy now (3.2 processes per core)" in expected) is is_said


def test_excluded_files_do_not_count_and_weights_do(
    cloze: Callable[..., Any], folder: Path
) -> None:
    (folder / "texts" / "drafts").mkdir()
    (folder / "texts" / "drafts" / "two.txt").write_text("A draft of the second one.\n" * 1000)

    def planned(weight: int) -> dict[str, Any]:
        path = folder / f"weight-{weight}.toml"
        config = (folder / "try.toml").read_text() + 'exclude = ["drafts/*"]\n'
        path.write_text(f"{config}weight = {weight}\n")
        run = RunConfig.model_validate(tomllib.loads(path.read_text()))
        work = Work(run)
        # "The first document." and a line feed
        assert work.text_bytes == 20
        assert work.of("examples") == 20 * weight * run.examples.copies * 2
        assert len(run.examples.max_seq_lengths) == 2
        done = cloze("plan", path.name, "--json")
        assert done.returncode == 0, done.stderr
        return dict(json.loads(done.stdout)["preparation"])

    once, thrice = planned(1), planned(3)
    assert once["text_bytes"] == thrice["text_bytes"] == 20
    assert thrice["examples"]["128"] == pytest.approx(3 * once["examples"]["128"])
