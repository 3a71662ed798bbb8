"""What is said of a task's data, and how dev is held out."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from artifacts.errors import UsageError
from model.config import TaskConfig
from model.tasks.problems import load_tables
from model.tasks.task_table import TaskTable, data_notes
from tests.model.task_builders import write_lines


def table(texts: Sequence[str], labels: Sequence[str], path: str = "x.csv") -> TaskTable:
    return TaskTable(path, {"text_a": list(texts), "label": list(labels)})


def task(path: Path, rows: list[dict[str, object]], kind: str = "classification") -> TaskConfig:
    train = write_lines(path / "train.jsonl", rows)
    return TaskConfig.model_validate({"name": "t", "kind": kind, "train": train})


def test_rows_that_train_has_too_are_counted_and_the_first_is_named() -> None:
    train = table([f"text {n}" for n in range(40)], ["a", "b"] * 20)
    dev = table(["new", "text 3", "text 4"], ["a", "b", "a"], "dev.csv")
    (note,) = data_notes({"train": train, "dev": dev})
    assert note.startswith("2 of 3 dev rows are training rows, too (the first: dev.csv:2)")


def test_rare_labels_and_labels_missing_in_dev_are_named() -> None:
    train = table([f"text {n}" for n in range(43)], ["a"] * 20 + ["b"] * 20 + ["c"] * 3)
    dev = table(["new", "newer"], ["a", "c"])
    rare, missing = data_notes({"train": train, "dev": dev})
    assert rare == "labels with fewer than 10 training rows: c (3)"
    assert missing == "labels without a dev row, whose scores are unknown: b"


def test_nothing_is_said_of_sound_data_or_of_numbers() -> None:
    train = table([f"text {n}" for n in range(40)], ["a", "b"] * 20)
    assert not list(data_notes({"train": train, "dev": table(["new", "newer"], ["a", "b"])}))
    numbers = table([f"text {n}" for n in range(9)], [str(n / 7) for n in range(9)])
    assert not list(data_notes({"train": numbers, "dev": table(["new"], ["0.5"])}))


def test_without_dev_and_test_some_rows_of_every_label_are_held_out(tmp_path: Path) -> None:
    rows: list[dict[str, object]] = [
        {"text_a": f"text {n}", "label": "rare" if n % 20 == 0 else "often"} for n in range(100)
    ]
    first, again = (load_tables(task(tmp_path, rows)) for _ in range(2))
    assert first["dev"].columns == again["dev"].columns
    assert len(first["dev"]) == 11  # 10 of 95, 1 of 5
    assert set(first["dev"].columns["label"]) == {"rare", "often"}
    texts = [str(text) for split in first.values() for text in split.columns["text_a"]]
    assert sorted(texts) == sorted(str(row["text_a"]) for row in rows)
    assert "no dev file: 11 of 100 rows of" in first["train"].notes()[0]


def test_documents_are_held_out_whole(tmp_path: Path) -> None:
    words = "\n\n".join(
        "-DOCSTART- O\n\n" + "\n\n".join(f"w{doc}{n} O" for n in range(4)) for doc in range(10)
    )
    (tmp_path / "train.conll").write_text(words + "\n")
    found = load_tables(TaskConfig(name="t", kind="tagging", train=str(tmp_path / "train.conll")))
    assert len(found["dev"]) == 4
    assert len(set(map(str, found["dev"].columns["document"]))) == 1


def test_a_single_row_cannot_be_shared(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"too few rows to hold some out as dev; name a dev file"):
        load_tables(task(tmp_path, [{"text_a": "x", "label": "a"}]))
