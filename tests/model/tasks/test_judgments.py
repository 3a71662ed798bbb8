"""Judgments by ids in BEIR's layout: joined with texts, and ranked over a whole collection."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pydantic import ValidationError

from cloze.artifacts.errors import UsageError
from cloze.flows.stages import task_data
from cloze.model.config import TaskConfig
from cloze.model.retrieval.ranking_metrics import Relevant, measure
from cloze.model.tasks.baselines import baselines
from cloze.model.tasks.problems import load_problem, load_tables
from cloze.model.tasks.ranking import measure_ranking
from tests.model.task_builders import TOKENIZER, write_lines

PASSAGES = [
    {"_id": "d1", "title": "Cats", "text": "they purr"},
    {"_id": "d2", "title": "", "text": "dogs bark"},
    {"_id": "d3", "text": "cows moo"},
    {"_id": "d4", "text": "nobody names this"},
]
QUERIES = [
    {"_id": "q1", "text": "who purrs"},
    {"_id": "q2", "text": "who barks"},
    {"_id": "q3", "text": "who moos"},
]
JUDGED = ["q1\td1\t2", "q1\td2\t1", "q2\td2\t1", "q2\td1\t0"]


def layout(
    folder: Path,
    *,
    judged: list[str] = JUDGED,
    passages: list[dict] = PASSAGES,
    queries: list[dict] = QUERIES,
) -> dict[str, Any]:
    """A folder as BEIR publishes it, and the settings of a task on it."""
    (folder / "qrels").mkdir()
    head = "query-id\tcorpus-id\tscore"
    for split, lines in (("train", ["q3\td3\t1"]), ("test", judged)):
        (folder / "qrels" / f"{split}.tsv").write_text("\n".join([head, *lines]) + "\n")
    return {
        "name": "r",
        "kind": "retrieval",
        "train": str(folder / "qrels" / "train.tsv"),
        "test": str(folder / "qrels" / "test.tsv"),
        "collection": {
            "passages": write_lines(folder / "corpus.jsonl", passages),
            "queries": write_lines(folder / "queries.jsonl", queries),
        },
    }


def loaded(folder: Path, **parts: Any) -> tuple[Any, Any]:
    task = TaskConfig.model_validate(layout(folder, **parts))
    tables = load_tables(task)
    return load_problem(task, TOKENIZER, tables), tables


def test_every_passage_of_the_collection_is_ranked_for_every_judged_query(tmp_path: Path) -> None:
    problem, tables = loaded(tmp_path)
    assert problem.gold("test") == [("Cats they purr", "dogs bark"), ("dogs bark",)]
    assert tables["train"].columns["query"] == ["who moos"]
    assert "negatives" not in tables["train"].columns
    # d1 and d2 are relevant to some query; d3 and d4 are ranked as well.
    logits = np.zeros((len(problem.sequences["test"]), 4), np.float32)
    (first, second) = problem.predictions("test", logits)
    assert first["ranked"] == second["ranked"] == [[0, 1, 2, 3]]


def test_grades_are_gains(tmp_path: Path) -> None:
    problem, _ = loaded(tmp_path)
    # dogs, cows, cats for the first query; the right one first for the second
    scores = problem.score(
        "test", [{"text": "", "ranked": [[1, 2, 0]]}, {"text": "", "ranked": [[1]]}]
    )
    first = (1 / np.log2(2) + 2 / np.log2(4)) / (2 / np.log2(2) + 1 / np.log2(3))
    assert scores["ndcg@10"] == pytest.approx((first + 1) / 2)
    assert (scores["recall@1"], scores["mrr@10"]) == (0.75, 1.0)


def test_a_task_scores_what_an_evaluated_search_scores() -> None:
    rng = np.random.default_rng(0)
    ranked = [rng.permutation(30).tolist() for _ in range(40)]
    relevant = [
        {int(n): float(rng.integers(1, 4)) for n in rng.choice(30, rng.integers(1, 15), False)}
        for _ in range(40)
    ]
    found = measure_ranking(["ndcg@10", "recall@10", "mrr@10"], ranked, relevant)
    by_query = [
        measure(
            Relevant(np.array([order.index(n) + 1 for n in graded]), np.array([*graded.values()]))
        )
        for order, graded in zip(ranked, relevant, strict=True)
    ]
    for name, value in found.items():
        assert value == pytest.approx(np.mean([one[name] for one in by_query]))


def test_bm25_ranks_the_whole_collection_as_well(tmp_path: Path) -> None:
    queries = [{"_id": "q1", "text": "this"}, {"_id": "q2", "text": "moo, dogs"}, QUERIES[2]]
    problem, tables = loaded(tmp_path, judged=["q1\td1\t1", "q2\td2\t1"], queries=queries)
    (found,) = baselines(problem, tables)
    # Only d4 has "this". The second query has as rare a word of d2 as of d3, of equal length.
    assert found.test["recall@1"] == 0.5
    assert found.test["recall@10"] == 0.5


def test_rows_may_contain_the_queries_themselves(tmp_path: Path) -> None:
    task = layout(tmp_path)
    task["test"] = str(tmp_path / "questions.csv")
    (tmp_path / "questions.csv").write_text('query,corpus-id\n"who, then, purrs",d1\n')
    task["train"] = task["test"]
    del task["collection"]["queries"]
    problem = load_problem(
        TaskConfig.model_validate(task), TOKENIZER, load_tables(TaskConfig(**task))
    )
    assert problem.shown("test", 0) == "who, then, purrs"
    assert problem.gold("test") == [("Cats they purr",)]


def test_a_reranker_ranks_the_candidates_of_its_rows(tmp_path: Path) -> None:
    task = {**layout(tmp_path, judged=["q1\td1\t1", "q2\td2\t1"]), "kind": "reranking"}
    del task["train"]
    config = TaskConfig.model_validate({**task, "train": task["test"]})
    problem = load_problem(config, TOKENIZER, load_tables(config))
    assert problem.gold("test") == [("Cats they purr",), ("dogs bark",)]


def test_a_relevant_passage_without_text_is_left_out_and_said(tmp_path: Path) -> None:
    passages = [*PASSAGES, {"_id": "d5", "title": "", "text": ""}]
    _, tables = loaded(tmp_path, judged=[*JUDGED, "q3\td5\t1"], passages=passages)
    assert len(tables["test"]) == 3
    assert "1 relevant passages have no text and are left out" in tables["test"].remarks[-1]


def test_texts_are_inputs_of_the_stage(tmp_path: Path) -> None:
    task = TaskConfig.model_validate(layout(tmp_path))
    files = task_data(task, "task").files
    assert files["task.collection.passages"] == task.collection.passages
    assert files["task.collection.queries"] == task.collection.queries
    assert task.rows.collection == task.collection


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ({"judged": ["q1\td9\t1"]}, r"test\.tsv:2: 'd9' is no _id in .*corpus\.jsonl"),
        ({"judged": ["q9\td1\t1"]}, r"test\.tsv:2: 'q9' is no _id in .*queries\.jsonl"),
        ({"judged": ["q1\td1\tmuch"]}, r"test\.tsv:2: grade is 'much', expected a number"),
        ({"judged": ["q1\td1\tnan"]}, r"test\.tsv:2: grade is 'nan', expected a number"),
        ({"judged": ["q1\td1\t0"]}, r"test\.tsv: no grade above 0"),
        ({"passages": [PASSAGES[0], PASSAGES[0]]}, r"corpus\.jsonl:2: _id is 'd1', expected one"),
        ({"queries": [{"_id": "q1", "text": " "}]}, r"test\.tsv:2: query 'q1' is blank"),
        ({"passages": [{"_id": "d1", "text": ["a"]}]}, r"corpus\.jsonl:1: text is \['a'\]"),
    ],
)
def test_judgments_that_do_not_fit_are_refused(
    tmp_path: Path, parts: dict[str, Any], message: str
) -> None:
    task = layout(tmp_path, **parts)
    with pytest.raises(UsageError, match=message):
        load_tables(TaskConfig.model_validate({**task, "train": task["test"]}))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"collection": {"queries": "q.jsonl"}}, "queries without passages"),
        ({"kind": "classification"}, "collection applies to tasks of kind retrieval or reranking"),
    ],
)
def test_settings_that_do_not_fit_are_refused(
    tmp_path: Path, settings: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValidationError, match=message):
        TaskConfig.model_validate({**layout(tmp_path), **settings})
