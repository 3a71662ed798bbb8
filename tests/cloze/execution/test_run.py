"""`cloze run`: how long it will take. `cloze serve`: errors before anything is served."""

import socket
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

import pytest

from cloze.execution import run
from cloze.flows.expected import ExpectedTime
from cloze.flows.plan import Plan


def test_a_port_in_use_is_a_one_line_error_with_a_remedy(
    cloze: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PREFECT_API_URL", raising=False)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        done = cloze("serve", "try.toml", "--port", str(port))
    assert done.returncode == 2
    started, line = done.stderr.splitlines()
    assert started.startswith("serve try: starting a server")
    assert f"port {port}: address already in use; choose another one (--port {port + 1})" in line


@dataclass
class Expecting:
    """A plan of which pre-training takes `seconds`; at the slowest rate, ten times as many."""

    seconds: float
    measured: int = 0

    def expected(self, *, rate: float | None = None) -> list[ExpectedTime]:
        self.measured += rate is None
        seconds = self.seconds if rate is None else 10 * self.seconds
        return [
            ExpectedTime("pretrain", seconds, "no GPU; 150 GFLOP/s"),
            ExpectedTime("report", 2.0, "start-up of its program"),
        ]


@pytest.mark.parametrize(
    ("seconds", "measured", "is_said"), [(2400.0, 1, True), (20.0, 1, False), (2.0, 0, False)]
)
def test_a_run_of_some_minutes_says_beforehand_how_long_it_takes(
    seconds: float,
    measured: int,
    is_said: bool,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What is short on any machine does not wait for a measurement of this one."""
    monkeypatch.setattr("cloze.flows.expected.load_per_core", lambda: 11.0)
    plan = Expecting(seconds)
    run._announce(cast(Plan, plan))
    said = capsys.readouterr().err
    assert plan.measured == measured
    assert bool(said) is is_said
    assert "40:02, of which pretrain 40:00 (no GPU; 150 GFLOP/s)" in said or not is_said
    assert ("this machine is busy now (11.0 processes per core)" in said) is is_said
