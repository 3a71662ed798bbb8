"""Which lines of a program's output are logged."""

import pytest

from cloze.flows.events import PROGRESS_LINE, OutputLog, share_done


@pytest.mark.parametrize(
    ("line", "done", "total"),
    [
        ("tokens 120/480 MB 24.1 MB/s remaining 0:15", "120", "480"),
        (
            "examples 1,200/4,800 MB of tokens 9.0 MB of tokens/s remaining unknown",
            "1,200",
            "4,800",
        ),
        ("step=14/40 loss=7.069 tokens_per_s=2,483 remaining=0:13", "14", "40"),
    ],
)
def test_lines_of_progress_are_recognised(line: str, done: str, total: str) -> None:
    found = PROGRESS_LINE.search(line)
    assert found
    assert (found["done"], found["total"]) == (done, total)


def test_progress_is_logged_now_and_then_and_other_lines_at_once(
    events: list[tuple[str, str, str]],
) -> None:
    output = OutputLog("tokens")
    for line in ("tokens 1/9 MB 1.0 MB/s remaining 0:08", "tokens 2/9 MB 1.0 MB/s remaining 0:07"):
        output.line(line)
    output.line("3 documents dropped")
    assert events == [
        ("tokens", "progress", "tokens 1/9 MB 1.0 MB/s remaining 0:08"),
        ("tokens", "output", "3 documents dropped"),
    ]


def test_libraries_own_logs_and_the_digest_stay_in_the_file(
    events: list[tuple[str, str, str]],
) -> None:
    output = OutputLog("tokens")
    for line in (
        "WARNING:apache_beam.options.pipeline_options:Discarding unparseable args",
        "[2026-11-21 04:31:35,120] [INFO] [real_accelerator.py:260:get_accelerator] cpu",
        "a" * 64,
    ):
        output.line(line)
    assert events == []


@pytest.mark.parametrize(
    ("line", "share"),
    [
        ("tokens 120/480 MB 24.1 MB/s remaining 0:15", 0.25),
        ("step=1,000/4,000 loss=1.0 remaining=0:13", 0.25),
        ("tokens 0/0 MB 0.0 MB/s remaining 0:00", 1.0),
        ("tokens 500/480 MB 24.1 MB/s remaining 0:00", 1.0),
        ("3 documents dropped", 0.0),
    ],
)
def test_the_share_that_is_done_is_read_from_the_line(line: str, share: float) -> None:
    assert share_done(line) == share
