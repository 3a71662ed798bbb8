"""The same documents yield the same text in every file format."""

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from cloze.pipeline.config.settings import CleaningConfig, CorpusConfig
from cloze.pipeline.readers import documents
from cloze.pipeline.readers.input_shards import input_shards
from cloze.pipeline.text import texts
from cloze.pipeline.text.texts import cut_overlapping, cut_passages, read_texts

WRAPPED = """The whale is the largest animal that has ever lived on this
earth, and nobody who has seen one near a ship forgets how
quietly it goes under.

It breathes air. Its young are born alive, and they drink
milk for the better part of a year before they go to hunt.
"""
POEM = "Roses are red,\nviolets are blue,\nsugar is sweet,\nand so are you.\n"
DOCUMENTS = [WRAPPED, POEM, "A paragraph a line, " + "word " * 40 + "ends.\nAnd another one."]


def write(folder: Path, reader: str) -> Path:
    path = folder / f"corpus.{reader}"
    if reader == "text":
        path.mkdir()
        for number, text in enumerate(DOCUMENTS):
            (path / f"{number}.txt").write_text(text)
    elif reader == "jsonl":
        path.write_text("".join(json.dumps({"text": text}) + "\n" for text in DOCUMENTS))
    elif reader == "parquet":
        pq.write_table(pa.table({"text": DOCUMENTS}), path)
    else:
        with pa.ipc.new_file(str(path), pa.schema([("text", pa.string())])) as writer:
            writer.write_table(pa.table({"text": DOCUMENTS}))
    return path


def sentences(path: Path, reader: str, **options: str) -> list[list[str]]:
    """The sentences of each document."""
    table = {"sources": [{"reader": reader, "path": str(path), **options}]}
    corpus = CorpusConfig.model_validate(table)
    found = []
    for shard in input_shards(corpus):
        for block in read_texts(shard, corpus=corpus, cleaning=CleaningConfig()):
            raw, start = block.text.tobytes().decode(), 0
            for end in block.ends_D.tolist():
                found.append(raw[start:end].splitlines())
                start = end
    return found


@pytest.mark.parametrize("reader", ["jsonl", "parquet", "arrow"])
@pytest.mark.parametrize("line_break", ["", "detect", "paragraph", "sentence"])
def test_documents_in_a_table_are_read_like_files_of_text(
    tmp_path: Path, reader: str, line_break: str
) -> None:
    options = {"line_break": line_break} if line_break else {}
    expected = sentences(write(tmp_path, "text"), "text", **options)
    assert sentences(write(tmp_path, reader), reader, **options) == expected


def test_wrapped_lines_are_joined_and_short_lines_are_not(tmp_path: Path) -> None:
    whale, poem, _ = sentences(write(tmp_path, "jsonl"), "jsonl")
    assert len(whale) == 3
    assert all(sentence.endswith(".") for sentence in whale)
    assert len(poem) == 4
    cut, _, _ = sentences(tmp_path / "corpus.jsonl", "jsonl", line_break="paragraph")
    assert len(cut) > 3


@pytest.mark.parametrize("reader", ["jsonl", "parquet", "arrow"])
def test_a_document_that_is_too_long_is_cut_in_a_table_as_in_a_file(
    tmp_path: Path, reader: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    long = " ".join(f"Sentence number {number} of a long story is here." for number in range(400))
    monkeypatch.setitem(globals(), "DOCUMENTS", ["Short before.", long, "Short behind."])
    whole = sentences(write(tmp_path, reader), reader)
    for module in (documents, texts):
        monkeypatch.setattr(module, "MAX_DOCUMENT_BYTES", 1000)
    parts = sentences(tmp_path / f"corpus.{reader}", reader)
    assert len(parts) > 10
    assert all(len("\n".join(part).encode()) <= 1001 for part in parts)
    words = [" ".join(" ".join(part) for part in found).split() for found in (whole, parts)]
    assert words[0] == words[1]


def test_passages_are_whole_sentences_and_lose_nothing() -> None:
    sentences = ["one two three.", "four.", "five six.", "a b c d e f g.", "end."]
    passages = list(cut_passages(sentences, words=4))
    assert passages == ["one two three. four.", "five six.", "a b c d e f g.", "end."]
    assert list(cut_passages([], words=4)) == []


def test_overlapping_passages_begin_with_the_last_sentences_of_the_one_before() -> None:
    sentences = ["one two.", "three.", "four.", "five six seven.", "a b c d e f g.", "end."]
    assert list(cut_overlapping(sentences, words=4, overlap=1)) == [
        *("one two. three. four.", "four. five six seven.", "a b c d e f g.", "end."),
    ]
    assert list(cut_overlapping(sentences, words=4, overlap=0)) == [
        *cut_passages(sentences, words=4)
    ]
