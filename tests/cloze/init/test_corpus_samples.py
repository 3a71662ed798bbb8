"""The layout of plain text is guessed from samples."""

import gzip
import json
import re
from pathlib import Path

import pytest

from cloze.init.corpus_samples import language, line_breaks, look, plain_layout
from cloze.pipeline.config.formats import FORMATS, Format

GOOGLE = "The first sentence.\nHe asked: why?\nNobody knew!\n\n" * 500
ARTICLES = "A title\nOne paragraph. It goes on. And on.\nAnother one. It ends.\n\n" * 500
NOVEL = (
    "It was the best of times, it was the worst of times, it was the age\n"
    "of wisdom. It was the age of foolishness, it was the epoch of belief,\n"
    "it was the epoch of incredulity.\n\n"
) * 500


@pytest.mark.parametrize(
    ("text", "files", "expected"),
    [
        (GOOGLE, 1, "sentence_lines"),
        (GOOGLE, 100, "sentence_lines"),
        (ARTICLES, 1, "blank_line_text"),
        (ARTICLES, 100, "text"),
        (NOVEL, 1, "text"),
        (GOOGLE[:500], 1, "text"),
        (ARTICLES[:500], 1, "text"),
        ("", 1, "text"),
    ],
)
def test_many_blocks_are_documents_unless_lines_are_wrapped_or_files_many(
    text: str, files: int, expected: str
) -> None:
    reader, why = plain_layout((text,) * files, files=files, text_bytes=len(text) * files)
    assert reader == expected
    assert why


@pytest.mark.parametrize(
    ("text", "reader"), [(GOOGLE, "sentence_lines"), (ARTICLES, "blank_line_text")]
)
def test_the_number_of_blocks_is_estimated_from_a_sample(text: str, reader: str) -> None:
    sample = text[: len(text) // 100]
    assert plain_layout((sample,), files=1, text_bytes=len(sample))[0] == "text"
    assert plain_layout((sample,), files=1, text_bytes=len(text))[0] == reader


def test_the_reason_mentions_the_alternative() -> None:
    _, why = plain_layout((ARTICLES,), files=1, text_bytes=len(ARTICLES))
    assert why.startswith("about 500 blocks of lines per file, taken as documents; ")
    assert why.endswith("; if they are paragraphs: text")


def test_wrapped_documents_among_others_are_detected_individually() -> None:
    paragraphs = "\n".join(["One paragraph a line, however long it may become. " * 4] * 8)
    found = line_breaks([NOVEL[:600]] * 3 + [paragraphs] * 5)
    assert found
    assert found[0] == "detect"
    whole = line_breaks([paragraphs] * 8)
    assert whole
    assert whole[0] == "paragraph"


GERMAN = "Der Hund und die Katze sind nicht in dem Haus, das mit der Tür von gestern ist. " * 5
ENGLISH = "The dog and the cat are not in the house that was built for the king of that land. " * 5


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (ENGLISH, "English"),
        (GERMAN, "German"),
        ("Это не то, что мы хотели сказать. " * 3, "Russian"),
        # Of the same scripts (the first article of human rights).
        ("Всі люди народжуються вільними і рівними у своїй гідності та правах", "Ukrainian"),
        ("Всички хора се раждат свободни и равни по достойнство и права", "Bulgarian"),
        ("Сва људска бића рађају се слободна и једнака у достојанству и правима", "Serbian"),
        ("Барлық адамдар тумысынан азат және құқықтары тең болып", "Cyrillic script"),
        ("يولد جميع الناس أحرارا متساوين في الكرامة والحقوق", "Arabic"),
        ("تمام افراد بشر آزاد به دنیا می آیند و از لحاظ حیثیت و حقوق با هم برابرند", "Persian"),
        ("تمام انسان آزاد اور حقوق و عزت کے اعتبار سے برابر پیدا ہوئے ہیں", "Urdu"),
        ("सभी मनुष्यों को गौरव और अधिकारों के मामले में जन्मजात स्वतन्त्रता प्राप्त है", "Hindi"),
        ("सर्व मानवी व्यक्ती स्वतंत्र आहेत व त्यांना समान अधिकार आहेत", "Marathi"),
        ("人人生而自由，在尊严和权利上一律平等。 the and of in to", "Cjk script"),
        ("Xyzzy foo bar baz quux.", "another language"),
        ("12 345 !!", "no text"),
    ],
)
def test_the_language_is_guessed(text: str, expected: str) -> None:
    assert language(text) == expected


def record(kind: str, content: bytes) -> bytes:
    head = f"WARC/1.0\r\nWARC-Type: {kind}\r\nContent-Type: text/plain\r\n"
    return f"{head}Content-Length: {len(content)}\r\n\r\n".encode() + content + b"\r\n\r\n"


@pytest.mark.parametrize(
    ("pairs", "compressed", "text_bytes"),
    [
        (10, False, 1_000_000),
        (100, False, 10_000_000),  # more text than one block of the reader holds
        (200, False, 20_000_000),  # more bytes than are read in all
        (100, True, 10_000_000),
    ],
)
def test_the_text_of_an_archive_is_estimated_from_the_bytes_that_were_read(
    tmp_path: Path, pairs: int, compressed: bool, text_bytes: int
) -> None:
    pytest.importorskip("warcio")
    pytest.importorskip("resiliparse")
    text = b"This sentence is as long as forty bytes.\n"[1:] * 2500  # 100,000 bytes
    pair = record("conversion", text) + record("metadata", b"x" * len(text))
    path = tmp_path / ("a.warc.gz" if compressed else "a.warc")
    path.write_bytes((gzip.compress(pair) if compressed else pair) * pairs)
    (found,) = look(str(path)).sources
    assert found.reader == "warc"
    assert found.text_bytes == pytest.approx(text_bytes, rel=0.02)


def test_a_format_is_proposed_once_it_is_registered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    letters = Format(
        "cloze.pipeline.readers.web:HTML",
        "letters",
        mark=re.compile(r"\ADear "),
        document="(?m)^Dear ",
    )
    assert isinstance(FORMATS, dict)
    monkeypatch.setitem(FORMATS, "letters", letters)
    (tmp_path / "bag").write_text("Dear Ann,\nit rains &amp; rains.\nDear Bob,\nit snows.\n" * 40)
    (found,) = look(str(tmp_path)).sources
    assert (found.reader, found.why, found.documents) == ("letters", "letters, by the content", 80)
    assert not found.html
    assert found.line_break is None


@pytest.mark.parametrize("size", [1_000, 200_000, 3_000_000])
@pytest.mark.parametrize("name", ["a.csv", "a.tsv", "a.jsonl", "a.csv.gz"])
def test_the_column_is_found_however_long_the_first_text_is(
    tmp_path: Path, name: str, size: int
) -> None:
    line = "A sentence of the text. " if ".tsv" in name else "A sentence, so to say,\nof the text. "
    text = line * (size // len(line))
    separator = "\t" if ".tsv" in name else ","
    quoted = text if ".tsv" in name else f'"{text}"'
    table = f"id{separator}words\n1{separator}{quoted}\n2{separator}A short text.\n"
    if name == "a.jsonl":
        table = "".join(json.dumps({"id": n, "words": one}) + "\n" for n, one in enumerate([text]))
    content = table.encode()
    (tmp_path / name).write_bytes(gzip.compress(content) if name.endswith("gz") else content)
    (found,) = look(str(tmp_path)).sources
    assert found.text_field == "words"
    assert found.text_bytes == pytest.approx(len(content), rel=0.01)


def test_broken_lines_do_not_make_a_file_called_jsonl_prose(tmp_path: Path) -> None:
    good = '{"text": "A text."}\n'
    for name in ("a.jsonl", "a.ndjson", "a.jsonl.2"):
        (tmp_path / name).write_text(good + '{"text": "cut\n' * 5 + good)
        (found,) = look(str(tmp_path / name)).sources
        assert (found.reader, found.text_field) == ("jsonl", "text")
