"""Preparation: near-duplicates, containers, sentences, a corpus that changes meanwhile."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.waiting import PATIENCE

Cloze = Callable[..., Any]

SENTENCE = (
    "The town number {0} lies on the river {1}\nand has about {2} thousand inhabitants,\n"
    "of whom many work in the mills that were built\nwhen the canal to the north was opened.\n"
    "History.\nNobody knows who founded it in the year {3}.\n"
)
"""Hard-wrapped as in an e-mail, with a heading."""

CONFIG = """
name = "{name}"

[[corpus.sources]]
reader = "{reader}"
path = "{path}"
{field}

[vocabulary]
path = "vocab.txt"

[examples]
copies = 1
"""


REAL_SENTENCES = (
    "The current rector is the Rev. Graeme Howells.",
    "The locomotive works he founded survived him by some 60 years, but in 1930 J. A. Maffei went "
    "bankrupt and was amalgamated with the firm of Krauss in 1930 to form Krauss-Maffei.",
    "Varma is a fan of Indian singers Kishan Kishore and K. L. Saigal, as well as of world music "
    "stars such as Jade Eru, Fairouz and Googoosh.",
    "John White has described his Piano Sonata No. 152 as a concerto for solo piano.",
)
"""From English Wikipedia, each with a full stop inside."""


@pytest.fixture
def documents(folder: Path) -> list[str]:
    """Twelve documents, the last a near-duplicate of the first; and a vocabulary."""
    letters = "abcdefghijklmnopqrstuvwxyz0123456789.,"
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *letters, *(f"##{x}" for x in letters)]
    (folder / "vocab.txt").write_text("\n".join(words) + "\n")
    texts = [
        "".join(SENTENCE.format(n, n * m, n + m, 1000 + 7 * n * m) for m in range(1, 6))
        for n in range(11)
    ]
    return [*texts, texts[0].replace("Nobody", "Hardly anybody", 1)]


def tokens(cloze: Cloze, folder: Path, name: str, reader: str, path: str, field: str = "") -> Any:
    """The result of `cloze tokens` for a corpus."""
    text = CONFIG.format(name=name, reader=reader, path=path, field=field)
    (folder / f"{name}.toml").write_text(text)
    done = cloze("tokens", f"{name}.toml", "--json")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)["tokens"]


@pytest.mark.slow
def test_the_same_documents_give_the_same_tokens_in_any_container(
    cloze: Cloze, folder: Path, documents: list[str]
) -> None:
    (folder / "files").mkdir()
    for number, text in enumerate(documents):
        (folder / "files" / f"{number}.txt").write_text(text)
    lines = (json.dumps({"body": text}) + "\n" for text in documents)
    (folder / "all.jsonl").write_text("".join(lines))
    pq.write_table(pa.table({"body": documents}), folder / "all.parquet")
    field = 'text_field = "body"'
    found = [
        tokens(cloze, folder, "files", "text", "files"),
        tokens(cloze, folder, "lines", "jsonl", "all.jsonl", field),
        tokens(cloze, folder, "table", "parquet", "all.parquet", field),
    ]
    assert len({one["key"] for one in found}) == 3
    assert len({one["digest"] for one in found}) == 1


@pytest.mark.slow
def test_one_of_several_near_duplicates_is_kept_and_the_summary_shows_it(
    cloze: Cloze, folder: Path, documents: list[str]
) -> None:
    (folder / "all.jsonl").write_text("".join(json.dumps({"text": t}) + "\n" for t in documents))
    dedup = "[dedup.near_duplicates]\nthreshold = 0.8\n\n[vocabulary]"
    text = CONFIG.format(name="near", reader="jsonl", path="all.jsonl", field="")
    (folder / "near.toml").write_text(text.replace("[vocabulary]", dedup))
    done = cloze("tokens", "near.toml")
    assert done.returncode == 0, done.stderr
    assert "dropped: 1 drop_list" in done.stdout
    assert "dedup: 1 of 12 documents" in done.stderr
    assert "documents: 12 read, 11 kept" in done.stdout


@pytest.mark.slow
def test_recurring_lines_are_shown_before_they_go(
    cloze: Cloze, folder: Path, documents: list[str]
) -> None:
    notice = "This message is confidential and meant for the addressee."
    story = "The mill stood empty for years. Nobody went there. Then a lamp was seen in it."
    texts = [f"{text}\n{notice}\nOf {number}. {story}" for number, text in enumerate(documents)]
    (folder / "all.jsonl").write_text("".join(json.dumps({"text": t}) + "\n" for t in texts))
    field = 'line_break = "paragraph"\nboilerplate = { sentences = 3, min_words = 3 }'
    text = CONFIG.format(name="mails", reader="jsonl", path="all.jsonl", field=field)
    (folder / "mails.toml").write_text(text)
    done = cloze("boilerplate", "mails.toml")
    assert done.returncode == 0, done.stderr
    assert "boilerplate:   11 × 'This message is confidential and meant for the" in done.stderr
    shown = cloze("inspect", "mails/boilerplate").stdout
    assert re.search(rf"source 0 +11 lines +638 bytes +{notice}", shown)
    assert re.search(rf"source 0 +11 spans +8\d\d bytes +{story}", shown)
    done = cloze("tokens", "mails.toml")
    assert done.returncode == 0, done.stderr
    removed = r"boilerplate: \d+ of \d+ lines and \d+ spans that came earlier removed"
    assert re.search(rf"{removed}, \d+\.\d% of the text", done.stdout)
    assert "documents: 12 read, 12 kept" in done.stdout


@pytest.mark.skipif(sys.platform != "linux", reason="kernels are compiled on Linux only")
@pytest.mark.slow
def test_a_file_that_grows_during_tokenisation_is_named_and_nothing_is_stored(
    folder: Path, documents: list[str]
) -> None:
    # the workers of `tokens` look for a compiler before reading; this one changes the corpus
    corpus, compiler = folder / "all.jsonl", folder / "bin" / "gcc"
    corpus.write_text("".join(json.dumps({"text": text}) + "\n" for text in documents))
    content = corpus.read_bytes()
    compiler.parent.mkdir()
    compiler.write_text(f"#!/bin/sh\necho '{{\"text\": \"More.\"}}' >> '{corpus}'\nexit 1\n")
    compiler.chmod(0o755)
    text = CONFIG.format(name="moving", reader="jsonl", path="all.jsonl", field="")
    (folder / "moving.toml").write_text(text)

    def prepare() -> "subprocess.CompletedProcess[str]":
        return subprocess.run(
            [sys.executable, "-P", "-m", "cloze", "prepare", "moving.toml", "--json"],
            env={
                **os.environ,
                "PATH": f"{compiler.parent}:{os.environ['PATH']}",
                "XDG_CACHE_HOME": str(folder / "cache"),
            },
            capture_output=True,
            text=True,
            timeout=PATIENCE,
            start_new_session=True,
            check=False,
        )

    done = prepare()
    (answer,) = done.stdout.splitlines()
    assert done.returncode == 1
    assert "all.jsonl: was written to since the stage began" in json.loads(answer)["error"]
    assert "Traceback" not in done.stderr
    stored = folder / "runs" / "artifacts"
    assert not list((stored / "tokens").rglob("manifest.json"))

    # the old content has the old key, which has no artifact of the content read meanwhile
    corpus.write_bytes(content)
    compiler.write_text("#!/bin/sh\nexit 1\n")
    again = prepare()
    assert again.returncode == 0, again.stderr
    found = json.loads(again.stdout)["tokens"]
    assert found["state"] == "made"
    (manifest,) = (stored / "tokens").rglob("manifest.json")
    assert json.loads(manifest.read_text())["statistics"]["documents_read"] == len(documents)


@pytest.mark.slow
def test_abbreviations_and_initials_of_real_text_do_not_end_sentences(
    cloze: Cloze, folder: Path, shared_data: Path
) -> None:
    path = shared_data / "corpus" / "wikipedia" / "AA_wiki_03"
    text = CONFIG.format(name="real", reader="wikiextractor", path=path, field="")
    vocabulary = shared_data / "vocab" / "bert-base-cased-vocab.txt"
    text = text.replace('"vocab.txt"', f'"{vocabulary}"\nlowercase = false')
    (folder / "real.toml").write_text(text)
    assert cloze("tokens", "real.toml").returncode == 0
    shown = cloze("inspect", "real/tokens", "--rows", "10000", "--split", "train", "--json")
    assert shown.returncode == 0, shown.stderr
    rows = json.loads(shown.stdout)["rows"]
    found = {"".join(line.split()) for row in rows for line in row["text"].splitlines()}
    assert len(found) > 2000
    for sentence in REAL_SENTENCES:
        assert "".join(sentence.split()) in found
    assert not [line for line in found if re.search(r"(?<!\w)(Mr|Mrs|Dr|Rev|Prof)\.$", line)]
