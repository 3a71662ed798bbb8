"""Progress lines: amount, rate, remaining time."""

import pytest

from cloze.answer import print_lines
from cloze.artifacts.progress import Progress, clock, say


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.4, "0:00"), (75, "1:15"), (3600, "1:00:00"), (7384.6, "2:03:05")]
)
def test_clock_reads_like_a_clock(seconds: float, text: str) -> None:
    assert clock(seconds) == text


def test_a_line_has_amount_rate_and_remaining_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cloze.artifacts.progress.time.monotonic", lambda: 10.0)
    progress = Progress("tokens", 480, "MB", done=120, started=0.0)
    assert progress.line("3 dropped") == "tokens 120/480 MB 12.0 MB/s remaining 0:30 3 dropped"


def test_the_last_unit_is_always_printed(capsys: pytest.CaptureFixture[str]) -> None:
    progress = Progress("tokens", 3, "files")
    for _ in range(3):
        progress.advance(1)
    assert "3/3 files" in capsys.readouterr().err


def test_the_last_unit_is_printed_where_fewer_turn_out_to_be_needed(
    capsys: pytest.CaptureFixture[str],
) -> None:
    progress = Progress("finetune", 5, "steps")
    progress.advance(1)
    assert "1/5" not in capsys.readouterr().err
    progress.advance(0, spared=4)
    assert "1/1 steps" in capsys.readouterr().err


def test_no_file_name_steers_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    say("left out: \x1b[2J\r\x07\x9b1m\x7f\ud800 – ä\tb")
    assert capsys.readouterr().err == ("left out: \\x1b[2J\\r\\x07\\x9b1m\\x7f\\ud800 – ä\tb\n")


def test_a_terminal_is_not_steered_by_a_document_and_a_pipe_gets_it_unchanged(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    print_lines(["a\x1b[2J"])
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    print_lines(["a\x1b[2J"])
    assert capsys.readouterr().out == "a\x1b[2J\na\\x1b[2J\n"
