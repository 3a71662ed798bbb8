"""Hard negatives: what is mined for a row, what is left out, and the stage that does it."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cloze.artifacts.store import Artifact
from cloze.model.config import NegativesConfig, TaskConfig
from cloze.model.finetune.finetune import make_trials
from cloze.model.retrieval.hard_negatives import Mined, hard_negatives, make_negatives
from cloze.model.retrieval.lexical_index import FILES, LexicalIndex, write_lexical_index
from cloze.model.tasks.files.task_table import TaskTable
from cloze.model.tasks.problems import load_tables
from cloze.model.tasks.ranking import RankingTexts
from tests.model.task_builders import encoder_artifact, inputs, stage_table, write_lines

PASSAGES = ["own", "near list", "close", "far list list", "farther", "list of all"]
NEARNESS = (0.8, 0.75, 0.78, 0.5, 0.2, 0.1)
"""Cosines of the query with each passage."""


def texts() -> RankingTexts:
    """A query with the first passage; the others belong to another query."""
    queries = ["the list", *["another"] * 5]
    return RankingTexts(TaskTable("t", {"query": [*queries], "passage": [*PASSAGES]}))


def mined(folder: Path, **settings: Any) -> Mined:
    """The negatives of the first row."""
    queries = np.array([[1.0, 0.0], [0.0, 1.0]], np.float32)
    passages = np.array([(one, np.sqrt(1 - one**2)) for one in NEARNESS], np.float32)
    config = NegativesConfig(**settings)
    write_lexical_index(folder, PASSAGES, language="none")
    lexical = LexicalIndex({name: str(folder / name) for name in FILES}, language="none")
    return next(hard_negatives(texts(), queries, passages, lexical, config))


def test_rankings_take_turns_and_what_is_as_close_as_the_own_passage_is_left_out(
    tmp_path: Path,
) -> None:
    # 0.95 × 0.8 = 0.76: of the two near ones, 0.75 may be taken and 0.78 may not.
    by_vectors = mined(tmp_path, by=["vectors"], count=3)
    assert by_vectors == Mined([1, 3, 4], close=1)
    # Words: "far list list" and "near list" have one in common, like the last.
    by_words = mined(tmp_path, by=["lexical"], count=9)
    assert {*by_words.passages} == {1, 3, 5}
    both = mined(tmp_path, count=4)
    first_by_words = by_words.passages[0]
    expected = dict.fromkeys([1, first_by_words, 3, by_words.passages[1], 4, by_words.passages[2]])
    assert both.passages == [*expected][:4]


@pytest.mark.parametrize(
    ("margin", "expected"), [(0.0, [2, 1, 3, 4, 5]), (0.1, [3, 4, 5]), (0.6, [4, 5])]
)
def test_the_margin_is_a_share_of_the_own_passages_cosine(
    tmp_path: Path, margin: float, expected: list[int]
) -> None:
    assert mined(tmp_path, by=["vectors"], margin=margin).passages == expected


def test_what_is_relevant_in_another_row_is_never_mined() -> None:
    rows = {"query": ["a", "a", "b"], "passage": ["x", "y", "z"]}
    found = hard_negatives(
        RankingTexts(TaskTable("t", rows)),
        np.eye(2, dtype=np.float32),
        np.array([[0.9, 0.1], [0.2, 0.1], [0.1, 0.9]], np.float32),
        None,
        NegativesConfig(by=("vectors",)),
    )
    assert [one.passages for one in found] == [[2], [2], [0, 1]]


@pytest.fixture
def artifact(tmp_path: Path) -> Artifact:
    """Negatives of two tasks, mined with a random encoder."""
    words = ["list", "array", "name", "value", "str", "int", "shape", "type", "error"]
    rows = [
        {"query": f"the {word}", "passage": f"a new {word} of given {word}", "document": word}
        for word in words
    ]
    rows[0]["negatives"] = ["given by hand"]
    train = write_lines(tmp_path / "train.jsonl", rows)
    tasks = [
        {"name": kind, "kind": kind, "train": train, "dev_share": 0.3}
        for kind in ("retrieval", "reranking")
    ]
    table = stage_table(
        "negatives",
        tmp_path / "negatives",
        config={"negatives": {"count": 2, "margin": 0}, "tasks": tasks},
        inputs=inputs(encoder=encoder_artifact(tmp_path / "encoder")),
        machine={"threads": 1},
    )
    return make_negatives(table, [])


def lines(artifact: Artifact, name: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in Path(artifact.path(name)).read_text().splitlines()]


def test_every_split_of_every_task_gets_its_own_passages(artifact: Artifact) -> None:
    names = {
        f"{kind}/{split}.jsonl" for kind in ("retrieval", "reranking") for split in ("train", "dev")
    }
    assert {one.name for one in artifact.manifest.files} == names
    for split in ("train", "dev"):
        rows = lines(artifact, f"reranking/{split}.jsonl")
        passages = {row["passage"] for row in rows} | {"given by hand"}
        for row in rows:
            assert {*row["negatives"]} <= passages - {row["passage"]}
    assert len(lines(artifact, "reranking/train.jsonl")) == 6
    # A task that ranks all passages of its dev split needs no others there.
    assert not any(row["negatives"] for row in lines(artifact, "retrieval/dev.jsonl")[1:])
    assert artifact.manifest.statistics["rows"] == 15
    both = lines(artifact, "retrieval/train.jsonl") + lines(artifact, "retrieval/dev.jsonl")
    (given,) = (row for row in both if row["document"] == "list")
    assert given["negatives"][0] == "given by hand"


def test_fine_tuning_reads_the_mined_rows_instead_of_the_files(
    artifact: Artifact, tmp_path: Path
) -> None:
    train = str(tmp_path / "train.jsonl")
    task = TaskConfig(name="reranking", kind="reranking", train=train, dev_share=0.3)
    tables = load_tables(task, mined=artifact)
    assert {split: len(table) for split, table in tables.items()} == {"train": 6, "dev": 3}
    assert tables["train"].remarks[0].startswith("no dev file: 3 of 9 rows")
    config = {
        "tasks": [{**task.model_dump(mode="json"), "epochs": 1, "max_seq_length": 32}],
        "seeds": [0],
        "precision": "fp32",
    }
    (tmp_path / "train.jsonl").unlink()
    table = stage_table(
        "finetune",
        tmp_path / "trials",
        config={"finetune": config},
        inputs=inputs(encoder=encoder_artifact(tmp_path / "again"), negatives=artifact),
        machine={"threads": 1},
    )
    found = make_trials(table, []).read_json("trials.json")
    assert found["tasks"][0]["examples"] == {"train": 6, "dev": 3}
    assert set(found["trials"][0]["dev"]) == {"ndcg@10", "recall@1", "mrr@10"}
