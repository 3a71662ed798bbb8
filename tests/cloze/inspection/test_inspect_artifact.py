"""`cloze inspect`: finds the rows, or lists what exists."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from cloze.answer import Answer
from cloze.artifacts.errors import UsageError
from cloze.artifacts.manifest import FileEntry
from cloze.artifacts.store import Artifact
from cloze.inspection.inspect_artifact import inspect
from cloze.inspection.trace import TracedExample, find_origin
from cloze.pipeline.examples import make_examples
from cloze.pipeline.tokens import make_tokens
from tests.pipeline.corpora import documents, given_vocabulary, source, tokens_table, write_jsonl
from tests.pipeline.synthetic_tokens import (
    examples_table,
    small_tokenizer,
    tokens_artifact,
)
from tests.pipeline.synthetic_tokens import tokens_table as documents_table

Look = Callable[..., Answer]
TEXTS = documents(1, 60)


@pytest.fixture(scope="module")
def tokens(tmp_path_factory: pytest.TempPathFactory) -> Artifact:
    """Two splits; of the training documents, 3 are duplicates and 1 is empty."""
    folder = tmp_path_factory.mktemp("tokens")
    write_jsonl(folder / "train.jsonl", [*TEXTS[:40], *TEXTS[:3], ""])
    write_jsonl(folder / "apart.jsonl", TEXTS[40:])
    sources = [source(folder / "train.jsonl"), source(folder / "apart.jsonl", heldout="apart")]
    vocabulary = given_vocabulary(folder / "vocabulary")
    table = tokens_table(folder / "out", sources, vocabulary=vocabulary, heldout_share=0.0)
    return make_tokens(table, [])


@pytest.fixture(scope="module")
def examples(tokens: Artifact, tmp_path_factory: pytest.TempPathFactory) -> Artifact:
    output = tmp_path_factory.mktemp("examples")
    return make_examples(examples_table(tokens, output, config={"max_seq_lengths": [64]}), [])


def look(artifact: Artifact, **options: Any) -> dict[str, Any]:
    answer = inspect(artifact.directory, **options)
    assert isinstance(answer.data, dict)
    return answer.data


def digest(row: dict[str, Any]) -> str:
    return str(row["title"]).split()[1].rstrip(",")


@pytest.mark.parametrize("split", ["train", "apart"])
def test_a_document_is_found_in_any_split(tokens: Artifact, split: str) -> None:
    (row,) = look(tokens, split=split, rows=1)["rows"]
    assert look(tokens, document=digest(row))["rows"] == [row]
    assert look(tokens, document=digest(row), split=split)["rows"] == [row]


def test_a_missing_row_is_an_error_that_lists_what_exists(tokens: Artifact) -> None:
    with pytest.raises(UsageError, match="--split nosuch: no such split; the splits are apart, t"):
        inspect(tokens.directory, split="nosuch")
    with pytest.raises(
        UsageError, match="no digest starts with it in apart, train; --dropped lists"
    ):
        inspect(tokens.directory, document="xyz")
    (row,) = look(tokens, split="apart", rows=1)["rows"]
    with pytest.raises(UsageError, match="no digest starts with it in train;"):
        inspect(tokens.directory, document=digest(row), split="train")


def test_an_example_of_several_documents_shows_each_separately(
    tokens: Artifact, tmp_path: Path
) -> None:
    config = {"max_seq_lengths": [256], "second_segment": "none", "pack_documents": True}
    packed = make_examples(examples_table(tokens, tmp_path, config=config), [])
    rows = look(packed, split="train", rows=5)["rows"]
    counts = [int(row["title"].split()[0]) for row in rows]
    assert max(counts) > 1
    for row, count in zip(rows, counts, strict=True):
        assert re.match(r"1 document,|[2-9] documents,", row["title"])
        assert [line[:5] for line in row["text"].splitlines()] == ["[CLS]"] * count


@pytest.mark.parametrize("options", [{"document": "3f9c"}, {"dropped": []}])
def test_inspecting_documents_of_examples_points_to_tokens(
    examples: Artifact, options: dict[str, Any]
) -> None:
    (option,) = options
    with pytest.raises(
        UsageError, match=f"--{option}: not supported for examples; inspect RUN/tokens"
    ):
        inspect(examples.directory, **options)
    assert len(look(examples, split="apart", rows=3)["rows"]) == 3


def test_dropped_documents_are_listed_with_reason_file_and_place(tokens: Artifact) -> None:
    listed = look(tokens, dropped=[])["dropped"]
    assert sorted(row["reason"] for row in listed) == [*["duplicate"] * 3, "empty"]
    assert {Path(row["path"]).name for row in listed} == {"train.jsonl"}
    (empty,) = look(tokens, dropped=["empty"])["dropped"]
    text = inspect(tokens.directory, dropped=["empty"]).text
    assert text.splitlines()[-1].startswith(f"empty  {empty['document_digest']}  {empty['path']}")
    assert len(look(tokens, dropped=["duplicate"], rows=2)["dropped"]) == 2
    (one,) = look(tokens, dropped=[], document=listed[0]["document_digest"])["dropped"]
    assert one == listed[0]


def test_an_unused_reason_for_dropping_is_rejected(tokens: Artifact) -> None:
    with pytest.raises(UsageError, match="--dropped short: .* dropped: duplicate 3, empty 1"):
        inspect(tokens.directory, dropped=["short", "empty"])


def test_dropped_works_with_and_without_a_reason(
    cloze: Callable[..., Any], tokens: Artifact
) -> None:
    for reason, expected in (((), 4), (("duplicate",), 3), (("duplicate", "empty"), 4)):
        done = cloze("inspect", tokens.directory, "--dropped", *reason)
        assert done.returncode == 0
        assert len(done.stdout.rpartition("\n\n")[2].splitlines()) == expected


@pytest.mark.parametrize(
    ("segment", "row", "documents"),
    [
        ([30, 31], 0, 1),
        ([31, 40], 3, 1),  # the end of document 0 and the beginning of document 1 look like it
        ([50], 1, 2),
    ],
)
def test_an_example_is_traced_to_a_document_that_holds_all_of_its_segment(
    tmp_path: Path, segment: list[int], row: int, documents: int
) -> None:
    contents = [[[30, 31]], [[40, 50]], [[50, 60]], [[31, 40]]]
    tables = [documents_table([content], vocabulary_size=200) for content in contents]
    held = tokens_artifact(
        tmp_path, {("train", 0): pa.concat_tables(tables)}, tokenizer=small_tokenizer()
    )
    facts = {"split": "train", "bucket": 0}
    file = FileEntry(name="train-64-00000.arrow", size=0, sha256="0" * 64, statistics=facts)
    values = {
        "input_ids": [2, *segment, 3, 99, 3],
        "segment_a_length": len(segment) + 2,
        "masked_lm_positions": [1],
        "masked_lm_ids": segment[:1],
    }
    origin = find_origin(TracedExample(file, 0, 0, values), held)
    assert (origin.row, origin.documents) == (row, documents)
    assert origin.document["token_ids"] == [id for sentence in contents[row] for id in sentence]
