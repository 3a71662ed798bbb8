"""Log lines for people and for programs, and a curve that is unaffected by interruptions."""

import errno
import io
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

from cloze.artifacts.errors import ClozeError
from cloze.model.config import EncoderConfig
from cloze.model.training import telemetry as telemetry_module
from cloze.model.training.loop import mean_scores
from cloze.model.training.telemetry import (
    Curve,
    StepRecord,
    Telemetry,
    metrics_log,
    peak_memory,
)
from tests.model.training.training_fixtures import step_record

CPU = torch.device("cpu")


def _telemetry(**changes: Any) -> Telemetry:
    values = {"steps": 100, "log_every": 2, "flops_per_second": 1e10}
    return Telemetry(**{**values, "device": CPU, "log": io.StringIO(), **changes})


def test_a_resumed_log_has_every_step_once_up_to_the_checkpoint_and_from_there_on(
    tmp_path: Path,
) -> None:
    path = tmp_path / "attempt" / "metrics.jsonl"
    with metrics_log(path, done=0) as log:
        log.write("".join(f'{{"step": {step}, "loss": {step}.5}}\n' for step in (1, 2, 3)))
        log.write('{"step": 2, "lo')  # the process died here
    with metrics_log(path, done=2) as log:
        log.write('{"step": 3, "loss": 7.0}\n')
    found = [json.loads(line) for line in path.read_text().splitlines()]
    assert [(line["step"], line["loss"]) for line in found] == [(1, 1.5), (2, 2.5), (3, 7.0)]


def test_the_line_says_where_the_run_is_and_how_long_it_takes(
    capsys: pytest.CaptureFixture[str],
) -> None:
    _telemetry().add(step_record(20))
    assert capsys.readouterr().err == (
        "pretrain step=20/100 loss=3.410 mlm=2.810 nsp=0.600 tokens_per_s=2,000 remaining=0:40\n"
    )


def test_without_pairs_of_sentences_no_line_has_a_loss_or_accuracy_of_them(
    capsys: pytest.CaptureFixture[str],
) -> None:
    telemetry = _telemetry()
    telemetry.add(step_record(20, next_sentence_loss=0.0, next_sentence_accuracy=0.0))
    telemetry.add_heldout(20, mean_scores([28.0, 0.0, 4.0, 0.0], masked=10, labelled=0))
    assert capsys.readouterr().err == (
        "pretrain step=20/100 loss=3.410 mlm=2.810 tokens_per_s=2,000 remaining=0:40\n"
        "pretrain step=20/100 heldout_mlm=2.800 heldout_mlm_accuracy=0.400\n"
    )


def test_there_is_no_more_than_one_line_a_second(capsys: pytest.CaptureFixture[str]) -> None:
    telemetry = _telemetry()
    for step in range(1, 50):
        telemetry.add(step_record(step))
    assert len(capsys.readouterr().err.splitlines()) <= 2


def test_the_log_holds_means_and_rates_of_its_window() -> None:
    log = io.StringIO()
    telemetry = _telemetry(log=log)
    for step, loss in ((1, 2.0), (2, 4.0), (3, 9.0)):
        telemetry.add(step_record(step, masked_lm_loss=loss))
    (line,) = log.getvalue().splitlines()
    numbers = json.loads(line)
    assert (numbers["step"], numbers["masked_lm_loss"]) == (2, 3.0)
    assert numbers["tokens_per_s"] == 2000
    assert numbers["examples_per_s"] == 20
    assert numbers["mfu"] == pytest.approx(0.4)
    assert numbers["input_wait_share"] == pytest.approx(0.1)
    assert numbers["memory_bytes"] > 1e7


class FullDisk(io.StringIO):
    name = "metrics.jsonl"

    def flush(self) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_a_log_on_a_full_disk_is_named() -> None:
    with pytest.raises(ClozeError, match=r"metrics.jsonl: cannot write.*No space.*make room"):
        _telemetry(log=FullDisk()).add(step_record(2))


def test_only_the_first_rank_speaks(capsys: pytest.CaptureFixture[str]) -> None:
    _telemetry(log=None).add(step_record(2))
    assert capsys.readouterr().err == ""


def test_a_tracker_gets_every_number() -> None:
    class Kept:
        numbers: dict[str, tuple[float, int]]

        def __init__(self) -> None:
            self.numbers = {}

        def log(self, step: int, numbers: Mapping[str, float]) -> None:
            self.numbers |= {name: (value, step) for name, value in numbers.items()}

        def finish(self) -> None: ...

    kept = Kept()
    _telemetry(trackers=[kept]).add(step_record(2))
    assert kept.numbers["masked_lm_loss"] == (2.81, 2)


def test_flops_of_bert_base_are_the_published_ones() -> None:
    # 128 tokens, 20 of them masked: 6 · 85 M weights · 128 + attention + head.
    base = EncoderConfig(preset="base")
    flops = base.training_flops(30522, tokens=128, squared=128**2, masked=20)
    layers = 12 * 12 * 768**2
    expected = 6 * layers * 128 + 12 * 12 * 768 * 128**2 + 6 * (768 * 30522 + 768**2) * 20
    assert flops == expected


def test_flops_of_other_layers_are_those_of_their_products() -> None:
    sizes = {"preset": "base", "num_hidden_layers": 12}
    head = 6 * (768 * 1000 + 768**2) * 20
    # query, key, value, output and the gated feed-forward; one layer in three sees all 300 tokens
    modern = EncoderConfig(family="modern", local_attention=128, **sizes)
    layer = 4 * 768**2 + 3 * 768 * modern.intermediate_size
    pairs = 4 * 300**2 + 8 * 300 * 129
    expected = 6 * 12 * layer * 300 + 12 * 768 * pairs + head
    assert modern.training_flops(1000, tokens=300, squared=300**2, masked=20) == expected
    # four gates of a cell of the intermediate size read input and output, which is projected
    lstm = EncoderConfig(layer_type="lstm", attention_direction="left_to_right", **sizes)
    layer = 4 * lstm.intermediate_size * (768 + 768) + lstm.intermediate_size * 768
    expected = 6 * 12 * layer * 300 + head
    assert lstm.training_flops(1000, tokens=300, squared=300**2, masked=20) == expected


def test_memory_is_in_bytes() -> None:
    assert peak_memory(CPU) > 10_000_000


def _point(step: int) -> StepRecord:
    return step_record(
        step, loss=8.0 - step / 10, masked_lm_loss=7.0 - step / 10, next_sentence_loss=1.0
    )


def test_a_short_run_has_a_point_a_step() -> None:
    curve = Curve(3)
    for step in (1, 2, 3):
        curve.add(_point(step))
    points = [json.loads(line) for line in curve.json_lines().splitlines()]
    assert [point["step"] for point in points] == [1, 2, 3]
    assert points[0]["masked_lm_loss"] == 6.9


def test_a_long_run_has_bounded_points_that_are_means(monkeypatch) -> None:
    monkeypatch.setattr(telemetry_module, "CURVE_POINTS", 4)
    curve = Curve(10)
    for step in range(1, 11):
        curve.add(_point(step))
    assert [point["step"] for point in curve.points] == [3, 6, 9, 10]
    assert curve.points[0]["loss"] == (_point(1).loss + _point(2).loss + _point(3).loss) / 3


def test_an_interruption_leaves_no_trace(monkeypatch) -> None:
    monkeypatch.setattr(telemetry_module, "CURVE_POINTS", 4)
    whole, first = Curve(10), Curve(10)
    for step in range(1, 11):
        whole.add(_point(step))
        if step <= 4:
            first.add(_point(step))
    again = Curve(10, **json.loads(json.dumps(first.state())))
    for step in range(5, 11):
        again.add(_point(step))
    assert again.json_lines() == whole.json_lines()


def test_a_skipped_step_is_no_part_of_a_mean(monkeypatch) -> None:
    monkeypatch.setattr(telemetry_module, "CURVE_POINTS", 2)
    curve = Curve(4)
    for step in (1, 3, 4):
        curve.add(_point(step))
    assert [point["step"] for point in curve.points] == [4]
    assert curve.points[0]["next_sentence_loss"] == 1.0
