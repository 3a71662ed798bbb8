"""Labelled files in every public layout: what `cloze finetune` reads and refuses of them.

One command fine-tunes a tiny encoder on all layouts of tests/layouts at once; expected values are
written by hand. Refused layouts are found by `cloze plan`, before anything is trained.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from cloze.model.config import TaskConfig
from cloze.model.tasks.problems import load_tables
from tests.cloze.tiny_model import write_model
from tests.conftest import cloze as command

Cloze = Callable[..., Any]

LAYOUTS = Path(__file__).parents[2] / "layouts"

TAGGING: dict[str, tuple[list[tuple[str, str]], dict[str, Any]]] = {
    "conll2003.txt": (
        [("EU rejects", "B-ORG O"), ("Peter Blackburn", "B-PER I-PER"), ("LONDON", "B-LOC")],
        {},
    ),
    "iob1.conll": (
        [
            ("EU rejects", "I-ORG O"),
            ("Peter Blackburn", "I-PER I-PER"),
            ("Rome Paris", "I-LOC B-LOC"),
        ],
        {},
    ),
    "wnut17.conll": (
        [("@paulwalk Empire State", "O B-location I-location"), ("ESB #", "B-location O")],
        {},
    ),
    "germeval.tsv": (
        [("Korfmann starb", "B-PER O"), ("Bremen", "B-LOC")],
        {"columns": {"words": "1", "tags": "2"}},
    ),
    "multiconer.conll": ([("robert cooper", "B-PER I-PER"), ("# london", "O B-LOC")], {}),
    "ontonotes.conll": (
        [("In summer", "IN NN"), ("Hello", "UH")],
        {"columns": {"words": "3", "tags": "4"}},
    ),
    "universal.conllu": (
        [
            ("vamos nos a el mar", "VERB PRON ADP DET NOUN"),
            ("Sue likes 10 000", "PROPN VERB NUM"),
        ],
        {},
    ),
    "bare_tags.conll": ([("a b the", "B I O"), ("of names", "B O")], {}),
    "label_studio.conll": ([("Pink XTC", "O B-Drug"), ("Pills", "B-Drug")], {}),
    "late_class.conll": ([("Test", "O"), ("Load", "O"), ("Hi John", "O B-NAME")], {}),
    "iobes.iob": ([("Ann met New York City", "S-PER O B-LOC I-LOC E-LOC"), ("Bob", "S-PER")], {}),
    "bmes.txt": (
        [("高 小 明 ， 男", "B-NAME M-NAME E-NAME O S-SEX"), ("王 五", "B-NAME E-NAME")],
        {},
    ),
    "no_break_space.conll": (
        [("10\u00a0000 km\u00a0", "B-NUM O"), ("New York \u200d", "B-LOC O")],
        {},
    ),
}
"""Words and tags of each file; its settings."""

TEXTS: dict[str, tuple[list[tuple[str, str]], dict[str, Any]]] = {
    "excel_semicolons.csv": ([('Café, "the list"', "yes"), ("a; b – naïve", "no")], {}),
    "excel_unicode.tsv": ([("the “list”", "yes"), ("Zürich 東京", "no")], {}),
    "excel_sep.csv": ([("the list, of names", "yes"), ("a b", "no")], {}),
    "mac.csv": ([("the list", "yes"), ("a\nb", "no")], {}),
    "mac.tsv": ([("the list", "yes"), ("a b", "no")], {}),
    "tabs.csv": ([("the list, of names", "yes"), ("a", "no")], {}),
    "array.json": ([("the list", "yes"), ("a", "no")], {}),
    "lines.json": ([("the list", "yes"), ("a", "no")], {}),
    "data.json": ([("the list", "yes"), ("a", "no")], {}),
    "mark.jsonl": ([("the", "yes"), ("a\u2028b", "no")], {}),
    "null_text.csv": ([("null", "yes"), ("NaN", "no")], {}),
    "truth.jsonl": ([("the", "true"), ("a", "false"), ("b", "true")], {}),
    "floats.jsonl": ([("the", "0"), ("a", "0"), ("b", "1"), ("of", "10"), ("names", "2")], {}),
}
"""Texts and labels of each file."""

ANSWERS: dict[str, list[list[str]]] = {
    "squad1.json": [["list", "the list"]],
    "squad2.json": [["list"], []],
    "squad2_placeholders.json": [["list"], [], []],
    "squad2_spelt.json": [["list"], []],
    "late_flag.jsonl": [["list"], []],
    "squad_rows.jsonl": [["list"], []],
    "squad_pairs.jsonl": [["list"], ["names"]],
    "squad_data.json": [["list"]],
    "spaces.json": [["names"], ["東京"]],
}
"""The gold answers in each file."""

LABELS = {"floats.jsonl": ["0", "1", "2", "10"], "truth.jsonl": ["false", "true"]}
"""Labels in order, where they are not yes and no."""


def task(name: str, kind: str, path: str, **settings: Any) -> str:
    table = {"name": name, "kind": kind, "train": path, "dev": path, "epochs": 1, **settings}
    columns = table.pop("columns", {})
    lines = [f"{key} = {json.dumps(value)}" for key, value in table.items()]
    lines += [f"columns.{key} = {json.dumps(value)}" for key, value in columns.items()]
    return "\n".join(["[[finetune.tasks]]", "max_seq_length = 16", *lines, ""])


def configuration(*tasks: str) -> str:
    head = '[finetune]\nencoder = "encoder"\nseeds = [0]\nprecision = "fp32"\nsave = "none"\n'
    return "\n".join(['name = "all"', head, *tasks])


@pytest.fixture(scope="module")
def records(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What fine-tuning has recorded of the task on each layout."""
    folder = tmp_path_factory.mktemp("layouts")
    write_model(folder / "encoder")
    files = [
        *(("tagging", name, settings) for name, (_, settings) in TAGGING.items()),
        *(("classification", name, settings) for name, (_, settings) in TEXTS.items()),
        *(("span", name, {}) for name in ANSWERS),
        ("multiple_choice", "swag.csv", {"columns": {"context": "sent1", "prefix": "sent2"}}),
        ("retrieval", "late_negatives.jsonl", {}),
        ("retrieval", "mined.csv", {}),
    ]
    tasks = [task(name, kind, str(LAYOUTS / name), **settings) for kind, name, settings in files]
    (folder / "all.toml").write_text(configuration(*tasks))
    done = command("finetune", "all.toml", cwd=folder)
    assert done.returncode == 0, done.stderr
    (path,) = folder.glob("runs/artifacts/finetune/*/trials.*.json")
    found = json.loads(path.read_text())
    return {record["name"]: record for record in found["tasks"]}


def tables(name: str, kind: str, **settings: Any) -> Any:
    path = str(LAYOUTS / name)
    fields = {"name": "t", "kind": kind, "train": path, "dev": path, **settings}
    return load_tables(TaskConfig.model_validate(fields))["train"]


@pytest.mark.parametrize("name", TAGGING)
def test_words_and_tags_of_every_conll_layout_are_those_in_the_file(
    records: dict[str, Any], name: str
) -> None:
    sentences, settings = TAGGING[name]
    found = tables(name, "tagging", **settings).columns
    words = [" ".join(row) for row in found["words"]]
    assert list(zip(words, map(" ".join, found["tags"]), strict=True)) == sentences
    record = records[name]
    assert record["examples"]["train"] == len(sentences)
    assert record["labels"] == sorted({tag for _, tags in sentences for tag in tags.split()})
    marked = name not in ("ontonotes.conll", "universal.conllu")
    assert record["metrics"][0] == ("entity_f1" if marked else "accuracy")


def test_documents_begin_where_each_layout_marks_them() -> None:
    for name, documents in {
        "conll2003.txt": [1, 1, 2],
        "ontonotes.conll": [1, 2],
        "universal.conllu": [1, 2],
        "iob1.conll": None,
    }.items():
        settings = TAGGING[name][1]
        assert tables(name, "tagging", **settings).columns.get("document") == documents


@pytest.mark.parametrize("name", ["germeval.tsv", "multiconer.conll"])
def test_comments_are_counted_and_a_word_like_one_is_kept(
    records: dict[str, Any], name: str
) -> None:
    assert f"{name}: 2 comments are left out (the first in line 1)" in " ".join(
        records[name]["notes"]
    )


@pytest.mark.parametrize("name", TEXTS)
def test_texts_and_labels_of_every_table_are_those_in_the_file(
    records: dict[str, Any], name: str
) -> None:
    rows, settings = TEXTS[name]
    found = tables(name, "classification", **settings).columns
    assert list(zip(found["text_a"], found["label"], strict=True)) == rows
    assert records[name]["examples"]["train"] == len(rows)
    assert records[name]["labels"] == LABELS.get(name, ["no", "yes"])


def test_what_had_to_be_guessed_of_a_file_is_said_and_counted(records: dict[str, Any]) -> None:
    notes = {name: " ".join(record["notes"]) for name, record in records.items()}
    assert (
        "not UTF-8; read as Windows-1252, with 3 characters such as é – ï"
        in notes["excel_semicolons.csv"]
    )
    assert "columns are separated by ';'" in notes["excel_semicolons.csv"]
    assert "read as UTF-16" in notes["excel_unicode.tsv"]
    assert "its 4 lines end in carriage returns" in notes["mac.csv"]
    assert "columns are separated by '\\t'" in notes["tabs.csv"]


@pytest.mark.parametrize("name", ANSWERS)
def test_answers_of_every_squad_layout_are_those_in_the_file(
    records: dict[str, Any], name: str
) -> None:
    answers = [row["text"] for row in tables(name, "span").columns["answers"]]
    assert answers == ANSWERS[name]
    assert records[name]["examples"]["train"] == len(answers)
    assert not [note for note in records[name]["notes"] if "not trained on" in note]


def test_a_question_may_have_fewer_endings_and_a_row_fewer_negatives(
    records: dict[str, Any],
) -> None:
    found = tables("late_negatives.jsonl", "retrieval").columns
    assert found["negatives"] == [None, ["of names", "the b"], None]
    assert records["late_negatives.jsonl"]["examples"]["train"] == 3
    mined = tables("mined.csv", "retrieval").columns
    assert (mined["negative_1"], mined["negative_2"]) == (["a b", "names"], ["of", ""])
    settings = {"columns": {"context": "sent1", "prefix": "sent2"}}
    assert tables("swag.csv", "multiple_choice", **settings).columns["ending2"] == ["b", ""]
    assert records["swag.csv"]["examples"]["train"] == 2


def test_placeholders_leave_a_test_file_unlabelled_and_sentences_without_documents_held_out() -> (
    None
):
    path, other = str(LAYOUTS / "squad1.json"), str(LAYOUTS / "squad_unlabelled.json")
    span = TaskConfig.model_validate({"name": "t", "kind": "span", "train": path, "test": other})
    assert not load_tables(span)["test"].has("answers")
    alone = TaskConfig.model_validate(
        {"name": "t", "kind": "tagging", "train": str(LAYOUTS / "without_documents.bio")}
    )
    assert [len(table) for table in load_tables(alone).values()] == [54, 6]


def class_labels(path: Path) -> None:
    """A Parquet file as the package datasets writes it."""
    names = {"names": ["O", "B-PER", "I-PER"], "_type": "ClassLabel"}
    features = {"tokens": {"feature": {"dtype": "string", "_type": "Value"}, "_type": "List"}}
    features["ner_tags"] = {"feature": names, "_type": "List"}
    table = pa.table({"tokens": [["Ann", "Lee"], ["a"]], "ner_tags": [[1, 2], [0]]})
    metadata = {"huggingface": json.dumps({"info": {"features": features}})}
    pq.write_table(table.replace_schema_metadata(metadata), path)


def test_numbers_of_classes_become_their_names_in_parquet_and_datasets(
    cloze: Cloze, folder: Path
) -> None:
    datasets = pytest.importorskip("datasets", reason="pip install datasets")
    class_labels(folder / "ner.parquet")
    names = ["not_equivalent", "equivalent"]
    features = datasets.Features(
        {"text_a": datasets.Value("string"), "label": datasets.ClassLabel(names=names)}
    )
    rows = {"text_a": ["the list", "a", "b"], "label": [0, 1, 0]}
    datasets.Dataset.from_dict(rows, features=features).save_to_disk(folder / "saved")
    write_model(folder / "encoder")
    columns = {"words": "tokens", "tags": "ner_tags"}
    (folder / "all.toml").write_text(
        configuration(
            task("ner", "tagging", "ner.parquet", columns=columns),
            task("mrpc", "classification", "datasets:saved", metrics=["f1"]),
        )
    )
    done = cloze("finetune", "all.toml")
    assert done.returncode == 0, done.stderr
    (path,) = folder.glob("runs/artifacts/finetune/*/trials.*.json")
    ner, mrpc = json.loads(path.read_text())["tasks"]
    assert (ner["labels"], ner["metrics"]) == (["O", "B-PER", "I-PER"], ["entity_f1", "accuracy"])
    assert mrpc["labels"] == names  # F1 is that of the second class, as in the data set


FIRST = '{"text_a": "the", "label": "a"}\n'

REFUSED: dict[str, tuple[str, str, str | bytes, dict[str, Any], str]] = {
    "a column missing in the first row": (
        *("pair_classification", "a.jsonl"),
        FIRST + '{"text_a": "a", "text_b": "b", "label": "b"}\n',
        *({}, "a.jsonl:1: text_b is blank; fill it in"),
    ),
    "an optional column missing in some rows": (
        *("regression", "a.jsonl"),
        '{"text_a": "a", "label": 1}\n{"text_a": "a", "text_b": "b", "label": 2}\n',
        *({}, "a.jsonl:1: no text_b, expected text"),
    ),
    "a label missing in some rows": (
        *("classification", "a.jsonl", FIRST + '{"text_a": "a"}\n'),
        *({}, "a.jsonl:2: label is blank; fill it in"),
    ),
    "a label that is not a number": (
        *("classification", "a.jsonl", FIRST + '{"text_a": "a", "label": NaN}\n'),
        *({}, "a.jsonl:2: label is blank; fill it in"),
    ),
    "a label spelt nan": (
        *("classification", "a.csv", "text_a,label\nthe,yes\na,nan\n"),
        *({}, "a.csv:3: label is 'nan', as pandas writes a missing value"),
    ),
    "a line after a cell of two lines": (
        *("classification", "a.csv", 'text_a,label\n"the\nlist",yes\na,\n'),
        *({}, "a.csv:4: label is blank"),
    ),
    "an odd tag": (
        *("tagging", "a.conll", "EU B-ORG\nthe O\n\nUN MISC\n"),
        *({}, "a.conll:4: tag 'MISC' in this sentence (1 such tags: MISC)"),
    ),
    "tags with an underscore": (
        *("tagging", "a.conll", "EU B_ORG\nthe O\n\nUN B_ORG\n"),
        *({}, "a.conll:1: tag 'B_ORG' in this sentence"),
    ),
    "a column of numbers for words": (
        *("tagging", "a.tsv", "1\tEU\tB-ORG\n2\tthe\tO\n\n1\tUN\tB-ORG\n"),
        *({}, "a.tsv:1: column 0 only numbers the words of each sentence"),
    ),
    "a word without a tag": (
        *("tagging", "a.conll", "EU B-ORG\nthe\n\n"),
        *({}, "a.conll:2: lines of [1, 2] columns in one sentence"),
    ),
    "a text as CoNLL": (
        *("tagging", "a.txt", "".join(f"word {n} is text{n}\n\n" for n in range(60))),
        *({}, "a.txt: 60 different tags of 60 words; expected CoNLL's columns"),
    ),
    "a word per row of a table": (
        *("tagging", "a.csv", "Sentence #,words,tags\n1,EU,B-ORG\n"),
        *({}, "a.csv:2: words is 'EU', expected a list of words"),
    ),
    "CoNLL's ending for texts": (
        *("classification", "a.txt", "text_a,label\nthe,yes\n"),
        *({}, "a.txt: the ending .txt means CoNLL's columns, which are for tagging"),
    ),
    "another encoding": (
        *("classification", "a.csv", "text_a,label\nпривет мир,yes\n".encode("cp1251")),
        *({}, "a.csv:2: not UTF-8 at byte 13, and not Windows-1252 either"),
    ),
    "a damaged line": (
        *("classification", "a.csv", "text_a,label\nпривет,yes\n".encode() + b"caf\xe9,no\n"),
        *({}, "a.csv:3: not UTF-8 at byte 33, although other lines are"),
    ),
    "answers as one text": (
        *("span", "a.jsonl", '{"question": "a", "context": "b", "answers": "b"}\n'),
        *({}, 'a.jsonl:1: answers is \'b\', expected {"text": ["…"], "answer_start": [0]}'),
    ),
    "no answer but not impossible": (
        "span",
        "a.jsonl",
        '{"question": "a", "context": "b", "answers": {"text": "b", "answer_start": 0}}\n'
        '{"question": "a", "context": "b", "answers": null, "is_impossible": false}\n',
        *({}, "a.jsonl:2: no answer, but is_impossible is false"),
    ),
    "a flag that is none": (
        "span",
        "a.jsonl",
        '{"question": "a", "context": "b", "answers": null, "is_impossible": "maybe"}\n',
        *({}, "a.jsonl:1: is_impossible is 'maybe', expected true or false"),
    ),
    "marks of 0 and 1 without names": (
        *("multi_label_classification", "a.jsonl"),
        '{"text_a": "a", "label": [0, 1, 1]}\n{"text_a": "b", "label": [1, 0, 0]}\n',
        *({}, "a.jsonl:1: label is ['0', '1', '1'], 3 marks of 0 and 1; name the labels"),
    ),
    "a digit for the letter O": (
        *("tagging", "a.conll", "EU B-ORG\nthe 0\n"),
        *({}, "a.conll:1: tag '0' in this sentence (1 such tags: 0)"),
    ),
    "F1 of three labels": (
        *("classification", "a.csv", "text_a,label\nthe,a\na,b\nb,c\n", {"metrics": ["f1"]}),
        "task t: metric f1 is not defined for classification with 3 labels",
    ),
    "a metric that nobody knows": (
        *("classification", "a.csv", "text_a,label\nthe,a\na,b\n", {"metrics": ["auc"]}),
        "task t: metric auc is not defined for classification with 2 labels; expected some of "
        "accuracy, balanced_accuracy, f1, f1_macro",
    ),
    "entities in tags that mark none": (
        *("tagging", "a.conll", "the DT\nlist NN\n", {"metrics": ["entity_f1"]}),
        "task t: metric entity_f1 is not defined for tagging",
    ),
}
"""Kind, file, content, settings, message."""


@pytest.mark.parametrize("case", REFUSED)
def test_other_layouts_are_refused_with_file_and_line_before_anything_is_trained(
    cloze: Cloze, folder: Path, case: str
) -> None:
    kind, name, content, settings, message = REFUSED[case]
    path = folder / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    write_model(folder / "encoder")
    (folder / "all.toml").write_text(configuration(task("t", kind, name, **settings)))
    done = cloze("plan", "all.toml")
    assert done.returncode == 2
    assert message in done.stderr


def test_all_bad_tasks_are_named_at_once(cloze: Cloze, folder: Path) -> None:
    write_model(folder / "encoder")
    (folder / "good.csv").write_text("text_a,label\nthe,a\na,b\n")
    (folder / "bad.csv").write_text("text_a,label\nthe,a\na,\n")
    (folder / "worse.jsonl").write_text('{"question": "a", "context": "b", "answers": 1}\n')
    (folder / "all.toml").write_text(
        configuration(
            task("good", "classification", "good.csv"),
            task("bad", "classification", "bad.csv"),
            task("worse", "span", "worse.jsonl"),
        )
    )
    done = cloze("run", "all.toml", "--without-prefect")
    assert done.returncode == 2
    assert "2 of 3 tasks cannot be trained: (1) bad.csv:3: label is blank" in done.stderr
    assert "(2) worse.jsonl:1: answers is 1" in done.stderr


def test_a_cell_longer_than_the_csv_modules_limit_is_read(tmp_path: Path) -> None:
    path = tmp_path / "long.csv"
    path.write_text(f"text_a,label\n{'the list ' * 20_000},yes\na,no\n")
    config = {"name": "t", "kind": "classification", "train": str(path), "dev": str(path)}
    table = load_tables(TaskConfig.model_validate(config))["train"]
    assert [len(text) for text in table.texts("text_a")] == [180_000, 1]
