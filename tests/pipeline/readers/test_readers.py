"""Every format yields its documents however its files are cut, and damage is reported."""

import bz2
import gzip
import io
import itertools
import json
import lzma
import os
import random
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard

from cloze.artifacts import filesystem
from cloze.artifacts.errors import IntegrityError, UsageError
from cloze.pipeline.config.formats import FORMATS
from cloze.pipeline.config.settings import CorpusConfig, SourceConfig
from cloze.pipeline.readers import compression, documents, records
from cloze.pipeline.readers.documents import DocumentBlock, Piece, Reader
from cloze.pipeline.readers.input_shards import reader_named
from tests.conftest import PROJECT

ARTICLES = [
    ("Anarchism", "Anarchism is a philosophy.\nIt has many strands of thought today.\n"),
    ("Empty", ""),
    ('Quo"ted', "A title with a mark.\n\n\nIt says <br> and &amp; in its very text.\n"),
    ("Ünïcode", "Žluťoučký kůň úpěl ďábelské ódy až dlouho do noci.\n" * 40),
]


def names_and_texts(blocks: list[DocumentBlock]) -> list[tuple[int, str]]:
    found = []
    for block in blocks:
        raw, start = block.text.tobytes(), 0
        for end, position in zip(block.ends.tolist(), block.positions.tolist(), strict=True):
            assert raw[start:end].endswith(b"\n")
            found.append((position, raw[start:end].decode("utf-8", "replace").strip()))
            start = end
    return found


def read(path: Path, reader: str, start: int = 0, stop: int | None = None, **options: str):
    source = SourceConfig(reader=reader, path=str(path), **options)
    return names_and_texts(list(reader_named(reader).read(Piece(str(path), start, stop), source)))


def texts(path: Path, reader: str, **options: str) -> list[str]:
    return [found for _, found in read(path, reader, **options)]


def write_format(directory: Path, reader: str) -> Path:
    """A file with twenty-five documents in the format of the reader."""
    rng = random.Random(7)
    bodies = [
        " ".join(
            rng.choice(["alpha", "βeta", "gamma.", "délta"]) for _ in range(rng.randint(1, 12))
        )
        for _ in range(25)
    ]
    path = directory / f"corpus.{reader}"
    if reader == "jsonl":
        lines = [json.dumps({"id": i, "text": body}) for i, body in enumerate(bodies)]
        path.write_text("\n\n".join(lines), "utf-8")
    elif reader == "wikiextractor":
        pages = [
            f'<doc id="{i}" title="T {i}">\nT {i}\n\n{b}\n</doc>\n' for i, b in enumerate(bodies)
        ]
        path.write_text("".join(pages), "utf-8")
    elif reader == "mediawiki":
        pages = [
            f"<page>\n<title>T{i}</title><ns>{0 if i % 5 else 4}</ns>\n"
            f'<revision><text xml:space="preserve">{b}</text></revision></page>\n'
            for i, b in enumerate(bodies)
        ]
        path.write_text(f"<mediawiki>\n<siteinfo/>\n{''.join(pages)}</mediawiki>\n", "utf-8")
    elif reader == "parquet":
        pq.write_table(pa.table({"text": bodies}), path, row_group_size=7)
    elif reader == "arrow":
        with pa.ipc.new_file(str(path), pa.schema([("text", pa.string())])) as writer:
            writer.write_table(pa.table({"text": bodies}), max_chunksize=7)
    else:
        path.write_text("\n \n" + "\n\n \t\n".join(b.replace(". ", ".\n") for b in bodies), "utf-8")
    return path


SPLITTABLE = sorted(name for name in FORMATS if reader_named(name).splittable)


@pytest.mark.parametrize("reader", SPLITTABLE)
def test_pieces_of_a_file_give_its_documents_once(
    tmp_path: Path, reader: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_format(tmp_path, reader)
    whole = read(path, reader)
    assert len(whole) == (20 if reader == "mediawiki" else 25)
    size = path.stat().st_size
    monkeypatch.setattr(documents, "BLOCK_BYTES", 300)
    monkeypatch.setattr(compression, "READ_BYTES", 64)
    monkeypatch.setattr(records, "ROWS_AT_A_TIME", 3)
    assert read(path, reader) == whole
    for parts in (2, 3, 7, 50, size):
        bounds = [size * part // parts for part in range(parts + 1)]
        pieces = itertools.pairwise(bounds)
        found = [document for start, stop in pieces for document in read(path, reader, start, stop)]
        assert found == whole, parts


COMPRESSORS = {
    "gz": gzip.compress,
    "bz2": bz2.compress,
    "xz": lzma.compress,
    "zst": zstandard.ZstdCompressor().compress,
}


@pytest.mark.parametrize("kind", COMPRESSORS)
class TestCompressed:
    def test_a_compressed_file_reads_like_a_plain_one(self, tmp_path: Path, kind: str) -> None:
        plain = write_format(tmp_path, "jsonl")
        packed = tmp_path / f"corpus.jsonl.{kind}"
        packed.write_bytes(COMPRESSORS[kind](plain.read_bytes()))
        assert read(packed, "jsonl") == read(plain, "jsonl")

    def test_several_streams_in_one_file_are_all_read(self, tmp_path: Path, kind: str) -> None:
        path = tmp_path / f"two.{kind}"
        path.write_bytes(COMPRESSORS[kind](b"first half, ") + COMPRESSORS[kind](b"second half"))
        assert texts(path, "text") == ["first half, second half"]

    @pytest.mark.parametrize("share", [0.02, 0.5, 0.999])
    def test_a_truncated_file_is_an_error(self, tmp_path: Path, kind: str, share: float) -> None:
        content = random.Random(1).randbytes(50_000).hex().encode()
        packed = COMPRESSORS[kind](content)
        path = tmp_path / f"cut.{kind}"
        path.write_bytes(packed[: int(len(packed) * share)])
        with pytest.raises(IntegrityError, match=r"cut\..*(cut short|damaged)"):
            texts(path, "text")

    def test_a_wrong_byte_in_the_middle_is_an_error(self, tmp_path: Path, kind: str) -> None:
        compress = COMPRESSORS[kind]
        if kind == "zst":
            compress = zstandard.ZstdCompressor(write_checksum=True).compress
        packed = bytearray(compress(random.Random(1).randbytes(50_000).hex().encode()))
        packed[len(packed) // 2] ^= 0x55
        path = tmp_path / f"flipped.{kind}"
        path.write_bytes(packed)
        with pytest.raises(IntegrityError, match="flipped"):
            texts(path, "text")

    def test_a_name_that_promises_another_format_is_an_error(
        self, tmp_path: Path, kind: str
    ) -> None:
        path = tmp_path / f"plain.txt.{kind}"
        path.write_bytes(b"plain text under a wrong name")
        with pytest.raises(IntegrityError, match="not the format its name promises"):
            texts(path, "text")

    def test_a_missing_suffix_does_not_matter(self, tmp_path: Path, kind: str) -> None:
        path = tmp_path / "nameless"
        path.write_bytes(COMPRESSORS[kind](b"found by its first bytes"))
        assert texts(path, "text") == ["found by its first bytes"]
        assert read(path, "blank_line_text", start=10) == []


def test_bytes_behind_the_end_mark_are_an_error(tmp_path: Path) -> None:
    path = tmp_path / "tail.gz"
    path.write_bytes(gzip.compress(b"text") + b"\0\0" + b"garbage")
    with pytest.raises(IntegrityError, match="tail"):
        texts(path, "text")


def test_zeros_behind_the_end_mark_are_padding(tmp_path: Path) -> None:
    path = tmp_path / "padded.gz"
    path.write_bytes(gzip.compress(b"text") + bytes(1000))
    assert texts(path, "text") == ["text"]


@pytest.mark.parametrize("encoding", ["utf-16-le", "utf-16-be"])
def test_utf_16_is_read_as_what_it_says(tmp_path: Path, encoding: str) -> None:
    path = tmp_path / "wide.txt"
    path.write_bytes("\ufeffЗдравей, свят\r\n\r\nsecond".encode(encoding))
    found = [document.replace("\ufeff", "") for document in texts(path, "blank_line_text")]
    assert found == ["Здравей, свят", "second"]
    assert read(path, "blank_line_text", start=8) == []


@pytest.mark.parametrize("encoding", ["utf-32-le", "utf-32-be"])
def test_utf_32_is_read_as_what_it_says(tmp_path: Path, encoding: str) -> None:
    path = tmp_path / "wider.txt"
    path.write_bytes("\ufeffЗдравей, свят\n\nsecond".encode(encoding))
    found = [document.replace("\ufeff", "") for document in texts(path, "blank_line_text")]
    assert found == ["Здравей, свят", "second"]
    assert read(path, "blank_line_text", start=8) == []


@pytest.mark.parametrize("encoding", ["utf-16-le", "utf-16-be", "utf-32-le", "utf-32-be"])
def test_wide_text_without_a_mark_is_known_by_its_zeros(tmp_path: Path, encoding: str) -> None:
    path = tmp_path / "unmarked.txt"
    path.write_bytes("A first “text”.\n\nAnd a second.".encode(encoding))
    assert texts(path, "blank_line_text") == ["A first “text”.", "And a second."]
    assert read(path, "blank_line_text", start=8) == []


def tar(member: str) -> bytes:
    raw = io.BytesIO()
    with tarfile.open(fileobj=raw, mode="w") as archive:
        link = tarfile.TarInfo("link")
        link.type, link.linkname = tarfile.SYMTYPE, "/etc"
        archive.addfile(link)
        archive.addfile(tarfile.TarInfo(member), io.BytesIO())
    return raw.getvalue()


def zipped(member: str) -> bytes:
    raw = io.BytesIO()
    with zipfile.ZipFile(raw, "w") as archive:
        archive.writestr(member, "evil")
    return raw.getvalue()


ARCHIVES = {
    "tar": tar,
    "tar.gz": lambda member: gzip.compress(tar(member)),
    "tar.zst": lambda member: COMPRESSORS["zst"](tar(member)),
    "zip": zipped,
    "zip.gz": lambda member: gzip.compress(zipped(member)),
}


@pytest.mark.parametrize("kind", ARCHIVES)
@pytest.mark.parametrize("reader", ["text", "jsonl"])
def test_an_archive_is_no_text_and_nothing_of_it_is_unpacked(
    tmp_path: Path, kind: str, reader: str
) -> None:
    path = tmp_path / f"archive.{kind}"
    path.write_bytes(ARCHIVES[kind]("../../escaped.txt"))
    with pytest.raises(UsageError, match=rf"archive\.{kind}: an archive of files; unpack it"):
        texts(path, reader)
    assert not (tmp_path.parent.parent / "escaped.txt").exists()


LIMITED = """
import resource, sys
from pathlib import Path
from cloze.pipeline.config.settings import CleaningConfig, CorpusConfig
from cloze.artifacts import filesystem
from cloze.pipeline.text.texts import read_texts
from cloze.pipeline.readers.input_shards import input_shards
reader, path, room, filesystem.BOMB_BYTES = *sys.argv[1:4], int(sys.argv[4])
corpus = CorpusConfig.model_validate({"sources": [{"reader": reader, "path": path}]})
used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + int(room), used + int(room)))
(portion,) = input_shards(corpus)
blocks = read_texts(portion, corpus=corpus, cleaning=CleaningConfig())
print(sum(len(block.text) for block in blocks))
"""


@pytest.mark.parametrize(
    ("reader", "kind"), [*(("text", kind) for kind in COMPRESSORS), ("blank_line_text", "zst")]
)
def test_a_small_file_that_unpacks_to_a_giant_document_is_read_in_bounded_memory(
    tmp_path: Path, reader: str, kind: str
) -> None:
    size, room = 400_000_000, 250_000_000
    path = tmp_path / f"giant.{kind}"
    path.write_bytes(COMPRESSORS[kind](b"a" * (size // 10)) * 10)
    done = subprocess.run(
        [sys.executable, "-c", LIMITED, reader, str(path), str(room), str(2 * size)],
        capture_output=True,
        text=True,
        check=False,
        cwd=PROJECT,
    )
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) >= size


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("null", "null, expected an object with key 'text'"),
        ("[1, 2]", "an array, expected an object with key 'text'"),
        ('"prose"', "a string, expected an object with key 'text'"),
        ('{"text": 5.5}', "'text' is a number, expected a string"),
        ('{"text": true}', "'text' is true, expected a string"),
        (
            '{"text": "cut',
            "not JSON (Unterminated string starting at, at character 10); expected one object per "
            "line",
        ),
    ],
)
def test_a_line_that_is_no_document_is_described_in_terms_of_json(
    line: str, says: str, tmp_path: Path
) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text(f'{{"text": "good"}}\n\n{line}\n')
    source = SourceConfig(reader="jsonl", path=str(path), text_field="text")
    (block,) = reader_named("jsonl").read(Piece(str(path)), source)
    assert list(block.broken.values()) == [says]


def test_a_giant_document_is_read_as_several(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(documents, "MAX_DOCUMENT_BYTES", 1000)
    words = " ".join(f"wört{number}" for number in range(2000))
    path = tmp_path / "giant.txt"
    path.write_text(words)
    for reader in ("text", "blank_line_text"):
        parts = texts(path, reader)
        assert " ".join(parts) == words
        assert all(len(part.encode()) <= 1000 for part in parts)
    monkeypatch.setattr(documents, "BLOCK_BYTES", 1500)
    monkeypatch.setattr(compression, "READ_BYTES", 700)
    assert read(path, "text") == read(path, "blank_line_text")


def test_a_record_too_long_to_be_held_is_refused_by_name(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(documents, "MAX_RECORD_BYTES", 2_000_000)
    monkeypatch.setattr(documents, "BLOCK_BYTES", 500_000)
    path = tmp_path / "long.jsonl"
    path.write_text('{"text": "short"}\n{"text": "' + "word " * 1_000_000 + '"}\n')
    expected = rf"{path}: the record at byte 18 .* 2,000,000 bytes, the limit for one record"
    with pytest.raises(UsageError, match=expected):
        texts(path, "jsonl")


def test_a_giant_document_belongs_to_the_piece_it_begins_in(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(documents, "MAX_DOCUMENT_BYTES", 500)
    monkeypatch.setattr(documents, "BLOCK_BYTES", 300)
    monkeypatch.setattr(documents, "LOOKBACK_BYTES", 100)
    monkeypatch.setattr(compression, "READ_BYTES", 128)
    path = tmp_path / "mixed.txt"
    path.write_text("one\n\n" + "word " * 800 + "\n\ntwo\n\n" + "x" * 1700 + "\n\nthree\n")
    whole = read(path, "blank_line_text")
    size = path.stat().st_size
    for step in (50, 333, 1000):
        pieces = [(start, min(start + step, size)) for start in range(0, size, step)]
        assert [d for piece in pieces for d in read(path, "blank_line_text", *piece)] == whole


def test_a_giant_word_without_any_space_is_cut_between_characters(
    tmp_path: Path, monkeypatch
) -> None:
    monkeypatch.setattr(documents, "MAX_DOCUMENT_BYTES", 1000)
    path = tmp_path / "word.txt"
    path.write_text("é" * 3000 + "€" * 3000)
    assert "".join(texts(path, "text")) == "é" * 3000 + "€" * 3000


class TestJsonLines:
    def test_the_text_field_is_read(self, tmp_path: Path) -> None:
        path = tmp_path / "a.jsonl"
        path.write_text('{"body": "one\\ntwo", "n": 1}\r\n\n{"n": [], "body": null}\n{"body": ""}')
        assert texts(path, "jsonl", text_field="body") == ["one\ntwo", "", ""]

    def test_half_a_surrogate_pair_does_not_stop_the_block(self, tmp_path: Path) -> None:
        path = tmp_path / "a.jsonl"
        path.write_text('{"text": "a \\ud83d b"}\n{"text": "fine \\ud83d\\ude00"}\n')
        found = texts(path, "jsonl")
        assert found[0].startswith("a ") and found[0].endswith(" b")
        assert found[1] == "fine \U0001f600"

    @pytest.mark.parametrize(
        ("line", "complaint"),
        [
            ('{"text": "cut', "not JSON"),
            ('["a list"]', "an array, expected an object with key 'text'"),
            ('{"txet": "typo", "id": 3}', "no key 'text'; set text_field to one of: id, txet"),
            ('{"text": 5}', "'text' is a number, expected a string"),
        ],
    )
    def test_a_wrong_line_is_a_broken_record_at_its_byte(
        self, tmp_path: Path, line: str, complaint: str
    ) -> None:
        path = tmp_path / "a.jsonl"
        path.write_text('{"text": "good"}\n' + line + "\n")
        (block,) = reader_named("jsonl").read(
            Piece(str(path)), SourceConfig(reader="jsonl", path="a")
        )
        assert names_and_texts([block]) == [(0, "good"), (17, "")]
        assert complaint in block.broken[1]


class TestColumns:
    @pytest.mark.parametrize("kind", [pa.string(), pa.large_string(), pa.string_view()])
    def test_arrow_streams_and_files_of_any_string_type(self, tmp_path: Path, kind) -> None:
        table = pa.table({"text": pa.array(["one", None, "thrée"], kind)})
        for name, new in (("file", pa.ipc.new_file), ("stream", pa.ipc.new_stream)):
            path = tmp_path / name
            with new(str(path), table.schema) as writer:
                writer.write_table(table)
            assert texts(path, "arrow") == ["one", "", "thrée"]

    def test_dictionary_columns_are_strings_too(self, tmp_path: Path) -> None:
        path = tmp_path / "d.parquet"
        pq.write_table(pa.table({"text": pa.array(["a", "b", "a"]).dictionary_encode()}), path)
        assert texts(path, "parquet") == ["a", "b", "a"]

    @pytest.mark.parametrize("reader", ["parquet", "arrow"])
    def test_a_cut_file_is_an_error(self, tmp_path: Path, reader: str) -> None:
        path = write_format(tmp_path, reader)
        path.write_bytes(path.read_bytes()[:-20])
        with pytest.raises(IntegrityError, match=f"not a whole {reader.title()} file"):
            texts(path, reader)

    def test_a_stream_cut_between_two_batches_is_an_error(self, tmp_path: Path) -> None:
        path = tmp_path / "cut"
        with pa.ipc.new_stream(str(path), pa.schema([("text", pa.string())])) as writer:
            for _ in range(2):
                writer.write_table(pa.table({"text": ["one", "two"]}))
        for size in (path.stat().st_size - len(records.STREAM_END), 3, 0):
            os.truncate(path, size)
            with pytest.raises(IntegrityError, match="not a whole Arrow"):
                texts(path, "arrow")

    @pytest.mark.parametrize("reader", ["parquet", "arrow"])
    def test_a_missing_column_is_named_with_what_there_is(
        self, tmp_path: Path, reader: str
    ) -> None:
        path = write_format(tmp_path, reader)
        with pytest.raises(UsageError, match=r"no column 'body'.*text \(string\)"):
            texts(path, reader, text_field="body")


class TestWikipedia:
    def test_extracted_articles_lose_tag_and_title(self, tmp_path: Path) -> None:
        path = tmp_path / "wiki_00"
        path.write_text(
            "".join(
                f'<doc id="{i}" url="http://x/{i}" title="{title}">\n{title}\n\n{body}\n</doc>\n'
                for i, (title, body) in enumerate(ARTICLES)
            )
        )
        assert texts(path, "wikiextractor") == [body.strip() for _, body in ARTICLES]

    def test_headings_are_left_out_and_short_sentences_stay(self, tmp_path: Path) -> None:
        kept = [
            "Short lead.",
            "Its history is long and full of turns.",
            "He won. She lost it all in the end.",
            "The village has a population of 150.",
        ]
        body = "\n".join(
            [
                *(kept[0], "History.", kept[1], "", "Early life and career."),
                *(kept[2], "What now?", kept[3], "See also."),
            ]
        )
        path = tmp_path / "wiki_00"
        path.write_text(f'<doc id="1" url="u" title="T">\nT\n\n{body}\n</doc>\n')
        (found,) = texts(path, "wikiextractor")
        assert [line for line in found.split("\n") if line] == kept

    @pytest.mark.parametrize(
        ("left", "shown"),
        [
            ("Chen Zhili (; born 1942) was a minister.", "Chen Zhili (born 1942) was a minister."),
            ("Batzra () is a moshav.", "Batzra  is a moshav."),
            ("The lake ( , ; ) is deep.", "The lake  is deep."),
            ("__NOTOC__\nIt begins here.", "It begins here."),
            ("One line<br clear=all>another line.", "One line<br>another line."),
            ('One line<BR style="a:b"/>another line.', "One line<br>another line."),
            ("PHP has __FILE__ and (see below) f(x).", "PHP has __FILE__ and (see below) f(x)."),
        ],
    )
    def test_what_the_extractor_leaves_of_templates_and_tags_goes(
        self, tmp_path: Path, left: str, shown: str
    ) -> None:
        path = tmp_path / "wiki_00"
        path.write_text(f'<doc id="1" url="u" title="T">\nT\n\n{left}\n</doc>\n')
        assert texts(path, "wikiextractor") == [shown]

    def test_other_text_is_no_extract(self, tmp_path: Path) -> None:
        path = tmp_path / "book.txt"
        path.write_text("It was a dark night.\n")
        with pytest.raises(UsageError, match="no line begins with '<doc '"):
            texts(path, "wikiextractor")

    def test_a_dump_gives_articles_and_empty_redirects(self, tmp_path: Path) -> None:
        path = tmp_path / "dump.xml.bz2"
        pages = (
            "<page><title>A</title><ns>0</ns><revision><text>'''A''' is [[b|the b]].</text>"
            "</revision></page>"
            '<page><title>R</title><ns>0</ns><redirect title="A" /><revision>'
            "<text>#REDIRECT [[A]]</text></revision></page>"
            "<page><title>Talk:A</title><ns>1</ns><revision><text>no</text></revision></page>"
            "<page><title>E</title><ns>0</ns><revision><text /></revision></page>"
        )
        path.write_bytes(bz2.compress(f"<mediawiki>{pages}</mediawiki>".encode()))
        assert texts(path, "mediawiki") == ["A is the b.", "", ""]

    def test_real_dumps_are_read(self, shared_data: Path) -> None:
        corpus = shared_data / "corpus"
        assert len(texts(corpus / "enwiki-table-markup.xml.bz2", "mediawiki")) == 5
        (bulgarian,) = texts(corpus / "bgwiki-latest-pages-articles-shortened.xml.bz2", "mediawiki")
        assert bulgarian.startswith("Григорианският календар")


def test_empty_files_give_no_or_empty_documents(tmp_path: Path) -> None:
    path = tmp_path / "empty"
    path.write_bytes(b"")
    assert texts(path, "text") == [""]
    assert texts(path, "blank_line_text") == []
    assert texts(path, "jsonl") == []


def test_every_reader_of_the_configuration_exists() -> None:
    schema = CorpusConfig.model_json_schema()["$defs"]["SourceConfig"]
    assert schema["properties"]["reader"]["enum"] == [*FORMATS]
    assert all(isinstance(reader_named(name), Reader) for name in FORMATS)


BOMBS: dict[str, tuple[str, Callable[[Path], object]]] = {
    **{
        kind: ("text", lambda path, press=press: path.write_bytes(press(b"a" * (66 << 20))))
        for kind, press in COMPRESSORS.items()
    },
    "one string in every row": (
        "parquet",
        lambda path: pq.write_table(repeated(10_000), path, compression="zstd"),
    ),
    "a page of one letter": (
        "parquet",
        lambda path: pq.write_table(
            pa.table({"text": ["a" * (66 << 20)]}), path, compression="zstd", use_dictionary=False
        ),
    ),
    "one string in every row of arrow": ("arrow", lambda path: write_arrow(path, repeated(8000))),
    "one view in every row": ("arrow", lambda path: write_arrow(path, views(7500))),
}


LONG = "a b " * 2500


def repeated(rows: int) -> pa.Table:
    """Rows that share one string of 10 KB, which is stored once."""
    rows_R = pa.array([0] * rows, pa.int32())
    return pa.table({"text": pa.DictionaryArray.from_arrays(rows_R, pa.array([LONG]))})


def views(rows: int) -> pa.Table:
    """The same as string views."""
    _, view, data = pa.array([LONG], pa.string_view()).buffers()
    every = pa.py_buffer(view.to_pybytes() * rows)
    return pa.table({"text": pa.Array.from_buffers(pa.string_view(), rows, [None, every, data])})


def write_arrow(path: Path, table: pa.Table) -> None:
    with pa.ipc.new_file(str(path), table.schema) as writer:
        writer.write_table(table)


@pytest.mark.parametrize("kind", BOMBS)
def test_a_bomb_is_refused_with_both_sizes_and_the_remedy_before_it_has_cost_much(
    tmp_path: Path, kind: str
) -> None:
    reader, write = BOMBS[kind]
    path = tmp_path / "bomb"
    write(path)
    assert path.stat().st_size < 1 << 17
    with pytest.raises(
        UsageError, match=r"bomb: [\d,]+ bytes unpack to [\d,]+ and more"
    ) as refused:
        texts(path, reader)
    assert "unpack it yourself and name the result" in str(refused.value)


@pytest.mark.parametrize("kind", COMPRESSORS)
def test_a_log_that_shrinks_to_a_hundredth_is_read_to_its_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    monkeypatch.setattr(filesystem, "BOMB_BYTES", 1 << 20)
    rng = random.Random(1)
    line = "2026-11-22T10:15:00Z host-17 service[4711]: request 0x{:08x} answered with code 200\n"
    some = "".join(line.format(rng.randrange(1 << 32)) * 20 for _ in range(400)).encode()
    path = tmp_path / f"log.{kind}"
    path.write_bytes(COMPRESSORS[kind](some) * 9)  # several concatenated streams
    assert sum(len(chunk) for chunk in compression.stream(str(path))) == 9 * len(some)
    assert 9 * len(some) > 50 * path.stat().st_size


def test_rows_that_repeat_a_string_are_spelt_out_some_at_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(records, "BYTES_AT_A_TIME", 100_000)
    path = tmp_path / "repeated.parquet"
    pq.write_table(repeated(95), path)
    source = SourceConfig(reader="parquet", path=str(path))
    blocks = list(reader_named("parquet").read(Piece(str(path)), source))
    assert [len(block.ends) for block in blocks] == [9, *[10] * 8, 6]
    assert [place for block in blocks for place in block.positions] == list(range(95))


def test_a_parquet_dictionary_that_claims_gigabytes_is_an_error_in_little_memory(
    tmp_path: Path,
) -> None:
    path, room = tmp_path / "claims.parquet", 250_000_000
    pq.write_table(pa.table({"text": ["one", "two"] * 4}), path, compression="none")
    two_values, half_a_billion = b"\x4c\x15\x04", b"\x4c\x15\x80\x94\xeb\xdc\x03"
    path.write_bytes(path.read_bytes().replace(two_values, half_a_billion, 1))
    with pytest.raises(IntegrityError, match=r"claims\.parquet: not a whole Parquet file"):
        texts(path, "parquet")
    done = subprocess.run(
        [sys.executable, "-c", LIMITED, "parquet", str(path), str(room), str(1 << 26)],
        capture_output=True,
        text=True,
        check=False,
        cwd=PROJECT,
    )
    assert "claims.parquet: not a whole Parquet file" in done.stderr
