"""`cloze init`: configurations for a user's own corpus."""

import bz2
import gzip
import json
import lzma
import re
import tomllib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet
import pytest
import zstandard

from cloze.artifacts.config import parse, read_toml
from cloze.artifacts.errors import IntegrityError, UsageError
from cloze.artifacts.filesystem import find_files
from cloze.artifacts.tokenizer import SPECIAL_TOKENS, WordPieceTokenizer
from cloze.flows.config import RunConfig
from cloze.init import corpus_files
from cloze.init.configuration import configuration, corpus_facts, init, recipe
from cloze.init.corpus_samples import SAMPLE_BYTES, look
from cloze.init.labelled_files import labelled_files
from cloze.model.tasks.files.table_files import read_table
from cloze.model.tasks.files.task_table import Wanted
from tests.cloze.init.test_corpus_samples import ENGLISH, GERMAN
from tests.cloze.tiny_model import write_model
from tests.conftest import PROJECT

CONFIGS = PROJECT / "configs"
DUMP = '<mediawiki xmlns="http://www.mediawiki.org/xml/">\n<page><title>A</title></page>\n'
ROWS = [{"id": "7", "body": "A long enough text.", "n": 1}, {"id": "8", "body": "Another."}]
LINES = "".join(json.dumps(row) + "\n" for row in ROWS)


def table(path: Path) -> None:
    pa.parquet.write_table(pa.table({"n": [1], "text": ["words"], "title": ["A"]}), path)


def feather(path: Path) -> None:
    data = pa.table({"n": [1], "body": ["words"]})
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, data.schema) as writer:
        writer.write_table(data)


@pytest.mark.parametrize(
    ("name", "write", "reader", "field"),
    [
        ("a.txt", lambda path: path.write_text("Words.\n"), "text", ""),
        ("README", lambda path: path.write_text("Words.\n"), "text", ""),
        ("a.txt.gz", lambda path: path.write_bytes(gzip.compress(b"Words.\n")), "text", ""),
        ("a.jsonl", lambda path: path.write_text(LINES), "jsonl", "body"),
        (
            "a.jsonl.gz",
            lambda path: path.write_bytes(gzip.compress(LINES.encode())),
            "jsonl",
            "body",
        ),
        (
            "a.jsonl.zst",
            lambda path: path.write_bytes(zstandard.compress(LINES.encode())),
            "jsonl",
            "body",
        ),
        ("a.jsonl", lambda path: path.write_bytes(gzip.compress(LINES.encode())), "jsonl", "body"),
        ("a.jsonl", lambda path: path.write_text(LINES, "utf-16"), "jsonl", "body"),
        ("a.parquet", table, "parquet", "text"),
        ("a.arrow", feather, "arrow", "body"),
        ("x-pages.xml", lambda path: path.write_text(DUMP), "mediawiki", ""),
        (
            "x.xml-p10p30.bz2",
            lambda path: path.write_bytes(bz2.compress(DUMP.encode())),
            "mediawiki",
            "",
        ),
        ("wiki_00", lambda path: path.write_text('<doc id="1">\nA\n</doc>\n'), "wikiextractor", ""),
    ],
)
def test_the_reader_is_guessed_from_name_and_content(
    tmp_path: Path, name: str, write: Callable[[Path], object], reader: str, field: str
) -> None:
    write(tmp_path / name)
    (found,) = look(str(tmp_path)).sources
    assert (found.reader, found.text_field) == (reader, field)
    assert found.why


@pytest.mark.parametrize(
    ("name", "reader"),
    [
        ("essay.tablet.txt", "text"),
        ("report.tables.txt", "text"),
        ("notes.csv.txt", "text"),
        ("essay.tab", "csv"),
        ("part.csv.2", "csv"),
    ],
)
def test_only_the_end_of_a_name_makes_a_short_first_line_a_column(
    tmp_path: Path, name: str, reader: str
) -> None:
    (tmp_path / name).write_text("A title\nOne long line of prose. And another sentence.\n" * 9)
    assert [one.reader for one in look(str(tmp_path)).sources] == [reader]


@pytest.mark.parametrize("suffix", ["", ".gz", ".bz2", ".xz", ".zst"])
def test_samples_are_what_the_readers_see(tmp_path: Path, suffix: str) -> None:
    pack = {
        "": bytes,
        ".gz": gzip.compress,
        ".bz2": bz2.compress,
        ".xz": lzma.compress,
        ".zst": zstandard.compress,
    }
    text = "".join(f"Sentence number {number} of a text.\n" for number in range(10_000))
    (tmp_path / f"a.txt{suffix}").write_bytes(pack[suffix](text.encode()))
    found = look(str(tmp_path))
    assert found.samples == (text[:SAMPLE_BYTES],)
    assert found.odd == ()


def test_archives_and_files_with_a_wrong_suffix_are_reported(
    tmp_path: Path,
) -> None:
    (tmp_path / "a.gz").write_text("Words.\n")
    with pytest.raises(IntegrityError, match=r"a\.gz: begins with 57 6f 72 64"):
        look(str(tmp_path / "a.gz"))
    (tmp_path / "b.zip").write_bytes(b"PK\x03\x04")
    with pytest.raises(UsageError, match=r"b\.zip: an archive of files; unpack it"):
        look(str(tmp_path / "b.zip"))


def test_each_kind_of_documents_has_its_reader_that_of_most_bytes_first(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("Read me.\n")
    (tmp_path / "more.md").write_text("# Read me\n")
    (tmp_path / "data.jsonl").write_text(LINES * 100)
    (tmp_path / "unnamed").write_text(LINES)
    pa.parquet.write_table(pa.table({"body": [ENGLISH] * 9}), tmp_path / "rows.parquet")
    (tmp_path / "page.html").write_text(f"<!doctype html><p>{ENGLISH}</p>")
    (tmp_path / "numbers.csv").write_text("a,b\n" + "1,2\n" * 9)
    found = look(str(tmp_path))
    readers = {one.reader: find_files(str(tmp_path), one.exclude) for one in found.sources}
    assert {
        reader: sorted(Path(file.path).name for file in of) for reader, of in readers.items()
    } == {
        "jsonl": ["data.jsonl", "unnamed"],
        "parquet": ["rows.parquet"],
        "html": ["page.html"],
        "text": ["more.md", "notes.txt"],
    }
    assert next(iter(readers)) == "jsonl"
    (left,) = found.odd
    assert left.startswith("numbers.csv (a table, no prose in its records (a, b); ")
    assert left.endswith("; left out)")
    text = configuration(found, "mine")
    run = parse(RunConfig, tomllib.loads(text), source="mine.toml")
    assert [source.reader for source in run.corpus.sources] == [*readers]
    assert "# 6 files, about 0.0 MB of text; 2 files: JSON lines, by the content; " in text


def test_of_many_files_with_one_suffix_one_reader_reads_most_and_the_others_are_said(
    tmp_path: Path,
) -> None:
    for number in range(200):
        (tmp_path / f"{number:03}.txt").write_text(LINES if number == 0 else "A sentence.\n")
    found = look(str(tmp_path))
    (source,) = found.sources
    assert (source.reader, source.files, source.exclude) == ("text", 199, ("000.txt",))
    assert found.odd == ("000.txt (JSON lines; left out)",)


@pytest.mark.parametrize(("size", "name"), [(1e7, "toy"), (1e9, "middle"), (1e11, "paper")])
def test_the_configuration_is_valid_and_matches_the_amount_of_text(
    tmp_path: Path, size: float, name: str
) -> None:
    (tmp_path / "it's.txt").write_text("Words.\n")
    found = look(str(tmp_path / "it's.txt"))
    (source,) = found.sources
    text = configuration(replace(found, sources=(replace(source, text_bytes=size),)), "mine")
    assert recipe(name) in text
    (tmp_path / "mine.toml").write_text(text)
    run = parse(RunConfig, read_toml(tmp_path / "mine.toml"), source="mine.toml")
    assert run.corpus.sources[0].path == str(tmp_path / "it's.txt")


def test_little_text_gets_the_recipe_of_the_text_folder() -> None:
    _, _, tables = recipe("toy").partition("\n")
    assert (CONFIGS / "text_folder.toml").read_text().endswith(f"\n\n{tables}")


def test_enough_of_few_documents_are_held_out(tmp_path: Path) -> None:
    for number in range(15):
        (tmp_path / f"{number}.txt").write_text("Words.\n")
    assert "heldout_share = 0.2 " in configuration(look(str(tmp_path)), "mine")


def test_plan_accepts_the_file_that_init_writes(cloze: Callable[..., Any], folder: Path) -> None:
    done = cloze("init", "texts", "--output", "mine.toml")
    assert done.returncode == 0
    assert done.stdout.splitlines()[-1] == "next: cloze plan mine.toml"
    assert cloze("plan", "mine.toml").returncode == 0
    assert cloze("init", "texts", "--output", "mine.toml").returncode == 2
    assert cloze("init", "nowhere").returncode == 2


def test_documents_are_counted_by_their_separators(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text(LINES * 500)
    assert look(str(tmp_path)).documents == pytest.approx(1000)
    pa.parquet.write_table(pa.table({"text": [ENGLISH] * 700}), tmp_path / "b.parquet")
    assert look(str(tmp_path / "b.parquet")).documents == pytest.approx(700)


def test_one_file_of_many_documents_is_not_one_document(tmp_path: Path) -> None:
    (tmp_path / "all.txt").write_text("The first sentence.\nThe second one.\n\n" * 3000)
    (found,) = look(str(tmp_path)).sources
    assert found.reader == "sentence_lines"
    assert found.documents == pytest.approx(3000, rel=0.01)


def test_every_reason_for_leaving_out_files_of_a_suffix_is_counted(tmp_path: Path) -> None:
    folder = tmp_path / "texts"
    folder.mkdir()
    (folder / "a.jsonl").write_text(json.dumps({"text": ENGLISH}) + "\n")
    array = b'[\n {"text": 1}\n]'
    for name, content in {"a": b"", "b": array, "c": array, "d": bytes(range(256))}.items():
        (folder / f"{name}.json").write_bytes(content)
    said = json.dumps(init(str(folder)).data)
    several = "2 JSON, but not one object per line, 1 empty, 1 not text"
    assert f"*.json (4 files: {several}; left out)" in said


def test_odd_files_of_a_corpus_are_reported(tmp_path: Path) -> None:
    folder = tmp_path / "texts"
    folder.mkdir()
    for name, content in {"a": ENGLISH, "b": ENGLISH, "c": GERMAN, "d": ""}.items():
        (folder / f"{name}.txt").write_text(content)
    (folder / "e.txt").write_bytes(bytes(range(256)))
    (folder / "f.pdf").write_bytes(b"%PDF-1.7\n")
    facts = json.loads(json.dumps(init(str(folder)).data))["facts"]
    assert facts[0].startswith("5 files, about 0.0 MB of text in about 5 documents")
    assert "2 English" in facts[1]
    assert "1 German" in facts[1]
    assert facts[2] == ("odd files: d.txt (empty), e.txt (not text), f.pdf (not text; left out)")
    assert facts[3].startswith("fertility: unknown; --vocabulary FILE measures it")
    assert re.search(r"minutes on this machine's \d+ cores .* on Dataflow", facts[4])


def test_one_file_of_one_document_is_reported_in_the_singular(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text(ENGLISH)
    facts = json.loads(json.dumps(init(str(path)).data))["facts"]
    assert facts[0].startswith("1 file, about 0.0 MB of text in about 1 document of ")


PARAGRAPH = "The town lies on the river and has about ten thousand inhabitants. " * 3
REVIEW = "A film one remembers.<br /><br />It&#39;s long, and nobody left before its end. "


def written(cloze: Callable[..., Any], source: str) -> dict[str, Any]:
    """The source that `cloze init` proposes."""
    assert cloze("init", source, "--output", "new.toml").returncode == 0
    (found,) = read_toml("new.toml")["corpus"]["sources"]
    assert cloze("plan", "new.toml").returncode == 0
    return dict(found)


@pytest.mark.parametrize(
    ("block", "reader"),
    [
        (f"A title\n{PARAGRAPH}\n{PARAGRAPH}\n\n", "blank_line_text"),
        ("The first sentence.\nHe asked: why?\nNobody knew!\n\n", "sentence_lines"),
        (f"{PARAGRAPH}\n\n", "text"),
        ("A line of a song\nand the next one,\nand a third\n\n", "text"),
    ],
    ids=["articles", "sentences", "paragraphs", "verses"],
)
@pytest.mark.parametrize("blocks", [20, 60, 150])
def test_blocks_of_several_long_lines_are_documents_even_if_few(
    cloze: Callable[..., Any], folder: Path, block: str, reader: str, blocks: int
) -> None:
    (folder / "all.txt").write_text(block * blocks)
    assert written(cloze, "all.txt")["reader"] == reader


def test_html_and_line_breaks_are_proposed_from_the_documents(
    cloze: Callable[..., Any], folder: Path
) -> None:
    paragraphs = "\n".join([PARAGRAPH] * 3)
    for name, text in {"reviews": REVIEW * 5, "articles": paragraphs}.items():
        row = json.dumps({"text": text, "label": 1})
        (folder / f"{name}.jsonl").write_text(f"{row}\n" * 30)
    (folder / "wrapped.txt").write_text(f"{PARAGRAPH[:70]}\n{PARAGRAPH[:65]}\n" * 30)
    reviews = written(cloze, "reviews.jsonl")
    (folder / "new.toml").unlink()
    articles = written(cloze, "articles.jsonl")
    (folder / "new.toml").unlink()
    wrapped = written(cloze, "wrapped.txt")
    proposed = [
        (found.get("html"), found.get("line_break")) for found in (reviews, articles, wrapped)
    ]
    assert proposed == [(True, None), (None, "paragraph"), (None, "detect")]


@pytest.mark.parametrize("pack", [bytes, gzip.compress])
def test_the_number_of_documents_is_estimated_within_a_fifth(
    tmp_path: Path, pack: type[bytes]
) -> None:
    article = f"Title\n{PARAGRAPH * 10}\n{PARAGRAPH * 10}\n\n"
    stub = f"Title\n{PARAGRAPH}\n\n"
    name = "all.txt.gz" if pack is gzip.compress else "all.txt"
    (tmp_path / name).write_bytes(pack((article * 600 + stub * 5270).encode()))
    (found,) = look(str(tmp_path)).sources
    assert found.reader == "blank_line_text"
    assert found.documents == pytest.approx(5870, rel=0.2)


def test_unreadable_files_are_reported_as_odd(cloze: Callable[..., Any], folder: Path) -> None:
    (folder / "mixed").mkdir()
    for name in "abc":
        (folder / "mixed" / f"{name}.txt").write_text(ENGLISH)
    (folder / "mixed" / "d.txt").write_bytes(b"%PDF-1.7\n" + bytes(range(256)))
    (folder / "mixed" / "e.txt").write_bytes(gzip.compress(ENGLISH.encode())[:-9])
    done = cloze("init", "mixed")
    assert done.returncode == 0
    assert "d.txt (not text)" in done.stdout
    assert "e.txt (not readable: the .gz data ends" in done.stdout
    for name in ("mixed/d.txt", "broken.parquet", "broken.arrow"):
        path = folder / name
        if not path.exists():
            path.write_bytes(b"PAR1 and nothing else")
        done = cloze("init", name)
        assert done.returncode in (1, 2)
        assert len(done.stderr.splitlines()) == 1
        assert name.rpartition("/")[2] in done.stderr


LETTERS = "abcdefghijklmnopqrstuvwxyz"


@pytest.mark.parametrize(
    ("name", "capitals", "expected"),
    [
        ("vocab.txt", "", "1.00 tokens per word with vocab.txt (uncased)"),
        ("vocab.txt", LETTERS.upper(), "1.00 tokens per word with vocab.txt (cased)"),
        ("tokenizer.json", "", "1.00 tokens per word with tokenizer.json (uncased)"),
    ],
)
def test_word_pieces_are_counted_with_a_given_vocabulary(
    tmp_path: Path, name: str, capitals: str, expected: str
) -> None:
    (tmp_path / "a.txt").write_text("A b c D")
    tokenizer = WordPieceTokenizer((*SPECIAL_TOKENS, *LETTERS, *capitals), lowercase=not capitals)
    form = tokenizer.vocab_txt() if name == "vocab.txt" else tokenizer.tokenizer_json()
    (tmp_path / name).write_text(form)
    found = look(str(tmp_path / "a.txt"))
    run = parse(RunConfig, tomllib.loads(configuration(found, "a")), source="a")
    facts = corpus_facts(found, run, vocabulary=tmp_path / name)
    assert f"fertility: {expected}" in list(facts)


LABELLED = "id,review,sentiment\n" + "".join(
    f"{number},This film number {number} is as long as a film must be.,{label}\n"
    for number, label in enumerate(["pos", "neg", "neg"])
)
PAIRS = (
    "premise\thypothesis\tlabel\nA man sleeps here.\tA man is awake.\t0\nIt rains.\tIt is wet.\t1\n"
)
CONLL = "John B-PER\nlives O\n\nin O\nParis B-LOC\n"


@pytest.mark.parametrize(
    ("suffix", "content", "kind", "columns"),
    [
        ("csv", LABELLED, "classification", {"text_a": "review", "label": "sentiment"}),
        (
            "tsv",
            PAIRS,
            "pair_classification",
            {"text_a": "premise", "text_b": "hypothesis", "label": "label"},
        ),
        ("conll", CONLL, "tagging", {}),
    ],
)
def test_labelled_files_become_a_task_instead_of_a_corpus(
    cloze: Callable[..., Any], folder: Path, suffix: str, content: str, kind: str, columns: object
) -> None:
    (folder / "data").mkdir()
    for split in ("train", "dev"):
        (folder / "data" / f"{split}.{suffix}").write_text(content)
    assert cloze("init", "data", "--output", "task.toml").returncode == 0
    (task,) = read_toml("task.toml")["finetune"]["tasks"]
    assert (task["kind"], task.get("columns", {})) == (kind, columns)
    assert task["dev"] == str(folder / "data" / f"dev.{suffix}")
    # three epochs of a few sentences would be three updates; where the approach is chosen, the
    # choice sees to that
    assert task.get("epochs") == (80 if kind == "tagging" else None)
    done = cloze("plan", "task.toml")
    assert "bert-base-uncased: no run of this name" in done.stderr


def test_a_single_labelled_table_becomes_a_task(cloze: Callable[..., Any], folder: Path) -> None:
    (folder / "reviews.csv").write_text(LABELLED)
    done = cloze("init", "reviews.csv", "--output", "task.toml")
    assert done.returncode == 0, done.stderr
    (task,) = read_toml("task.toml")["finetune"]["tasks"]
    assert (task["kind"], task["train"]) == ("classification", str(folder / "reviews.csv"))
    assert "dev" not in task  # fine-tuning holds out rows


def test_a_table_without_labels_is_read_as_text(folder: Path) -> None:
    rows = "".join(f"row {number},some text {number}\n" for number in range(100))
    (folder / "notes.csv").write_text("title,body\n" + rows)
    assert labelled_files(find_files("notes.csv")) is None


EXCEL = 'text;label\r\n"Schöne Grüße; alles gut";ja\r\nnicht gut;nein\r\n'


@pytest.mark.parametrize(
    ("name", "content", "kind"),
    [
        ("cp1252.csv", EXCEL.encode("cp1252"), "classification"),
        ("utf16.csv", EXCEL.encode("utf-16"), "classification"),
        ("mac.csv", EXCEL.replace("\r\n", "\r").encode(), "classification"),
        (
            "long.csv",
            ("text,label\n" + "a b " * 40_000 + ",ja\nb,nein\n").encode(),
            "classification",
        ),
        ("words.tsv", b"EU\tB-ORG\nsays\tO\n\nUN\tB-ORG\n\n", "tagging"),
        ("words.iob", b"-DOCSTART- O\nEU B-ORG\n\nUN B-ORG\n", "tagging"),
    ],
)
def test_tables_in_the_layouts_of_spreadsheets_become_tasks(
    cloze: Callable[..., Any], folder: Path, name: str, content: bytes, kind: str
) -> None:
    (folder / name).write_bytes(content)
    done = cloze("init", name, "--output", "task.toml")
    assert done.returncode == 0, done.stderr
    made = tomllib.loads((folder / "task.toml").read_text())
    assert made["finetune"]["tasks"][0]["kind"] == kind
    if kind == "tagging":
        assert "B-ORG" in done.stdout


@pytest.mark.parametrize("suffix", [".gz", ".bz2", ".xz", ".zst"])
@pytest.mark.parametrize("name", ["r.csv", "r-train.tsv", "r.jsonl", "R.CSV"])
def test_a_compressed_table_is_the_task_that_it_is_unpacked(
    cloze: Callable[..., Any], folder: Path, name: str, suffix: str
) -> None:
    pack = {".gz": gzip.compress, ".bz2": bz2.compress, ".xz": lzma.compress}
    separator = "\t" if name.endswith("tsv") else ","
    rows = [(f"A text {number}", "yes" if number % 2 else "no") for number in range(40)]
    text = "".join(f"{separator.join(row)}\n" for row in [("text", "label"), *rows])
    if name.endswith("jsonl"):
        text = "".join(json.dumps({"text": one, "label": label}) + "\n" for one, label in rows)
    (folder / name).write_text(text)
    packed = folder / f"{name}{suffix}"
    packed.write_bytes(pack.get(suffix, zstandard.compress)(text.encode()))
    found, plain = (labelled_files(find_files(str(one))) for one in (packed, folder / name))
    assert found is not None and plain is not None
    assert replace(found, paths={}) == replace(plain, paths={})
    assert found.labels == {"no": 20, "yes": 20}
    wanted = Wanted(required=("text", "label"))
    table, same = (read_table(str(one), wanted) for one in (packed, folder / name))
    assert table.columns == same.columns


def test_a_compressed_table_that_is_cut_short_is_refused(folder: Path) -> None:
    for pack, suffix in ((gzip.compress, ".gz"), (lzma.compress, ".xz")):
        packed = folder / f"cut.csv{suffix}"
        packed.write_bytes(pack("".join(LABELLED * 99).encode())[:-20])
        for read in (read_table, lambda path, _: labelled_files(find_files(path))):
            with pytest.raises(UsageError, match=rf"cut\.csv\{suffix}: damaged or incomplete \("):
                read(str(packed), Wanted(required=("text",)))


@pytest.mark.parametrize("names", [("1", "1.0"), ("0.0", "0")])
def test_spellings_of_one_number_are_one_label_which_is_too_few(
    folder: Path, names: tuple[str, str]
) -> None:
    rows = "".join(f"text {number},{names[number % 2]}\n" for number in range(20))
    (folder / "t.csv").write_text(f"text,label\n{rows}")
    with pytest.raises(UsageError, match=r"label has one value only, '[01]', expected two labels"):
        labelled_files(find_files("t.csv"), trains=True)


@pytest.mark.parametrize(
    ("labels", "said"),
    [
        (("0.5", "high", "0.25"), "labels are numbers but for high: classes; for regression"),
        (("1", "2", "NaN"), "labels are numbers but for NaN: classes; for regression"),
        (("ok", "nan", "bad"), "a label is spelt nan, which training refuses unless"),
        (("1", "2", "3"), ""),
        (("1", "other", "none"), ""),
    ],
)
def test_labels_that_are_numbers_but_for_some_are_said(
    folder: Path, labels: tuple[str, ...], said: str
) -> None:
    rows = "".join(f"text {number},{labels[number % 3]}\n" for number in range(30))
    (folder / "t.csv").write_text(f"text,label\n{rows}")
    found = labelled_files(find_files("t.csv"))
    assert found is not None
    assert [note.startswith(said) for note in found.notes][:1] == [True] * bool(said)


def test_numbers_with_an_exponent_make_a_regression(folder: Path) -> None:
    rows = "".join(f"text {n},{number!r}\n" for n, number in enumerate([1e-05, 0.5, 2.5e-07] * 40))
    (folder / "t.csv").write_text(f"text,label\n{rows}")
    found = labelled_files(find_files("t.csv"))
    assert found is not None and found.kind == "regression"


def test_labels_with_one_row_are_named_before_training_refuses_them(folder: Path) -> None:
    rows = "".join(f"text {number},{'ab'[number % 2]}\n" for number in range(20))
    (folder / "t.csv").write_text(f"text,label\n{rows}rare one,c\n")
    found = labelled_files(find_files("t.csv"))
    assert found is not None
    (note,) = found.notes
    assert note == (
        "labels with one row, which cross-validation refuses: c; label two or more of each, or "
        "remove them"
    )


def test_an_empty_table_is_refused_by_init(cloze: Callable[..., Any], folder: Path) -> None:
    (folder / "empty.csv").write_bytes(b"")
    done = cloze("init", "empty.csv")
    assert done.returncode == 2
    assert "empty.csv: empty file, expected a header line and rows" in done.stderr


def rows_of(*columns: list[str]) -> str:
    return "".join(",".join(row) + "\n" for row in zip(*columns, strict=True))


NUMBERS = [str(number) for number in range(60)]
TOPICS = ["bill", "ship", "refund"] * 20
TEXTS = [f"The body of message {number}" for number in range(60)]


@pytest.mark.parametrize(
    ("header", "columns", "label", "others"),
    [
        ("n,kind,same,body", (NUMBERS, TOPICS, ["x"] * 60, TEXTS), "kind", ""),
        (
            "n,urgent,kind,body",
            (NUMBERS, ["yes", "no"] * 30, TOPICS, TEXTS),
            "kind",
            "urgent (2 values)",
        ),
        (
            "urgent,airline_sentiment,airline_sentiment_gold,body",
            (["yes", "no"] * 30, TOPICS, ["bill"] + [""] * 59, TEXTS),
            "airline_sentiment",
            "",
        ),
        ("label,urgent,body", (["x"] * 60, ["yes", "no"] * 30, TEXTS), "urgent", ""),
        ("n,label,body,n", (NUMBERS, TOPICS, TEXTS, ["a", "b"] * 30), "label", ""),
        ("kind,body,kind", (TOPICS, TEXTS, ["a", "b"] * 30), "", ""),
    ],
    ids=["constant", "yes or no", "name", "constant label", "same names", "only same names"],
)
def test_the_label_is_a_column_that_could_be_one_and_others_are_named(
    folder: Path, header: str, columns: tuple[list[str], ...], label: str, others: str
) -> None:
    (folder / "table.csv").write_text(f"{header}\n{rows_of(*columns)}")
    found = labelled_files(find_files("table.csv"))
    assert (found.columns["label"] if found else "") == label
    assert others in " ".join(found.notes if found else ())


def test_labels_are_counted_in_the_whole_file_or_in_rows_that_are_numbered(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    row = '"Two lines\nof text",good\n"One line",bad\n'
    (folder / "table.csv").write_text("text,label\n" + row * 50_000)
    whole = labelled_files(find_files("table.csv"))
    assert whole is not None
    assert whole.description.endswith("labels: good 50,000, bad 50,000")
    monkeypatch.setattr("cloze.init.labelled_files.SAMPLED_BYTES", 1000)
    begun = labelled_files(find_files("table.csv"))
    assert begun is not None
    assert re.search(r"labels of the first (\d\d) rows: ", begun.description)
    assert sum(begun.labels.values()) == begun.first_rows


def test_labels_that_differ_in_case_or_spaces_are_two_and_said_to_be(
    cloze: Callable[..., Any], folder: Path
) -> None:
    labels = ["negative", "Negative ", "positive"] * 20
    (folder / "table.csv").write_text("text,label\n" + rows_of(TEXTS, labels))
    done = cloze("init", "table.csv", "--output", "task.toml")
    told = "'negative', 'Negative ' are 2 labels; if they mean the same, spell them alike"
    assert told in done.stdout
    assert f"# {told}." in (folder / "task.toml").read_text()


@pytest.mark.parametrize(
    ("rows", "told"),
    [
        ("a text,caf\u00e9\nb,cafe\u0301\n", "'caf\\xe9', 'cafe\\u0301' are 2 labels"),
        ("a text,x\nb,y\nc, d,x\n", "rows with more or fewer cells than the header"),
        ("a text,x\nb,y\nc,\n", "rows without a label, which training refuses: 1"),
        ("a text,label\nb,y\n", "but 'label' is also a label"),
        ("a text,x\u200b\n", r"'x', 'x\u200b' are 2 labels"),
    ],
    ids=["accents", "ragged", "blank", "no header", "invisible"],
)
def test_what_is_odd_about_a_table_is_said(
    cloze: Callable[..., Any], folder: Path, rows: str, told: str
) -> None:
    (folder / "table.csv").write_text("text,label\n" + "more text,x\nmore text,y\n" * 9 + rows)
    done = cloze("init", "table.csv")
    assert done.returncode == 0, done.stderr
    assert told in done.stdout


@pytest.mark.parametrize(
    ("content", "told"),
    [
        ("label,text,label\n" + "x,some text,y\n" * 9, "columns that share the name 'label'"),
        ("text,label\n" + "some text,x\n" * 9, "label has one value only"),
        ("text,label\n" + "some text,\n" * 9, "label is blank in every row"),
        (
            "text,label\n" + "".join(f"some text,title {n}\n" for n in range(90)),
            "label has 90 values in 90 rows, too many for labels",
        ),
        ("text|label\n" + "some text|x\nmore|y\n" * 9, "a table by its name, but neither commas"),
    ],
    ids=["same names", "one label", "no label", "titles", "other separator"],
)
def test_a_table_that_is_not_taken_for_a_task_is_told_why(
    cloze: Callable[..., Any], folder: Path, content: str, told: str
) -> None:
    (folder / "table.csv").write_text(content)
    assert told in cloze("init", "table.csv").stderr


@pytest.mark.parametrize(("label", "told"), [("x", "has one value only, 'x'"), ("", "is blank")])
def test_an_encoder_is_not_trained_on_the_texts_of_a_table_whose_label_says_nothing(
    cloze: Callable[..., Any], folder: Path, label: str, told: str
) -> None:
    write_model(folder / "encoder")
    rows = "".join(f"some text,{label},{number % 2}\n" for number in range(9))
    (folder / "table.csv").write_text("text,label,long\n" + rows)
    done = cloze("init", "table.csv", "--from", "encoder", "--output", "task.toml")
    assert done.returncode == 2
    assert f"table.csv: label {told}" in done.stderr
    assert not (folder / "task.toml").exists()


RATED = [{"text": f"some text {n}", "label": ["good", "bad"][n % 2], "n": n} for n in range(20)]


@pytest.mark.parametrize(
    ("name", "rows", "kind"),
    [
        ("rows.jsonl", RATED, "classification"),
        ("rows.json", RATED, "classification"),
        ("rows.parquet", RATED, "classification"),
        ("lists.jsonl", [{**row, "label": ["a", "b"][: row["n"] % 3]} for row in RATED], "multi"),
        ("corpus.jsonl", [{"text": row["text"], "source": row["label"]} for row in RATED], ""),
        ("nested.jsonl", [{**row, "label": {"name": row["label"]}} for row in RATED], ""),
    ],
)
def test_objects_with_a_label_become_a_task_and_others_remain_documents(
    folder: Path,
    name: str,
    rows: list[dict[str, Any]],
    kind: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    if name.endswith("parquet"):
        pa.parquet.write_table(pa.Table.from_pylist(rows), name)
    else:
        lines = "".join(json.dumps(row) + "\n" for row in rows)
        (folder / name).write_text(json.dumps(rows) if name.endswith("json") else lines)
    found = labelled_files(find_files(name), trains=True)
    assert (found.kind if found else "").startswith(kind) and bool(kind) == bool(found)
    assert ("label holds objects" in capsys.readouterr().err) == (name == "nested.jsonl")
    if found:
        assert found.columns == {"text_a": "text", "label": "label"}
        assert found.rows == 20
        assert "label_separator" not in found.settings


@pytest.mark.parametrize(
    ("header", "told"),
    [
        ("text,label,text", "2 columns are named 'text', expected one; rename the others"),
        ("label,label,text", "2 columns are named 'label', expected one"),
    ],
)
def test_an_encoder_is_not_trained_on_a_table_with_two_columns_of_texts_or_labels(
    folder: Path, header: str, told: str
) -> None:
    (folder / "table.csv").write_text(header + "\n" + "one,two,three\nfour,five,six\n" * 9)
    with pytest.raises(UsageError, match=told):
        labelled_files(find_files("table.csv"), trains=True)


@pytest.mark.parametrize("header", ["text,label", "words,tags"])
def test_a_tag_for_each_word_is_no_label_of_a_table(folder: Path, header: str) -> None:
    rows = "".join("John lives here,B-PER O O\nMary ran,B-PER O\n" for _ in range(9))
    (folder / "table.csv").write_text(f"{header}\n{rows}")
    with pytest.raises(UsageError, match="has a tag for each word of .*as .jsonl"):
        labelled_files(find_files("table.csv"))


def test_a_label_of_several_words_that_another_column_repeats_is_no_tag(folder: Path) -> None:
    rows = "".join(f"some text {n},not spam,not spam\nmore of it,spam,spam\n" for n in range(9))
    (folder / "table.csv").write_text("text,label,guess\n" + rows)
    found = labelled_files(find_files("table.csv"))
    assert found and found.labels == {"not spam": 9, "spam": 9}


def test_whole_numbers_that_pandas_wrote_as_decimals_are_classes(folder: Path) -> None:
    (folder / "table.csv").write_text("text,label\n" + "some text,1.0\nother,0.0\nmore,0\n" * 9)
    found = labelled_files(find_files("table.csv"))
    assert found and (found.kind, found.labels) == ("classification", {"0": 18, "1": 9})


def test_a_configuration_for_an_encoder_of_few_positions_fits_them(
    cloze: Callable[..., Any], folder: Path
) -> None:
    write_model(folder / "encoder")
    (folder / "table.csv").write_text("text,label\n" + "some text,x\nother,y\n" * 5)
    done = cloze("init", "table.csv", "--from", "encoder", "--output", "task.toml")
    assert done.returncode == 0, done.stderr
    assert read_toml("task.toml")["finetune"]["tasks"][0]["max_seq_length"] == 16
    assert cloze("plan", "task.toml").returncode == 0


def test_dozens_of_labels_are_labels_where_they_recur(
    cloze: Callable[..., Any], folder: Path
) -> None:
    rows = "".join(f"some text {number},intent {number % 77}\n" for number in range(8 * 77))
    (folder / "table.csv").write_text("text,label\n" + rows)
    assert cloze("init", "table.csv", "--output", "task.toml").returncode == 0
    (task,) = read_toml(folder / "task.toml")["finetune"]["tasks"]
    assert (task["kind"], task["columns"]["label"]) == ("classification", "label")


def test_rows_that_nobody_has_labelled_yet_are_left_out_by_the_configuration(
    cloze: Callable[..., Any], folder: Path
) -> None:
    labels = [*("good", "bad") * 10, *[""] * 2000]
    rows = "".join(f"some text {number},{label}\n" for number, label in enumerate(labels))
    (folder / "table.csv").write_text("text,label\n" + rows)
    done = cloze("init", "table.csv", "--output", "task.toml")
    assert "rows without a label, which are left out: 2,000" in done.stdout
    settings = read_toml(folder / "task.toml")["finetune"]
    assert settings["tasks"][0]["skip_unlabelled_rows"] is True
    assert "choose" in settings  # twenty labels are few


def test_a_quoting_that_training_refuses_is_refused_by_init(
    cloze: Callable[..., Any], folder: Path
) -> None:
    rows = "".join(f'"Some \\"text\\" {number}",{number % 2}\n' for number in range(20))
    (folder / "table.csv").write_text("text,label\n" + rows)
    done = cloze("init", "table.csv")
    assert (done.returncode, done.stdout) == (2, "")
    assert "a .csv is quoted as in RFC 4180, name the file .tsv" in done.stderr


def test_a_path_to_a_model_is_written_for_any_working_directory(
    cloze: Callable[..., Any], folder: Path
) -> None:
    write_model(folder / "encoder")
    (folder / "table.csv").write_text("text,label\n" + rows_of(TEXTS, TOPICS))
    (folder / "texts" / "two.txt").write_text(PARAGRAPH)
    for source, output in (("table.csv", "task.toml"), ("texts", "further.toml")):
        done = cloze("init", source, "--from", "./texts/../encoder", "--output", output)
        assert done.returncode == 0, done.stderr
    encoder = str(folder / "encoder")
    assert read_toml(folder / "task.toml")["finetune"]["encoder"] == encoder
    assert read_toml(folder / "further.toml")["pretrain"]["init"] == encoder


def test_each_file_of_a_corpus_is_sorted_into_its_group_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(20):
        (tmp_path / f"{number}.txt").write_text("A sentence of prose. Another one.\n" * 9)
    (tmp_path / "packed.txt").write_bytes(b"PK\3\4" + bytes(range(256)) * 9)  # left out
    grouped: list[str] = []
    group_of = corpus_files._group
    monkeypatch.setattr(corpus_files, "_group", lambda path: grouped.append(path) or group_of(path))
    assert look(str(tmp_path)).files == 20
    assert len(grouped) == 21
