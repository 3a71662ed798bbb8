"""Lines for people, lines for programs."""

import errno
import io
import json
import os
from typing import Any

import pytest

from artifacts.errors import ClozeError
from model.config import EncoderConfig
from model.training.alarms import Alarms
from model.training.telemetry import StepRecord, Telemetry, peak_memory, training_flops


def _record(step: int, **changes: Any) -> StepRecord:
    values = {
        "loss": 3.41, "masked_lm_loss": 2.81, "masked_lm_accuracy": 0.4, "next_sentence_loss": 0.6,
        "next_sentence_accuracy": 0.7, "gradient_norm": 1.5, "learning_rate": 1e-3, "examples": 10,
        "tokens": 1000, "flops": 2e9, "seconds": 0.5, "waited": 0.05, "imbalance": 0.01,
    }  # fmt: skip
    return StepRecord(step=step, **{**values, **changes})


def _telemetry(**changes: Any) -> Telemetry:
    values = {"stage": "pretrain", "steps": 100, "log_every": 2, "matrix_rate": 1e10}
    return Telemetry(**{**values, "alarms": Alarms(6.0), **changes})


def test_the_line_says_where_the_run_is_and_how_long_it_takes(
    capsys: pytest.CaptureFixture[str],
) -> None:
    _telemetry().add(_record(20))
    assert capsys.readouterr().err == (
        "pretrain step=20/100 loss=3.410 mlm=2.810 nsp=0.600 tokens_per_s=2,000 remaining=0:40\n"
    )


def test_there_is_no_more_than_one_line_a_second(capsys: pytest.CaptureFixture[str]) -> None:
    telemetry = _telemetry()
    for step in range(1, 50):
        telemetry.add(_record(step))
    assert len(capsys.readouterr().err.splitlines()) <= 2


def test_the_log_holds_means_and_rates_of_its_window() -> None:
    log = io.StringIO()
    telemetry = _telemetry(log=log)
    for step, loss in ((1, 2.0), (2, 4.0), (3, 9.0)):
        telemetry.add(_record(step, masked_lm_loss=loss))
    (line,) = log.getvalue().splitlines()
    numbers = json.loads(line)
    assert (numbers["step"], numbers["masked_lm_loss"]) == (2, 3.0)
    assert numbers["tokens_per_s"] == 2000
    assert numbers["examples_per_s"] == 20
    assert numbers["matrix_rate_share"] == pytest.approx(0.4)
    assert numbers["input_wait_share"] == pytest.approx(0.1)
    assert numbers["memory_bytes"] > 1e7


class FullDisk(io.StringIO):
    name = "metrics.jsonl"

    def flush(self) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_a_log_on_a_full_disk_is_named() -> None:
    with pytest.raises(ClozeError, match=r"metrics.jsonl: cannot write.*No space.*make room"):
        _telemetry(log=FullDisk()).add(_record(2))


def test_only_the_first_rank_speaks(capsys: pytest.CaptureFixture[str]) -> None:
    log = io.StringIO()
    _telemetry(log=log, speaks=False).add(_record(2))
    assert capsys.readouterr().err == log.getvalue() == ""


def test_tensorboard_gets_every_number() -> None:
    class Writer:
        scalars: dict[str, tuple[float, int]]

        def __init__(self) -> None:
            self.scalars = {}

        def add_scalar(self, tag: str, scalar_value: float, global_step: int) -> None:
            self.scalars[tag] = (scalar_value, global_step)

    writer = Writer()
    _telemetry(tensorboard=writer).add(_record(2))
    assert writer.scalars["masked_lm_loss"] == (2.81, 2)


def test_flops_of_bert_base_are_the_published_ones() -> None:
    # 128 tokens, 20 of them masked: 6 · 85 M weights · 128 + attention + head.
    base = EncoderConfig(preset="base")
    flops = training_flops(base, 30522, tokens=128, squared=128**2, masked=20)
    layers = 12 * 12 * 768**2
    expected = 6 * layers * 128 + 12 * 12 * 768 * 128**2 + 6 * (768 * 30522 + 768**2) * 20
    assert flops == expected


def test_memory_is_in_bytes() -> None:
    assert peak_memory() > 10_000_000
