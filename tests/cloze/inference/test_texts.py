"""The commands that use a model: streaming input and output, and error messages."""

import gzip
import io
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import cloze as api
from cloze.artifacts.errors import UsageError
from cloze.inference import prediction
from cloze.model.config import TaskConfig
from tests.cloze.tiny_model import write_model

Cloze = Callable[..., Any]


@pytest.fixture
def model(folder: Path) -> str:
    write_model(folder / "encoder")
    return "encoder"


@pytest.fixture
def given(monkeypatch: pytest.MonkeyPatch) -> Callable[[bytes], None]:
    """The content of standard input."""

    def give(content: bytes) -> None:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(content), "utf-8"))

    return give


def test_every_line_has_a_vector_including_empty_ones(
    cloze: Cloze, model: str, given: Callable[[bytes], None]
) -> None:
    given("\ufeffthe list\r\n\nnames\n".encode())
    done = cloze("embed", model, "--output", "vectors.npy", "--layers", "-2,-1")
    assert done.stdout == "vectors.npy: 3 vectors of 16 float32\n"
    assert "embed 3 texts" in done.stderr
    assert "texts/s" in done.stderr
    expected = api.load(model).embed(["the list", "", "names"], layers=(-2, -1))
    assert np.array_equal(np.load("vectors.npy"), expected)


def test_vectors_and_fills_are_printed_as_lines_or_one_json_document(
    cloze: Cloze, model: str
) -> None:
    lines = cloze("embed", model, "the list", "names").stdout.splitlines()
    assert [len(json.loads(line)) for line in lines] == [8, 8]
    whole = json.loads(cloze("embed", model, "names", "--json").stdout)
    assert whole == {"shape": [1, 8], "vectors": [json.loads(lines[1])]}
    filled = cloze("fill-mask", model, "the [MASK] of [MASK]", "--top-k", "2").stdout
    assert [line.startswith("  ") for line in filled.splitlines()] == [False, True, True]


@pytest.mark.parametrize(
    ("arguments", "content", "said"),
    [
        (["embed", "encoder"], b"ok\n\xff\n", "standard input, line 2: not UTF-8 at byte 0"),
        (["embed", "encoder", "a", "--layers", "x"], b"", "expected numbers separated by commas"),
        (["embed", "encoder", "a", "--layers=3"], b"", "expected numbers from -3 to 2"),
        (["embed", "encoder", "a", "--output", "no/v.npy"], b"", "no folder no; make it first"),
        (["embed", "encoder", "a", "--output", "v.txt"], b"", "expected a NumPy file; name it v"),
        (["embed", "encoder", "--passages", "9"], b"", "nothing to read; give files or folders"),
        (["embed", "encoder", "nowhere", "--passages", "9"], b"", "nowhere: "),
        (["embed", "encoder", "table.csv"], b"", "table.csv: a table; expected a file with one"),
        (["embed", "encoder"], b"a\n" + b"a " * 20, "text 2: 22 tokens, the encoder has 16"),
        (["fill-mask", "encoder"], b"a\n", "text 1: no [MASK] in 'a'"),
        (["predict", "encoder", "a"], b"", "no cloze_task; expected a model"),
        (["predict", "encoder", "a", "--file", "f"], b"", "both texts and --file f"),
        (["export", "encoder", "out", "--task", "names"], b"", "not a finetune artifact"),
    ],
)
def test_invalid_requests_are_one_line_errors(
    cloze: Cloze,
    model: str,
    given: Callable[[bytes], None],
    arguments: list[str],
    content: bytes,
    said: str,
) -> None:
    given(content)
    Path("table.csv").write_text("text,label\nfine,1\n")
    done = cloze(*arguments)
    assert done.returncode == 2
    (line,) = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    assert said in line
    assert not [*Path().glob("*.unfinished*"), *Path().glob(".tmp-*")]


def test_a_file_among_the_texts_is_read_line_by_line_and_reported(cloze: Cloze, model: str) -> None:
    Path("two.txt").write_text("the list\nnames\n")
    done = cloze("embed", model, "two.txt", "names")
    assert done.stderr.splitlines() == ["two.txt: read as a file, one text per line"]
    first, second, third = done.stdout.splitlines()
    assert second == third != first


def test_vectors_of_words_that_the_vocabulary_lacks_are_said_to_tell_little(
    cloze: Cloze, model: str
) -> None:
    texts = ["the list", "the xyzzy", "шалом мир", ""]
    done = cloze("embed", model, *texts)
    (line,) = done.stderr.splitlines()
    assert line.startswith("1 of 4 texts are mostly words that the model's vocabulary lacks")
    assert cloze("embed", model, "the list", "names").stderr == ""


def test_a_compressed_file_of_texts_gives_the_vectors_of_its_lines(
    cloze: Cloze, model: str
) -> None:
    Path("two.txt.gz").write_bytes(gzip.compress(b"the list\nnames"))
    done = cloze("embed", model, "two.txt.gz")
    assert done.stdout == cloze("embed", model, "the list", "names").stdout
    Path("two.txt.gz").write_bytes(gzip.compress(b"the list\nnames")[:-9])
    cut = cloze("embed", model, "two.txt.gz")
    assert (cut.returncode, cut.stdout.count("\n")) == (2, 0)
    assert "error: two.txt.gz: damaged or incomplete (" in cut.stderr


@pytest.mark.parametrize(
    "name",
    ["questons.txt", "/nowhere/questions", "~/q.csv", "../q.jsonl", "./q", "a/b.parquet", "q.cvs"],
)
def test_a_misspelt_file_is_not_taken_for_a_text(cloze: Cloze, model: str, name: str) -> None:
    done = cloze("embed", model, name)
    assert (done.returncode, done.stdout) == (2, "")
    assert f"{name}: no such file, and hardly a text" in done.stderr


def test_a_pipe_is_called_one_and_not_waited_for(cloze: Cloze, model: str) -> None:
    os.mkfifo("pipe.txt")
    done = cloze("embed", model, "./pipe.txt")
    assert (done.returncode, done.stdout) == (2, "")
    assert "./pipe.txt: a pipe or device, expected a file with one text per line" in done.stderr


def test_a_folder_is_not_taken_for_a_text(cloze: Cloze, model: str) -> None:
    done = cloze("embed", model, "texts")
    assert (done.returncode, done.stdout) == (2, "")
    assert "texts: a folder, expected a text or a file with one text per line" in done.stderr


@pytest.mark.parametrize(
    "text", ["What is in notes.txt?", "and/or", "numpy.zeros", "3.5", "...", "U.S.", "a.b@c.org"]
)
def test_a_text_is_not_taken_for_a_misspelt_file(cloze: Cloze, model: str, text: str) -> None:
    assert len(cloze("embed", model, text).stdout.splitlines()) == 1


DEEP = "[" * 100_000


@pytest.mark.parametrize(
    ("name", "content", "arguments"),
    [
        ("", "", ("run", "try.toml", "--sweep", f"seed={DEEP}")),
        ("", "", ("run", "try.toml", "--set", f"seed={DEEP}")),
        ("encoder/config.json", DEEP, ("embed", "encoder", "a")),
        ("encoder/modules.json", DEEP, ("embed", "encoder", "a")),
        ("train.jsonl", '{"question": ' + DEEP, ("plan", "tasks.toml")),
        ("train.json", '{"data": ' + DEEP, ("plan", "tasks.toml")),
        ("train.json", '{"data": [{"paragraphs": ' + DEEP, ("plan", "tasks.toml")),
    ],
    ids=["sweep", "set", "config", "modules", "lines", "rows", "SQuAD"],
)
def test_nested_json_is_one_line_everywhere(
    cloze: Cloze, model: str, name: str, content: str, arguments: tuple[str, ...]
) -> None:
    good = {"question": "a", "context": "a b", "answers": {"text": ["a"], "answer_start": [0]}}
    Path("train.jsonl").write_text(json.dumps(good) + "\n")
    train = name if name.startswith("train") else "train.jsonl"
    Path("tasks.toml").write_text(
        'name = "t"\n[finetune]\nencoder = "encoder"\n[[finetune.tasks]]\nname = "q"\n'
        f'kind = "span"\ntrain = "{train}"\ndev = "train.jsonl"\nmax_seq_length = 16\n'
    )
    if name:
        Path(name).write_text(content)
    done = cloze(*arguments)
    assert done.returncode == 2, done.stdout
    (line,) = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    assert len(line) < 2000


def test_nested_json_among_rows_is_one_line() -> None:
    task = TaskConfig(name="t", kind="classification", labels=("x", "y"))
    with pytest.raises(UsageError, match=r"row 1: starts with \{ but is not JSON"):
        list(prediction._rows(('{"text_a": ' + DEEP,), task))
