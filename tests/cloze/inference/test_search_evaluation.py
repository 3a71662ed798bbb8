"""`cloze search`: by vectors, words and both; evaluated on questions with right answers."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import pytrec_eval

import cloze as api
from tests.cloze.tiny_model import write_model

Cloze = Callable[..., Any]

TEXTS = {
    "garden.txt": "The garden of names.\n",
    "house.txt": "A house, a list of rooms.\n",
    "roses.txt": "Roses grow there.\n",
    "wall.txt": "The wall and the list.\n",
}
QUESTIONS = [
    {"question": "Who grows a rose?", "file": "roses.txt"},
    {"question": "the walls", "file": "wall.txt"},
    {"question": "a list of names", "file": "garden.txt"},
]


@pytest.fixture
def searched(folder: Path) -> Path:
    """A tiny encoder, four files, and three questions, one of which words alone answer."""
    write_model(folder / "encoder")
    (folder / "texts" / "one.txt").unlink()
    for name, text in TEXTS.items():
        (folder / "texts" / name).write_text(text)
    rows = "".join(json.dumps(row) + "\n" for row in QUESTIONS)
    (folder / "texts" / "questions.jsonl").write_text(rows)
    return folder


def evaluated(cloze: Cloze, *arguments: str) -> Any:
    asked = ("--evaluate", "texts/questions.jsonl", "--json")
    done = cloze("search", "encoder", "texts", *asked, *arguments)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_hybrid_scores_are_the_standardised_ones_of_all_passages(
    cloze: Cloze, searched: Path
) -> None:
    (searched / "texts" / "questions.jsonl").unlink()
    by: dict[str, dict[str, float]] = {}
    for flag in ("--vectors", "--lexical", "--hybrid"):
        done = cloze("search", "encoder", "texts", "the list", flag, "--top-k", "9", "--json")
        (found,) = json.loads(done.stdout)
        by[flag] = {Path(one["file"]).name: one["score"] for one in found["passages"]}
    names = sorted(TEXTS)
    assert set(by["--lexical"]) == {"house.txt", "wall.txt"}  # the others have no word of it
    vectors, words = (
        np.array([by[flag].get(name, 0.0) for name in names]) for flag in ("--vectors", "--lexical")
    )
    both = 0.65 * (vectors - vectors.mean()) / vectors.std()
    both += 0.35 * (words - words.mean()) / words.std()
    assert [by["--hybrid"][name] for name in names] == pytest.approx(both.tolist(), abs=1e-4)


def test_a_question_of_no_known_word_is_said_to_find_nothing(cloze: Cloze, searched: Path) -> None:
    done = cloze("search", "encoder", "texts", "zebra", "--lexical")
    assert done.returncode == 0, done.stderr
    asked, found = done.stdout.splitlines()
    assert (asked, found.split(":")[0].strip()) == ("zebra", "nothing found")


def test_each_passage_says_which_ranking_found_it(cloze: Cloze, searched: Path) -> None:
    found = api.search("encoder", "texts/roses.txt", language="english").ask("a rose", top_k=1)
    assert found[0].found_by == {"vectors": 1, "lexical": 1}
    assert (found[0].file, found[0].line, found[0].text) == (
        *("texts/roses.txt", 1, "Roses grow there."),
    )
    found = api.search("encoder", "texts/roses.txt").ask("nothing alike", top_k=1)
    assert found[0].found_by == {"vectors": 1}
    assert api.search("encoder", "texts", ranking="lexical").ask("nothing alike") == []


def test_a_loaded_search_answers_like_the_command(cloze: Cloze, searched: Path) -> None:
    (searched / "texts" / "questions.jsonl").unlink()
    loaded = api.search("encoder", "texts", words=50)
    done = cloze("search", "encoder", "texts", "the list", "--words", "50", "--json")
    (expected,) = json.loads(done.stdout)
    assert [one._asdict() for one in loaded.ask("the list")] == expected["passages"]
    together, _ = loaded.ask_all(["the list", "a"])
    assert [one.text for one in together] == [one.text for one in loaded.ask("the list")]
    assert len(loaded) == len(TEXTS)


def test_a_whole_collection_is_ranked_and_the_questions_are_none_of_it(
    cloze: Cloze, searched: Path
) -> None:
    found = evaluated(cloze)
    assert (found["passages"], found["questions"], found["unit"]) == (4, 3, "whole documents")
    words = found["systems"]["lexical"]
    assert words["ndcg@10"]["mean"] == 1.0
    assert (words["map"]["low"], words["map"]["high"]) == (1.0, 1.0)
    assert set(found["systems"]) == {"vectors", "lexical", "hybrid"}
    assert set(found["hybrid_minus"]) == {"vectors", "lexical"}
    assert found["chosen_weight"] is None  # too few questions
    shown = cloze("search", "encoder", "texts", "--evaluate", "texts/questions.jsonl").stdout
    assert "3 questions, 4 passages, ranked as whole documents" in shown
    assert "words (BM25)  100.0 [100.0, 100.0]" in shown


def test_figures_of_a_beir_folder_equal_trec_eval(cloze: Cloze, folder: Path) -> None:
    write_model(folder / "encoder")
    draw = np.random.default_rng(0)
    words = ["list", "names", "of", "a", "b", "the"]
    beir = folder / "beir"
    (beir / "qrels").mkdir(parents=True)
    corpus = [
        {"_id": f"d{n}", "title": f"Title {n}", "text": f"{' '.join(draw.choice(words, 9))} {n}."}
        for n in range(120)
    ]
    queries = [{"_id": f"q{n}", "text": " ".join(draw.choice(words, 3))} for n in range(30)]
    qrels = {
        query["_id"]: {f"d{n}": int(draw.integers(0, 4)) for n in draw.permutation(120)[:8]}
        for query in queries
    }
    for name, rows in (("corpus", corpus), ("queries", queries)):
        (beir / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    lines = [f"{q}\t{d}\t{grade}\n" for q, of_q in qrels.items() for d, grade in of_q.items()]
    (beir / "qrels" / "test.tsv").write_text("query-id\tcorpus-id\tscore\n" + "".join(lines))
    done = cloze("search", "encoder", "beir", "--evaluate", "beir", "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert (found["unit"], found["questions"]) == ("whole documents", 30)
    assert found["chosen_weight"] is not None

    loaded = api.search("encoder", "beir")
    run, short = {}, {}
    for query in queries:
        passages = loaded.ask(query["text"], top_k=120)
        assert passages[0].title.startswith("Title ")
        order = [f"d{passage.line - 1}" for passage in passages]
        run[query["_id"]] = {name: float(-rank) for rank, name in enumerate(order)}
        short[query["_id"]] = {name: float(-rank) for rank, name in enumerate(order[:10])}
    measures = {"ndcg@10": "ndcg_cut_10", "recall@10": "recall_10", "map": "map"}
    measures["recall@100"] = "recall_100"
    theirs = pytrec_eval.RelevanceEvaluator(qrels, {*measures.values()}).evaluate(run)
    for ours, name in measures.items():
        expected = np.mean([one[name] for one in theirs.values()])
        assert found["systems"]["hybrid"][ours]["mean"] == pytest.approx(expected, abs=1e-6)
    cut = pytrec_eval.RelevanceEvaluator(qrels, {"recip_rank"}).evaluate(short)
    expected = np.mean([one["recip_rank"] for one in cut.values()])
    assert found["systems"]["hybrid"]["mrr@10"]["mean"] == pytest.approx(expected, abs=1e-6)


def test_questions_that_fail_are_shown_with_what_was_found(cloze: Cloze, searched: Path) -> None:
    for number in range(30):
        (searched / "texts" / f"list{number}.txt").write_text(f"The list {number}, the list.\n")
    (searched / "texts" / "questions.jsonl").write_text(
        '{"question": "the list", "file": "roses.txt"}\n'
    )
    found = evaluated(cloze, "--lexical")
    (failure,) = found["failures"]
    assert failure["question"] == "the list"
    assert failure["rank"] is None
    assert failure["right"] == "Roses grow there."
    assert failure["found"].startswith("The list")
    done = cloze(
        *("search", "encoder", "texts", "--lexical", "--evaluate", "texts/questions.jsonl")
    )
    assert "1 of 1 questions have nothing right among the first 10:\n  the list\n" in done.stdout
    assert "right (rank none): Roses grow there." in done.stdout


def test_half_of_the_questions_choose_a_weight_that_the_other_half_confirms(
    cloze: Cloze, folder: Path
) -> None:
    """Words answer everything, and an encoder of random weights knows none of them."""
    write_model(folder / "encoder")
    draw = np.random.default_rng(0)
    names = [f"w{number}orange" for number in range(60)]
    for name in names:
        known = " ".join(draw.choice(["the", "list", "of", "names", "a", "b"], 6))
        (folder / "texts" / f"{name}.txt").write_text(f"{known} {name}.\n")
    rows = [json.dumps({"question": f"{name} b", "file": f"{name}.txt"}) for name in names]
    (folder / "q.jsonl").write_text("\n".join(rows))
    command = ("search", "encoder", "texts", "--evaluate", "q.jsonl", "--weight", "0.98")
    found = json.loads(cloze(*command, "--json").stdout)
    chosen = found["chosen_weight"]
    assert chosen["weight"] < 0.98
    assert chosen["confirmed"] == (chosen["difference"]["low"] > 0)
    assert found["systems"]["lexical"]["ndcg@10"]["mean"] == 1.0
    assert found["hybrid_minus"]["lexical"]["high"] < 0
    shown = cloze(*command).stdout
    assert "hybrid is worse than words (BM25)" in shown
    assert ": use --lexical" in shown
    assert f"weight {chosen['weight']:g}, chosen on half of the questions" in shown


def test_vectors_by_which_no_passage_stands_out_count_less_and_search_says_so(
    cloze: Cloze, folder: Path
) -> None:
    write_model(folder / "encoder")
    for number in range(60):  # its words are unknown to the encoder, so all vectors are alike
        (folder / "texts" / f"{number}.txt").write_text(
            f"заяц{number} лиса{number} волк{number}.\n"
        )
    first = cloze("search", "encoder", "texts", "лиса7", "--json")
    assert "search: vectors count 0" in first.stderr and "not 0.65" in first.stderr
    assert json.loads(first.stdout)[0]["passages"][0]["file"] == "texts/7.txt"
    again = cloze("search", "encoder", "texts", "лиса7")  # of the index that is there
    assert "not 0.65" in again.stderr
    for chosen in (("--weight", "0.65"), ("--lexical",), ("--vectors",)):
        assert "not 0.65" not in cloze("search", "encoder", "texts", "лиса7", *chosen).stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("a", "--vectors", "--lexical"), "--vectors --lexical: expected only one of these"),
        (
            ("a", "--vectors", "--weight", "0.3"),
            "--weight --vectors: a weight is for vectors and words",
        ),
        (("a", "--index", "--lexical"), "--index --lexical: the graph is one of vectors"),
        (("a", "--weight", "2"), "weight 2: expected a number from 0 to 1"),
        (("a", "--language", "klingon"), "language 'klingon': no stemmer for it"),
        (("a", "--evaluate", "texts/questions.jsonl"), "leave out --index and other questions"),
        (("--evaluate", "nowhere.csv"), "nowhere.csv: no such file"),
        (("--evaluate", "encoder"), "encoder: a folder without corpus.jsonl and queries.jsonl"),
    ],
)
def test_contradictions_are_refused(
    cloze: Cloze, searched: Path, arguments: tuple[str, ...], message: str
) -> None:
    done = cloze("search", "encoder", "texts", *arguments)
    assert done.returncode == 2
    assert message in done.stderr


def test_two_models_share_the_words_and_have_vectors_of_their_own(
    cloze: Cloze, searched: Path
) -> None:
    write_model(searched / "other", seed=1)
    for model in ("encoder", "other"):
        assert cloze("search", model, "texts", "a").returncode == 0
    artifacts = searched / "runs" / "artifacts"
    assert len([*(artifacts / "vectors").iterdir()]) == 2
    assert len([*(artifacts / "lexical_index").iterdir()]) == 1
