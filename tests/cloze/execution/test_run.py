"""`cloze serve`: errors before anything is served."""

import socket
from collections.abc import Callable
from typing import Any

import pytest


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
