import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from cloze.artifacts.errors import UsageError
from cloze.artifacts.stage import StageTable
from cloze.artifacts.store import Artifact
from cloze.demo.labels import choose_items, make_labels
from cloze.pipeline.config.settings import LabelsStage
from tests.pipeline.installed import install, use

SPLITS = ("train", "dev", "test")


def run(output: Path, **changes: Any) -> Artifact:
    labels = {
        "packages": ["joblib", "prometheus-client", "httpx"],
        "test_packages": ["fsspec"],
        "tagging_train_sentences": 40,
        "pair_train_examples": 60,
        "evaluation_examples": 16,
        **changes,
    }
    table = StageTable(
        stage="labels",
        format_version=LabelsStage.format_version,
        config={"seed": 1, "labels": labels},
        output=str(output),
    )
    return make_labels(table, [])


def rows(artifact: Artifact, task: str, split: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in artifact.read_bytes(f"{task}/{split}.jsonl").splitlines()]


@pytest.fixture(scope="module")
def artifact(tmp_path_factory: pytest.TempPathFactory) -> Artifact:
    return run(tmp_path_factory.mktemp("labels") / "once")


def test_the_numbers_asked_for_are_given(artifact: Artifact) -> None:
    sizes = {task: [len(rows(artifact, task, split)) for split in SPLITS] for task in TASKS}
    assert sizes == {"tagging": [40, 16, 16], "pairs": [60, 16, 16]}


TASKS = ("tagging", "pairs")


def test_every_word_has_one_tag_of_the_task(artifact: Artifact) -> None:
    task = artifact.read_json("tagging/task.json")
    assert task["kind"] == "tagging"
    for split in SPLITS:
        for row in rows(artifact, "tagging", split):
            assert row.keys() == {"words", "tags"}
            assert len(row["words"]) == len(row["tags"])
            assert set(row["tags"]) <= set(task["labels"])
            assert set(row["tags"]) != {"O"}


def test_half_of_the_pairs_are_true(artifact: Artifact) -> None:
    task = artifact.read_json("pairs/task.json")
    assert (task["name"], task["kind"]) == ("pairs", "pair_classification")
    for split in SPLITS:
        labels = [row["label"] for row in rows(artifact, "pairs", split)]
        assert sorted(set(labels)) == sorted(task["labels"])
        assert labels.count("match") == len(labels) / 2


@pytest.mark.parametrize("task", TASKS)
def test_no_text_is_in_two_splits(artifact: Artifact, task: str) -> None:
    texts = {split: {json.dumps(row) for row in rows(artifact, task, split)} for split in SPLITS}
    assert not texts["train"] & texts["dev"]
    assert not (texts["train"] | texts["dev"]) & texts["test"]


def test_two_items_that_share_an_example_are_not_in_two_splits() -> None:
    couples = {"train": [("a", "b")], "dev": [("a", "c"), ("d", "e")], "test": [("f", "e"), ("g",)]}
    chosen = choose_items(
        {split: {split: [SimpleNamespace(name="module")]} for split in SPLITS},
        lambda split, module: couples[split],
        counts=dict.fromkeys(SPLITS, 5),
        address=(0, "pairs"),
        examples=iter,
    )
    assert chosen == {"train": [("a", "b")], "dev": [("d", "e")], "test": [("g",)]}


def test_statistics_count_what_is_in_the_files(artifact: Artifact) -> None:
    counted = artifact.manifest.statistics["tagging"]["train"]
    found = rows(artifact, "tagging", "train")
    assert counted["examples"] == len(found)
    assert counted["words"] == sum(len(row["words"]) for row in found)
    assert sum(counted["labels"].values()) == counted["words"]


def test_the_same_seed_and_packages_give_the_same_bytes(artifact: Artifact, tmp_path: Path) -> None:
    assert run(tmp_path / "again").digest == artifact.digest


def test_test_data_do_not_change_with_the_amount_of_training_data(
    artifact: Artifact, tmp_path: Path
) -> None:
    fewer = run(tmp_path / "fewer", tagging_train_sentences=20)
    assert rows(fewer, "tagging", "test") == rows(artifact, "tagging", "test")
    assert rows(fewer, "tagging", "train") == rows(artifact, "tagging", "train")[:20]


def test_packages_with_nothing_to_label_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    use(monkeypatch, install(tmp_path, "silent", {"silent/a.py": "x = 1"}))
    with pytest.raises(UsageError, match="nothing to label for tagging/test in silent"):
        run(tmp_path / "out", test_packages=["silent"])
