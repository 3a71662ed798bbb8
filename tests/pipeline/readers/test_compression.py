"""Text in other encodings is detected and converted; files without text are refused by name."""

import gzip
from itertools import pairwise
from pathlib import Path

import pytest

from cloze.artifacts.errors import NotText, UsageError
from cloze.pipeline.config.settings import SourceConfig
from cloze.pipeline.readers.compression import converted_from, encoding_of, stream
from cloze.pipeline.readers.documents import BLOCK_BYTES, Piece
from cloze.pipeline.readers.input_shards import reader_named

RUSSIAN = (
    "Город расположен на берегу реки, и в нём живёт около миллиона человек. Каждый год сюда "
    "приезжают тысячи туристов, чтобы посмотреть на старый замок.\n"
)
FRENCH = (
    "La ville se trouve au bord d'une rivière, à l'est du pays. Chaque année, des milliers de "
    "visiteurs y viennent découvrir le château et la forêt.\n"
)
GERMAN = "Die Brücke über den Fluß führt zur Altstadt. Später hörten wir die Glocken läuten.\n"
ENGLISH = "The café on the corner of the street was closed, so we went home and read.\n"
JAPANESE = "今日は天気がいいから、公園へ散歩に行きましょう。日本語の文章です。\n"


ARABIC = "تقع المدينة على ضفة النهر، ويعيش فيها نحو عشرة آلاف نسمة. وهي مدينة قديمة.\n"
GREEK = "Η πόλη βρίσκεται δίπλα στο ποτάμι και έχει περίπου δέκα χιλιάδες κατοίκους.\n"
HEBREW = "העיר שוכנת על גדת הנהר ויש בה כעשרת אלפים תושבים, ורבים מהם עובדים בטחנות.\n"
KOREAN = "도시는 강가에 있으며 약 만 명의 주민이 살고 있다. 많은 사람이 방앗간에서 일한다.\n"
POLISH = "Miasto leży nad rzeką i ma około dziesięciu tysięcy mieszkańców. Jest też zamek.\n"
THAI = "เมืองตั้งอยู่ริมแม่น้ำและมีประชากรประมาณหนึ่งหมื่นคน หลายคนทำงานในโรงสี\n"
TURKISH = "Şehir ırmağın kıyısında yer alır ve yaklaşık on bin nüfusa sahiptir. Çoğu çalışır.\n"
VIETNAMESE = "Tha\u0300nh phô\u0301 nă\u0300m bên bơ\u0300 sông va\u0300 co\u0301 dân cư.\n"


@pytest.mark.parametrize(
    ("text", "encoding"),
    [
        (RUSSIAN, "cp1251"),
        (RUSSIAN, "koi8_r"),
        (RUSSIAN, "iso8859_5"),
        (RUSSIAN, "cp866"),
        (ARABIC, "cp1256"),
        (ARABIC, "iso8859_6"),
        (GREEK, "iso8859_7"),
        (HEBREW, "cp1255"),
        (THAI, "tis_620"),
        (TURKISH, "iso8859_9"),
        (POLISH, "cp1250"),
        (POLISH, "iso8859_2"),
        (VIETNAMESE, "cp1258"),
        (KOREAN, "euc_kr"),
        (JAPANESE, "euc_jp"),
        (JAPANESE, "iso2022_jp"),
        (FRENCH, "latin-1"),
        (GERMAN, "latin-1"),
        (ENGLISH, "latin-1"),
        (JAPANESE, "shift_jis"),
        (FRENCH, "utf-8"),
        (RUSSIAN, "utf-16-le"),
        (ENGLISH, "utf-16-be"),
        (GERMAN, "utf-32-le"),
    ],
)
@pytest.mark.parametrize("pack", [bytes, gzip.compress])
def test_text_is_read_in_the_encoding_that_it_is_in(
    tmp_path: Path, text: str, encoding: str, pack: type[bytes]
) -> None:
    whole = f"{ENGLISH}{text * 10}" if encoding.startswith("utf-16-le") else text * 10
    (tmp_path / "a.txt").write_bytes(pack(whole.encode(encoding)))
    source = SourceConfig(reader="text", path=str(tmp_path))
    piece = Piece(str(tmp_path / "a.txt"))
    (block,) = reader_named("text").read(piece, source)
    assert block.text.tobytes().decode() == whole
    assert bool(converted_from(piece.path)) == (encoding != "utf-8")


def test_a_page_is_read_in_the_encoding_that_it_declares(tmp_path: Path) -> None:
    page = '<html><head><meta charset="euc-jp"></head><p>Plain.</p><p>日本</p></html>\n'
    (tmp_path / "a.html").write_bytes(page.encode("euc_jp"))
    assert b"".join(stream(str(tmp_path / "a.html"))).decode() == page


def test_valid_characters_beyond_the_first_pages_show_that_a_file_is_utf_8() -> None:
    raw = b"A na\xefve word. " + b"Plain words. " * 20_000 + FRENCH.encode()
    assert encoding_of(raw, "a.txt") == "utf-8"


@pytest.mark.parametrize("damage", [b"\xff", b"\xe9", b"\xc3"])
def test_a_few_broken_characters_do_not_make_it_another_encoding(damage: bytes) -> None:
    raw = FRENCH.encode() * 5
    assert encoding_of(raw[:300] + damage + raw[300:], "a.txt") == "utf-8"


def test_a_broken_byte_between_words_is_damage_and_one_in_a_word_a_letter() -> None:
    assert encoding_of(b"Text with one \xff byte in it.", "a.txt") == "utf-8"
    assert encoding_of("A café in town.".encode("latin-1"), "a.txt") == "cp1252"


def test_as_many_valid_characters_as_broken_ones_in_words_show_that_a_file_is_utf_8() -> None:
    broken = "Caf\xe9s and th\xe9s in the d\xe9cor".encode("latin-1")
    assert encoding_of(broken + " — é, è".encode(), "a.txt") == "utf-8"
    assert encoding_of(broken + " — é".encode(), "a.txt") != "utf-8"


def test_a_character_cut_at_the_end_of_what_is_looked_at_is_no_damage() -> None:
    assert encoding_of("é".encode()[:1], "a.txt") == "utf-8"
    assert encoding_of(("x" * 100 + "é").encode()[:-1], "a.txt") == "utf-8"


@pytest.mark.parametrize(
    "content",
    [b"%PDF-1.7\n1 0 obj", b"\x89PNG\r\n\x1a\n", b"\xff\xd8\xff\xe0JFIF", bytes(100) + b"text"],
)
def test_what_is_no_text_is_named(tmp_path: Path, content: bytes) -> None:
    with pytest.raises(NotText, match=r"^photo: no text"):
        encoding_of(content, "photo")


def test_an_archive_is_not_passed_over() -> None:
    with pytest.raises(UsageError, match="an archive of files") as caught:
        encoding_of(b"PK\x03\x04 and more", "texts.zip")
    assert not isinstance(caught.value, NotText)


@pytest.mark.parametrize("encoding", ["utf-16", "cp1251"])
def test_of_a_large_converted_file_every_document_is_read_once(
    tmp_path: Path, encoding: str
) -> None:
    path = tmp_path / "large.txt"
    documents = BLOCK_BYTES // 40
    path.write_bytes(("Короткий текст, несколько слов и точка.\n\n" * documents).encode(encoding))
    source = SourceConfig(reader="blank_line_text", path=str(path))
    size = path.stat().st_size
    bounds = [*range(0, size, BLOCK_BYTES), size]
    assert len(bounds) > 2
    pieces = [Piece(str(path), a, b) for a, b in pairwise(bounds)]
    reader = reader_named("blank_line_text")
    found = [sum(len(block.ends) for block in reader.read(piece, source)) for piece in pieces]
    assert found == [documents, *[0] * (len(pieces) - 1)]
