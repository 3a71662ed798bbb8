"""The report stage, from artifacts to files."""

import json
import re
import subprocess
import sys
from importlib import resources
from pathlib import Path

import pytest
from pydantic import ValidationError

from cloze.artifacts.errors import UsageError
from cloze.artifacts.results import (
    Calibration,
    Measured,
    ProbabilityQuality,
    ReferenceScore,
    ReliabilityBin,
)
from cloze.artifacts.stage import write_stage_table
from cloze.artifacts.store import open_artifact
from cloze.flows.report.__main__ import make_report
from cloze.flows.report.collect import collect
from cloze.flows.report.figures import terminal_lines
from cloze.flows.report.page import render
from cloze.flows.report.plots import task_spread
from cloze.flows.report.summary import HeldoutPoint, Summary, TrainingPoint
from cloze.flows.report.wording import lede
from tests.flows.report.report_run import PRESENT, SECRET, report_table


@pytest.fixture(scope="module")
def summary(tmp_path_factory: pytest.TempPathFactory) -> Summary:
    return collect(report_table(tmp_path_factory.mktemp("run")))


def test_the_program_leaves_a_page_and_a_summary(tmp_path: Path) -> None:
    table = report_table(tmp_path)
    write_stage_table(table, tmp_path / "report.json")
    command = [
        sys.executable,
        "-P",
        "-m",
        "cloze.flows.report",
        "--config",
        str(tmp_path / "report.json"),
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    artifact = open_artifact(table.output)
    assert done.stdout.strip() == artifact.digest
    assert [entry.name for entry in artifact.manifest.files] == ["report.html", "summary.json"]


def test_the_summary_reads_back_as_it_was_written(tmp_path: Path) -> None:
    table = report_table(tmp_path)
    artifact = make_report(table, [])
    assert Summary.model_validate(artifact.read_json("summary.json")) == collect(table)


def test_engine_options_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no engine options"):
        make_report(report_table(tmp_path), ["--runner=local"])


def test_the_page_loads_nothing_and_runs_no_script(summary: Summary) -> None:
    page = render(summary)
    assert not re.search(r"<(script|link|img|iframe|object)\b", page)
    assert not re.search(r"(https?:)?//[a-z]", page)
    assert not re.search(r"url\((?!#)|@import|@font-face", page)


def test_text_of_the_run_is_escaped(summary: Summary) -> None:
    page = render(summary)
    assert "<b>" not in re.sub(r"<b>(Next|Total|GLUE|Tagging|[+−●])", "", page)
    assert f"The {SECRET} &lt;script&gt;" in page


def test_the_page_gives_the_headline_figures(summary: Summary) -> None:
    page = render(summary).replace("\u202f", " ")
    for figure in ("A small encoder", "A toy.", "40.5 %", "3.25 nats", "6.06 nats", "31.0 %"):
        assert figure in page
    assert "Pre-training wins: 5.3 ± 0.6 points over random initialisation (p = 0.013)." in page
    assert "held-out package rich" in page


def test_a_published_figure_stands_in_its_own_column_and_beside_the_same_split(
    summary: Summary,
) -> None:
    (task,) = summary.tasks
    paper = {"system": "BERT-base", "metric": task.metric, "source": "a paper, Table 7"}
    published = tuple(
        ReferenceScore.model_validate({**paper, "value": value, "split": split})
        for split, value in (("dev", 0.964), ("test", 0.924))
    )
    known = task.model_copy(update={"published": published})
    page = render(summary.model_copy(update={"tasks": (known,)}))
    dev, test = re.findall(r"<tr>(?:(?!<tr>).)*BERT-base, published.*?</tr>", page, re.DOTALL)
    assert re.search("96.4.*–.*Table 7", dev, re.DOTALL)
    assert re.search("–.*92.4.*Table 7", test, re.DOTALL)
    assert "BERT-base 92.4" in task_spread(known, split="test")
    judged = tuple(system.model_copy(update={"dev": system.test}) for system in known.systems)
    on_dev = known.model_copy(update={"systems": judged})
    assert "BERT-base 96.4" in task_spread(on_dev, split="dev")


def test_every_artifact_is_named_with_its_digest(summary: Summary) -> None:
    page = render(summary)
    assert [step.stage for step in summary.steps] == list(PRESENT)
    for step in summary.steps:
        assert step.digest in page


@pytest.mark.parametrize("missing", [*PRESENT, "all"])
def test_a_missing_stage_leaves_out_its_part_only(tmp_path: Path, missing: str) -> None:
    present = tuple(stage for stage in PRESENT if missing not in (stage, "all"))
    summary = collect(report_table(tmp_path, present=present))
    page = render(summary)
    assert page.rstrip().endswith("</html>")
    assert ('id="transfer"' in page) == ("evaluate" in present)
    assert ('id="corpus"' in page) == bool({"tokens", "examples"} & set(present))
    assert terminal_lines(summary)[0] == "A small encoder"


def test_a_stage_run_by_hand_has_no_record_and_still_a_configuration(tmp_path: Path) -> None:
    table = report_table(tmp_path).model_copy(update={"machine": {}})
    summary = collect(table)
    assert all(step.seconds is None for step in summary.steps)
    assert summary.configuration["vocabulary"]["size"] == 100
    assert "<h2>Cost</h2>" in render(summary)


def test_no_text_of_the_corpus_appears_if_it_may_not(tmp_path: Path) -> None:
    artifact = make_report(report_table(tmp_path, show_text=False), [])
    page = artifact.read_bytes("report.html").decode()
    for text in (page, json.dumps(artifact.read_json("summary.json"))):
        assert SECRET not in text
        assert "instrument" not in text
        assert "qux" not in text
    assert "1 of 1" in page  # whether predictions are correct is not text


def test_answers_must_match_the_sentences(tmp_path: Path) -> None:
    with pytest.raises(ValidationError, match="report.answers has 2 entries for 1"):
        report_table(tmp_path, answers=["one", "two"])


def test_answers_of_another_run_are_refused(tmp_path: Path) -> None:
    table = report_table(tmp_path)
    report = {**table.config["report"], "answers": ["one", "two"]}
    table = table.model_copy(update={"config": {**table.config, "report": report}})
    with pytest.raises(UsageError, match="report.answers has 2 entries"):
        collect(table)


def test_without_answers_nobody_is_judged(tmp_path: Path) -> None:
    page = render(collect(report_table(tmp_path, answers=[])))
    assert "correct at top 1" not in page
    assert "instrument" in page


def luminance(colour: str) -> float:
    channels = [int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def test_small_text_has_enough_contrast_in_both_modes() -> None:
    style = resources.files("cloze.flows.report").joinpath("templates/report.css").read_text()
    modes = re.findall(r"--paper: (#\w+); --ink: (#\w+); --soft: (#\w+); --faint: (#\w+)", style)
    assert len(modes) == 2
    for paper, *texts in modes:
        for text in texts:
            low, high = sorted((luminance(paper), luminance(text)))
            assert (high + 0.05) / (low + 0.05) >= 4.5, (paper, text)


def test_a_baseline_that_wins_is_named_in_the_first_sentences(summary: Summary) -> None:
    assert not any("A baseline does better" in sentence for sentence in lede(summary))
    model = summary.language_model[0].model_copy(update={"count_model_loss": 3.0})
    beaten = summary.model_copy(update={"language_model": (model,)})
    assert lede(beaten)[-1].replace("\u202f", " ") == (
        "A baseline does better: in MLM loss the n-gram baseline (3.00 nats against 3.25 nats)."
    )


def test_text_that_runs_from_right_to_left_does_not_turn_the_figures_beside_it(
    summary: Summary,
) -> None:
    (filled,) = summary.sentences
    guess = filled.guesses[0].model_copy(update={"words": ("مرحبا", "أهلا")})
    arabic = filled.model_copy(update={"sentence": "قال [MASK] .", "guesses": (guess,)})
    page = render(summary.model_copy(update={"sentences": (arabic,)}))
    assert '<p dir="auto">قال ' in page
    assert re.search(r"<bdi>مرحبا</bdi><small>[^<]*%</small>", page)
    assert page.count("مرحبا") == page.count("<bdi>مرحبا</bdi>") + page.count('title="مرحبا')


def test_an_encoder_that_started_from_another_says_so_first(summary: Summary) -> None:
    started = {**summary.configuration, "pretrain": {"init": "google/bert"}}
    first = lede(summary.model_copy(update={"configuration": started}))[0]
    assert first == "Training started from the encoder google/bert, not from random weights."
    recipe = {"continue_from": "/somewhere/artifacts/pretrain/0123456789abcdef"}
    longer = {**summary.configuration, "pretrain": recipe}
    first = lede(summary.model_copy(update={"configuration": longer}))[0]
    assert first.startswith("Training continued from the end of pretrain/0123456789ab, with")


def test_an_encoder_that_started_from_another_is_told_beside_what_that_was_worth(
    summary: Summary,
) -> None:
    came = {"initial_mlm_loss": 3.5, "initial_mlm_accuracy": 0.38}
    changed = {
        "configuration": {**summary.configuration, "pretrain": {"init": "google/bert"}},
        "language_model": (summary.language_model[0].model_copy(update=came),),
    }
    started = summary.model_copy(update=changed)
    found = "MLM loss 3.50 nats and top-1 accuracy 38.0 % before, 3.25 nats and 40.5 % after"
    assert lede(started)[0].replace("\u202f", " ") == (
        "Training started from the encoder google/bert, not from random weights: "
        f"{found}, on the held-out package rich."
    )
    assert (
        terminal_lines(started)[1].replace("\u202f", " ")
        == f"  started from    google/bert; {found}"
    )
    page = render(started)
    drawn = set(re.findall(r">((?:this|initial|adapted) encoder[^<]*)<", page))
    assert drawn == {"initial encoder", "initial encoder 3.50", "adapted encoder"}


@pytest.mark.parametrize(
    ("before", "told"),
    [
        (3.5, "Adapting lowers the loss from 3.50 nats to 3.25 nats."),
        (3.1, "Adapting has not lowered the loss: 3.10 nats before, 3.25 nats after."),
    ],
)
def test_an_adapted_encoder_is_not_said_to_be_pre_trained(
    summary: Summary, before: float, told: str
) -> None:
    assert summary.pretraining is not None
    curve = tuple(
        TrainingPoint(step=step, heldout={"heldout": HeldoutPoint(mlm_loss=loss)})
        for step, loss in enumerate((9.0, 6.1, 6.0, 3.3), 1)
    )
    training = summary.pretraining.model_copy(update={"curve": curve})
    trained = summary.model_copy(update={"pretraining": training})
    assert "First it learns word frequencies" in render(trained)
    came = {"initial_mlm_loss": before, "initial_mlm_accuracy": 0.38}
    changed = {
        "configuration": {**summary.configuration, "pretrain": {"init": "google/bert"}},
        "language_model": (summary.language_model[0].model_copy(update=came),),
        "tasks": (),
    }
    page = render(trained.model_copy(update=changed)).replace("\u202f", " ")
    assert "<h2>Adaptation</h2>" in page
    assert '<a href="#learning">Adaptation</a>' in page
    assert told in page
    # of the curve of an encoder that has to learn its first words
    for word in ("Pre-train", "pre-train", "First it learns", "plateau"):
        assert word not in page


def test_the_page_shows_probabilities_before_and_after_calibration(summary: Summary) -> None:
    def quality(error: float) -> ProbabilityQuality:
        figure = Measured(value=error, low=error / 2, high=2 * error)
        bins = (
            ReliabilityBin(probability=0.6, frequency=0.5, events=10),
            ReliabilityBin(probability=0.9, frequency=0.8, events=10),
        )
        return ProbabilityQuality(
            rows=20,
            log_loss=Measured(value=0.4, low=0.3, high=0.5),
            brier=Measured(value=0.2, low=0.1, high=0.3),
            calibration_error=figure,
            expected_error=0.015,
            reliability=bins,
        )

    found = Calibration(
        temperatures=(1.72,), rows=64, split="dev", before=quality(0.125), after=quality(0.02)
    )
    task = summary.tasks[0].model_copy(update={"calibration": found})
    page = render(summary.model_copy(update={"tasks": (task,)}))
    assert "0.125 (0.062 to 0.250)</td><td>0.020 (0.010 to 0.040)" in page
    assert "of perfect probabilities: 0.015" in page
    assert "Temperature 1.72, fitted to 64 rows of dev (figures on dev: fitted to its" in page
    assert "frequency by probability" in page
