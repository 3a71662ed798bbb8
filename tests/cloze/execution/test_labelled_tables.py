"""Users' labelled tables in `cloze run`: which are rejected, how others are scored."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.cloze.tiny_model import write_model

Cloze = Callable[..., Any]

CONFIG = """
name = "mine"

[finetune]
encoder = "encoder"
seeds = {seeds}
initialisations = ["pretrained", "random"]
precision = "fp32"

[[finetune.tasks]]
name = "mine"
kind = "{kind}"
train = "train.{form}"
dev = "dev.{form}"
max_seq_length = 16
epochs = 1
learning_rate = 1e-3
{more}
"""


@pytest.fixture
def run(cloze: Cloze, folder: Path) -> Callable[..., Any]:
    """Fine-tune on two files; return the command's result."""
    write_model(folder / "encoder")

    def call(
        train: str, dev: str, *, kind: str = "classification", form: str = "csv", **settings: Any
    ) -> Any:
        seeds = settings.pop("seeds", [0])
        verb = settings.pop("verb", ("run", "--without-prefect"))
        (folder / f"train.{form}").write_text(train)
        (folder / f"dev.{form}").write_text(dev)
        more = "".join(f"{key} = {json.dumps(value)}\n" for key, value in settings.items())
        text = CONFIG.format(seeds=seeds, kind=kind, form=form, more=more)
        (folder / "mine.toml").write_text(text)
        return cloze(verb[0], "mine.toml", *verb[1:])

    return call


def read(folder: Path, stage: str, name: str) -> Any:
    (path,) = folder.glob(f"runs/artifacts/{stage}/*/{name}.*.json")
    return json.loads(path.read_text())


GOOD = "text_a,label\nthe list,yes\na b,no\n"


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ("text_a,label\nthe list,yes\na b,\n", "train.csv:3: label is blank"),
        ("text_a,label\nthe list,yes\n  ,no\n", "train.csv:3: text_a is blank"),
    ],
)
def test_a_blank_label_and_a_blank_text_are_refused_with_file_and_line(
    run: Callable[..., Any], table: str, message: str
) -> None:
    done = run(table, GOOD)
    assert done.returncode != 0
    assert f"{message}; fill it in, or remove the row" in done.stderr


def test_labels_of_one_class_are_refused_before_anything_is_trained(
    run: Callable[..., Any], folder: Path
) -> None:
    table = "text_a,label\nthe list,yes\na b,yes\n"
    done = run(table, table)
    assert done.returncode == 2
    assert (
        "task mine: only the label yes in the training data, expected at least two" in done.stderr
    )
    assert not list(folder.glob("runs/artifacts/finetune/*/manifest.json"))


@pytest.mark.parametrize(("seeds", "decided"), [([0, 1], False), ([0, 1, 2], True)])
def test_fewer_than_three_seeds_give_no_verdict_anywhere(
    run: Callable[..., Any], cloze: Cloze, folder: Path, seeds: list[int], decided: bool
) -> None:
    done = run(GOOD, GOOD, seeds=seeds)
    assert done.returncode == 0, done.stderr
    (task,) = read(folder, "evaluate", "scores")["tasks"]
    statements = [one["statement"] for one in task["comparisons"]]
    page = (folder / "runs" / "mine" / "report.html").read_text()
    shown = cloze("show", "mine").stdout
    for text, phrase in (
        *((statement, "fewer than 3 seeds") for statement in statements),
        (done.stdout + done.stderr + shown, "no verdict with fewer than 3"),
        (page, "no verdict with fewer than 3"),
    ):
        assert (phrase in text) is not decided


def test_entities_are_scored_as_seqeval_does_by_type_and_with_all_of_the_files_labels(
    run: Callable[..., Any], folder: Path
) -> None:
    seqeval = pytest.importorskip("seqeval.metrics", reason="pip install cloze-encoder[dev]")
    sentences = [("the list of", "B-PER I-PER O"), ("names a b", "B-LOC O B-PER")] * 20
    rare = [*sentences, ("the a", "B-ORG O")]

    def table(rows: list[tuple[str, str]]) -> str:
        return "\n".join(
            "".join(f"{w} {t}\n" for w, t in zip(words.split(), tags.split(), strict=True))
            for words, tags in rows
        )

    settings = {"kind": "tagging", "form": "conll", "train_examples": 8, "verb": ("finetune",)}
    done = run(table(rare), table(rare), **settings)
    assert done.returncode == 0, done.stderr
    (path,) = folder.glob("runs/artifacts/finetune/*/trials/mine-pretrained-0.*.json")
    trial = json.loads(path.read_text())
    gold = [tags.split() for _, tags in rare]
    found = trial["predictions"]["dev"]
    for name, measured in (
        ("entity_f1", seqeval.f1_score),
        ("entity_precision", seqeval.precision_score),
        ("entity_recall", seqeval.recall_score),
    ):
        assert trial["dev"][name] == pytest.approx(measured(gold, found, zero_division=0))
        by_type = measured(gold, found, average=None, zero_division=0)
        for kind, value in zip(("LOC", "ORG", "PER"), by_type, strict=True):
            assert trial["dev"][f"{name}_{kind}"] == pytest.approx(value)
