"""The console of a run: plain lines in a pipe, a table on a terminal."""

import io
import logging
import re
from typing import Any

import pytest
from rich.console import Console

from cloze.execution.console import PlainHandler, TerminalHandler
from cloze.flows.events import PROGRESS, add_handler, emit, remove_handler

LINE = "tokens 120/480 MB 24.1 MB/s remaining 0:15"


def shown(handler: Any, stream: io.StringIO) -> str:
    """The output of `handler` for a small run."""
    add_handler(handler, progress=isinstance(handler, TerminalHandler))
    try:
        emit("vocabulary", "waiting", logger=PROGRESS)
        emit("tokens", "waiting", logger=PROGRESS)
        emit("vocabulary", "reused", "3f2a91c04d1e")
        emit("tokens", "warning", "a.arrow is [bold]missing[/bold]; made again")
        emit("tokens", "running", "python -P -m cloze.pipeline.tokens")
        emit("tokens", "progress", LINE, logger=PROGRESS)
        emit("tokens", "progress", LINE)
        frame = stream.getvalue()
        if isinstance(handler, TerminalHandler):
            handler.console.print(handler.table())
            frame = stream.getvalue()
        emit("tokens", "failed", "tokens: killed")
    finally:
        remove_handler(handler)
        handler.close()
    return frame + stream.getvalue()[len(frame) :]


def test_in_a_pipe_every_event_is_one_line() -> None:
    stream = io.StringIO()
    console = Console(file=stream, width=40)
    assert shown(PlainHandler(console), stream).splitlines() == [
        "vocabulary: reused 3f2a91c04d1e",
        "tokens: warning a.arrow is [bold]missing[/bold]; made again",
        "tokens: running python -P -m cloze.pipeline.tokens",
        "tokens: 120/480 MB 24.1 MB/s remaining 0:15",
        "tokens: failed",
    ]


def test_an_error_line_is_shown_only_if_the_run_continues() -> None:
    stream = io.StringIO()
    handler = PlainHandler(Console(file=stream, width=40))
    add_handler(handler, progress=False)
    try:
        emit("pretrain", "output", "error: rank 1 is gone")
        emit("pretrain", "output", "starting the ranks again")
        emit("pretrain", "output", "error: rank 2 is gone")
        emit("pretrain", "failed", "pretrain: rank 2 is gone; log: here")
    finally:
        remove_handler(handler)
    assert stream.getvalue().splitlines() == [
        "pretrain: error: rank 1 is gone",
        "pretrain: starting the ranks again",
        "pretrain: failed",
    ]


def test_on_a_terminal_each_stage_has_one_line() -> None:
    stream = io.StringIO()
    console = Console(file=stream, width=80, force_terminal=True, color_system=None)
    frame = shown(TerminalHandler(console), stream)
    assert "! tokens a.arrow is [bold]missing[/bold]; made again" in frame
    rows = [re.sub(r"\x1b\[\??\d*[a-zA-Z]|\r", "", line).split() for line in frame.splitlines()]
    assert ["✓", "vocabulary", "reused", "3f2a91c04d1e"] in rows
    assert any("120/480" in row and "remaining" in row for row in rows)
    assert any("✗" in row and "tokens" in row for row in rows)


@pytest.mark.parametrize("handler", [PlainHandler, TerminalHandler])
def test_after_the_run_no_handler_remains(handler: type[logging.Handler]) -> None:
    stream = io.StringIO()
    shown(handler(Console(file=stream, force_terminal=True)), stream)  # type: ignore[call-arg]
    before = stream.getvalue()
    emit("tokens", "output", "afterwards")
    assert stream.getvalue() == before
