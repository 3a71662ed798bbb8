"""Corpora in the containers that people have: damage, encodings and structure."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Cloze = Callable[..., Any]
Prepare = Callable[..., Any]

LETTERS = "abcdefghijklmnopqrstuvwxyz0123456789.,"
VOCABULARY = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *LETTERS, *(f"##{x}" for x in LETTERS)]

CONFIG = """
name = "{name}"

[[corpus.sources]]
{source}

[corpus]
heldout_share = 0
{corpus}

[vocabulary]
path = "vocab.txt"
"""


@pytest.fixture
def prepare(cloze: Cloze, folder: Path) -> Prepare:
    """Run `cloze tokens` on a source; returns the finished command."""
    (folder / "vocab.txt").write_text("\n".join(VOCABULARY) + "\n")

    def call(name: str, source: str, corpus: str = "") -> Any:
        text = CONFIG.format(name=name, source=source, corpus=corpus)
        (folder / f"{name}.toml").write_text(text)
        return cloze("tokens", f"{name}.toml")

    return call


def test_a_bad_line_is_dropped_alone_counted_and_shown_or_named(
    folder: Path, prepare: Prepare
) -> None:
    lines = [json.dumps({"text": f"number {number}."}) for number in range(1, 13)]
    lines[6] = '{"txet": "a typo"}'
    lines[9] = '{"text": "cut'
    (folder / "a.jsonl").write_text("\n".join(lines) + "\n")
    source = 'reader = "jsonl"\npath = "a.jsonl"'
    done = prepare("strict", source)
    assert done.returncode == 2
    assert "a.jsonl, line 7: no key 'text'; set text_field to one of: txet" in done.stderr
    done = prepare("lenient", source, 'on_bad_file = "skip"')
    assert done.returncode == 0, done.stderr
    assert "documents: 12 read, 10 kept (10 train)" in done.stdout
    assert "2 dropped as bad_record" in done.stderr
    assert f"for example {folder}/a.jsonl, line 7" in done.stderr


def test_wikiextractor_files_of_windows_keep_every_article_and_lose_their_headings(
    folder: Path, prepare: Prepare
) -> None:
    (folder / "wiki").mkdir()
    article = '<doc id="{0}" url="u" title="T{0}">\nT{0}\n\n{1}\nEarly life.\nHe {1}\n</doc>\n'
    unix = article.format(1, "Was born in a town by the sea.")
    unix += article.format(2, "Died in a village in the hills.")
    (folder / "wiki" / "wiki_00").write_bytes(unix.encode())
    (folder / "wiki" / "wiki_01").write_bytes(b"\xef\xbb\xbf" + unix.encode())
    (folder / "wiki" / "wiki_02").write_bytes(unix.replace("\n", "\r\n").encode())
    done = prepare("wiki", 'reader = "wikiextractor"\npath = "wiki"')
    assert done.returncode == 0, done.stderr
    # the first and the second file have the same two articles, the third too: no heading is left
    assert "documents: 6 read, 2 kept (2 train)" in done.stdout
    assert "dropped: 4 duplicate" in done.stdout


RUSSIAN = "Город расположен на берегу реки, и в нём живёт около миллиона человек. Он стар. "
CZECH = "Příliš žluťoučký kůň úpěl ďábelské ódy."


def test_a_text_is_the_same_in_every_encoding(folder: Path, prepare: Prepare) -> None:
    (folder / "many").mkdir()
    encodings = ("utf-8", "utf-16", "cp1251", "koi8_r", "iso8859_5", "cp866")
    for encoding in encodings:
        (folder / "many" / f"{encoding}.txt").write_bytes((RUSSIAN * 5).encode(encoding))
    (folder / "many" / "plain.txt").write_text("another one")
    done = prepare("many", 'reader = "text"\npath = "many"')
    assert "documents: 7 read, 2 kept (2 train)" in done.stdout, done.stderr
    assert "dropped: 5 duplicate;" in done.stdout


def test_one_bad_byte_leaves_all_other_json_lines_as_they_are(
    folder: Path, prepare: Prepare
) -> None:
    (folder / "both").mkdir()
    damaged = b'{"text": "a caf\xe9 in town"}\n' + json.dumps({"text": CZECH}).encode()
    plain = f'{{"text": "{CZECH}"}}\n'.encode()
    (folder / "both" / "a.jsonl").write_bytes(damaged.replace(b"\\u", b"\\u") + b"\n" + plain)
    (folder / "both" / "b.jsonl").write_bytes(plain)
    done = prepare("both", 'reader = "jsonl"\npath = "both"')
    assert "documents: 4 read, 2 kept" in done.stdout, done.stderr
    assert "1 with bytes that are not UTF-8" in done.stderr


def test_no_more_documents_are_kept_than_were_read(cloze: Cloze, folder: Path) -> None:
    sentence = "The town number {} lies on the river and has many people. "
    for name in ("one", "two"):
        text = "".join(f"{sentence.format(f'{name} {number}')}\n" for number in range(40))
        (folder / "texts" / f"{name}.txt").write_text(text)
    done = cloze("tokens", "try.toml", "--set", "vocabulary.size=100")
    assert done.returncode == 0, done.stderr
    assert "documents: 2 read, 2 kept (2 heldout, 2 train)" in done.stdout
    assert "2 documents read, 2 kept: 2 heldout, 2 train" in done.stderr
