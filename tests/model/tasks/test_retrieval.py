"""Retrieval: the loss over a batch, the rankings of a split, the BM25 baseline."""

from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from pydantic import ValidationError
from sklearn.metrics import ndcg_score
from torch.nn import functional

from cloze.artifacts.errors import UsageError
from cloze.model.config import FinetuneConfig, TaskConfig
from cloze.model.retrieval.fusion import WEIGHT
from cloze.model.retrieval.hybrid_teacher import HybridTeacher
from cloze.model.retrieval.standing import FEWEST
from cloze.model.tasks.baselines import baselines
from cloze.model.tasks.problems import load_problem, load_tables
from cloze.model.tasks.ranking import measure_ranking
from cloze.model.tasks.retrieval import Retrieval
from tests.model.task_builders import TOKENIZER, write_lines


def pair(query: str, passage: str, **more: Any) -> dict[str, Any]:
    return {"query": query, "passage": passage, **more}


def loaded(folder: Path, rows: list[dict], dev: list[dict] | None = None, **fields: Any) -> Any:
    files = {
        split: write_lines(folder / f"{split}.jsonl", data)
        for split, data in (("train", rows), ("dev", dev or rows))
    }
    task = TaskConfig.model_validate({"name": "r", "kind": "retrieval", **files, **fields})
    tables = load_tables(task)
    problem = load_problem(task, TOKENIZER, tables)
    assert isinstance(problem, Retrieval)
    return problem, tables


def vectors(*numbers: tuple[float, ...]) -> torch.Tensor:
    return functional.normalize(torch.tensor(numbers), dim=-1)


def loss(problem: Retrieval, found: torch.Tensor) -> float:
    targets = problem.targets("train", np.arange(problem.units("train")))
    return float(problem.loss(found, torch.from_numpy(targets)))


def test_each_query_chooses_among_all_passages_and_negatives_of_the_batch(tmp_path: Path) -> None:
    rows = [pair("a", "b", negatives=["c", "d"]), pair("e", "f", negatives=[])]
    problem, _ = loaded(tmp_path, rows)
    torch.manual_seed(0)
    found = functional.normalize(torch.randn(6, 4), dim=-1)
    scores = found[[0, 4]] @ found[[1, 2, 3, 5]].T / 0.05
    expected = functional.cross_entropy(scores, torch.tensor([0, 3]), reduction="sum")
    assert loss(problem, found) == pytest.approx(float(expected), rel=1e-6)


def test_a_passage_that_is_right_in_any_row_is_never_a_negative(tmp_path: Path) -> None:
    """Passages b and c are relevant to query a, and b is also relevant to d."""
    rows = [pair("a", "b"), pair("a", "c"), pair("d", "b")]
    problem, _ = loaded(tmp_path, rows)
    found = vectors((1, 0), (1, 0.1), (1, 0), (1, 0.2), (0, 1), (1, 0.1))
    # a has no negatives; d has c, but not the other b.
    scores = found[4] @ found[[3, 5]].T / 0.05
    expected = functional.cross_entropy(scores, torch.tensor(1))
    assert loss(problem, found) == pytest.approx(float(expected), rel=1e-6)


def test_shorter_vectors_are_trained_and_scored_as_well(tmp_path: Path) -> None:
    rows = [pair("a", "b"), pair("c", "d")]
    whole, _ = loaded(tmp_path, rows)
    nested, _ = loaded(tmp_path, rows, retrieval={"dimensions": [2]})
    torch.manual_seed(1)
    found = functional.normalize(torch.randn(4, 6), dim=-1)
    halves = [loss(whole, found), loss(whole, functional.normalize(found[:, :2], dim=-1))]
    assert loss(nested, found) == pytest.approx(sum(halves) / 2, rel=1e-6)
    # With two dimensions, the passages of the two queries change places.
    logits = np.array([[1, 0, 9], [0, 1, 9], [0, 1, -9], [1, 0, -9]], np.float32)
    scores = nested.score("dev", nested.predictions("dev", logits))
    assert (scores["ndcg@10"], scores["recall@1"]) == (1.0, 1.0)
    assert scores["ndcg@10_2"] == pytest.approx(1 / np.log2(3))
    assert nested.metrics[-1] == "ndcg@10_2"


def test_a_text_that_is_query_and_passage_has_a_vector_as_each(tmp_path: Path) -> None:
    problem, _ = loaded(tmp_path, [pair("a", "b"), pair("b", "a")])
    # The vectors of query a, passage b, query b, passage a: as if a prompt made them differ.
    logits = np.array([[1, 0], [1, 0], [0, 1], [0, 1]], np.float32)
    first, second = problem.predictions("dev", logits)
    assert (first["text"], second["text"]) == ("b", "a")


def test_equal_queries_are_one_and_all_their_passages_are_right(tmp_path: Path) -> None:
    problem, _ = loaded(tmp_path, [pair("a", "b"), pair("a", "c"), pair("d", "b")])
    assert problem.examples("dev") == 2
    assert problem.gold("dev") == [("b", "c"), ("b",)]
    predictions = [{"text": "b", "ranked": [[0, 1]]}, {"text": "c", "ranked": [[1, 0]]}]
    scores = problem.score("dev", predictions)
    assert (scores["recall@1"], scores["mrr@10"]) == (0.25, 0.75)


def test_bm25_stands_beside_the_encoder_and_finds_what_shares_rare_words(tmp_path: Path) -> None:
    rows = [
        pair("which list has the names", "names stand in the list"),
        pair("the shape of a new array", "an array of given shape"),
        pair("nothing", "value error raised"),
    ]
    problem, tables = loaded(tmp_path, rows)
    (found,) = baselines(problem, tables)
    assert found.name == "bm25"
    assert found.dev["recall@1"] == pytest.approx(2 / 3)


@pytest.mark.parametrize(
    ("rows", "fields", "message"),
    [
        (
            [pair("a", "b", negatives="c")],
            {},
            r"train\.jsonl:1: negatives are 'c', expected a list",
        ),
        ([pair("a", "b")], {"metrics": ["accuracy"]}, "metric accuracy; expected one of ndcg@K"),
        ([pair("a", " ")], {}, r"train\.jsonl:1: passage is blank"),
        ([{"query": "a"}], {}, "passage"),
    ],
)
def test_what_is_no_pair_or_no_metric_is_refused(
    tmp_path: Path, rows: list[dict], fields: dict, message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        loaded(tmp_path, rows, **fields)


def test_rows_of_one_passage_are_held_out_together(tmp_path: Path) -> None:
    rows = [pair(f"query {n}", f"passage {n // 2}") for n in range(40)]
    path = write_lines(tmp_path / "all.jsonl", rows)
    task = TaskConfig(name="r", kind="retrieval", train=path, dev_share=0.25)
    tables = load_tables(task)
    train, dev = (set(tables[split].columns["passage"]) for split in ("train", "dev"))
    assert dev
    assert not train & dev


def test_a_head_of_its_own_is_refused_for_vectors() -> None:
    task = {"name": "r", "kind": "retrieval", "train": "a.jsonl"}
    with pytest.raises(ValidationError, match="trains the encoder's own vectors"):
        FinetuneConfig.model_validate({"tasks": [task], "features": [{"head": "linear"}]})


def test_a_single_query_scores_what_paper_and_pencil_say() -> None:
    found = measure_ranking(
        ["ndcg@3", "recall@1", "recall@3", "mrr@10", "mrr@1"], [[7, 3, 5, 9]], [{3: 1.0, 9: 1.0}]
    )
    assert found == {
        "ndcg@3": pytest.approx((1 / np.log2(3)) / (1 + 1 / np.log2(3))),
        "recall@1": 0.0,
        "recall@3": 0.5,
        "mrr@10": 0.5,
        "mrr@1": 0.0,
    }


def test_ndcg_is_scikit_learns_for_any_ranking_and_any_number_of_right_ones() -> None:
    rng = np.random.default_rng(0)
    scores = rng.normal(size=(50, 40))
    gold = np.zeros((50, 40))
    for row in gold:
        row[rng.choice(40, rng.integers(1, 15), replace=False)] = 1
    ranked = np.argsort(-scores, axis=1).tolist()
    found = measure_ranking(
        ["ndcg@10"], ranked, [dict.fromkeys(np.flatnonzero(row), 1.0) for row in gold]
    )
    assert found["ndcg@10"] == pytest.approx(ndcg_score(gold, scores, k=10))


def test_fewer_candidates_than_ranks_are_asked_for_are_all_there_is() -> None:
    assert measure_ranking(["ndcg@10", "recall@100"], [[0], [0]], [{0: 1.0}, {1: 1.0}]) == {
        "ndcg@10": 0.5,
        "recall@100": 0.5,
    }


def test_with_a_teacher_each_passage_is_read_once_and_the_hybrid_ranking_is_learnt(
    tmp_path: Path,
) -> None:
    rows = [pair("a list", "the list a"), pair("of names", "the list a"), pair("b", "names of b")]
    problem, _ = loaded(tmp_path, rows, retrieval={"loss": "hybrid", "language": "none"})
    assert len(problem.sequences["train"]) == 5
    assert problem.unit_tokens("train").tolist()[1] < problem.unit_tokens("train")[0]
    before = functional.normalize(torch.tensor([(1, 0.1), (1, 0), (1, 0.1), (1, 1), (0, 1.0)]))
    problem.begin(lambda split: before.numpy())

    def gradient() -> torch.Tensor:
        found = before.clone().requires_grad_()
        targets = torch.from_numpy(problem.targets("train", np.arange(3)))
        problem.loss(found, targets).backward()
        assert found.grad is not None
        return found.grad

    # The second query has a word of the other passage, to which its vector is to move; passages,
    # in rows 1 and 4, stay where they are.
    away = gradient()
    assert away[2] @ (before[4] - before[1]) < -0.1
    assert float(away[[1, 4]].abs().max()) < 1e-4


def test_vectors_by_which_passages_do_not_stand_out_hardly_count_in_what_is_taught(
    tmp_path: Path,
) -> None:
    texts = [f"{one} {two} names" for one, two in combinations("abcdefghijkl", 2)]
    problem, _ = loaded(
        tmp_path,
        [pair(text.removesuffix(" names"), text) for text in texts],
        retrieval={"loss": "hybrid", "language": "none"},
    )
    count = len(texts)
    apart = np.eye(count, dtype=np.float32)
    problem.prune_vocabulary()
    # Query and passage in turn, as in the file.
    own = {"train": np.repeat(apart, 2, axis=0)}
    assert count >= FEWEST

    def weight(parts: np.ndarray) -> float:
        def outputs(split: str) -> np.ndarray:
            assert problem.sequences[split].input_ids.values.max() < len(problem.used_ids)
            return {**own, "parts": parts}[split]

        taught = dict[str, float]()
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(HybridTeacher, "of", lambda *texts, **options: taught.update(options))
            problem.begin(outputs)
        assert problem.sequences.keys() == {"train", "dev"}
        return taught["weight"]

    assert weight(apart) == WEIGHT
    assert weight(np.roll(apart, 1, axis=0)) == 0


def test_the_hybrid_ranking_is_of_whole_vectors() -> None:
    with pytest.raises(ValidationError, match="leave out dimensions"):
        TaskConfig.model_validate(
            {
                **{"name": "r", "kind": "retrieval", "train": "t"},
                "retrieval": {"loss": "hybrid", "dimensions": [64]},
            }
        )
