"""`cloze search --feedback`: passages like the first one move up."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import cloze as api
from cloze.inference.searcher import How, ReadPassages, Search
from tests.cloze.tiny_model import write_cross_encoder, write_model

Cloze = Callable[..., Any]

TOPICS = 24


@pytest.fixture
def topics(folder: Path) -> Path:
    """Three passages for each topic, of which only the first has the word that is asked for."""
    write_model(folder / "encoder")
    (folder / "texts" / "one.txt").unlink()
    rows = []
    for topic in range(TOPICS):
        about = f"Names of a list, subject{topic} matter{topic}."
        for place, more in enumerate((f"Asked{topic} for.", "The b.", "The a.")):
            (folder / "texts" / f"{topic:02}-{place}.txt").write_text(f"{about} {more}")
            rows.append({"question": f"asked{topic}", "file": f"{topic:02}-{place}.txt"})
    (folder / "questions.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


def found_files(search: Search, question: str, count: int) -> list[str]:
    return [Path(one.file).name for one in search.ask(question, top_k=count)]


def test_what_is_like_the_first_passage_moves_up_behind_it(topics: Path) -> None:
    # by words alone, so that it is known what is found
    plain, fed = (
        api.search("encoder", "texts", weight=0, feedback=weight) for weight in (0.0, 1.0)
    )
    before, after = (found_files(one, "asked7", 50) for one in (plain, fed))
    assert before[:3] == ["07-0.txt", "00-0.txt", "00-1.txt"]  # the others are not found at all
    assert after[:3] != before[:3]
    assert after[0] == "07-0.txt"
    # the ranks before are known, and nothing from beyond the first `depth` comes in
    again = fed.ask("asked7", top_k=50)
    assert [before.index(Path(one.file).name) + 1 for one in again] == [
        one.reranked_from for one in again
    ]


def test_likeness_is_the_hybrid_score_of_the_first_passage_as_a_question(topics: Path) -> None:
    search = api.search("encoder", "texts", weight=0.65, feedback=0.5)
    plain = api.search("encoder", "texts", weight=0.65).ask("a list of names", top_k=50)
    (scores,) = search.scores(["a list of names"])
    read = search.read(scores)
    first = search.passage(int(read.places_D[0]))
    (as_question,) = search.scores([first.indexed])
    by_words = as_question.by["lexical"]
    like = 0.65 * as_question.by["vectors"] / scores.spreads["vectors"].deviation
    like += 0.35 * by_words / by_words.std()
    like_D = like[read.places_D]
    like_D[0] = like_D[1:].max()
    expected = np.array([one.score for one in plain]) + 0.5 * like_D
    found = search.ask("a list of names", top_k=50)
    order = [one.reranked_from - 1 for one in found if one.reranked_from]
    assert len(order) == 50
    moved = np.array([one.score for one in found]) - expected[order]
    assert moved == pytest.approx(moved[0], abs=1e-3)  # but for a constant
    assert order[0] == 0


def test_feedback_is_the_default_beside_a_reranker_only(topics: Path) -> None:
    write_cross_encoder(topics / "cross")
    assert How().feedback_weight == 0
    assert How(rerank="cross").feedback_weight == 0.3
    assert How(rerank="cross", feedback=0).feedback_weight == 0
    usual, given, none = (
        found_files(api.search("encoder", "texts", rerank="cross", feedback=weight), "asked7", 50)
        for weight in (None, 0.3, 0)
    )
    assert usual == given
    assert usual != none


def test_half_of_the_questions_choose_feedback_and_the_others_confirm_it(
    cloze: Cloze, topics: Path
) -> None:
    asked = ("search", "encoder", "texts", "--evaluate", "questions.jsonl", "--weight", "0.1")
    done = cloze(*asked, "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["reranked_minus"] is None
    assert "reranked" not in found["systems"]
    chosen = found["chosen_feedback"]
    assert chosen["weight"] > 0
    assert chosen["confirmed"]
    assert f"use --feedback {chosen['weight']:g}" in cloze(*asked).stdout
    with_it = json.loads(cloze(*asked, "--feedback", f"{chosen['weight']}", "--json").stdout)
    assert with_it["reranked_minus"]["hybrid"]["low"] > 0
    assert with_it["chosen_feedback"]["difference"]["mean"] == 0


def test_feedback_that_does_harm_is_not_advised_and_said_to(cloze: Cloze, topics: Path) -> None:
    # Right is what shares the word that is asked for with the first passage, and nothing else.
    rows = []
    for topic in range(TOPICS):
        (topics / "texts" / f"{topic:02}-2.txt").write_text(
            f"Asked{topic} elsewhere, told by other words, very many words."
        )
        rows.append({"question": f"asked{topic}", "file": f"{topic:02}-2.txt"})
    (topics / "questions.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    asked = ("search", "encoder", "texts", "--evaluate", "questions.jsonl", "--weight", "0")
    found = json.loads(cloze(*asked, "--json").stdout)
    assert found["chosen_feedback"]["weight"] == 0
    assert "--feedback" not in cloze(*asked).stdout
    worse = cloze(*asked, "--feedback", "5").stdout
    assert "reranked is worse than hybrid" in worse
    assert "leave out --feedback" in worse


def test_feedback_follows_what_a_reranker_puts_first() -> None:
    like_DD = np.array([[9, 0, 2], [0, 9, 1], [2, 1, 9]], np.float32)
    found_D, read_D = (np.array(of, np.float32) for of in ([3, 2, 1], [0, 5, 0]))
    read = ReadPassages(np.array([70, 80, 90]), found_D, read_D, lambda first: like_DD[first])
    assert read.ranked(0.0, 0.0).places_D.tolist() == [70, 80, 90]
    assert read.ranked(0.0, 2.0).places_D.tolist() == [70, 90, 80]  # as 90 is like 70
    assert read.ranked(1.0, 0.0).places_D.tolist() == [80, 70, 90]
    both = read.ranked(1.0, 3.0)
    assert both.places_D.tolist() == [80, 90, 70]  # as 90 is like 80
    # the first one has the likeness of the most alike, not that to itself
    assert both.scores_D.tolist() == [10, 4, 3]


def test_a_graph_gives_the_same_feedback_as_a_whole_collection(topics: Path) -> None:
    pytest.importorskip("usearch")
    exact, graph = (
        api.search("encoder", "texts", weight=0, feedback=1, graph=graph).ask("asked7", top_k=9)
        for graph in (False, True)
    )
    assert [one.text for one in exact] == [one.text for one in graph]
