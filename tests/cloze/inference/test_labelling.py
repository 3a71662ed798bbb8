"""`cloze label`, from an unlabelled table to merged labels."""

import csv
import json
from pathlib import Path

import pytest

from cloze.artifacts.errors import UsageError
from cloze.inference.labelling import Columns, label
from tests.cloze.tiny_model import write_model

WORDS = ("the", "list", "of", "names", "a", "b")


@pytest.fixture
def table(tmp_path: Path) -> Path:
    """Thirty different texts without labels."""
    write_model(tmp_path / "model")
    texts = [f"{x} {y} {z}" for x in WORDS for y in WORDS[:5] for z in WORDS[:1]]
    lines = ["number,text", *(f"{place},{text}" for place, text in enumerate(texts))]
    path = tmp_path / "table.csv"
    path.write_text("\n".join(lines) + "\n")
    return path


def read(path: Path) -> list[dict[str, str]]:
    with path.open(newline="", encoding="utf-8-sig") as file:
        return list(csv.DictReader(file))


def fill(path: Path, rows: list[dict[str, str]]) -> Path:
    with path.open("w", newline="", encoding="utf-8") as file:
        out = csv.DictWriter(file, rows[0].keys())
        out.writeheader()
        out.writerows(rows)
    return path


def answer(row: dict[str, str]) -> dict[str, str]:
    return {**row, "label": "listed" if "list" in row["text"] else "other"}


def test_rows_are_chosen_filled_in_merged_and_the_next_round_proposes(
    table: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = str(tmp_path / "model")
    label(table, output=tmp_path / "next.csv", next=12, initial=model)
    chosen = read(tmp_path / "next.csv")
    assert list(chosen[0]) == ["row", "text", "proposed", "probability", "label"]
    assert len({one["row"] for one in chosen}) == len(chosen) > 4
    texts = [one["text"] for one in read(table)]
    assert all(texts[int(one["row"]) - 1] == one["text"] for one in chosen)
    # another order, a row removed, another left blank
    filled = [answer(row) for row in chosen[::-1][1:]]
    filled[0]["label"] = ""
    fill(tmp_path / "filled.csv", filled)
    label(table, output=tmp_path / "two.csv", merge=[tmp_path / "filled.csv"])
    merged = read(tmp_path / "two.csv")
    assert [one["number"] for one in merged] == [str(place) for place in range(30)]
    labelled = {one["text"]: one["label"] for one in merged if one["label"]}
    assert labelled == {one["text"]: one["label"] for one in filled if one["label"]}
    assert {one["round"] for one in merged} == {"", "1"}
    capsys.readouterr()
    label(tmp_path / "two.csv", output=tmp_path / "next2.csv", next=5, initial=model)
    said = capsys.readouterr().err
    assert f"label: round 1: {len(labelled)} labels, accuracy" in said
    again = read(tmp_path / "next2.csv")
    assert not {one["text"] for one in again} & set(labelled)
    assert {one["proposed"] for one in again} <= {"listed", "other"}
    assert all(0.5 <= float(one["probability"]) <= 1 for one in again)


def test_two_peoples_files_are_merged_at_once_unless_they_disagree(
    table: Path, tmp_path: Path
) -> None:
    texts = [one["text"] for one in read(table)]
    rows = [{"row": str(n + 1), "text": texts[n], "label": "x"} for n in range(3)]
    first = fill(tmp_path / "first.csv", rows[:2])
    second = fill(tmp_path / "second.csv", [rows[1], {**rows[2], "label": "y"}])
    label(table, output=tmp_path / "both.csv", merge=[first, second])
    assert [one["label"] for one in read(tmp_path / "both.csv")[:4]] == ["x", "x", "y", ""]
    fill(second, [{**rows[1], "label": "y"}])
    with pytest.raises(
        UsageError, match=r"second.csv:2: row 2 is 'y', but 'x' in .*first.csv; agree on one"
    ):
        label(table, output=tmp_path / "none.csv", merge=[first, second])
    assert not (tmp_path / "none.csv").exists()


def test_labels_that_the_table_did_not_have_are_named(
    table: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    texts = [one["text"] for one in read(table)]
    rows = [{"row": str(n + 1), "text": texts[n], "label": "xy"[n]} for n in range(2)]
    label(table, output=tmp_path / "a.csv", merge=[fill(tmp_path / "1.csv", rows[:1])])
    label(tmp_path / "a.csv", output=tmp_path / "b.csv", merge=[fill(tmp_path / "2.csv", rows[1:])])
    assert "labels that the table did not have: y" in capsys.readouterr().err
    assert [one["round"] for one in read(tmp_path / "b.csv")[:3]] == ["1", "2", ""]


def test_tasks_of_label_studio_are_written_and_its_annotations_read(
    table: Path, tmp_path: Path
) -> None:
    label(table, output=tmp_path / "next.json", next=3, initial=str(tmp_path / "model"))
    tasks = json.loads((tmp_path / "next.json").read_text())
    assert [set(one) for one in tasks] == [{"data", "predictions"}] * 3
    result = {"from_name": "label", "to_name": "text", "type": "choices"}
    for task in tasks[:2]:
        value = {"choices": ["x"]}
        task["annotations"] = [{"was_cancelled": False, "result": [{**result, "value": value}]}]
    tasks[2]["annotations"] = [{"was_cancelled": True, "result": []}]
    (tmp_path / "done.json").write_text(json.dumps(tasks))
    label(table, output=tmp_path / "two.csv", merge=[tmp_path / "done.json"])
    labelled = [one["text"] for one in read(tmp_path / "two.csv") if one["label"] == "x"]
    assert sorted(labelled) == sorted(one["data"]["text"] for one in tasks[:2])


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("row,text,label\n1,other text,x\n", "row 1 with the text 'other text' is not in"),
        ("row,text,label\nfirst,the the the,x\n", "row is 'first', expected a number"),
        ("row,text,label\n1,the the the,\n", "no row has a label; fill in some"),
        ("text,label\nthe the the,x\n", "give back the file that `cloze label` wrote"),
    ],
)
def test_files_that_do_not_fit_the_table_are_refused(
    content: str, message: str, table: Path, tmp_path: Path
) -> None:
    (tmp_path / "odd.csv").write_text(content)
    with pytest.raises(UsageError, match=message):
        label(table, output=tmp_path / "out.csv", merge=[tmp_path / "odd.csv"])


def test_what_cannot_be_chosen_from_is_refused(table: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="name an encoder with --from"):
        label(table, output=tmp_path / "n.csv")
    with pytest.raises(UsageError, match=r"table.csv: already exists"):
        label(table, output=table, initial="model")
    (tmp_path / "full.csv").write_text("text,label\na,x\n")
    with pytest.raises(UsageError, match="every row has a label"):
        label(tmp_path / "full.csv", output=tmp_path / "n.csv", initial=str(tmp_path / "model"))
    (tmp_path / "blank.csv").write_text("text,label\na,x\n ,\n")
    with pytest.raises(UsageError, match=r"blank.csv:3: text is blank"):
        label(tmp_path / "blank.csv", output=tmp_path / "n.csv", initial="model")
    (tmp_path / "nan.csv").write_text("text,label\na,x\nb,nan\n")
    with pytest.raises(UsageError, match=r"nan.csv:3: label is 'nan', as pandas writes a missing"):
        label(tmp_path / "nan.csv", output=tmp_path / "n.csv", initial="model")
    with pytest.raises(UsageError, match="no column 'body'.*; name the column of .* --text"):
        label(table, output=tmp_path / "n.csv", columns=Columns(text="body"), initial="m")


def test_tables_of_words_and_tags_are_refused(tmp_path: Path) -> None:
    (tmp_path / "tags.jsonl").write_text('{"words": ["a"], "tags": ["O"]}\n')
    with pytest.raises(UsageError, match=r"only words, tags; .* words to tag are not chosen from"):
        label(tmp_path / "tags.jsonl", output=tmp_path / "n.csv", initial="m")
    (tmp_path / "tags.csv").write_text("text,label\na b,B-X O\na,O\nb,\n")
    with pytest.raises(UsageError, match="tags.csv: label has a tag for each word of text"):
        label(tmp_path / "tags.csv", output=tmp_path / "n.csv", initial="m")
    (tmp_path / "tags.conll").write_text("a O\n")
    with pytest.raises(UsageError, match=r"which are for tagging; texts need another ending"):
        label(tmp_path / "tags.conll", output=tmp_path / "n.csv", initial="m")


def test_fewer_rows_than_asked_for_are_explained_and_none_is_an_error(
    table: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The encoder knows neither "one" nor "two", so it cannot tell these texts apart."""
    (tmp_path / "alike.csv").write_text("text,label\nlist one,\nlist two,\na b,\na b,\n")
    label(tmp_path / "alike.csv", output=tmp_path / "n.csv", initial=str(tmp_path / "model"))
    assert len(read(tmp_path / "n.csv")) == 2
    assert "label: 2 rows instead of 50: the other rows without" in capsys.readouterr().err
    (tmp_path / "alike.csv").write_text("text,label\nlist one,x\nlist two,\nlist three,\n")
    with pytest.raises(UsageError, match=r"alike.csv: all 2 rows without a label nearly equal"):
        label(tmp_path / "alike.csv", output=tmp_path / "m.csv", initial=str(tmp_path / "model"))
    assert not (tmp_path / "m.csv").exists()


HOSTILE = ["a\rb c", 'a "b", c', "a\nb", "=1+1", " a ", "a;b"]


def test_every_column_of_the_table_comes_back_as_it_was(tmp_path: Path) -> None:
    table = fill(
        tmp_path / "table.csv",
        [{"id": f"{n}", "note": note, "text": f"the {n}"} for n, note in enumerate(HOSTILE)],
    )
    done = fill(tmp_path / "done.csv", [{"row": "2.0", "text": "the 1", "label": "x"}])
    label(table, output=tmp_path / "merged.csv", merge=[done])
    found = read(tmp_path / "merged.csv")
    assert [one["note"] for one in found] == HOSTILE
    assert [one["label"] for one in found] == ["", "x", "", "", "", ""]
    assert read(table) == [
        {name: cell for name, cell in one.items() if name not in ("label", "round")}
        for one in found
    ]


@pytest.mark.parametrize(("given", "separator"), [(";", ";"), ("\t", ",")])
def test_a_spreadsheets_table_comes_back_as_one(tmp_path: Path, given: str, separator: str) -> None:
    table = tmp_path / "table.csv"
    table.write_text(f"\ufeffid{given}text\n1{given}the é\n2{given}a\n", "utf-8")
    done = fill(tmp_path / "done.csv", [{"row": "1", "text": "the é", "label": "x"}])
    label(table, output=tmp_path / "merged.csv", merge=[done])
    lines = (tmp_path / "merged.csv").read_text("utf-8").splitlines()
    rows = (["\ufeffid", "text", "label", "round"], ["1", "the é", "x", "1"], ["2", "a", "", ""])
    assert lines == [separator.join(row) for row in rows]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("text,round\nthe,first\n", "column round has 'first', expected the number of the round"),
        ("text,label,round\nthe,,3\na,x,1\n", "table.csv:2: column round has '3'"),
        ("text,round\nthe,²\n", "column round has '²'"),
        ("text,note,note\nthe,1,2\n", "several columns named 'note'"),
    ],
)
def test_a_column_that_would_be_lost_is_refused(tmp_path: Path, content: str, message: str) -> None:
    table = tmp_path / "table.csv"
    table.write_text(content)
    done = fill(tmp_path / "done.csv", [{"row": "1", "text": "the", "label": "x"}])
    with pytest.raises(UsageError) as refused:
        label(table, output=tmp_path / "merged.csv", merge=[done])
    assert message in str(refused.value)
    assert not (tmp_path / "merged.csv").exists()


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("1.csv", f"row,text,label\n{'9' * 5000},the,x\n"),
        ("1.csv", "row,text,label\n²,the,x\n"),
        ("1.json", "[" * 100_000),
        ("1.json", '[{"data": {"row": 1e999, "text": "the"}, "annotations": []}]'),
        ("1.json", '[{"data": {"text": "the"}, "annotations": [{"result": [[]]}]}]'),
        ("1.json", "\xff"),
    ],
)
def test_what_people_sent_back_is_read_or_refused(tmp_path: Path, name: str, content: str) -> None:
    (tmp_path / "table.csv").write_text("text\nthe\n")
    (tmp_path / name).write_bytes(content.encode("latin-1"))
    with pytest.raises(UsageError, match=name):
        label(tmp_path / "table.csv", output=tmp_path / "two.csv", merge=[tmp_path / name])


@pytest.mark.parametrize("name", ["two.jsonl", "two", "two.json"])
def test_a_table_is_written_as_what_its_name_says(tmp_path: Path, name: str) -> None:
    (tmp_path / "table.csv").write_text("text\nthe\n")
    done = fill(tmp_path / "done.csv", [{"row": "1", "text": "the", "label": "x"}])
    with pytest.raises(UsageError, match="expected a name that ends in .csv"):
        label(tmp_path / "table.csv", output=tmp_path / name, merge=[done])
