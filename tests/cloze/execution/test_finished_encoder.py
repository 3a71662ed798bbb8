"""Fine-tuning an existing encoder: the real stages without a corpus."""

import csv
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import cloze as api
from tests.cloze.names_task import configuration, write_encoder_and_rows
from tests.cloze.tiny_model import write_model

Cloze = Callable[..., Any]

STAGES = ["finetune", "evaluate", "report"]


@pytest.fixture
def tuned(folder: Path) -> Path:
    """An encoder's folder, a task decided by one word, and a configuration."""
    write_encoder_and_rows(folder)
    (folder / "names.toml").write_text(configuration("listed"))
    return folder


def answer(cloze: Cloze, *arguments: str) -> Any:
    done = cloze(*arguments, "--json")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def run(cloze: Cloze, *options: str) -> dict[str, Any]:
    """Run the configuration; return its stages."""
    stages = answer(cloze, "run", "names.toml", "--without-prefect", *options)["stages"]
    assert list(stages) == STAGES
    return dict(stages)


def states(stages: dict[str, Any]) -> set[str]:
    return {stage["state"] for stage in stages.values()}


def actions(cloze: Cloze, *options: str) -> set[str]:
    planned = answer(cloze, "plan", "names.toml", *options)["stages"]
    assert [stage["stage"] for stage in planned] == STAGES
    return {stage["action"] for stage in planned}


def test_an_existing_encoder_is_fine_tuned_evaluated_reported_and_reused(
    cloze: Cloze, tuned: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    planned = answer(cloze, "plan", "names.toml")
    assert not {"preparation", "pretraining"} & set(planned)
    assert states(run(cloze)) == {"made"}
    assert states(run(cloze)) == {"reused"}

    figures = answer(cloze, "show", "names")["figures"]
    assert figures["listed pretrained accuracy"] == 1.0
    assert figures["listed majority accuracy"] == 0.5
    (listed,) = answer(cloze, "runs")["runs"]
    assert (listed["run"], listed["stages"]) == ("names", 3)
    assert [step["what"] for step in answer(cloze, "trace", "names")] == ["score", "model"]
    rowless = cloze("trace", "names", "--row", "5")
    assert rowless.returncode == 2
    assert "so no example can be traced; leave out --row" in rowless.stderr

    page = (tuned / "runs" / "names" / "report.html").read_text()
    assert "The encoder was trained elsewhere and fine-tuned here: 2 trials on 1 task." in page
    assert "2 layers × 8" in page
    assert "random weights" not in page

    predicted = answer(cloze, "predict", "names", "the list", "a b")
    assert [row["prediction"] for row in predicted] == ["yes", "no"]
    rows = [{"text": "the list"}, {"text": "a b"}]
    assert list(api.load_task("names").predict(rows)) == predicted
    assert answer(cloze, "predict", "names", *map(json.dumps, rows)) == predicted
    read = answer(cloze, "predict", "names", "--file", "dev.csv")
    assert [row["prediction"] for row in read] == ["yes", "no"] * 20
    table = cloze("predict", "names", "dev.csv")
    header, first, *_ = csv.reader(table.stdout.splitlines())
    assert header[:4] == ["text_a", "label", "prediction", "probability"]
    assert header[4:] == ["probability no", "probability yes"]
    assert first[:3] == ["the list", "yes", "yes"]
    assert "dev.csv: accuracy 1.0000" in table.stderr
    with (tuned / "dev.csv").open() as lines:
        monkeypatch.setattr("sys.stdin", lines)
        refused = cloze("predict", "names")
    assert refused.returncode == 2
    assert "standard input begins with a table's header" in refused.stderr
    answer(cloze, "export", "names", "listed", "--task", "listed")
    exported = answer(cloze, "predict", "listed", "the list", "a b")
    assert [row["prediction"] for row in exported] == ["yes", "no"]
    vectors = [answer(cloze, "embed", name, "the list") for name in ("names", "encoder")]
    assert vectors[0] == vectors[1]


@pytest.mark.slow
def test_the_encoders_content_decides_not_its_path(cloze: Cloze, tuned: Path) -> None:
    imported = cloze("import", "encoder").stdout.strip()
    write_model(tuned / "other", seed=1)
    first = run(cloze)
    (tuned / "encoder").rename(tuned / "moved")
    assert actions(cloze, "--set", "finetune.encoder=moved") == {"reuse"}
    assert actions(cloze, "--set", "finetune.encoder=other") == {"run"}

    again = run(cloze, "--set", f"finetune.encoder={imported}")
    assert states(again) == {"made"}
    assert again["finetune"]["digest"] == first["finetune"]["digest"]
    assert (
        answer(cloze, "trace", "names")[1]["words"] == "pretrained encoder, imported from encoder"
    )
    assert imported not in [item["path"] for item in answer(cloze, "gc")["found"]]
    assert actions(cloze, "--set", "finetune.encoder=names") == {"reuse"}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("finetune.encoder=nowhere", "nowhere: no run of this name in "),
        ("finetune.encoder=texts", "encoder: texts: no model found; expected a Cloze artifact"),
        (
            "finetune.encoder=''",
            "neither a corpus nor an encoder; give [[corpus.sources]] to train",
        ),
        ("finetune.tasks=[]", "neither a corpus nor an encoder"),
        ("corpus.sources=[{reader='text', path='texts'}]", "remove one"),
        ("pretrain.steps=7", "[pretrain] has no effect in a run without a corpus"),
        ("evaluate.masked_sentences=['a [MASK]']", "[evaluate] has no effect in a run without"),
    ],
)
def test_an_invalid_encoder_is_rejected(
    cloze: Cloze, tuned: Path, change: str, message: str
) -> None:
    done = cloze("plan", "names.toml", "--set", change)
    assert (done.returncode, done.stdout) == (2, "")
    (line,) = done.stderr.splitlines()
    assert message in line


def test_gigabytes_are_rejected_for_a_run_without_a_corpus(cloze: Cloze, tuned: Path) -> None:
    done = cloze("plan", "names.toml", "--gigabytes", "16")
    assert done.returncode == 2
    assert "--gigabytes 16: this run reads no corpus" in done.stderr


def test_a_stage_before_the_encoder_is_an_error_that_lists_the_runs_stages(
    cloze: Cloze, tuned: Path
) -> None:
    done = cloze("prepare", "names.toml")
    assert done.returncode == 2
    assert "it has finetune, evaluate, report" in done.stderr
