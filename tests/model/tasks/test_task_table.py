"""Task files of every format, notes on a task's data, and holding out dev rows."""

import json
import re
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from cloze.artifacts.errors import IntegrityError, UsageError
from cloze.artifacts.store import commit, put_bytes
from cloze.model.config import TaskConfig
from cloze.model.inference.task_file import TaskFile
from cloze.model.tasks.files.table_files import read_table
from cloze.model.tasks.files.task_table import TaskTable, Wanted, data_notes
from cloze.model.tasks.problems import load_tables
from tests.model.task_builders import stage_table, write_lines

TEXT = Wanted(required=("text_a",), optional=("label",))


def write(path: Path, content: str | bytes) -> str:
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return str(path)


def test_quotes_are_text_in_tsv_and_quoting_in_csv(tmp_path: Path) -> None:
    tsv = write(tmp_path / "a.tsv", 'text_a\tlabel\n" He said "no"\t1\nfine"\t0\n')
    assert read_table(tsv, TEXT).columns["text_a"] == ['" He said "no"', 'fine"']
    csv = write(tmp_path / "a.csv", 'label,text_a\n1,"He said ""no"", then left"\n0,"two\nlines"\n')
    assert read_table(csv, TEXT).columns["text_a"] == ['He said "no", then left', "two\nlines"]


def test_a_byte_order_mark_and_windows_line_ends_leave_no_trace(tmp_path: Path) -> None:
    path = write(tmp_path / "a.tsv", b"\xef\xbb\xbftext_a\tlabel\r\ngood\t1\r\n")
    assert read_table(path, TEXT).columns == {"text_a": ["good"], "label": ["1"]}


def test_the_same_rows_come_from_every_format(tmp_path: Path) -> None:
    rows = [{"text_a": "eins, zwei", "label": "1"}, {"text_a": "Zürich", "label": "0"}]
    lines = "".join(json.dumps(row) + "\n" for row in rows)
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "a.parquet")
    paths = [
        write(tmp_path / "a.jsonl", lines),
        write(tmp_path / "a.tsv", "text_a\tlabel\neins, zwei\t1\nZürich\t0\n"),
        write(tmp_path / "a.csv", 'text_a,label\n"eins, zwei",1\nZürich,0\n'),
        str(tmp_path / "a.parquet"),
    ]
    tables = [read_table(path, TEXT).columns for path in paths]
    assert all(table == tables[0] for table in tables)


def test_columns_may_have_other_names_or_numbers(tmp_path: Path) -> None:
    named = write(tmp_path / "a.tsv", "sentence\tscore\nhello\t3\n")
    wanted = Wanted(required=("text_a",), names={"text_a": "sentence"})
    assert read_table(named, wanted).columns == {"text_a": ["hello"]}
    headless = write(tmp_path / "b.tsv", "gj04\t1\t\tThe sailors rode.\ngj04\t0\t*\tThem rode.\n")
    wanted = Wanted(required=("text_a",), names={"text_a": "3", "label": "1"})
    table = read_table(headless, wanted)
    assert table.columns == {"text_a": ["The sailors rode.", "Them rode."], "label": ["1", "0"]}
    assert table.place(1).endswith("b.tsv:2")


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        (
            "a.tsv",
            "sentence\tlabel\nx\t1\n",
            r"no column 'text_a' .*sentence, label.*columns\.text_a",
        ),
        ("a.tsv", "text_a\tlabel\nx\n", r"a\.tsv:2: 1 columns, expected at least 2"),
        ("a.csv", 'text_a,label\n"open,1\n', r"a\.csv: record 2: unexpected end of data"),
        ("a.jsonl", '{"text_a": "x"}\n{"text_a"\n', r"a\.jsonl:2: not JSON"),
        ("a.jsonl", "[1]\n", r"a\.jsonl:1: list, expected one JSON object"),
        ("a.tsv", "text_a\tlabel\n", r"no rows, expected labelled examples"),
        ("a.tsv", "", r"empty file"),
        ("a.tsv", b"text_a\n\xcf\xf0\xe8\xe2\xe5\xf2\n", r"a\.tsv:2: not UTF-8 at byte 7.*iconv"),
        ("a.tsv", "text_a\nZürich\n".encode() + b"Z\xfcrich\n", r"a\.tsv:3: not UTF-8 at byte 16"),
        ("a.xlsx", "", r"unknown kind of task file '\.xlsx'"),
        ("a.parquet", "no", r"not a readable Parquet file"),
        ("a.json", '{"paragraphs": []}', r"no column 'text_a' for text_a, only paragraphs"),
        ("a.json", "[1]", r"a\.json: expected a list of objects"),
        ("a.json", "{", r"a\.json: not JSON"),
        ("a.txt", "the O\n", r"the ending \.txt means CoNLL's columns, which are for tagging"),
        ("a.csv", "text_a,label,label\nx,1,2\n", r"2 columns named 'label', expected one"),
    ],
)
def test_bad_files_are_named_with_place_and_remedy(
    tmp_path: Path, name: str, content: str | bytes, message: str
) -> None:
    path = write(tmp_path / name, content)
    with pytest.raises(UsageError, match=message) as caught:
        read_table(path, TEXT)
    assert "\n" not in str(caught.value)


def test_short_rows_are_counted_where_they_may_be_left_out(tmp_path: Path) -> None:
    path = write(tmp_path / "a.tsv", "text_a\tlabel\nx\t1\nbroken\ny\t0\n")
    wanted = Wanted(required=("text_a", "label"), skip_short_rows=True)
    table = read_table(path, wanted)
    assert table.columns["text_a"] == ["x", "y"]
    assert table.remarks == (f"{path}: 1 rows with too few columns are left out",)
    assert table.place(1).endswith(":4")


def test_unpaired_surrogates_from_json_become_question_marks(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", '{"text_a": "a \\ud83d b"}\n')
    assert read_table(path, TEXT).texts("text_a") == ["a ? b"]


def test_a_text_that_is_no_text_is_named(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", '{"text_a": "x"}\n\n{"text_a": null}\n')
    with pytest.raises(UsageError, match=r"a\.jsonl:3: no text_a, expected text"):
        read_table(path, TEXT).texts("text_a")


CONLL = """-DOCSTART- -X- -X- O

EU NNP B-NP B-ORG
rejects VBZ B-VP O

-DOCSTART- -X- -X- O

Peter NNP B-NP B-PER
Blackburn NNP I-NP I-PER
"""


def test_conll_columns_become_sentences_with_their_documents(tmp_path: Path) -> None:
    path = write(tmp_path / "eng.conll", CONLL)
    wanted = Wanted(required=("words",), optional=("tags", "document"), sentences=True)
    assert read_table(path, wanted).columns == {
        "words": [["EU", "rejects"], ["Peter", "Blackburn"]],
        "tags": [["B-ORG", "O"], ["B-PER", "I-PER"]],
        "document": [1, 2],
    }
    pos = Wanted(required=("words", "tags"), names={"words": "0", "tags": "1"}, sentences=True)
    assert read_table(path, pos).columns["tags"] == [["NNP", "VBZ"], ["NNP", "NNP"]]


def test_a_conll_line_without_tag_is_named(tmp_path: Path) -> None:
    path = write(tmp_path / "a.conll", "a B\nb I\n\nc O\nd\n")
    with pytest.raises(UsageError, match=r"a\.conll:5: lines of \[1, 2\] columns"):
        read_table(path, Wanted(required=("words",), sentences=True))


def test_glue_counts_are_the_official_ones(shared_data: Path) -> None:
    official = {
        "CoLA": (8551, 1043),
        "SST-2": (67349, 872),
        "MRPC": (3668, 408),
        "STS-B": (5749, 1500),
        "RTE": (2490, 277),
        "WNLI": (635, 71),
    }
    for name, counts in official.items():
        task = TaskConfig.model_validate(
            {"name": name, "glue": name, "folder": str(shared_data / "glue" / name)}
        )
        tables = load_tables(task)
        assert (len(tables["train"]), len(tables["dev"])) == counts
        assert set(map(str, tables["dev"].columns["label"])) <= set(task.labels) or not task.labels


def test_an_unknown_glue_task_and_a_missing_folder_are_refused() -> None:
    with pytest.raises(ValueError, match="unknown task SST"):
        TaskConfig.model_validate({"name": "x", "glue": "SST"})
    with pytest.raises(ValueError, match=re.escape("needs folder = '...'")):
        TaskConfig.model_validate({"name": "x", "glue": "SST-2"})


def test_a_training_sample_is_the_same_every_time_and_in_file_order(tmp_path: Path) -> None:
    lines = "".join(f'{{"text_a": "{n}", "label": "{n % 2}"}}\n' for n in range(100))
    path = write(tmp_path / "a.jsonl", lines)
    task = TaskConfig(name="t", kind="classification", train=path, dev=path, train_examples=10)
    first, second = load_tables(task)["train"], load_tables(task)["train"]
    assert first == second
    chosen = [int(text) for text in first.columns["text_a"]]
    assert len(chosen) == 10
    assert chosen == sorted(chosen)


def test_training_data_without_labels_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", '{"text_a": "x"}\n')
    task = TaskConfig(name="t", kind="classification", train=path, dev=path)
    with pytest.raises(UsageError, match="no column label, which training"):
        load_tables(task)


def test_a_task_without_data_says_what_it_wants(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"has no training file and there is no labels artifact"):
        load_tables(TaskConfig(name="t", kind="tagging"))


def test_a_damaged_file_of_a_labels_artifact_is_refused_not_left_out(tmp_path: Path) -> None:
    table = stage_table("labels", tmp_path)
    row = b'{"text_a": "x", "label": "0"}\n'
    files = [put_bytes(table.output, row, name=f"t/{split}.jsonl") for split in ("train", "dev")]
    labels = commit(table, files)
    Path(labels.path("t/dev.jsonl")).write_bytes(row.replace(b"0", b"1"))
    with pytest.raises(IntegrityError, match="the file was damaged or changed"):
        load_tables(TaskConfig(name="t", kind="classification"), labels)


@pytest.mark.parametrize("name", ["a.tsv", "a.csv"])
def test_a_row_with_a_column_too_many_is_refused_with_its_line(tmp_path: Path, name: str) -> None:
    mark = "\t" if name.endswith("tsv") else ","
    content = f"text_a{mark}label\ngood{mark}1\nbad{mark}indeed{mark}0\n"
    path = write(tmp_path / name, content)
    with pytest.raises(UsageError, match=rf"{name}:3: 3 columns, expected 2 as in the first line"):
        read_table(path, Wanted(required=("text_a", "label")))
    path = write(tmp_path / "b.tsv", "good\t1\nbad\tindeed\t0\n")
    headless = Wanted(required=("text_a",), names={"text_a": "0"})
    with pytest.raises(UsageError, match=r"b.tsv:2: 3 columns, expected 2"):
        read_table(path, headless)


def table(texts: Sequence[str], labels: Sequence[str], path: str = "x.csv") -> TaskTable:
    return TaskTable(path, {"text_a": list(texts), "label": list(labels)})


def task(path: Path, rows: list[dict[str, object]], kind: str = "classification") -> TaskConfig:
    train = write_lines(path / "train.jsonl", rows)
    return TaskConfig.model_validate({"name": "t", "kind": kind, "train": train})


def test_rows_that_train_has_too_are_counted_and_the_first_is_named() -> None:
    train = table([f"text {n}" for n in range(40)], ["a", "b"] * 20)
    dev = table(["new", "text 3", "text 4"], ["a", "b", "a"], "dev.csv")
    (note,) = data_notes({"train": train, "dev": dev})
    assert note.startswith("2 of 3 dev rows are training rows, too (the first: dev.csv:2)")


def test_rare_labels_and_labels_missing_in_dev_are_named() -> None:
    train = table([f"text {n}" for n in range(43)], ["a"] * 20 + ["b"] * 20 + ["c"] * 3)
    dev = table(["new", "newer"], ["a", "c"])
    rare, missing = data_notes({"train": train, "dev": dev})
    assert rare == "labels with fewer than 10 training rows: c (3)"
    assert missing == "labels without a dev row, whose scores are unknown: b"


def test_nothing_is_said_of_sound_data_or_of_numbers() -> None:
    train = table([f"text {n}" for n in range(40)], ["a", "b"] * 20)
    assert not list(data_notes({"train": train, "dev": table(["new", "newer"], ["a", "b"])}))
    numbers = table([f"text {n}" for n in range(9)], [str(n / 7) for n in range(9)])
    assert not list(data_notes({"train": numbers, "dev": table(["new"], ["0.5"])}))


def test_without_dev_and_test_some_rows_of_every_label_are_held_out(tmp_path: Path) -> None:
    rows: list[dict[str, object]] = [
        {"text_a": f"text {n}", "label": "rare" if n % 20 == 0 else "often"} for n in range(100)
    ]
    first, again = (load_tables(task(tmp_path, rows)) for _ in range(2))
    assert first["dev"].columns == again["dev"].columns
    assert len(first["dev"]) == 11  # 10 of 95, 1 of 5
    assert set(first["dev"].columns["label"]) == {"rare", "often"}
    texts = [str(text) for split in first.values() for text in split.columns["text_a"]]
    assert sorted(texts) == sorted(str(row["text_a"]) for row in rows)
    assert "no dev file: 11 of 100 rows of" in first["train"].remarks[0]


def test_rows_left_out_of_a_file_are_remarked_on_however_it_is_divided(tmp_path: Path) -> None:
    lines = ["text_a\tlabel", "broken", *(f"text {n}\t{n % 2}" for n in range(40))]
    path = write(tmp_path / "train.tsv", "\n".join(lines) + "\n")
    short = TaskConfig(name="t", kind="classification", train=path, skip_short_rows=True)
    for config in (short, short.model_copy(update={"train_examples": 10})):
        remarks = load_tables(config)["train"].remarks
        assert remarks[0] == f"{path}: 1 rows with too few columns are left out"
        assert "no dev file: 4 of 40 rows of" in remarks[1]


def test_documents_are_held_out_whole(tmp_path: Path) -> None:
    words = "\n\n".join(
        "-DOCSTART- O\n\n" + "\n\n".join(f"w{doc}{n} O" for n in range(4)) for doc in range(10)
    )
    (tmp_path / "train.conll").write_text(words + "\n")
    found = load_tables(TaskConfig(name="t", kind="tagging", train=str(tmp_path / "train.conll")))
    assert len(found["dev"]) == 4
    assert len(set(map(str, found["dev"].columns["document"]))) == 1


def test_a_single_row_cannot_be_shared(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"too few rows to hold some out as dev; name a dev file"):
        load_tables(task(tmp_path, [{"text_a": "x", "label": "a"}]))


@pytest.mark.parametrize("suffix", [".parquet", ".arrow"])
def test_a_labelled_table_that_is_a_bomb_is_refused_before_it_is_unpacked(
    tmp_path: Path, suffix: str
) -> None:
    path = tmp_path / f"train{suffix}"
    texts = pa.DictionaryArray.from_arrays(pa.array([0] * 4000, pa.int32()), ["a" * 500_000])
    table = pa.table({"text_a": texts, "label": ["x"] * 4000})
    if suffix == ".parquet":
        pq.write_table(table, path)
    else:
        with pa.ipc.new_file(path, table.schema) as writer:
            writer.write_table(table)
    with pytest.raises(UsageError, match=f"train{suffix}: .* bytes unpack to .* and more"):
        read_table(str(path), Wanted(required=("text_a", "label")))


def test_labels_that_differ_only_in_case_or_spaces_are_noted() -> None:
    names = ["good", "Good ", "bad"] * 12
    train = TaskTable("train", {"text_a": [f"{n}" for n in range(36)], "label": [*names]})
    (note,) = data_notes({"train": train})
    assert note.startswith("'good', 'Good ' are 2 labels")


def test_all_columns_are_not_returned_by_names_that_two_of_them_have(tmp_path: Path) -> None:
    path = write(tmp_path / "t.csv", "note,text_a,note\n1,a,2\n")
    task = TaskConfig(name="t", kind="classification", labels=("x", "y"))
    with pytest.raises(UsageError, match=r"t\.csv: several columns named 'note'; all columns are"):
        TaskFile(path, task)
    few = read_table(path, Wanted(required=("text_a",)))
    assert few.columns == {"text_a": ["a"]}
