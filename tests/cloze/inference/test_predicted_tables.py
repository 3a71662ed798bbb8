"""What `cloze predict` prints for a table: all its columns and rows, as every reader finds them."""

import contextlib
import csv
import io
import json
from collections.abc import Iterator
from pathlib import Path

import duckdb
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from cloze.command import exit_code
from cloze.model.finetune.finetune import make_trials
from tests.model.task_builders import TINY, encoder_artifact, inputs, stage_table, write_lines

COLUMNS = ("note", "text_a", "rest")
LETTERS = "ab \"',;|\n\r\té­😀=-\\#0"

cells = st.text(LETTERS, max_size=8)
rows = st.lists(st.tuples(cells, st.text(LETTERS, max_size=12), cells), min_size=1, max_size=5)
plain = st.text("ab \"',;|é0", max_size=8)
"""A `.tsv` is read without quoting, so its cells hold neither tabs nor line breaks."""


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A fine-tuned classifier."""
    folder = tmp_path_factory.mktemp("task")
    table = [{"text_a": text, "label": text[0]} for text in ("a list", "b names") * 8]
    files = {split: write_lines(folder / f"{split}.jsonl", table) for split in ("train", "dev")}
    task = {"name": "first", "kind": "classification", "max_seq_length": 16, "epochs": 1, **files}
    encoder = encoder_artifact(folder / "encoder", config=TINY)
    config = {"tasks": [task], "seeds": [0], "precision": "fp32", "save": "best"}
    fits = stage_table(
        "finetune",
        folder / "fits",
        config={"finetune": config},
        inputs=inputs(encoder=encoder),
        machine={"threads": 1},
    )
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
