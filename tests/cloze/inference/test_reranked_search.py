"""`cloze search --rerank`: the first passages in the order of a cross-encoder."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import BertForSequenceClassification, BertTokenizerFast

import cloze as api
from cloze.artifacts.errors import UsageError
from cloze.model.retrieval.fusion import WITHIN
from cloze.model.retrieval.reranker import Reranker, load_reranker
from tests.cloze.tiny_model import MODERN, TOKENIZER, write_cross_encoder, write_model

Cloze = Callable[..., Any]

ALONE = ("--feedback", "0")
"""Of the scores below only those of the reranker are to count."""

TEXTS = ("The list.", "Names a b.", "The the b.", "Of names.", "A list of names.", "B b a.")


@pytest.fixture
def searched(folder: Path) -> Path:
    """A tiny encoder, a tiny cross-encoder and six passages."""
    write_model(folder / "encoder")
    write_cross_encoder(folder / "cross")
    weights = load_file(folder / "cross" / "model.safetensors")
    weights["classifier.weight"] *= 6000  # a reranker with opinions
    save_file(weights, folder / "cross" / "model.safetensors")
    (folder / "texts" / "one.txt").unlink()
    for number, text in enumerate(TEXTS):
        (folder / "texts" / f"{number}.txt").write_text(text)
    return folder


def answer(cloze: Cloze, *arguments: str) -> Any:
    done = cloze("search", "encoder", "texts", *arguments, "--json")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_the_first_passages_are_ordered_by_the_reranker_and_each_says_so(
    cloze: Cloze, searched: Path
) -> None:
    (plain,) = answer(cloze, "a list", "--top-k", "6")
    first = [one["text"] for one in plain["passages"]][:4]
    assert {one["reranked_from"] for one in plain["passages"]} == {None}
    read = load_reranker(searched / "cross").scores("a list", first)
    assert len({*read.round(4).tolist()}) == 4
    # a quarter of a reranker's score counts beside the score by which a passage was found
    scores = np.array([one["score"] for one in plain["passages"]][:4]) + 0.25 * read
    order = np.argsort(-scores).tolist()
    assert order != [0, 1, 2, 3]
    asked = ("a list", "--rerank", "cross", "--depth", "4", *ALONE)
    (found,) = answer(cloze, *asked, "--top-k", "3")
    passages = found["passages"]
    assert [one["text"] for one in passages] == [first[place] for place in order[:3]]
    assert [one["reranked_from"] for one in passages] == [place + 1 for place in order[:3]]
    expected = scores[order[:3]].tolist()
    assert [one["score"] for one in passages] == pytest.approx(expected, rel=1e-5)
    shown = cloze("search", "encoder", "texts", "a list", "--rerank", "cross", "--depth", "4")
    assert shown.returncode == 2  # five passages are shown by default
    shown = cloze("search", "encoder", "texts", "a list", "--rerank", "cross", "--top-k", "2")
    assert "; reranked from " in shown.stdout
    search = api.search("encoder", "texts", rerank="cross", depth=4, feedback=0)
    assert [one._asdict() for one in search.ask("a list", top_k=3)] == passages


def test_the_weight_of_the_reranker_is_an_option(cloze: Cloze, searched: Path) -> None:
    asked = ("a list", "--rerank", "cross", "--depth", "4", "--top-k", "4", *ALONE)
    plain, none, much = (
        answer(cloze, *arguments)[0]["passages"]
        for arguments in (
            ("a list", "--top-k", "4"),
            (*asked, "--rerank-weight", "0"),
            (*asked, "--rerank-weight", "1e6"),
        )
    )
    assert [one["text"] for one in none] == [one["text"] for one in plain]
    # so much that the reranker's order is all that counts
    read = load_reranker(searched / "cross").scores("a list", [one["text"] for one in plain])
    assert [one["reranked_from"] for one in much] == (np.argsort(-read) + 1).tolist()
    options: dict[str, Any] = {"rerank": "cross", "depth": 4, "rerank_weight": 0, "feedback": 0}
    found = api.search("encoder", "texts", **options)
    assert [one.text for one in found.ask("a list", top_k=4)] == [one["text"] for one in plain]


def test_what_is_found_far_behind_the_first_is_not_read_and_stays_behind(
    searched: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(60):
        (searched / "texts" / f"more{number}.txt").write_text(f"B{' b' * (number % 9)} the of.")
    plain = api.search("encoder", "texts").ask("a list of names", top_k=66)
    near = [one.text for one in plain if one.score >= plain[0].score - WITHIN]
    assert 1 < len(near) < 50
    read: list[str] = []

    def scores(_: Reranker, question: str, texts: list[str]) -> np.ndarray:
        read.extend(texts)
        return np.arange(len(texts), dtype=np.float32) * 100  # the last one is the best

    monkeypatch.setattr(Reranker, "scores", scores)
    search = api.search("encoder", "texts", rerank="cross", feedback=0)
    found = search.ask("a list of names", top_k=50)
    assert read == near
    assert [one.text for one in found][: len(near)] == near[::-1]
    assert [one.reranked_from for one in found][len(near) :] == [*range(len(near) + 1, 51)]


def test_half_of_the_questions_choose_a_weight_of_the_reranker_and_the_others_judge_it(
    cloze: Cloze, searched: Path
) -> None:
    # The reranker is asked which passage is right, so that a large weight is the best one.
    read = load_reranker(searched / "cross")
    words = ("a", "b", "the", "list", "of", "names")
    questions = [f"{one} {other}" for one in words for other in words]
    best = [TEXTS[int(read.scores(one, [*TEXTS]).argmax())] for one in questions]
    rows = [
        {"question": one, "file": f"{TEXTS.index(text)}.txt"}
        for one, text in zip(questions, best, strict=True)
    ]
    (searched / "questions.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    asked = ("--evaluate", "questions.jsonl", "--rerank", "cross", "--depth", "6", *ALONE)
    found = answer(cloze, *asked, "--rerank-weight", "0")
    assert found["reranked_minus"]["hybrid"]["mean"] == 0
    chosen = found["chosen_rerank_weight"]
    assert chosen["weight"] > 0
    assert chosen["confirmed"]
    with_it = answer(cloze, *asked, "--rerank-weight", str(chosen["weight"]))
    assert with_it["chosen_rerank_weight"]["difference"]["mean"] == 0
    assert with_it["reranked_minus"]["hybrid"]["mean"] > 0.05
    shown = cloze("search", "encoder", "texts", *asked, "--rerank-weight", "0").stdout
    assert f"use --rerank-weight {chosen['weight']:g}" in shown


def test_a_graph_is_reranked_like_a_whole_collection(cloze: Cloze, searched: Path) -> None:
    pytest.importorskip("usearch")
    arguments = ("a list", "--rerank", "cross", "--depth", "6")
    exact, graph = (answer(cloze, *arguments, *more) for more in ((), ("--index",)))
    texts = [[one["text"] for one in found["passages"]] for (found,) in (exact, graph)]
    assert texts[0] == texts[1]


def test_an_evaluation_has_the_ranking_with_and_without_the_reranker(
    cloze: Cloze, searched: Path
) -> None:
    rows = [{"question": "a list", "file": "4.txt"}, {"question": "b", "file": "5.txt"}]
    text = "".join(json.dumps(row) + "\n" for row in rows)
    (searched / "questions.jsonl").write_text(text)
    asked = ("--evaluate", "questions.jsonl", "--rerank", "cross", "--depth", "3")
    found = answer(cloze, *asked)
    assert set(found["systems"]) == {"vectors", "lexical", "hybrid", "reranked"}
    assert set(found["hybrid_minus"]) == {"vectors", "lexical"}
    gains = []
    for system in ("hybrid", "reranked"):
        ranks = []
        for row in rows:
            (plain,) = answer(cloze, row["question"], "--top-k", "6")
            texts = [Path(one["file"]).name for one in plain["passages"]]
            if system == "reranked":
                more = ("--rerank", "cross", "--depth", "3", "--top-k", "3")
                (again,) = answer(cloze, row["question"], *more)
                texts[:3] = [Path(one["file"]).name for one in again["passages"]]
            ranks.append(texts.index(row["file"]) + 1)
        gains.append(float(np.mean([1 / np.log2(rank + 1) for rank in ranks])))
        assert found["systems"][system]["ndcg@10"]["mean"] == pytest.approx(gains[-1])
    difference = found["reranked_minus"]["hybrid"]["mean"]
    assert difference == pytest.approx(gains[1] - gains[0])
    shown = cloze("search", "encoder", "texts", *asked).stdout
    assert "\nreranked " in shown
    assert any(
        line.startswith("reranked is") or "reranked does not" in line for line in shown.splitlines()
    )
    assert answer(cloze, *asked[:2])["reranked_minus"] is None


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--rerank", "encoder"), "encoder: no reranker: no classifier.weight; expected a model"),
        (("--rerank", "classes"), "classes: no reranker: 3 outputs; expected a model of Bert"),
        (("--rerank", "nothing"), "nothing: no run of this name in "),
        (("--rerank", "texts"), "texts: no config.json among its 6 files, such as "),
        (("--rerank", "cross", "--vectors"), "--rerank --vectors: a reranker orders"),
        (("--rerank", "cross", "--lexical"), "--rerank --lexical: a reranker orders"),
        (("--rerank", "cross", "--depth", "3"), "top_k 5: only the first 3 passages are reranked"),
        (("--rerank", "cross", "--depth", "0"), "depth 0: expected at least 1 passage"),
        (("--depth", "9"), "depth 9: there is no reranker; name one with rerank"),
        (("--rerank-weight", "2"), "rerank_weight 2: there is no reranker; name one with rerank"),
        (("--rerank", "cross", "--rerank-weight", "-1"), "rerank_weight -1: expected 0 or more"),
        (("--feedback", "-1"), "feedback -1: expected 0 or more"),
        (
            ("--feedback", "1", "--lexical"),
            "--feedback --lexical: likeness is by vectors and words",
        ),
        (("--feedback", "1", "--depth", "3"), "top_k 5: only the first 3 passages are reranked"),
    ],
)
def test_what_cannot_be_reranked_is_refused_in_one_line(
    cloze: Cloze, searched: Path, arguments: tuple[str, ...], message: str
) -> None:
    write_cross_encoder(searched / "classes", outputs=3)
    done = cloze("search", "encoder", "texts", "a list", *arguments)
    assert done.returncode == 2, done.stdout
    assert message in done.stderr
    assert done.stderr.count("error: ") == 1
    assert "Traceback" not in done.stderr
    with pytest.raises(UsageError, match="rerank with ranking vectors"):
        api.search("encoder", "texts", rerank="cross", ranking="vectors")


def test_a_cross_encoder_of_transformers_has_the_same_scores(folder: Path) -> None:
    write_cross_encoder(folder / "cross")
    theirs = BertForSequenceClassification.from_pretrained(folder / "cross", num_labels=1).eval()
    (folder / "vocab.txt").write_text(TOKENIZER.vocab_txt())
    tokenizer = BertTokenizerFast(str(folder / "vocab.txt"), model_max_length=16)
    passages = ["the list", "of names a b " * 9, "", "b"]
    given = tokenizer(["a list"] * 4, passages, padding=True, truncation=True, return_tensors="pt")
    with torch.inference_mode():
        expected = theirs(**given).logits[:, 0].numpy()
    found = load_reranker(folder / "cross").scores("a list", passages)
    np.testing.assert_allclose(found, expected, atol=1e-5)
    assert load_reranker(folder / "cross").scores("a list", []).shape == (0,)


def test_a_modern_cross_encoder_is_read(folder: Path) -> None:
    write_cross_encoder(folder / "modern", encoder=MODERN)
    scores = load_reranker(folder / "modern").scores("a list", ["the list", "b"])
    assert scores.shape == (2,)
    config = json.loads((folder / "modern" / "config.json").read_text())
    config["classifier_pooling"] = "mean"
    (folder / "modern" / "config.json").write_text(json.dumps(config))
    with pytest.raises(UsageError, match="classifier_pooling is not cls"):
        load_reranker(folder / "modern")
