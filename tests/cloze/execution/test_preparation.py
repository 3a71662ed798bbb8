"""Preparation through the command: near-duplicates, and the same documents in other containers."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

Cloze = Callable[..., Any]

SENTENCE = (
    "The town number {0} lies on the river {1}\nand has about {2} thousand inhabitants,\n"
    "of whom many work in the mills that were built\nwhen the canal to the north was opened.\n"
    "History.\nNobody knows who founded it in the year {3}.\n"
)
"""Wrapped as in a mail, with a heading."""

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


@pytest.fixture
def documents(folder: Path) -> list[str]:
    """Twelve documents, of which the last nearly repeats the first; and a vocabulary."""
    letters = "abcdefghijklmnopqrstuvwxyz0123456789.,"
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *letters, *(f"##{x}" for x in letters)]
    (folder / "vocab.txt").write_text("\n".join(words) + "\n")
    texts = [
        "".join(SENTENCE.format(n, n * m, n + m, 1000 + 7 * n * m) for m in range(1, 6))
        for n in range(11)
    ]
    return [*texts, texts[0].replace("Nobody", "Hardly anybody", 1)]


def tokens(cloze: Cloze, folder: Path, name: str, reader: str, path: str, field: str = "") -> Any:
    """What `cloze tokens` answered for a corpus."""
    text = CONFIG.format(name=name, reader=reader, path=path, field=field)
    (folder / f"{name}.toml").write_text(text)
    done = cloze("tokens", f"{name}.toml", "--json")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)["tokens"]


@pytest.mark.slow
def test_the_same_documents_give_the_same_tokens_whatever_they_come_in(
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
def test_of_near_duplicates_one_is_kept_and_the_account_says_so(
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
