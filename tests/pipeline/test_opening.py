"""Artifacts can be opened with common tools, which read the same values."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import duckdb
import polars
import pyarrow.dataset
import pytest

from cloze.pipeline.examples import make_examples
from tests.pipeline.synthetic_tokens import (
    examples_table,
    random_documents,
    small_tokenizer,
    tokens_artifact,
    tokens_table,
)

Rows = list[dict[str, Any]]


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """A file of tokens and one of examples."""
    folder, tokenizer = tmp_path_factory.mktemp("artifacts"), small_tokenizer()
    documents = tokens_table(random_documents(1, count=20), vocabulary_size=tokenizer.size)
    tokens = tokens_artifact(folder / "tokens", {("train", 0): documents}, tokenizer=tokenizer)
    config = {"max_seq_lengths": [64], "copies": 2}
    examples = make_examples(examples_table(tokens, folder / "examples", config=config), [])
    return [tokens.path("train-00000.arrow"), examples.path("train-64-00000.arrow")]


def with_polars(path: str) -> Rows:
    return polars.read_ipc(path).to_dicts()


def with_duckdb(path: str) -> Rows:
    found = duckdb.from_arrow(pyarrow.dataset.dataset(path, format="ipc"))
    return [dict(zip(found.columns, row, strict=True)) for row in found.fetchall()]


def with_datasets(path: str) -> Rows:
    import datasets  # slow to import

    cache = str(Path(path).parent / "cache")
    found = datasets.load_dataset("arrow", data_files=path, split="train", cache_dir=cache)
    return found.to_list()


@pytest.mark.parametrize("opened", [with_polars, with_duckdb, with_datasets])
def test_rows_are_the_same(files: list[str], opened: Callable[[str], Rows]) -> None:
    for path in files:
        with pyarrow.memory_map(path) as source:
            expected = pyarrow.ipc.open_file(source).read_all().to_pylist()
        assert len(expected) >= 20
        assert opened(path) == expected
