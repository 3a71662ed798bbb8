"""`cloze compare`: any number of runs, as text and as tables for papers."""

import csv
import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cloze.artifacts.digests import digest_of
from cloze.artifacts.results import SeedScores, SystemScore, TaskScore

Cloze = Callable[..., Any]
RECORD = {"state": "finished", "machine": {}, "started_at": "2026-01-12T10:00:00Z"}


@pytest.fixture
def three_runs(folder: Path) -> list[str]:
    """Records and summaries of three runs that differ in one field; the last has no report."""
    names = ["small_a", "small_b", "small_c"]
    for place, name in enumerate(names):
        run = folder / "runs" / name
        run.mkdir(parents=True)
        config = {"name": name, "pretrain": {"steps": 10 * (place + 1)}, "seed": 1}
        (run / "run.json").write_text(json.dumps({**RECORD, "name": name, "config": config}))
        curve = [
            {"step": step, "heldout": {"heldout": {"mlm_loss": 9.0 - step / 5 - place}}}
            for step in (5, 10)
        ]
        training = {
            "steps": 10, "batch_size": 2, "tokens": 1000 * (place + 1), "curve": curve
        }  # fmt: skip
        if place < 2:
            evaluate = {"stage": "evaluate", "digest": "e", "key": "e", "files": 1, "bytes": 1}
            evaluate["inputs"] = {"examples": f"e{place}"}
            summary = {"name": name, "title": name, "pretraining": training, "steps": [evaluate]}
            (run / "summary.json").write_text(json.dumps(summary))
    return names


def test_three_runs_are_compared_side_by_side(cloze: Cloze, three_runs: list[str]) -> None:
    header, steps, tokens, _ = cloze("compare", *three_runs).stdout.splitlines()
    assert header.split() == three_runs
    assert steps.split() == ["pretrain.steps", "10", "20", "30"]
    assert tokens.split()[2:] == ["1000", "2000", "—"]


def test_the_table_as_csv(cloze: Cloze, three_runs: list[str]) -> None:
    written = cloze("compare", *three_runs, "--format", "csv").stdout
    assert list(csv.reader(io.StringIO(written)))[1:] == [
        ["pretrain.steps", "10", "20", "30"],
        ["tokens seen", "1000", "2000", ""],
    ]


def test_the_table_as_markdown(cloze: Cloze, three_runs: list[str]) -> None:
    lines = cloze("compare", *three_runs, "--format", "markdown").stdout.splitlines()
    assert lines[:3] == [
        "|  | small_a | small_b | small_c |",
        "| --- | ---: | ---: | ---: |",
        "| pretrain.steps | 10 | 20 | 30 |",
    ]


def test_the_table_as_latex(cloze: Cloze, three_runs: list[str]) -> None:
    lines = cloze("compare", *three_runs, "--format", "latex").stdout.splitlines()
    assert lines[0] == r"\begin{tabular}{lrrr}"
    assert r" & small\_a & small\_b & small\_c \\" in lines
    assert r"tokens seen & 1000 & 2000 & --- \\" in lines
    assert lines[-2] == r"\end{tabular}"


ODD = "a|b_c_ <d> *e* \\ [f] 5 % ~^$ `g` {h}\n1 − 2"
"""What is markup somewhere: in a table it is text, on one line."""


@pytest.mark.parametrize(
    ("format", "cell"),
    [
        ("text", ODD.replace("\n", " ")),
        ("markdown", r"a\|b_c\_ \<d\> \*e\* \\ \[f\] 5 % \~^\$ \`g\` {h} 1 − 2"),
        (
            "latex",
            r"a\textbar{}b\_c\_ \textless{}d\textgreater{} *e* \textbackslash{} [f] 5 \% "
            r"\textasciitilde{}\textasciicircum{}\$ `g` \{h\} 1 $-$ 2",
        ),
        ("csv", ODD),
    ],
)
def test_text_with_markup_stays_text_in_every_format(
    cloze: Cloze, three_runs: list[str], folder: Path, format: str, cell: str
) -> None:
    path = folder / "runs" / "small_b" / "run.json"
    record = json.loads(path.read_text())
    record["config"]["report"] = {"note": ODD}
    path.write_text(json.dumps(record))
    written = cloze("compare", *three_runs, "--format", format).stdout
    assert written.count(cell) == 1
    if format == "csv":
        rows = {row[0]: row[1:] for row in csv.reader(io.StringIO(written))}
        assert rows["report.note"] == ["", ODD, ""]
    else:
        (line,) = (line for line in written.splitlines() if "report.note" in line)
        assert cell in line


def test_a_mean_and_its_error_are_one_cell_but_in_csv(
    cloze: Cloze, three_runs: list[str], folder: Path
) -> None:
    for name, scores in (("small_a", [-0.5, -0.25]), ("small_b", [0.5, 0.5])):
        path = folder / "runs" / name / "summary.json"
        ours = SystemScore(
            name="pretrained", role="pretrained", trials=2, test={"rho": SeedScores.of(scores)}
        )
        parts = {"name": "sts", "kind": "regression", "metric": "rho", "metrics": ("rho",)}
        task = TaskScore.model_validate(
            {**parts, "examples": {}, "seeds": (0, 1), "systems": (ours,), "comparisons": ()}
        )
        summary = json.loads(path.read_text())
        summary["tasks"] = [task.model_dump(mode="json")]
        path.write_text(json.dumps(summary))

    def rows(format: str) -> list[str]:
        lines = cloze("compare", *three_runs, "--format", format).stdout.splitlines()
        return [line for line in lines if "sts" in line]

    assert rows("latex") == [r"sts pretrained rho & $-$0.375 $\pm$ 0.12 & 0.5 & --- \\"]
    assert rows("markdown") == ["| sts pretrained rho | -0.375 ± 0.12 | 0.5 | — |"]
    (line,) = rows("text")
    assert line.split() == ["sts", "pretrained", "rho", "-0.375", "±", "0.12", "0.5", "—"]
    assert rows("csv") == ["sts pretrained rho,-0.375,0.5,", "sts pretrained rho ±,0.125,,"]


def test_a_single_run_is_rejected(cloze: Cloze, three_runs: list[str]) -> None:
    done = cloze("compare", "small_a")
    assert done.returncode == 2
    assert "compare needs at least two runs" in done.stderr


def test_the_page_plots_their_curves_together_and_loads_nothing(
    cloze: Cloze, three_runs: list[str], folder: Path
) -> None:
    done = cloze("compare", *three_runs, "--page", "compare.html")
    assert done.returncode == 0
    assert "page: compare.html" in done.stderr
    page = (folder / "compare.html").read_text()
    for name, last in (("small_a", "7.00"), ("small_b", "6.00")):
        assert f"{name}: held-out loss {last} nats after 10 steps" in page
    assert page.count("<svg") == 2, "the third has no report, and stands in the table alone"
    assert '<th class="number">small_c</th>' in page
    assert "<script" not in page
    assert "http" not in page.replace("http://www.w3.org", "")


def test_runs_evaluated_on_different_examples_produce_a_warning(
    cloze: Cloze, three_runs: list[str]
) -> None:
    done = cloze("compare", *three_runs, "--json")
    assert "small_b: evaluated on other held-out examples than small_a" in done.stderr
    (note,) = json.loads(done.stdout)["notes"]
    assert note in done.stderr


def test_a_table_says_what_is_not_comparable(cloze: Cloze, three_runs: list[str]) -> None:
    """The table of a sweep, which is written in the same way, says it in the same words."""
    told = "small_b: evaluated on other held-out examples than small_a, so losses and accuracies"
    for format, begin in (("text", "note: "), ("latex", "% note: "), ("markdown", "Note: ")):
        done = cloze("compare", *three_runs, "--format", format)
        assert done.stdout.splitlines()[-1].startswith(begin + told)
        assert f"warning: {told}" in done.stderr
    assert told not in cloze("compare", *three_runs, "--format", "csv").stdout


def test_held_out_examples_named_and_ones_own_may_be_the_same(
    cloze: Cloze, three_runs: list[str], folder: Path
) -> None:
    path = folder / "runs" / "small_b" / "summary.json"
    summary = json.loads(path.read_text())
    summary["steps"][0]["inputs"] = {"examples": "e1", "heldout": digest_of(["e0"])}
    path.write_text(json.dumps(summary))
    assert "comparable" not in cloze("compare", *three_runs).stdout
