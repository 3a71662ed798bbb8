"""What `cloze predict` prints for a table: all its columns and rows, as every reader finds them."""

import contextlib
import csv
import datetime
import decimal
import io
import json
import os
import resource
from collections.abc import Iterator, Mapping
from pathlib import Path

import duckdb
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from pydantic import JsonValue

from cloze.command import exit_code
from cloze.model.finetune.finetune import make_trials
from cloze.model.inference.predict import load_predictor
from tests.model.task_builders import (
    TINY,
    encoder_artifact,
    finetune_table,
    write_lines,
)

COLUMNS = ("note", "text_a", "rest")
LETTERS = "ab \"',;|\n\r\té­😀=-\\#0"

cells = st.text(LETTERS, max_size=8)
rows = st.lists(st.tuples(cells, st.text(LETTERS, max_size=12), cells), min_size=1, max_size=5)
plain = st.text("ab \"',;|é0", max_size=8)
"""A `.tsv` is read without quoting, so its cells hold neither tabs nor line breaks."""


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A fine-tuned classifier."""
    labels = {"a list": "a", "b names": "b"}
    return tuned(tmp_path_factory.mktemp("task"), "classification", labels)


@pytest.fixture(scope="module")
def numbers(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A model fine-tuned to predict numbers."""
    return tuned(tmp_path_factory.mktemp("task"), "regression", {"a list": 1.0, "b names": 2.0})


def tuned(folder: Path, kind: str, labels: Mapping[str, JsonValue]) -> str:
    """A model that has seen the texts with these labels."""
    table = [{"text_a": text, "label": label} for text, label in labels.items()] * 8
    files = {split: write_lines(folder / f"{split}.jsonl", table) for split in ("train", "dev")}
    task = {"name": "first", "kind": kind, "max_seq_length": 16, "epochs": 1, **files}
    encoder = encoder_artifact(folder / "encoder", config=TINY)
    fits = finetune_table(folder / "fits", encoder, tasks=[task], seeds=[0], save="best")
    return make_trials(fits, []).directory


def printed(model: str, file: Path) -> str:
    """What the command prints for `file`."""
    output = io.StringIO(newline="")
    with contextlib.redirect_stdout(output):
        assert exit_code(["predict", model, str(file)]) == 0
    return output.getvalue()


def readers(path: Path, separator: str) -> Iterator[list[tuple[str, ...]]]:
    """The rows of a delimited file by the standard library, pandas, polars and DuckDB."""
    with open(path, encoding="utf-8", newline="") as file:
        table = list(csv.DictReader(file, delimiter=separator))
        yield [tuple(row[name] for name in COLUMNS) for row in table]
    by_pandas = pd.read_csv(path, sep=separator, dtype=str, keep_default_na=False)
    yield [tuple(row) for row in by_pandas[list(COLUMNS)].itertuples(index=False, name=None)]
    by_polars = pl.read_csv(path, separator=separator, infer_schema=False)
    yield by_polars.select(COLUMNS).fill_null("").rows()
    listed = ", ".join(f"coalesce({name}, '')" for name in COLUMNS)
    found = duckdb.sql(
        f"select {listed} from read_csv('{path}', all_varchar = true, header = true, "
        f"delim = '{separator}', quote = '\"', escape = '\"', auto_detect = false, "
        f"columns = {columns_of(path, separator)})"
    )
    yield found.fetchall()


def columns_of(path: Path, separator: str) -> str:
    with open(path, encoding="utf-8", newline="") as file:
        header = next(csv.reader(file, delimiter=separator))
    return "{" + ", ".join(f"'{name}': 'VARCHAR'" for name in header) + "}"


FEW = settings(
    max_examples=6,
    phases=[Phase.generate],
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)


@pytest.mark.parametrize("separator", [",", ";"])
@FEW
@given(table=rows)
def test_a_csv_is_read_back_equal_by_every_reader(
    model: str, tmp_path: Path, separator: str, table: list[tuple[str, ...]]
) -> None:
    source, result = tmp_path / "new.csv", tmp_path / "predicted.csv"
    with open(source, "w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, delimiter=separator, quoting=csv.QUOTE_ALL)
        writer.writerows([COLUMNS, *table])
    with open(result, "w", encoding="utf-8", newline="") as file:
        file.write(printed(model, source))
    for found in readers(result, separator):
        assert found == table


@FEW
@given(table=st.lists(st.tuples(plain, plain.filter(str.strip), plain), min_size=1, max_size=5))
def test_a_tsv_keeps_its_rows_and_columns(
    model: str, tmp_path: Path, table: list[tuple[str, ...]]
) -> None:
    source = tmp_path / "new.tsv"
    lines = ["\t".join(row) for row in (COLUMNS, *table)]
    source.write_text("\n".join(lines) + "\n", "utf-8")
    found = [line.split("\t")[:3] for line in printed(model, source).rstrip("\n").split("\n")]
    assert found == [list(row) for row in (COLUMNS, *table)]


@pytest.mark.parametrize("suffix", ["jsonl", "parquet"])
@FEW
@given(table=rows)
def test_json_lines_and_parquet_keep_their_rows_and_columns(
    model: str, tmp_path: Path, suffix: str, table: list[tuple[str, ...]]
) -> None:
    source = tmp_path / f"new.{suffix}"
    named = [dict(zip(COLUMNS, row, strict=True)) for row in table]
    if suffix == "parquet":
        pq.write_table(pa.Table.from_pylist(named), source)
    else:
        source.write_text("".join(json.dumps(row) + "\n" for row in named))
    found = [json.loads(line) for line in printed(model, source).split("\n")[:-1]]
    assert [{name: row[name] for name in COLUMNS} for row in found] == named
    assert all("prediction" in row for row in found)


def test_cells_that_json_has_no_kind_for_are_still_readable(model: str, tmp_path: Path) -> None:
    source = tmp_path / "new.parquet"
    row = {
        "text_a": "a list",
        "at": datetime.datetime(2026, 3, 1, 12, 30),
        "on": datetime.date(2026, 3, 1),
        "took": datetime.timedelta(minutes=2),
        "price": decimal.Decimal("1.20"),
        "raw": b"\xff",
        "score": float("nan"),
        "parts": [{"at": datetime.time(8), "n": float("inf")}],
    }
    pq.write_table(pa.Table.from_pylist([row]), source)

    def strict(name: str) -> None:
        raise AssertionError(f"{name} is no JSON")

    line = json.loads(printed(model, source), parse_constant=strict)
    assert {name: line[name] for name in row} == {
        "text_a": "a list",
        "at": "2026-03-01T12:30:00",
        "on": "2026-03-01",
        "took": 120.0,
        "price": "1.20",
        "raw": "/w==",
        "score": None,
        "parts": [{"at": "08:00:00", "n": None}],
    }
    lines = tmp_path / "new.jsonl"
    lines.write_text('{"text_a": "a list", "seen": true, "n": NaN, "m": 1e400, "k": 1.0}\n')
    line = json.loads(printed(model, lines), parse_constant=strict)
    assert [line[name] for name in ("seen", "n", "m", "k")] == [True, None, None, 1.0]
    output = tmp_path / "out.csv"
    assert exit_code(["predict", model, str(lines), "--output", str(output)]) == 0
    assert output.read_text().splitlines()[1].startswith("a list,true,,,1.0,")


def test_the_mark_of_a_spreadsheet_stays_and_a_quoted_blank_cell_is_a_row(
    model: str, tmp_path: Path
) -> None:
    source, result = tmp_path / "new.csv", tmp_path / "predicted.csv"
    source.write_text("\ufeffnote;text_a;rest\né;a list;\n", "utf-8")
    result.write_text(printed(model, source), "utf-8")
    assert result.read_bytes().startswith("\ufeffnote;text_a;rest;prediction".encode())
    by_pandas = pd.read_csv(result, sep=";", keep_default_na=False)
    by_polars = pl.read_csv(result, separator=";", infer_schema=False)
    assert (by_pandas["note"][0], by_polars["note"][0]) == ("é", "é")
    source.write_text('text_a\n"a"\n""\n\n"b"\n')
    assert [line.split(",")[0] for line in printed(model, source).splitlines()[1:]] == [
        "a",
        "",
        "b",
    ]


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("new.csv", "text_a,probability a\na list,7\n", "columns probability a are replaced"),
        ("new.csv", "text_a,prediction\na list,mine\n", "columns prediction are replaced"),
        ("new.tsv", 'text_a\tn\n"a\nlist"\t1\nb\t2\n', "1 rows are shorter than the header"),
    ],
)
def test_what_a_table_loses_or_may_have_lost_is_said(
    model: str,
    tmp_path: Path,
    name: str,
    content: str,
    said: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / name).write_text(content)
    printed(model, tmp_path / name)
    assert said in capsys.readouterr().err


def test_predictions_say_what_the_model_has_not_read(
    model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    texts = ["a list", "a list " * 20, "a šźż", "ščť ďľň", ""]
    file = tmp_path / "t.csv"
    file.write_text("text_a\n" + "".join(f'"{text}"\n' for text in texts), "utf-8")
    truncated = "1 texts of more than 16 tokens were truncated"
    unknown = (
        "1 of 5 texts are mostly words that the model's vocabulary lacks ([UNK]): what it computes "
        "of them says little"
    )
    for arguments in ([str(file)], texts):
        assert exit_code(["predict", model, *arguments]) == 0
        said = capsys.readouterr().err.splitlines()
        assert [said.count(truncated), said.count(unknown)] == [1, 1]
    list(load_predictor(model).rows(texts[:1]))
    assert capsys.readouterr().err == ""


def test_rows_without_a_label_are_predicted_but_not_scored(
    model: str, numbers: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "t.csv"
    for of_task, labels in ((model, "ab"), (numbers, "12")):
        rows = f"a list,{labels[0]}\na list,\nb names,{labels[1]}\n"
        file.write_text(f"text_a,label\n{rows}")
        assert exit_code(["predict", of_task, str(file)]) == 0
        said = capsys.readouterr()
        assert len(said.out.splitlines()) == 4
        assert f"{file}: rows without a label are not scored: 1" in said.err
        whole = load_predictor(of_task).evaluate(file)
        file.write_text(f"text_a,label\na list,{labels[0]}\nb names,{labels[1]}\n")
        assert load_predictor(of_task).evaluate(file) == whole


def test_a_file_without_the_column_of_texts_is_told_what_can_be_done(
    model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "new.csv"
    file.write_text("message\na list\n")
    assert exit_code(["predict", model, str(file)]) == 2
    said = capsys.readouterr().err
    assert "no column 'text_a' for text_a, only message; rename the column that holds it" in said


def test_columns_without_names_are_not_told_apart(
    model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "new.csv"
    file.write_text("text_a,,\na list,1,2\n")
    assert exit_code(["predict", model, str(file)]) == 2
    assert "several columns without a name" in capsys.readouterr().err


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """A file with a column of its own, and a cell that has to be quoted."""
    path = tmp_path / "new.csv"
    path.write_text('note;text_a\r\n"1;\n2";a list\r\n3;b names\r\n')
    return path


def files_beside(source: Path) -> set[str]:
    return {path.name for path in source.parent.iterdir()} - {source.name}


@pytest.mark.parametrize(("ending", "begin"), [("csv", "\ufeff"), ("csv", ""), ("tsv", "")])
def test_a_table_without_rows_gives_the_header_that_it_has_with_rows(
    model: str, numbers: str, tmp_path: Path, ending: str, begin: str
) -> None:
    for each in (model, numbers):
        tables = []
        for name, rows in (("none", ""), ("one", "a list\tb\t\n")):
            path = tmp_path / f"{name}.{ending}"
            text = f"{begin}text_a\tprobabilities\tlabel\n{rows}"
            path.write_text(text if ending == "tsv" else text.replace("\t", ","))
            tables.append(printed(each, path))
        none, one = tables
        assert none == one.split("\n")[0] + "\n"
        assert "prediction" in none


@pytest.mark.parametrize("name", ["out.csv", "out"])
def test_an_output_file_has_the_form_of_the_input(model: str, source: Path, name: str) -> None:
    output = source.with_name(name)
    assert exit_code(["predict", model, str(source), "--output", str(output)]) == 0
    assert output.read_bytes().decode() == printed(model, source)
    assert files_beside(source) == {name}


def test_an_output_file_has_the_form_of_its_suffix(
    model: str, source: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def written(name: str, *given: str) -> str:
        output = source.with_name(name)
        assert exit_code(["predict", model, *given, "--output", str(output)]) == 0
        return output.read_text()

    assert exit_code(["predict", model, str(source), "--json"]) == 0
    array = capsys.readouterr().out
    assert written("out.json", str(source)) == array
    rows = json.loads(array)
    assert [row["note"] for row in rows] == ["1;\n2", "3"]
    assert [json.loads(line) for line in written("out.jsonl", str(source)).splitlines()] == rows
    header, first, second = (
        line.split("\t") for line in written("o.tsv", str(source)).splitlines()
    )
    assert header[:2] == ["note", "text_a"]
    assert (first[0], second[0]) == ("1; 2", "3")
    assert (
        header[2:] == written("texts.csv", "a list").splitlines()[0].split(",")[-len(header[2:]) :]
    )
    capsys.readouterr()
    output = str(source.with_name("out.json"))
    assert exit_code(["predict", model, str(source), "--output", output, "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"rows": 2, "file": output}


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("out.parquet", "expected a name that ends in .jsonl, .json, .csv, .tsv"),
        ("none/out.csv", "no folder"),
        ("new.csv", "is the input"),
        ("folder", "is a folder"),
    ],
)
def test_an_output_that_cannot_be_written_is_refused(
    model: str, source: Path, name: str, expected: str, capsys: pytest.CaptureFixture[str]
) -> None:
    before = source.read_bytes()
    source.with_name("folder").mkdir()
    output = str(source.parent / name)
    assert exit_code(["predict", model, str(source), "--output", output]) == 2
    (error,) = capsys.readouterr().err.splitlines()
    assert error.startswith(f"error: --output {output}: ")
    assert expected in error
    assert source.read_bytes() == before


def test_rows_that_fit_into_no_table_and_a_full_disk_leave_the_file_as_it_was(
    model: str, source: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = source.with_name("out.csv")
    output.write_text("precious")
    texts = ('{"text_a": "a list"}', '{"text_a": "b", "label": "a"}')
    code = exit_code(["predict", model, *texts, "--output", str(output)])
    assert "row 2 has" in capsys.readouterr().err if code else "label" not in output.read_text()
    output.write_text("precious")
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    source.write_text("text_a\n" + "a list\n" * 2000)
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, limits[1]))
    try:
        code = exit_code(["predict", model, str(source), "--output", str(output)])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert code == 1
    assert f"error: {output}: no room to write" in capsys.readouterr().err
    assert output.read_text() == "precious"
    assert files_beside(source) == {"out.csv"}


OWN = "text_a,probabilities\na list,mine\nb names,high\n"
"""A table with a column of its user's that has the name of one of ours."""


def test_a_column_called_probabilities_stays_where_none_are_predicted(
    numbers: str, tmp_path: Path
) -> None:
    (tmp_path / "new.csv").write_text(OWN)
    header, *rows = csv.reader(io.StringIO(printed(numbers, tmp_path / "new.csv")))
    assert header == ["text_a", "probabilities", "prediction"]
    assert [row[:2] for row in rows] == [["a list", "mine"], ["b names", "high"]]


def test_a_column_called_probabilities_gives_way_to_the_predicted_ones_and_this_is_said(
    model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "new.csv"
    path.write_text(OWN)
    header, *rows = csv.reader(io.StringIO(printed(model, path)))
    shares = ["probability a", "probability b"]
    assert header == ["text_a", "prediction", "probability", *shares]
    assert [row[0] for row in rows] == ["a list", "b names"]
    assert [float(row[3]) + float(row[4]) for row in rows] == pytest.approx([1, 1], abs=1e-5)
    said = f"{path}: its columns probabilities are replaced by those predicted"
    assert said in capsys.readouterr().err


def test_predictions_do_not_take_the_place_of_a_pipe(
    model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "rows.csv").write_text("text_a\na list\n")
    os.mkfifo(tmp_path / "out.csv")
    given = ["predict", model, str(tmp_path / "rows.csv"), "--output", str(tmp_path / "out.csv")]
    assert exit_code(given) == 2
    assert "out.csv: a device, pipe or stream, expected the name" in capsys.readouterr().err
    assert (tmp_path / "out.csv").is_fifo()
