"""`cloze search`: passages of a folder, with vectors that are computed once."""

import errno
import gc
import gzip
import io
import itertools
import json
import os
import resource
import signal
import subprocess
import sys
import tempfile
import time
import tracemalloc
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import cloze as api
from cloze.artifacts.errors import DiskFull
from cloze.inference import input_texts
from cloze.inference.placed_passages import placed_passages
from cloze.model.retrieval import passage_index
from cloze.model.retrieval.fusion import best_rows
from cloze.pipeline.config.settings import SourceConfig
from cloze.pipeline.text.account import Account
from tests.cloze.tiny_model import write_model
from tests.conftest import PROJECT

Cloze = Callable[..., Any]


@pytest.fixture
def searched(folder: Path) -> Path:
    """A tiny encoder, and two files with words of its vocabulary."""
    write_model(folder / "encoder")
    (folder / "texts" / "one.txt").write_text("The list of\nnames. The a.\n\nThe b of the list.\n")
    (folder / "texts" / "two.txt").write_text("\n\nNames a b.\n")
    return folder


def answer(cloze: Cloze, *arguments: str) -> Any:
    done = cloze("search", "encoder", "texts", *arguments, "--json")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def indexes(folder: Path) -> list[Path]:
    return sorted((folder / "runs" / "artifacts" / "vectors").iterdir())


def test_a_question_finds_the_passage_with_its_words_its_file_and_its_line(
    cloze: Cloze, searched: Path
) -> None:
    (found,) = answer(cloze, "Names a b.", "--top-k", "2", "--words", "4", "--vectors")
    best, second = found["passages"]
    assert best["file"] == os.path.join("texts", "two.txt")
    assert (best["line"], best["text"]) == (3, "Names a b.")
    assert best["score"] == pytest.approx(1.0, abs=1e-5)
    assert best["found_by"] == {"vectors": 1}
    assert second["score"] < best["score"]
    shown = cloze("search", "encoder", "texts", "the list of names", "--words", "4")
    assert "texts/one.txt, line 1  (vectors 1, words 1)" in shown.stdout


def test_each_repetition_of_a_passage_has_its_own_line(cloze: Cloze, searched: Path) -> None:
    text = "The a.\n\nThe a.\n\nThe\nb.\n\nThe b.\n"
    (searched / "texts" / "one.txt").write_text(text)
    (searched / "texts" / "two.txt").unlink()
    (found,) = answer(cloze, "the a", "--top-k", "9", "--words", "2")
    places = sorted((passage["line"], passage["text"]) for passage in found["passages"])
    assert places == [(1, "The a."), (3, "The a."), (5, "The b."), (8, "The b.")]


def test_scores_are_the_cosines_of_all_passages_in_order(cloze: Cloze, searched: Path) -> None:
    (found,) = answer(cloze, "the list", "--words", "4", "--vectors")
    texts = [passage["text"] for passage in found["passages"]]
    vectors = api.load("encoder").embed([*texts, "the list"], normalize=True)
    assert sorted(texts) == [
        *("Names a b.", "The a.", "The b of the list.", "The list of names."),
    ]
    expected = vectors[:-1] @ vectors[-1]
    scores = [passage["score"] for passage in found["passages"]]
    assert scores == pytest.approx(expected.tolist(), abs=1e-5)
    assert scores == sorted(scores, reverse=True)


def test_embed_writes_a_vector_and_a_line_number_for_every_passage(
    cloze: Cloze, searched: Path
) -> None:
    done = cloze("embed", "encoder", "texts", "--passages", "4", "--output", "all.npy")
    assert done.returncode == 0, done.stderr
    assert done.stdout == "all.npy: 4 vectors of 8 float32\n"
    rows = [json.loads(line) for line in (searched / "all.jsonl").read_text().splitlines()]
    assert [(Path(row["file"]).name, row["line"], row["text"]) for row in rows] == [
        ("one.txt", 1, "The list of names."),
        ("one.txt", 2, "The a."),
        ("one.txt", 4, "The b of the list."),
        ("two.txt", 3, "Names a b."),
    ]
    expected = api.load("encoder").embed([row["text"] for row in rows])
    assert np.allclose(np.load("all.npy"), expected, atol=1e-6)
    lines = cloze("embed", "encoder", "texts/two.txt", "--passages", "4", "--normalize").stdout
    found = json.loads(lines)
    assert found["text"] == "Names a b."
    assert np.linalg.norm(found["vector"]) == pytest.approx(1.0)


def test_the_index_is_made_once_until_text_model_or_passages_change(
    cloze: Cloze, searched: Path
) -> None:
    first = cloze("search", "encoder", "texts", "a")
    assert "index 2 passages" in first.stderr
    assert "encoder was not trained for retrieval" in first.stderr
    assert "words 2 passages" in first.stderr
    again = cloze("search", "encoder", "texts", "b")
    assert "passages/s" not in again.stderr
    assert len(indexes(searched)) == 1
    cloze("search", "encoder", "texts", "a", "--words", "3")
    assert len(indexes(searched)) == 2
    (searched / "texts" / "two.txt").write_text("Names.\n")
    cloze("search", "encoder", "texts", "a")
    assert len(indexes(searched)) == 3


def test_the_nearest_rows_do_not_depend_on_the_block_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(passage_index, "ROWS_AT_ONCE", 7)
    random = np.random.default_rng(0)
    matrix = random.standard_normal((40, 8)).astype(np.float32)
    questions = random.standard_normal((3, 8)).astype(np.float32)
    found = passage_index.cosines(matrix, questions)
    assert np.allclose(found, questions @ matrix.T, atol=1e-6)
    for scores in found:
        assert best_rows(scores, 5).tolist() == np.argsort(-scores)[:5].tolist()


def test_of_equal_scores_the_first_rows_come_first() -> None:
    scores = np.array([0.0, 2.0, 1.0, 1.0, 1.0, 2.0], np.float32)
    assert best_rows(scores, 3).tolist() == [1, 5, 2]
    assert best_rows(scores, 9).tolist() == [1, 5, 2, 3, 4, 0]


def test_a_graph_of_thousands_finds_the_same_rows_as_an_exact_scan(tmp_path: Path) -> None:
    pytest.importorskip("usearch")
    random = np.random.default_rng(0)
    topics = random.standard_normal((50, 64))
    near = topics[random.integers(0, 50, 4200)] + random.standard_normal((4200, 64))
    vectors = (near / np.linalg.norm(near, axis=1, keepdims=True)).astype(np.float32)
    matrix, questions = vectors[:4000], vectors[4000:]
    graph = graph_over(matrix, map(str, range(4000)), tmp_path)
    found = 0
    for question in questions:
        exact = matrix @ question
        rows, scores = graph.candidates(question, 10)
        assert scores == pytest.approx(exact[rows], abs=1e-6)
        best = rows[best_rows(scores, 10)]
        found += len(set(best.tolist()) & set(best_rows(exact, 10).tolist()))
        mean, deviation = graph.spread(question)
        assert (mean, deviation) == pytest.approx((exact.mean(), exact.std()), abs=1e-4)
    assert found / (10 * len(questions)) >= 0.95
    assert passage_index.recall_of(graph, str(tmp_path / "m.npy")) >= 0.95


def graph_over(matrix: Any, texts: Iterable[str], folder: Path) -> passage_index.Graph:
    path = str(folder / "m.npy")
    np.save(path, matrix)
    assert list(passage_index.write_graph(path, texts, folder)) == list(range(len(matrix)))
    paths = {name: str(folder / name) for name in passage_index.GRAPH_FILES}
    return passage_index.Graph(paths, path)


def test_a_graph_of_many_equal_passages_has_the_best_score_of_99_in_100_questions(
    tmp_path: Path,
) -> None:
    pytest.importorskip("usearch")
    random = np.random.default_rng(0)
    distinct = random.standard_normal((300, 32)).astype(np.float32)
    distinct /= np.linalg.norm(distinct, axis=1, keepdims=True)
    texts = [*range(300), *random.integers(0, 3, 5000)]  # three passages, 1,667 times each
    matrix = distinct[texts] + 1e-8 * random.standard_normal((5300, 32)).astype(np.float32)
    graph = graph_over(matrix, map(str, texts), tmp_path)
    missed = 0  # threads build the graph in an order that differs, and it is approximate
    for question in distinct:
        exact = matrix @ question
        rows, scores = graph.candidates(question, 10)
        missed += scores.max() != pytest.approx(exact.max(), abs=1e-6)
        assert len(rows) >= 10
    assert missed <= 3
    rows, _ = graph.candidates(distinct[0], 10)
    assert set(np.flatnonzero(np.array(texts) == 0)) <= set(rows)


def test_a_graph_is_built_once_and_gives_the_same_answers(cloze: Cloze, searched: Path) -> None:
    pytest.importorskip("usearch")
    asked = ("the list", "--words", "4", "--top-k", "3")
    exact = answer(cloze, *asked)
    first = cloze("search", "encoder", "texts", *asked, "--index", "--json")
    assert first.returncode == 0, first.stderr
    assert "graph 4 vectors" in first.stderr
    assert "index" not in first.stderr.replace("--index", "")
    assert [one["text"] for one in json.loads(first.stdout)[0]["passages"]] == [
        one["text"] for one in exact[0]["passages"]
    ]
    again = cloze("search", "encoder", "texts", *asked, "--index", "--json")
    assert "graph 4 vectors" not in again.stderr
    assert again.stdout == first.stdout
    assert len(indexes(searched)) == 1
    assert len(list((searched / "runs" / "artifacts" / "vector_graph").iterdir())) == 1


def test_a_missing_index_library_is_one_line_before_anything_is_embedded(
    cloze: Cloze, searched: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "usearch", None)
    monkeypatch.setitem(sys.modules, "usearch.index", None)
    done = cloze("search", "encoder", "texts", "a", "--index")
    assert done.returncode == 1
    assert done.stderr == "error: usearch is not installed; pip install 'cloze-encoder[index]'\n"
    assert not (searched / "runs" / "artifacts" / "vectors").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("nobody", "texts", "a"), "nobody: no run of this name"),
        (("encoder", "empty", "a"), "empty"),
        (("encoder", "texts", "a", "--top-k", "0"), "expected at least 1"),
        (("encoder", "texts", "long.txt"), "long.txt, line 1: longer than 100 bytes"),
    ],
)
def test_invalid_searches_are_one_line_errors(
    cloze: Cloze,
    searched: Path,
    monkeypatch: pytest.MonkeyPatch,
    arguments: tuple[str, ...],
    message: str,
) -> None:
    monkeypatch.setattr(input_texts, "LONGEST_LINE", 100)
    (searched / "empty").mkdir()
    (searched / "long.txt").write_text("a " * 200)
    done = cloze("search", *arguments)
    assert done.returncode == 2
    assert message in done.stderr


def test_a_file_of_gigabytes_is_streamed_until_an_invalid_line(searched: Path) -> None:
    with (searched / "questions.txt").open("wb") as file:
        file.write(b"the list\n" * 3000)
        file.truncate(6 << 30)  # sparse, so it takes no disk space
    process = subprocess.Popen(
        [sys.executable, "-P", "-c", HELD_TO_MEMORY, "search", "encoder", "texts", "questions.txt"],
        env={**os.environ, "PYTHONPATH": str(PROJECT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    answers, errors = process.communicate(timeout=300)
    assert process.returncode == 2
    assert "questions.txt, line 3001: longer than 16,777,216 bytes" in errors
    assert "Traceback" not in errors
    assert answers.count("the list\n") >= 2048  # questions are answered in batches


HELD_TO_MEMORY = """
import resource, sys
resource.setrlimit(resource.RLIMIT_DATA, (4 << 30, 4 << 30))
from cloze.command import main
main()
"""


@pytest.mark.slow
def test_a_killed_index_starts_again(searched: Path) -> None:
    for number in range(100):
        (searched / "texts" / f"{number}.txt").write_text("The list of names a b. " * 200)
    command = [sys.executable, "-P", "-m", "cloze", "search", "encoder", "texts", "a", "--json"]
    environment = {**os.environ, "PYTHONPATH": str(PROJECT)}
    killed = subprocess.Popen(
        command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    store = searched / "runs" / "artifacts" / "vectors"
    while not list(store.glob("*/cloze-*/passages.arrow")) and killed.poll() is None:
        time.sleep(0.001)
    killed.send_signal(signal.SIGKILL)
    assert killed.wait() == -signal.SIGKILL
    assert not list(store.glob("*/manifest.json"))
    assert list(store.glob("*/cloze-*"))
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert len(json.loads(done.stdout)[0]["passages"]) == 5
    assert not list(store.glob("*/cloze-*"))


@pytest.mark.parametrize("name", ["vectors", "passages", "manifest"])
@pytest.mark.parametrize("damage", ["cut", "bit", "missing"])
def test_a_damaged_index_is_made_again(
    cloze: Cloze, searched: Path, name: str, damage: str
) -> None:
    before = answer(cloze, "names")
    (index,) = indexes(searched)
    (file,) = index.glob(f"{name}.*")
    content = file.read_bytes()
    file.unlink()
    if damage != "missing":
        half = len(content) // 2
        flipped = content[:half] + bytes([content[half] ^ 1]) + content[half + 1 :]
        file.write_bytes(content[:half] if damage == "cut" else flipped)
    assert answer(cloze, "names") == before
    assert indexes(searched) == [index]
    assert {path.name for path in index.glob(f"{name}.*")} == {file.name}
    if name != "manifest":
        assert file.read_bytes() == content


def found_at(cloze: Cloze, folder: str, *arguments: str) -> list[tuple[str, int | None, str]]:
    """File, line and text of the passages that a search finds, in order of the files."""
    done = cloze("search", "encoder", folder, "names", "--top-k", "99", *arguments, "--json")
    assert done.returncode == 0, done.stderr
    (found,) = json.loads(done.stdout)
    return sorted((p["file"], p["line"], p["text"]) for p in found["passages"])


def test_search_reads_every_container_that_prepare_reads_with_lines(
    cloze: Cloze, searched: Path
) -> None:
    texts = ["The list of names.", 'A "b" of\nthe list.', "Names a b."]
    (searched / "a").mkdir()
    rows = [json.dumps({"id": 1, "text": text}) for text in texts]
    (searched / "a" / "part-00000").write_text("\n".join([rows[0], "", *rows[1:]]) + "\n")
    assert found_at(cloze, "a") == [
        ("a/part-00000", 1, "The list of names."),
        ("a/part-00000", 3, 'A "b" of the list.'),
        ("a/part-00000", 4, "Names a b."),
    ]
    (searched / "b").mkdir()
    pq.write_table(pa.table({"id": ["x"] * 3, "words": texts}), searched / "b" / "t.parquet")
    assert [text for _, _, text in found_at(cloze, "b")] == sorted(
        ["The list of names.", 'A "b" of the list.', "Names a b."]
    )
    (searched / "c.csv").write_text(
        'id,text\n1,The list of names.\n2,"A ""b""\nof"\n3,Names a b.\n'
    )
    assert found_at(cloze, "c.csv") == [
        ("c.csv", 2, "The list of names."),
        ("c.csv", 3, 'A "b" of'),
        ("c.csv", 5, "Names a b."),
    ]


def test_search_and_embed_say_what_was_left_out_and_why(cloze: Cloze, searched: Path) -> None:
    mixed = searched / "mixed"
    mixed.mkdir()
    good = "".join(f'{{"text": "The list of names {number}."}}\n' for number in range(1000))
    (mixed / "a.jsonl").write_text(good + '{"text": 5}\n')
    (mixed / "b.jsonl").write_bytes(gzip.compress(good.encode())[:-9])
    (mixed / "c.pdf").write_bytes(b"%PDF-1.7\n" + bytes(99))
    done = cloze("search", "encoder", "mixed", "names")
    assert done.returncode == 0, done.stderr
    assert "index 1,000 passages" in done.stderr
    assert "search: 1,000 documents read, 1,000 kept" in done.stderr
    expected = [
        "a.jsonl, line 1,001: 'text' is a number, expected a string",
        "b.jsonl: the .gz data ends at byte",
        "c.pdf (not text; left out)",
    ]
    again = cloze("search", "encoder", "mixed", "names")
    embedded = cloze("embed", "encoder", "mixed", "--passages", "9", "--output", "v.npy")
    assert embedded.stdout == "v.npy: 1000 vectors of 8 float32\n"
    for said in (done.stderr, again.stderr, embedded.stderr):
        assert [one in said for one in expected] == [True, True, True]


def test_documents_of_several_kinds_are_searched_together_each_with_its_line(
    cloze: Cloze, searched: Path
) -> None:
    mixed = searched / "mixed"
    mixed.mkdir()
    (mixed / "a.txt").write_text("\nThe list of names.\n")
    (mixed / "b.jsonl").write_text('{"n": 1}\n{"body": "Names a b.", "title": "A list"}\n')
    (mixed / "c.csv").write_text('id,words\n1,"A ""b"" of the list."\n')
    assert found_at(cloze, "mixed") == [
        ("mixed/a.txt", 2, "The list of names."),
        ("mixed/b.jsonl", 2, "Names a b."),
        ("mixed/c.csv", 2, 'A "b" of the list.'),
    ]
    done = cloze("search", "encoder", "mixed", "names")
    for kind in ("plain text: each file", "JSON lines, by the content", "a table, by the content"):
        assert f"1 file: {kind}" in done.stderr


def test_an_index_belongs_to_contents_and_their_names(cloze: Cloze, searched: Path) -> None:
    one, two = searched / "texts" / "one.txt", searched / "texts" / "two.txt"
    before = found_at(cloze, "texts")
    one.rename(searched / "other")
    two.rename(one)
    (searched / "other").rename(two)
    done = cloze("search", "encoder", "texts", "names")
    assert "index 0 passages" in done.stderr  # the vectors are those of the same texts
    swapped = {"texts/one.txt": "texts/two.txt", "texts/two.txt": "texts/one.txt"}
    assert found_at(cloze, "texts") == sorted((swapped[f], line, text) for f, line, text in before)


def test_a_new_file_costs_its_own_passages(cloze: Cloze, searched: Path) -> None:
    first = found_at(cloze, "texts")
    (searched / "texts" / "three.txt").write_text("Of the list a b.\n")
    done = cloze("search", "encoder", "texts", "names")
    assert "index 1 passages" in done.stderr
    assert len(found_at(cloze, "texts")) == len(first) + 1
    (best, *_), *_ = [answer(cloze, "Of the list a b.", "--vectors")[0]["passages"]]
    assert (best["file"], best["score"]) == ("texts/three.txt", pytest.approx(1.0, abs=1e-5))


def test_a_new_file_that_is_not_read_is_said_though_no_index_is_made(
    cloze: Cloze, searched: Path
) -> None:
    found_at(cloze, "texts")
    (searched / "texts" / "new.pdf").write_bytes(b"%PDF-1.7\n" + bytes(99))
    done = cloze("search", "encoder", "texts", "names")
    assert "search: new.pdf (not text; left out)" in done.stderr
    assert "index" not in done.stderr


def test_a_blank_question_is_not_answered(cloze: Cloze, searched: Path) -> None:
    (searched / "questions.txt").write_text("names\n\n  \nthe list\n")
    done = cloze("search", "encoder", "texts", "questions.txt", "--json")
    assert [one["question"] for one in json.loads(done.stdout)] == ["names", "the list"]
    assert "search: 2 blank questions left out" in done.stderr
    (searched / "questions.txt").write_text("")
    told = "search: nothing was asked: name questions, or give them on standard input"
    assert told in cloze("search", "encoder", "texts", "questions.txt").stderr
    with pytest.raises(api.UsageError, match="question 1 is blank"):
        api.search("encoder", "texts").ask(" ")


def test_gc_names_the_folder_of_every_kind_of_index_and_wants_days(
    cloze: Cloze, searched: Path
) -> None:
    found_at(cloze, "texts")
    assert cloze("gc").stderr == "search indexes of the last 30 days are kept: texts\n"
    listed = cloze("gc", "--keep-searches", "0").stdout
    assert "lexical_index of texts, 0 days old" in listed
    assert "vectors of texts, 0 days old" in listed
    for option, days in (("--keep-searches", "nan"), ("--older-than", "-1")):
        done = cloze("gc", option, days, "--delete")
        assert done.returncode == 2
        assert done.stderr == f"error: {option} {days}: expected days, 0 or more\n"
    assert indexes(searched), "nothing is deleted by a number that is none"


def test_the_folder_that_holds_the_workspace_can_be_searched_twice(
    cloze: Cloze, searched: Path
) -> None:
    (searched / "encoder").rename(searched.parent / "encoder-elsewhere")
    for _ in range(2):
        done = cloze("search", str(searched.parent / "encoder-elsewhere"), ".", "names", "--json")
        assert done.returncode == 0, done.stderr
        (found,) = json.loads(done.stdout)
        files = {passage["file"].partition("/")[0] for passage in found["passages"]}
        assert files == {"texts", "try.toml"}


def test_lines_of_a_large_file_of_escapes_take_no_time(cloze: Cloze, searched: Path) -> None:
    (searched / "e").mkdir()
    line = json.dumps({"text": "The list “of” names é ü. " * 40}) + "\n"  # 1,600 bytes of escapes
    (searched / "e" / "a.jsonl").write_text(line * 600)
    account = Account()
    source = SourceConfig(reader="jsonl", path=str(searched / "e"))
    started = time.monotonic()
    lines = [one.line for one in placed_passages([source], words=100, account=account)]
    assert time.monotonic() - started < 5  # 31 s per 4 MB before
    assert [line for line, _ in itertools.groupby(lines)] == list(range(1, 601))


def test_an_index_is_a_folder_that_duckdb_and_faiss_read(cloze: Cloze, searched: Path) -> None:
    """As docs/search.md shows it."""
    duckdb = pytest.importorskip("duckdb")
    asked = ("Names a b.", "--words", "4", "--vectors", "--top-k", "9")
    (found,) = answer(cloze, *asked)
    (index,) = indexes(searched)
    vectors = np.load(next(index.glob("vectors*.npy")))
    passages = pa.ipc.open_file(next(index.glob("passages*.arrow"))).read_all()
    column = pa.FixedSizeListArray.from_arrays(vectors.ravel(), vectors.shape[1])
    rows = passages.append_column("vector", column)
    (question,) = api.load("encoder").embed("Names a b.", normalize=True).tolist()
    nearest = duckdb.execute(
        "select text, array_inner_product(vector, $1::float[8]) as score from rows "
        "order by score desc, line",
        [question],
    ).fetchall()
    assert len(rows) == len(nearest)
    assert nearest[0][0] == found["passages"][0]["text"]
    scores = [score for _, score in nearest]
    assert scores == pytest.approx([one["score"] for one in found["passages"]], abs=1e-5)
    faiss = pytest.importorskip("faiss")
    flat = faiss.IndexFlatIP(vectors.shape[1])
    flat.add(vectors)
    assert flat.search(np.array([question], np.float32), 4)[0][0] == pytest.approx(scores, abs=1e-5)


def test_overlapping_passages_keep_their_lines(cloze: Cloze, searched: Path) -> None:
    lines = ["The a b.", "Names of the.", "A list of b.", "The names a.", "List the list."]
    (searched / "texts" / "one.txt").write_text("\n".join(lines) + "\n")
    (searched / "texts" / "two.txt").unlink()
    (found,) = answer(cloze, "names", "--words", "6", "--overlap", "4", "--top-k", "9")
    assert sorted((one["line"], one["text"]) for one in found["passages"]) == [
        (1, "The a b. Names of the."),
        (2, "Names of the. A list of b."),
        (4, "The names a. List the list."),  # a single sentence is not repeated
    ]
    refused = cloze("search", "encoder", "texts", "a", "--words", "5", "--overlap", "5")
    assert "overlap 5: expected at least 0 and fewer than the 5 words" in refused.stderr


def test_pipes_among_the_documents_are_said_and_a_name_with_a_line_feed_takes_one_line(
    cloze: Cloze, searched: Path
) -> None:
    os.mkfifo(searched / "texts" / "pipe.txt")
    (searched / "texts" / "one.txt").rename(searched / "texts" / "one\nmore.txt")
    done = cloze("search", "encoder", "texts", "names")
    assert done.returncode == 0, done.stderr
    assert "left out: texts/pipe.txt (a pipe, a socket or a device)" in done.stderr
    assert "texts/one\\nmore.txt, line 1" in done.stdout


@pytest.fixture
def unnamed(searched: Path) -> Path:
    """A file whose name is no text, beside one that its pattern could match."""
    odd = Path(os.fsdecode(os.fsencode(searched / "texts") + b"/caf\xe9.txt"))
    odd.write_text("Names of the list b a.\n")
    (searched / "texts" / "cafe.txt").write_text("Of names.\n")
    return odd


@pytest.mark.parametrize(
    "arguments",
    [
        ("search", "encoder", "texts", "names"),
        ("embed", "encoder", "texts", "--passages", "4"),
        ("init", "texts", "--from", "encoder", "--output", "new.toml"),
    ],
    ids=["search", "embed", "init"],
)
def test_a_file_whose_name_is_no_text_is_left_out_and_said(
    cloze: Cloze, searched: Path, unnamed: Path, arguments: tuple[str, ...]
) -> None:
    done = cloze(*arguments)
    assert done.returncode == 0, done.stderr
    assert "left out: texts/caf\ufffd.txt (its name is no text; rename it)" in done.stderr
    assert "b a." not in done.stdout
    if arguments[0] == "init":
        assert cloze("plan", "new.toml").returncode == 0, "the configuration leaves it out, too"
    else:
        assert "Of names." in done.stdout


def test_links_out_of_a_folder_are_followed_and_said(cloze: Cloze, searched: Path) -> None:
    """As the snapshots of Hugging Face's cache have them, and a stranger's folder may."""
    (searched / "elsewhere.txt").write_text("Of the list a b.\n")
    (searched / "texts" / "link.txt").symlink_to(searched / "elsewhere.txt")
    (searched / "texts" / "inside.txt").symlink_to(searched / "texts" / "one.txt")
    done = cloze("search", "encoder", "texts", "Of the list a b.")
    assert "1 link out of texts followed (the first: link.txt to " in done.stderr
    assert str(searched / "elsewhere.txt") in done.stderr
    assert "texts/link.txt, line 1" in done.stdout


def test_a_full_disk_is_named_by_search_and_embed(
    cloze: Cloze, searched: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The limit of a file's size stands for a full disk, whose error does not name the file."""
    texts = "".join(f"The list {number} of names.\n" for number in range(1200))
    (searched / "texts" / "three.txt").write_text(texts)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    for arguments, named in (
        (("search", "encoder", "texts", "names", "--words", "4"), "runs/artifacts/vectors/"),
        (("embed", "encoder", "texts", "--passages", "4", "--output", "v.npy"), "v.jsonl"),
        (("embed", "encoder", "texts/three.txt", "--json"), tempfile.gettempdir()),
    ):
        resource.setrlimit(resource.RLIMIT_FSIZE, (30_000, limits[1]))
        try:
            done = cloze(*arguments)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        assert done.returncode == 1
        (line,) = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
        assert "no room to write" in line
        assert named in line
        assert "vectors" not in done.stdout
    assert not [*searched.rglob("scratch*"), *searched.rglob("*.partial"), *searched.glob("v.*")]


def test_a_disk_full_of_vectors_and_passages_is_one_line(
    cloze: Cloze, searched: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Full(io.StringIO):
        """Passages wait in a buffer, and meet the full disk again when it is closed."""

        def close(self) -> None:
            raise OSError(errno.ENOSPC, "No space left on device")

    def full(path: Path, vectors: Iterator[Any], *, width: int) -> int:
        next(vectors)
        raise DiskFull(f"{path}: no room to write")

    monkeypatch.setattr("cloze.inference.vectors.open", lambda *_, **__: Full(), raising=False)
    monkeypatch.setattr(passage_index, "write_vectors", full)
    unheard: list[object] = []
    monkeypatch.setattr(sys, "unraisablehook", unheard.append)
    done = cloze("embed", "encoder", "texts", "--passages", "4", "--output", "v.npy")
    gc.collect()  # what nobody has closed is closed now
    assert (done.returncode, done.stderr.count("no room to write")) == (1, 1)
    assert not unheard


def test_a_compressed_log_is_read_in_bounded_memory(tmp_path: Path) -> None:
    line = "2026-11-29T10:00:00Z host1 sshd[4711]: Accepted publickey for user7 from 10.0.0.9\n"
    with gzip.open(tmp_path / "log.gz", "wt") as file:
        for _ in range(200):
            file.write(line * 500)
    source = SourceConfig(reader="text", path=str(tmp_path / "log.gz"))
    tracemalloc.start()
    passages = sum(1 for _ in placed_passages([source], words=100, account=Account()))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert passages > 1000
    assert peak < 6 * (8 << 20)  # of 8 MB of text; 300 times as many before
