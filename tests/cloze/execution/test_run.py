"""`cloze run`: how long it will take. `cloze serve`: errors before anything is served."""

import socket
from collections.abc import Callable
from typing import Any

import pytest

from cloze.execution import run
from cloze.flows.expected import ExpectedTime


def test_a_port_in_use_is_a_one_line_error_with_a_remedy(
    cloze: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PREFECT_API_URL", raising=False)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        done = cloze("serve", "try.toml", "--port", str(port))
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert f"port {port}: address already in use; choose another one (--port {port + 1})" in line


@pytest.mark.parametrize(("seconds", "is_said"), [(2400.0, True), (20.0, False)])
def test_a_run_of_some_minutes_says_beforehand_how_long_it_takes(
    seconds: float, is_said: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    expected = [
        ExpectedTime("pretrain", seconds, "no GPU; 150 GFLOP/s"),
        ExpectedTime("report", 2.0, "start-up of its program"),
    ]
    run._announce(expected)
    said = capsys.readouterr().err
    assert bool(said) is is_said
    assert "40:02, of which pretrain 40:00 (no GPU; 150 GFLOP/s)" in said or not is_said
