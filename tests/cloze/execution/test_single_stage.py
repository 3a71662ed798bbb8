"""`cloze prepare`, `tokens`, …: options for the engine."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cloze.artifacts.stage import read_stage_table
from cloze.artifacts.store import commit, put_bytes
from cloze.flows.job import JobResult

Options = dict[str, list[str]]


@pytest.fixture
def given(monkeypatch: pytest.MonkeyPatch) -> Options:
    """Each stage's program writes one file; returns the options it received, by stage."""
    given: Options = {}

    def run_job(argv: list[str], **_: Any) -> JobResult:
        place = argv.index("--config")
        table = read_stage_table(argv[place + 1])
        given[table.stage] = list(argv[place + 2 :])
        commit(table, [put_bytes(table.output, table.stage.encode(), name="content.txt")])
        return JobResult(seconds=1.0, peak_memory=1)

    monkeypatch.setattr("cloze.flows.job.run_job", run_job)
    return given


def test_options_after_the_dashes_reach_every_stage_that_beam_runs(
    cloze: Callable[..., Any], given: Options
) -> None:
    done = cloze("prepare", "try.toml", "--", "--project=mine", "--region=here")
    assert done.returncode == 0, done.stderr
    stages = ("vocabulary", "tokens", "examples")
    assert given == {stage: ["--project=mine", "--region=here"] for stage in stages}


def test_an_option_unknown_to_beam_is_rejected_even_if_every_stage_is_reused(
    cloze: Callable[..., Any], given: Options
) -> None:
    assert cloze("prepare", "try.toml").returncode == 0
    reused = cloze("prepare", "try.toml", "--", "--project=mine")
    assert reused.returncode == 0
    assert "--project=mine: every stage was reused, so the option had no effect" in reused.stderr
    done = cloze("prepare", "try.toml", "--", "--nonsense=1")
    assert done.returncode == 2
    assert "--nonsense=1: not a Beam option" in done.stderr


def test_options_of_the_machine_file_reach_every_stage_that_beam_runs_and_no_other(
    cloze: Callable[..., Any], given: Options, folder: Path
) -> None:
    (folder / "cluster.toml").write_text(
        "[pipeline.options]\n"
        'project = "mine"\nexperiments = ["a", "b"]\nstreaming = false\nsave_main_session = true\n'
    )
    done = cloze("pretrain", "try.toml", "--on", "cluster.toml")
    assert done.returncode == 0, done.stderr
    options = ["--project=mine", "--experiments=a", "--experiments=b", "--save_main_session"]
    beam = dict.fromkeys(("vocabulary", "tokens", "examples"), options)
    assert given == {**beam, "pretrain": []}


def test_an_option_unknown_to_deepspeeds_launcher_is_rejected_before_preparation(
    cloze: Callable[..., Any], given: Options
) -> None:
    done = cloze("pretrain", "try.toml", "--", "--nonsense=1")
    assert done.returncode == 2
    assert "DeepSpeed's launcher: unrecognized arguments: --nonsense=1" in done.stderr
    assert not given


def test_options_of_the_command_follow_those_of_the_machine_file(
    cloze: Callable[..., Any], given: Options, folder: Path
) -> None:
    (folder / "cluster.toml").write_text('[pipeline.options]\nregion = "there"\n')
    cloze("vocabulary", "try.toml", "--on", "cluster.toml", "--", "--region=here")
    assert given == {"vocabulary": ["--region=there", "--region=here"]}
