"""Reranking: the candidates of a query, the losses over them, and the scores of their order."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from cloze.artifacts.errors import UsageError
from cloze.model.config import TaskConfig
from cloze.model.tasks.baselines import baselines
from cloze.model.tasks.problems import load_problem, load_tables
from cloze.model.tasks.reranking import Reranking
from tests.model.task_builders import TOKENIZER, write_lines


def pair(query: str, passage: str, **more: Any) -> dict[str, Any]:
    return {"query": query, "passage": passage, **more}


def loaded(
    folder: Path, rows: list[dict[str, Any]], dev: list[dict[str, Any]] | None = None, **fields: Any
) -> Reranking:
    files = {
        split: write_lines(folder / f"{split}.jsonl", data)
        for split, data in (("train", rows), ("dev", dev or rows))
    }
    task = TaskConfig.model_validate({"name": "r", "kind": "reranking", **files, **fields})
    problem = load_problem(task, TOKENIZER, load_tables(task))
    assert isinstance(problem, Reranking)
    return problem


def candidates(problem: Reranking, split: str) -> list[list[str]]:
    """Query and passages of every list."""
    texts = problem._texts[split].passages
    return [
        [one.query, *(texts[number] for number in one.passages)] for one in problem._lists[split]
    ]


def test_a_row_is_a_list_of_its_passage_its_negatives_and_drawn_ones(tmp_path: Path) -> None:
    rows = [pair("a", "b", negatives=["c", "d", "e"]), pair("f", "g"), pair("h", "i")]
    problem = loaded(tmp_path, rows, reranking={"negatives": 2})
    first, second, third = candidates(problem, "train")
    assert first == ["a", "b", "c", "d"]  # in the order of the row, no more than two
    assert second[:2] == ["f", "g"]
    assert len(second) == len(third) == 4
    assert {*second[2:]} < {"b", "c", "d", "e", "i"}
    assert candidates(loaded(tmp_path, rows, reranking={"negatives": 2}), "train")[1] == second


def test_what_is_relevant_in_any_row_is_never_a_negative(tmp_path: Path) -> None:
    rows = [pair("a", "b", negatives=["c"]), pair("a", "c"), pair("d", "e")]
    problem = loaded(tmp_path, rows, reranking={"negatives": 9})
    assert candidates(problem, "train") == [
        ["a", "b", "e"],
        ["a", "c", "e"],
        ["d", "e", *candidates(problem, "train")[2][2:]],
    ]
    assert {*candidates(problem, "train")[2][2:]} == {"b", "c"}
    # On dev, a query is ranked once, with all of its passages.
    assert candidates(problem, "dev")[0] == ["a", "b", "c", "e"]


def test_labelled_pairs_are_the_same_as_lists(tmp_path: Path) -> None:
    pairs = [
        pair("a", "b", label=1),
        pair("a", "c", label=0),
        pair("x", "y", label=0),
        pair("a", "d", label="False"),
    ]
    problem = loaded(tmp_path, pairs, reranking={"negatives": 2})
    assert candidates(problem, "train") == [["a", "b", "c", "d"]]
    remark = "1 queries have no pair with the label 1 and are left out"
    assert problem.table("train").remarks == (remark,)


def test_the_losses_are_those_of_the_list_and_of_its_pairs(tmp_path: Path) -> None:
    rows = [pair("a", "b", negatives=["c", "d"]), pair("e", "f", negatives=["g"])]
    logits = torch.tensor([[2.0], [1.0], [-1.0], [0.5], [0.0]])

    def loss(kind: str) -> float:
        options = {"negatives": 1, "loss": kind}
        problem = loaded(tmp_path, rows, reranking=options)
        targets = problem.targets("train", np.arange(2))
        assert targets.tolist() == [2, 2]
        return float(problem.loss(logits[[0, 1, 3, 4]], torch.from_numpy(targets)))

    def softplus(value: float) -> float:
        return math.log1p(math.exp(value))

    assert loss("listwise") == pytest.approx(softplus(-1.0) + softplus(-0.5), rel=1e-6)
    pairs = (softplus(-2.0) + softplus(1.0)) / 2 + (softplus(-0.5) + softplus(0.0)) / 2
    assert loss("pointwise") == pytest.approx(pairs, rel=1e-6)
    # Lists of different lengths: of three and of two.
    problem = loaded(tmp_path, rows, reranking={"negatives": 2})
    problem._first["train"] = np.array([0, 3, 5])
    targets = torch.from_numpy(problem.targets("train", np.arange(2)))
    listwise = math.log1p(math.exp(-1.0) + math.exp(-3.0)) + softplus(-0.5)
    assert float(problem.loss(logits, targets)) == pytest.approx(listwise, rel=1e-6)


def test_candidates_are_ranked_by_their_scores_and_equal_scores_say_nothing(tmp_path: Path) -> None:
    rows = [pair("a", "b", negatives=["c", "d"]), pair("e", "f", negatives=["c", "d"])]
    problem = loaded(tmp_path, rows, reranking={"negatives": 2})
    logits = np.array([[0.0], [1.0], [-1.0], [0.5], [0.5], [0.5]], np.float32)
    first, second = problem.predictions("dev", logits)
    assert isinstance(first, dict)
    assert isinstance(second, dict)
    assert (first["text"], second["text"]) == ("c", "d")
    scores = problem.score("dev", [first, second])
    assert scores["mrr@10"] == pytest.approx((1 / 2 + 1 / 3) / 2)
    assert scores["recall@1"] == 0.0


def test_bm25_ranks_the_same_candidates(tmp_path: Path) -> None:
    rows = [
        pair("new array", "a new array of given shape", negatives=["value error raised"]),
        pair("list of names", "name error if raised", negatives=["list of str"]),
    ]
    problem = loaded(tmp_path, rows, reranking={"negatives": 1})
    (found,) = baselines(problem, {name: problem.table(name) for name in ("train", "dev")})
    assert (found.name, found.dev["recall@1"]) == ("bm25", 0.5)


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([pair("a", "b", label=1), pair("a", "c", label="maybe")], r":2: label is 'maybe', expect"),
        ([pair("a", "b", label=0)], "no pair has the label 1"),
        ([pair("a", "b"), pair("c", "b")], "one passage for every query, and no other one"),
        ([pair("a", "b", negatives="c")], "negatives are 'c', expected a list"),
        ([{"query": "a"}], "no column 'passage'"),
    ],
)
def test_rows_that_cannot_be_ranked_are_refused(
    tmp_path: Path, rows: list[dict[str, Any]], message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        loaded(tmp_path, rows)


def test_placeholders_for_labels_do_not_make_every_passage_relevant(tmp_path: Path) -> None:
    test = write_lines(tmp_path / "test.jsonl", [pair("a", "b", label=-1)])
    with pytest.raises(UsageError, match=r"test\.jsonl:1: label is -1, expected 1 for a relevant"):
        loaded(tmp_path, [pair("a", "b"), pair("c", "d")], test=test)
