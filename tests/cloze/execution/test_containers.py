"""Corpora in the containers that people have: damage, encodings and structure."""

import csv
import gzip
import html
import io
import json
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import tomli_w

from cloze.artifacts.config import read_toml

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


DOCUMENTS = [
    "The first town lies on a river and has many people, of whom most work in the mills.",
    "The second town lies on a hill, and nobody knows who founded it or in which year.",
    "The third town lies by the sea; its harbour was built when the canal was opened.",
]
ROWS = [
    {
        "url": f"https://example.org/a/path/that/is/longer/than/any/text/{'x' * 99}",
        "id": f"{n:064x}",
    }
    | {"date": "2021-01-01T10:00:00Z", "title": f"Town {n}", "content": text}
    for n, text in enumerate(DOCUMENTS)
]
PAGE = """<!DOCTYPE html><html><head><title>T</title><script>var x = "not text";</script>
<style>p {{ color: red }}</style></head><body><nav><a href="/">Home</a></nav>
<main><p>{}</p></main><footer>Imprint</footer></body></html>"""


def json_lines(rows: list[dict[str, Any]]) -> bytes:
    return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows).encode()


def table(delimiter: str) -> bytes:
    text = io.StringIO()
    writer = csv.DictWriter(text, [*ROWS[0]], delimiter=delimiter)
    writer.writeheader()
    writer.writerows(ROWS)
    return text.getvalue().encode()


def parquet(column: str = "content", kind: pa.DataType | None = None) -> bytes:
    file = io.BytesIO()
    columns = {name: [row[name] for row in ROWS] for name in ROWS[0]}
    content = pa.array(columns.pop("content"), pa.string())
    pq.write_table(pa.table({**columns, column: content.cast(kind or pa.string())}), file)
    return file.getvalue()


def arrow(column: pa.Array) -> bytes:
    file = io.BytesIO()
    data = pa.table({"url": [row["url"] for row in ROWS], "body": column})
    with pa.ipc.new_stream(file, data.schema) as writer:
        writer.write_table(data)
    return file.getvalue()


def warc(kind: str, media: str, contents: list[bytes]) -> bytes:
    """Records as crawlers write them, one compressed stream each."""
    head = "WARC/1.0\r\nWARC-Type: {}\r\nWARC-Date: 2020-01-01T00:00:00Z\r\n"
    head += "WARC-Target-URI: http://example.org/\r\nContent-Type: {}\r\n"
    records = [("warcinfo", "application/warc-fields", b"software: none\r\n")]
    records += [(kind, media, content) for content in contents]
    return b"".join(
        gzip.compress(
            (head.format(one, its_media) + f"Content-Length: {len(content)}\r\n\r\n").encode()
            + content
            + b"\r\n\r\n"
        )
        for one, its_media, content in records
    )


HTTP = b"HTTP/1.1 200 OK\r\nContent-Type: text/html; charset=utf-8\r\n\r\n"
PICTURE = b"HTTP/1.1 200 OK\r\nContent-Type: image/png\r\n\r\n\x89PNG\0\0"

WIKITEXT = [
    DOCUMENTS[0].replace("river", "[[:en:River|river]]").replace("town", "'''town'''"),
    DOCUMENTS[1].replace("hill", "[[w:Hill|hill]]<ref>A {{cite|x}}</ref>"),
    DOCUMENTS[2] + "\n* [[a list]]\n[[Файл:a.jpg|мини|подпис]]\n[[de:Stadt]]",
]
DUMP = (
    '<mediawiki><siteinfo><namespaces><namespace key="6" case="first-letter">Файл</namespace>'
    "</namespaces></siteinfo>"
    + "".join(f"<page><ns>0</ns><text>{html.escape(text)}</text></page>" for text in WIKITEXT)
    + "</mediawiki>"
)

CONTAINERS: dict[str, tuple[dict[str, bytes], dict[str, Any]]] = {
    "json lines that nothing names so": (
        {"AA/wiki_00": json_lines(ROWS)},
        {"reader": "jsonl", "text_field": "content"},
    ),
    "json lines in parts": (
        {"part-00000.gz": gzip.compress(json_lines(ROWS)), "_SUCCESS": b""},
        {"reader": "jsonl", "text_field": "content", "exclude": ["_SUCCESS"]},
    ),
    "nested json": (
        {
            "data.txt": json_lines(
                [{"meta": {"url": "u"}, "a": {"b": row["content"]}} for row in ROWS]
            )
        },
        {"reader": "jsonl", "text_field": "a.b"},
    ),
    "lists of strings": (
        {"a.json": json_lines([{"id": 1, "lines": [row["content"]]} for row in ROWS])},
        {"reader": "jsonl", "text_field": "lines"},
    ),
    "json lines of fragments of pages": (
        {
            "a.jsonl": json_lines(
                [{"raw": f"<div><p>{text}</p><script>x = 1;</script></div>"} for text in DOCUMENTS]
            )
        },
        {"reader": "jsonl", "text_field": "raw", "html": True},
    ),
    "csv beside a document of an office": (
        {"a.csv": table(","), "notes.docx": b"PK\x03\x04 and more"},
        {"reader": "csv", "text_field": "content", "exclude": ["*.docx"]},
    ),
    "tsv of windows": (
        {"a.tsv": b"\xef\xbb\xbf" + table("\t")},
        {"reader": "csv", "text_field": "content"},
    ),
    "a table of an old macintosh": (
        {"a.csv": table(",").replace(b"\r\n", b"\r")},
        {"reader": "csv", "text_field": "content"},
    ),
    "a table called text": (
        {"data.txt": table(",")},
        {"reader": "csv", "text_field": "content"},
    ),
    "parquet with a card": (
        {
            "lang=en/train.parquet": parquet(),
            "README.md": b"# A card\n" * 999,
            "_metadata": parquet(),
        },
        {"reader": "parquet", "text_field": "content", "exclude": ["*.md", "_metadata"]},
    ),
    "a dictionary column": (
        {"a.parquet": parquet("texts", pa.dictionary(pa.int32(), pa.string()))},
        {"reader": "parquet", "text_field": "texts"},
    ),
    "as datasets saves": (
        {
            "train/data-00000-of-00001.arrow": arrow(pa.array(DOCUMENTS, pa.string_view())),
            "train/state.json": b'{\n  "_fingerprint": "1"\n}',
            "dataset_dict.json": b'{"splits": ["train"]}',
        },
        {"reader": "arrow", "text_field": "body", "exclude": ["*.json"]},
    ),
    "pages": (
        {f"{n}.html": PAGE.format(text).encode() for n, text in enumerate(DOCUMENTS)}
        | {"site.js": b"var x = 1;\n" * 999},
        {"reader": "html", "exclude": ["*.js"]},
    ),
    "a crawl": (
        {
            "segment.warc.gz": warc(
                "response",
                "application/http; msgtype=response",
                [*(HTTP + PAGE.format(text).encode() for text in DOCUMENTS), PICTURE],
            )
        },
        {"reader": "warc"},
    ),
    "a dump of a wiki": ({"dump": DUMP.encode()}, {"reader": "mediawiki"}),
    "the text of a crawl": (
        {"segment.gz": warc("conversion", "text/plain", [text.encode() for text in DOCUMENTS])},
        {"reader": "warc"},
    ),
}


def test_init_recognises_every_container_and_prepare_reads_the_same_texts_from_all(
    cloze: Cloze, folder: Path, prepare: Prepare
) -> None:
    pytest.importorskip("resiliparse")
    pytest.importorskip("warcio")
    sources = []
    for number, (files, expected) in enumerate(CONTAINERS.values()):
        for name, content in files.items():
            path = folder / f"{number}" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
        done = cloze("init", f"{number}", "--output", f"{number}.toml")
        assert done.returncode == 0, done.stderr
        (source,) = read_toml(f"{number}.toml")["corpus"]["sources"]
        assert source == {**expected, "path": f"{number}"}
        if "text_field" in expected:
            assert f'text_field = "{expected["text_field"]}"' in done.stdout
            assert 'for example "' in done.stdout
        sources.append(source)
    done = prepare("all", "\n[[corpus.sources]]\n".join(map(tomli_w.dumps, sources)))
    assert done.returncode == 0, done.stderr
    assert f"documents: {3 * len(CONTAINERS)} read, 3 kept (3 train)" in done.stdout
    assert f"dropped: {3 * len(CONTAINERS) - 3} duplicate;" in done.stdout


def test_a_bad_row_is_dropped_alone_even_if_its_quotation_never_ends(
    folder: Path, prepare: Prepare
) -> None:
    quoted = [f'"number {number}, quoted",{number}' for number in range(1, 9)]
    quoted[3] = '"number 4 is never closed, and so on,4'
    quoted[5] = "number 6,has,too many cells"
    quoted[6] = '"number 7,\nof two lines",7'
    (folder / "a.csv").write_text("\n".join(["text,label", *quoted]) + "\n")
    source = 'reader = "csv"\npath = "a.csv"'
    done = prepare("strict", source)
    assert f"{folder}/a.csv, line 5: not a row of the table" in done.stderr
    done = prepare("lenient", source, 'on_bad_file = "skip"')
    assert "documents: 8 read, 6 kept (6 train)" in done.stdout, done.stderr
    assert "2 dropped as bad_record" in done.stderr


def test_archives_and_json_that_is_not_in_lines_are_named_with_what_to_do(
    cloze: Cloze, folder: Path
) -> None:
    (folder / "a.json").write_text(json.dumps(ROWS, indent=1))
    done = cloze("init", "a.json")
    assert done.returncode == 2
    assert "a.json (JSON, but not one object per line); " in done.stderr
    assert "jq -c '.[]' FILE" in done.stderr
    rows = [{"id": 1, "messages": [{"role": "user", "content": DOCUMENTS[0]}]}]
    (folder / "chat.jsonl").write_bytes(json_lines(rows))
    done = cloze("init", "chat.jsonl")
    assert "lists of objects are not read: messages[].content, messages[].role" in done.stderr
    with zipfile.ZipFile(folder / "all.zip", "w") as archive:
        archive.writestr("a.txt", DOCUMENTS[0])
    assert "all.zip: an archive of files; unpack it" in cloze("init", "all.zip").stderr


@pytest.mark.parametrize("separator", ["\u2028", "\u0085"])
def test_init_reads_long_records_and_unusual_line_separators_as_prepare_does(
    cloze: Cloze, folder: Path, separator: str
) -> None:
    long = {"text": DOCUMENTS[0] * 2000}  # 166,000 bytes
    (folder / "a.jsonl").write_bytes(json_lines([long, {"text": separator.join(DOCUMENTS)}]))
    done = cloze("init", "a.jsonl", "--output", "new.toml")
    assert done.returncode == 0, done.stderr
    assert "in about 2 documents" in done.stdout


def test_structure_that_a_reader_takes_for_prose_is_said(folder: Path, prepare: Prepare) -> None:
    (folder / "texts" / "one.txt").write_bytes(json_lines(ROWS))
    done = prepare("prose", 'reader = "text"\npath = "texts"')
    assert f"warning: {folder}/texts/one.txt looks like jsonl, but reader = " in done.stderr
