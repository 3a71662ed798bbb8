"""Questions with right answers: which passages of a collection they are."""

import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from cloze.artifacts.errors import UsageError
from cloze.model.retrieval import questions
from cloze.model.retrieval.passage_index import Passage
from cloze.model.retrieval.questions import find_gold, read_questions

PASSAGES = [
    Passage("/d/garden.txt", 1, "The garden belongs to Mrs. Green. She bought it in 1901."),
    Passage("/d/garden.txt", 3, "Roses grow along the northern wall of the old garden."),
    Passage("/d/sub/house.txt", 1, "The house has nineteen rooms, and a cellar."),
    Passage("/d/other/house.txt", 1, "A house of cards has no cellar."),
]


def gold_of(path: Path, rows: Sequence[dict[str, object]]) -> questions.Gold:
    file = path / "q.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return find_gold(read_questions(str(file)), PASSAGES)


def test_files_alone_rank_whole_files(tmp_path: Path) -> None:
    gold = gold_of(
        tmp_path,
        [
            {"question": "whose garden?", "file": "garden.txt"},
            {"question": "how many rooms?", "file": "sub/house.txt"},
        ],
    )
    assert (gold.unit, gold.firsts(0).tolist()) == ("whole documents", [0, 2, 3])
    assert gold.relevant == ({0: 1.0}, {1: 1.0})


def test_an_answer_is_found_as_a_run_of_whole_words(tmp_path: Path) -> None:
    rows = [{"question": "how many?", "answer": ["nine", "nineteen  Rooms"]}]
    gold = gold_of(tmp_path, rows)
    assert (gold.unit, gold.relevant) == ("passages", ({2: 1.0},))


def test_an_answer_is_right_in_every_passage_that_has_it_however_encoded(tmp_path: Path) -> None:
    file = tmp_path / "q.jsonl"
    file.write_text(json.dumps({"question": "what?", "answer": "cafe\u0301 fin"}) + "\n")
    texts = ["Un café fin.", "Un cafe\u0301 \ufb01n.", "Un ca\u00adfé fin.", "Un cafe fin."]
    passages = [Passage(f"/d/{n}.txt", 1, text) for n, text in enumerate(texts)]
    gold = find_gold(read_questions(str(file)), passages)
    assert gold.relevant == ({0: 1.0, 1: 1.0, 2: 1.0},)


def test_all_that_a_row_says_must_agree(tmp_path: Path) -> None:
    rows = [{"question": "what is below?", "answer": "cellar", "file": "other/house.txt"}]
    assert gold_of(tmp_path, rows).relevant == ({3: 1.0},)


def test_each_question_ranks_what_its_rows_name(tmp_path: Path) -> None:
    rows = [
        {"question": "whose garden?", "file": "garden.txt"},
        {"question": "cellar?", "answer": "no cellar"},
    ]
    gold = gold_of(tmp_path, rows)
    assert gold.unit == "passages or whole documents"
    assert [gold.firsts(number).tolist() for number in (0, 1)] == [[0, 2, 3], [0, 1, 2, 3]]
    assert gold.relevant == ({0: 1.0}, {3: 1.0})


def test_several_rows_of_one_question_are_all_right(tmp_path: Path) -> None:
    rows = [
        {"question": "cellar?", "answer": "cellar", "file": "sub/house.txt"},
        {"question": "cellar?", "answer": "no cellar"},
    ]
    gold = gold_of(tmp_path, rows)
    assert gold.questions == ("cellar?",)
    assert gold.relevant == ({2: 1.0, 3: 1.0},)


@pytest.mark.parametrize(
    ("passage", "rows"),
    [
        ("roses grow along\nthe northern wall of the old GARDEN", {1}),  # the same, reflowed
        ("Roses grow along the northern wall", {1}),  # a part
        (f"{PASSAGES[0].text} {PASSAGES[1].text} And more.", {0, 1}),  # cut into two
    ],
)
def test_a_passage_is_recognised_however_either_was_cut(
    tmp_path: Path, passage: str, rows: set[int]
) -> None:
    gold = gold_of(tmp_path, [{"question": "?", "passage": passage}])
    assert set(gold.relevant[0]) == rows


def test_squads_json_has_its_contexts_as_passages(tmp_path: Path) -> None:
    question = {"id": "1", "question": "Whose?", "answers": []}
    paragraph = {"context": PASSAGES[0].text, "qas": [question]}
    file = tmp_path / "squad.json"
    file.write_text(json.dumps({"data": [{"title": "t", "paragraphs": [paragraph]}]}))
    assert find_gold(read_questions(str(file)), PASSAGES).relevant == ({0: 1.0},)


def write_beir(folder: Path, corpus: str, queries: str, qrels: str) -> str:
    (folder / "qrels").mkdir()
    (folder / "corpus.jsonl").write_text(corpus)
    (folder / "queries.jsonl").write_text(queries)
    (folder / "qrels" / "test.tsv").write_text(qrels)
    return str(folder)


CORPUS = (
    '{"_id": "a", "title": "", "text": "one"}\n\n'
    '{"_id": "b", "text": ""}\n{"_id": "c", "text": "c"}\n'
)
QUERIES = '{"_id": "1", "text": "first?"}\n{"_id": "2", "text": "second?"}\n'
HEADER = "query-id\tcorpus-id\tscore\n"


def test_beirs_documents_are_lines_of_its_corpus_with_grades(tmp_path: Path) -> None:
    folder = write_beir(tmp_path, CORPUS, QUERIES, f"{HEADER}1\ta\t2\n1\tb\t1\n1\tc\t0\n2\ta\t0\n")
    corpus = str(tmp_path / "corpus.jsonl")
    indexed = [Passage(corpus, 1, "one"), Passage(corpus, 1, "two"), Passage(corpus, 4, "c")]
    gold = find_gold(read_questions(folder), indexed)
    assert gold.questions == ("first?",)  # nothing is relevant to the other
    assert (gold.unit, gold.firsts(0).tolist()) == ("whole documents", [0, 2])
    assert gold.relevant == ({0: 2.0, -2: 1.0},)
    assert "1 relevant documents have no text and count as not found" in gold.remarks[0]
    with pytest.raises(UsageError, match="none of the 2 relevant documents is in the folder"):
        find_gold(read_questions(folder), [Passage("another.txt", 1, "one")])


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([{"question": " ", "file": "garden.txt"}], "q.jsonl:1: an empty question"),
        ([{"question": "a"}], "q.jsonl:1: says nothing about what is right; expected a file"),
        (
            [{"question": "a", "file": "garden.txt"}, {"question": "b", "file": "gone.txt"}],
            "q.jsonl:2 (there is no file gone.txt): no passage of the folder is what the row says",
        ),
        ([{"questions": "a"}], "only questions; rename the column of the questions"),
        ([{"question": "a", "answer": "zebra"}], "q.jsonl:1: no passage of the folder"),
        (
            [
                {"id": 1, "question": "a", "file": "garden.txt"},
                {"id": 1, "question": "b", "file": "garden.txt"},
            ],
            "q.jsonl:2: id 1 belongs to another question above, 'a'",
        ),
    ],
)
def test_invalid_questions_are_named_with_their_line(
    tmp_path: Path, rows: list[dict[str, object]], message: str
) -> None:
    with pytest.raises(UsageError) as error:
        gold_of(tmp_path, rows)
    assert message in str(error.value)


@pytest.mark.parametrize(
    ("corpus", "queries", "qrels", "message"),
    [
        (CORPUS, QUERIES, f"{HEADER}1\tz\t1\n", "test.tsv:2: 'z' is not in corpus.jsonl"),
        (CORPUS, QUERIES, "9\ta\t1\n", "test.tsv:1: '9' is not in queries.jsonl"),
        (CORPUS, QUERIES, "1\ta\tx\n", "test.tsv:1: '1\\ta\\tx', expected query, document and"),
        (CORPUS, QUERIES, "1\ta\tnan\n", "test.tsv:1: '1\\ta\\tnan', expected query, document and"),
        (CORPUS, QUERIES, "1\ta\t1e999\n", "test.tsv:1: '1\\ta\\t1e999', expected query, document"),
        (CORPUS, '{"_id": "1", "text": null}\n', "1\ta\t1\n", "queries.jsonl:1: expected a JSON"),
        (CORPUS, QUERIES, "1\ta\t1\n1\ta\t2\n", "test.tsv:2: query '1' and document 'a' have a"),
        (CORPUS, QUERIES, "1\ta\t0\n", "no grade above 0"),
        (
            CORPUS + CORPUS,
            QUERIES,
            "1\ta\t1\n",
            "corpus.jsonl:5: _id 'a' is already that of line 1",
        ),
        (CORPUS, '{"text": "a"}\n', "1\ta\t1\n", "queries.jsonl:1: expected a JSON object with"),
        (CORPUS, '{"_id": "1", "text": " "}\n', "1\ta\t1\n", "query '1' is empty"),
    ],
)
def test_invalid_graded_files_are_named_with_their_line(
    tmp_path: Path, corpus: str, queries: str, qrels: str, message: str
) -> None:
    with pytest.raises(UsageError) as error:
        read_questions(write_beir(tmp_path, corpus, queries, qrels))
    assert message in str(error.value)


def test_a_folder_that_is_not_beirs_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"a folder without corpus.jsonl and queries.jsonl"):
        read_questions(str(tmp_path))


def test_a_query_log_of_a_gigabyte_is_refused_unread(tmp_path: Path) -> None:
    with (tmp_path / "log.csv").open("wb") as file:
        file.truncate(1 << 30)
    with pytest.raises(UsageError, match=r"1,073,741,824 bytes, expected at most 268,435,456"):
        read_questions(str(tmp_path / "log.csv"))
