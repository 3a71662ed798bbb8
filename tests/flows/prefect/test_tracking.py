"""Tables and progress bars in Prefect's UI."""

import logging

import httpx
import pytest

from flows.prefect import tracking
from flows.prefect.tracking import ProgressBars, artifact_key, figure_rows, stage_rows
from flows.record import RunRecord, StageRecord


def test_a_figure_stands_beside_its_error() -> None:
    known = {"package mlm_loss": 3.01234, "tagging f1": 0.71, "tagging f1 ±": 0.0123}
    assert figure_rows(known) == [
        {"figure": "package mlm_loss", "value": "3.012", "±": ""},
        {"figure": "tagging f1", "value": "0.71", "±": "0.012"},
    ]


def test_keys_have_the_form_that_prefect_wants() -> None:
    assert artifact_key("My_Run", "tokens") == "my-run-tokens"


def test_a_stage_is_a_row_with_its_cost() -> None:
    cheap = StageRecord(key="k", digest="d" * 64, state="reused")
    dear = cheap.model_copy(update={"state": "made", "seconds": 75.0, "peak_memory": 3 << 29})
    record = RunRecord(
        name="try",
        state="running",
        config={},
        machine={},
        started_at="2026",
        stages={"tokens": cheap, "pretrain": dear},
    )
    reused, made = stage_rows(record)
    assert (reused["stage"], reused["time"], reused["memory"]) == ("tokens", "", "")
    assert (made["time"], made["memory"], made["digest"]) == ("1:15", "1.50 GiB", "d" * 12)


def test_a_server_that_is_away_is_left_alone_and_the_run_goes_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[str] = []

    def away(*_: object, key: str, **__: object) -> None:
        asked.append(key)
        raise httpx.ConnectError("connection refused")

    monkeypatch.setattr(tracking, "create_progress_artifact", away)
    bars = ProgressBars("try")
    for stage in ("tokens", "examples"):
        event = {"stage": stage, "state": "running", "text": ""}
        bars.emit(logging.makeLogRecord(event))
    assert asked == ["try-tokens"]
