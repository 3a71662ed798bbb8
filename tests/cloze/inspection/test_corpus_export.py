"""Documents that a run kept are written out, and read again as the same documents."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from cloze.artifacts.config import read_toml
from cloze.artifacts.store import open_artifact
from tests.cloze.execution.test_containers import VOCABULARY
from tests.pipeline.corpora import documents, write_jsonl

Cloze = Callable[..., Any]

NOTICE = "This notice stands below every message that we send, whoever reads it."
CONFIG = """
name = "kept"

[corpus]
heldout_share = 0.2
abbreviations = ["zzz"]

[[corpus.sources]]
reader = "jsonl"
path = "mails.jsonl"
weight = 2
line_break = "paragraph"
boilerplate = { min_documents = 5 }

[[corpus.sources]]
reader = "sentence_lines"
path = "lines.txt"
heldout_documents = "other"

[[corpus.sources]]
reader = "blank_line_text"
path = "held.txt"
heldout = "held"

[cleaning]
min_words = 4
mask = ["mail"]
remove_citations = true

[vocabulary]
path = "vocab.txt"
"""


@pytest.fixture
def kept(cloze: Cloze, folder: Path) -> str:
    """A run of three sources with boilerplate, duplicates, a held-out source and short texts."""
    (folder / "vocab.txt").write_text("\n".join(VOCABULARY) + "\n")
    mails = [f"{text}\n\n{NOTICE}\nAsk zzz. Me@mail.org [3]." for text in documents(1, 40)]
    lines = [text.replace(". ", ".\n") for text in documents(2, 40)]
    held = documents(3, 5)
    write_jsonl(folder / "mails.jsonl", [*mails, mails[0], "too short", lines[3], held[1]])
    (folder / "lines.txt").write_text("\n\n".join([*lines, lines[0]]) + "\n")
    (folder / "held.txt").write_text("\n\n".join(held) + "\n")
    (folder / "kept.toml").write_text(CONFIG)
    done = cloze("tokens", "kept.toml")
    assert done.returncode == 0, done.stderr
    return "kept"


def digests(cloze: Cloze, run: str) -> dict[str, set[str]]:
    """The digests of a run's documents, by split."""
    directory = json.loads(cloze("inspect", f"{run}/tokens", "--json").stdout)["directory"]
    found: dict[str, set[str]] = {}
    artifact = open_artifact(directory)
    for entry in artifact.manifest.files:
        if split := entry.statistics.get("split"):
            table = pa.ipc.open_file(artifact.path(entry.name)).read_all()
            column = (digest.hex() for digest in table["document_digest"].to_pylist())
            found.setdefault(split, set()).update(column)
    return found


@pytest.mark.parametrize("form", ["parquet", "jsonl"])
def test_what_is_written_is_read_as_the_same_documents(
    cloze: Cloze, folder: Path, kept: str, form: str
) -> None:
    expected = digests(cloze, kept)
    assert expected.keys() == {"train", "heldout", "other", "held"}
    done = cloze("documents", kept, "out", "--format", form, "--json")
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)
    assert said["documents"] == sum(map(len, expected.values()))
    rows = []
    for path in sorted((folder / "out").glob(f"source-*.{form}")):
        text = path.read_text("utf-8").splitlines() if form == "jsonl" else []
        rows += map(json.loads, text) if text else pq.read_table(path).to_pylist()
    by_split: dict[str, set[str]] = {}
    for row in rows:
        by_split.setdefault(row["split"], set()).add(row["digest"])
    assert by_split == expected
    assert sum("notice" in row["text"] for row in rows) == 1  # the document that keeps it
    assert sum("mail@example.com" in row["text"] for row in rows) == 40
    (folder / "again.toml").write_text(
        (folder / "out" / "corpus.toml").read_text() + '\n[vocabulary]\npath = "vocab.txt"\n'
    )
    done = cloze("tokens", "again.toml")
    assert done.returncode == 0, done.stderr
    assert digests(cloze, "kept-documents") == expected
    assert "dropped" not in done.stdout
    assert read_toml("again.toml")["corpus"]["sources"][0]["weight"] == 2
    card = (folder / "out" / "README.md").read_text()
    assert "| mails.jsonl | jsonl | " in card
    assert "min_words = 4" in card
    assert "| short | 1 |" in card
    assert "| mail | 4" in card


def test_a_folder_with_files_is_refused_and_nothing_beside_it_is_touched(
    cloze: Cloze, folder: Path, kept: str
) -> None:
    (folder / "full").mkdir()
    (folder / "full" / "mine.txt").write_text("x")
    done = cloze("documents", kept, "full")
    assert done.returncode == 2
    assert "full: exists and is not an empty folder; name a new one" in done.stderr
    mine = folder / ".out.unfinished"
    mine.mkdir()
    (mine / "mine.txt").write_text("x")
    (folder / "out").mkdir()
    before = {one.name for one in folder.iterdir()}
    assert cloze("documents", kept, "out").returncode == 0
    assert (folder / "out" / "corpus.toml").exists()
    assert (mine / "mine.txt").read_text() == "x"
    assert {one.name for one in folder.iterdir()} == before


def test_a_document_whose_end_is_held_out_is_written_whole(cloze: Cloze, folder: Path) -> None:
    (folder / "vocab.txt").write_text("\n".join(VOCABULARY) + "\n")
    (text,) = documents(4, 1)
    (folder / "one.txt").write_text(text + "\n")
    source = '[[corpus.sources]]\nreader = "text"\npath = "one.txt"\n'
    rest = '[corpus]\nheldout_share = 0.2\n[vocabulary]\npath = "vocab.txt"\n'
    (folder / "one.toml").write_text(f'name = "one"\n{source}{rest}')
    done = cloze("tokens", "one.toml")
    assert done.returncode == 0, done.stderr
    assert "the end of each document is held out" in done.stderr
    assert cloze("documents", "one", "out", "--format", "jsonl").returncode == 0
    (row,) = (folder / "out" / "source-0-00000.jsonl").read_text().splitlines()
    assert json.loads(row)["text"] == text


def test_a_corpus_that_has_changed_is_refused_and_nothing_appears(
    cloze: Cloze, folder: Path, kept: str
) -> None:
    (folder / "held.txt").write_text("Another text that is long enough.\n")
    done = cloze("documents", kept, "out")
    assert done.returncode == 1
    assert "5 of its" in done.stderr
    assert "files have changed since" in done.stderr
    assert not (folder / "out").exists()


def test_a_single_document_whose_end_is_held_out_is_written_whole(
    cloze: Cloze, folder: Path
) -> None:
    pytest.importorskip("pycld2")
    (folder / "vocab.txt").write_text("\n".join(VOCABULARY) + "\n")
    (folder / "texts" / "one.txt").write_text("The first sentence. The second one. The third.\n")
    with (folder / "try.toml").open("a") as file:
        file.write('\n[cleaning]\nlanguages = ["en"]\n[vocabulary]\npath = "vocab.txt"\n')
    assert cloze("tokens", "try.toml").returncode == 0
    done = cloze("documents", "try", "out", "--format", "jsonl")
    assert done.returncode == 0, done.stderr
    (row,) = map(json.loads, (folder / "out" / "source-0-00000.jsonl").read_text().splitlines())
    assert row["text"] == "The first sentence. The second one. The third."
    assert (row["split"], row["language"], row["position"]) == ("train", "en", 0)
    assert row["language_share"] > 0.9


def test_documents_have_their_scores_of_quality(cloze: Cloze, kept: str, folder: Path) -> None:
    rows = [{"text": text, "label": 1} for text in documents(5, 15)]
    rows += [{"text": " ".join(f"x{n} = {m};" for m in range(9)), "label": 0} for n in range(15)]
    (folder / "labelled.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    settings = ["--set", "quality.labelled=labelled.jsonl", "--set", "cleaning.keep=best 50%"]
    done = cloze("tokens", "kept.toml", *settings)
    assert done.returncode == 0, done.stderr
    assert "low_score" in done.stdout
    shown = cloze("inspect", "kept/scores").stdout
    assert "sources.0.best.50%" in shown
    done = cloze("documents", "kept", "scored", "--format", "jsonl")
    assert done.returncode == 0, done.stderr
    lines = (folder / "scored" / "source-0-00000.jsonl").read_text().splitlines()
    found = [json.loads(line) for line in lines]
    trained = [row["score"] for row in found if row["split"] == "train"]
    least = json.loads(cloze("inspect", "kept/scores", "--json").stdout)
    best = least["manifest"]["statistics"]["sources"]["0"]["best"]["50%"]
    assert min(trained) >= best - 1e-6
    assert {"heldout", "train"} <= {row["split"] for row in found}
