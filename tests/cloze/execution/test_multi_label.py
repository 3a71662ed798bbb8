"""Several labels per text: training, scores, predictions, export, proposed configuration."""

import csv
import json
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.metrics import accuracy_score, f1_score, precision_score
from transformers import AutoModelForSequenceClassification, AutoTokenizer

from tests.cloze.tiny_model import write_model

Cloze = Callable[..., Any]

LABELS = ("animal", "plant", "water")
WORDS = ("list", "the", "names")
"""One word per label; a text has the labels of its words."""

CONFIG = """
name = "topics"

[finetune]
encoder = "encoder"
seeds = [0]
precision = "fp32"

[[finetune.tasks]]
name = "topics"
kind = "multi_label_classification"
train = "train.csv"
dev = "dev.csv"
columns = { text_a = "text", label = "topics" }
label_separator = "|"
threshold = 0.4
metrics = ["f1_micro", "f1_macro", "accuracy"]
class_weights = "balanced"
max_seq_length = 16
batch_size = 8
epochs = 20
learning_rate = 1e-2
"""


def rows(count: int, *, seed: int) -> list[tuple[str, list[str]]]:
    """Texts and their labels; some have none."""
    rng = np.random.default_rng(seed)
    chosen = rng.random((count, len(LABELS))) < (0.5, 0.3, 0.2)
    return [
        (
            " ".join(["of", *(word for word, has in zip(WORDS, row, strict=True) if has)]),
            [label for label, has in zip(LABELS, row, strict=True) if has],
        )
        for row in chosen
    ]


def write(path: Path, table: list[tuple[str, list[str]]]) -> None:
    with open(path, "w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(("text", "topics"))
        writer.writerows((text, "|".join(labels)) for text, labels in table)


def indicators(cells: list[list[str]]) -> np.ndarray[Any, Any]:
    return np.array([[label in cell for label in LABELS] for cell in cells])


@pytest.fixture
def fitted(cloze: Cloze, folder: Path) -> Cloze:
    """The command, after fine-tuning on a task with several labels per text."""
    write_model(folder / "encoder")
    write(folder / "train.csv", rows(60, seed=1))
    write(folder / "dev.csv", rows(40, seed=2))
    (folder / "topics.toml").write_text(CONFIG)
    done = cloze("run", "topics.toml", "--without-prefect")
    assert done.returncode == 0, done.stderr
    return cloze


@pytest.mark.slow
def test_several_labels_are_scored_as_scikit_learn_does_and_exported_for_transformers(
    fitted: Cloze, folder: Path
) -> None:
    predicted = fitted("predict", "topics", "dev.csv", "--task", "topics")
    answers = list(csv.DictReader(predicted.stdout.splitlines()))
    shares = [f"probability {label}" for label in LABELS]
    assert list(answers[0]) == ["text", "topics", "prediction", *shares]
    gold, guessed = (
        indicators([row[name].split("|") for row in answers]) for name in ("topics", "prediction")
    )
    probabilities = np.array([[float(row[name]) for name in shares] for row in answers])
    assert np.array_equal(guessed, probabilities >= 0.4)

    (path,) = folder.glob("runs/artifacts/evaluate/*/scores.*.json")
    (task,) = json.loads(path.read_text())["tasks"]
    (ours,) = (system for system in task["systems"] if system["name"] == "pretrained")
    official = {
        "f1_micro": f1_score(gold, guessed, average="micro"),
        "f1_macro": f1_score(gold, guessed, average="macro"),
        "accuracy": accuracy_score(gold, guessed),
        "label_precision_plant": precision_score(gold, guessed, average=None)[1],
    }
    assert official["f1_micro"] > 0.6
    for metric, value in official.items():
        assert ours["dev"][metric]["mean"] == pytest.approx(value), metric
    assert f"f1_micro {official['f1_micro']:.4f}" in predicted.stderr
    baselines = {system["name"] for system in task["systems"] if system["role"] == "baseline"}
    assert baselines == {"majority", "bag_of_words"}
    report = (folder / "runs" / "topics" / "report.html").read_text()
    assert "<td>plant</td>" in report

    assert fitted("export", "topics", "hub", "--task", "topics").returncode == 0
    model = AutoModelForSequenceClassification.from_pretrained("hub").eval()
    assert model.config.problem_type == "multi_label_classification"
    assert tuple(model.config.id2label.values()) == LABELS
    texts = AutoTokenizer.from_pretrained("hub")
    for row, expected in zip(answers[:5], probabilities, strict=False):
        with torch.no_grad():
            logits = model(**texts(row["text"], return_tensors="pt")).logits
        assert logits.sigmoid()[0].numpy() == pytest.approx(expected, abs=1e-5)


@pytest.mark.parametrize(
    ("table", "proposed"),
    [
        (
            "text,topics\n" + "the list,x|y\na b,x\nword the,y|z\nlist b,z|x\n" * 3,
            {"label_separator": "|", "columns": {"text_a": "text", "label": "topics"}},
        ),
        (
            "comment,rude,threat\n" + "the list,1,0\na b,0,0\nword the,1,1\n" * 4,
            {"labels": ["rude", "threat"], "columns": {"text_a": "comment"}},
        ),
    ],
    ids=["one cell", "a column each"],
)
def test_init_proposes_a_task_of_several_labels_that_plan_accepts(
    cloze: Cloze, folder: Path, table: str, proposed: dict[str, Any]
) -> None:
    (folder / "mine.csv").write_text(table)
    write_model(folder / "encoder")
    done = cloze("init", "mine.csv", "--output", "mine.toml", "--from", "encoder")
    assert done.returncode == 0, done.stderr
    (task,) = tomllib.loads((folder / "mine.toml").read_text())["finetune"]["tasks"]
    assert task["kind"] == "multi_label_classification"
    assert {name: task[name] for name in proposed} == proposed
    short = ("--set", "finetune.tasks.0.max_seq_length=16")  # the most that this encoder supports
    assert cloze("plan", "mine.toml", *short).returncode == 0


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ('metrics = ["matthews"]', "matthews not defined for multi_label_classification"),
        ("threshold = 1.5", "threshold"),
    ],
)
def test_a_setting_that_does_not_allow_several_labels_is_rejected_before_anything_runs(
    cloze: Cloze, folder: Path, setting: str, message: str
) -> None:
    name = setting.partition(" ")[0]
    kept = [line for line in CONFIG.splitlines() if not line.startswith(name)]
    (folder / "topics.toml").write_text("\n".join([*kept, setting]))
    done = cloze("plan", "topics.toml")
    assert done.returncode == 2
    assert message in done.stderr
