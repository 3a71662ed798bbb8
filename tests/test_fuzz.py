"""Bytes from elsewhere, damaged at random: every reader gives documents or one of our errors.

`make fuzz` tries for as long as one wants; here each reader gets a few seconds. A crash of the
interpreter is found as well: it ends the tests.
"""

import gzip
import io
import json
import os
import struct
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.numpy import save
from tokenizers import Tokenizer
from tokenizers.models import WordPiece

from cloze.artifacts.errors import ClozeError
from cloze.artifacts.manifest import parse_manifest
from cloze.artifacts.tokenizer import read_tokenizer_json
from cloze.model.hugging_face.layout import LAYOUTS
from cloze.model.hugging_face.source import open_source, read_weights
from cloze.pipeline.config.settings import SourceConfig
from cloze.pipeline.readers.documents import Piece
from cloze.pipeline.readers.input_shards import reader_named

EXAMPLES = int(os.environ.get("CLOZE_FUZZ_EXAMPLES", "150"))
"""Damaged files a reader; whoever asks for more gets others each time (tests/conftest.py)."""

FUZZ = settings(
    max_examples=EXAMPLES,
    database=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)

TEXTS = ["The first document.\nIt goes on.", "A second one, with ümlauts.", ""] * 5


def arrow(writer: Callable[..., pa.ipc.RecordBatchFileWriter]) -> bytes:
    sink, table = io.BytesIO(), pa.table({"text": TEXTS, "number": range(len(TEXTS))})
    with writer(sink, table.schema) as opened:
        opened.write_table(table, max_chunksize=4)
    return sink.getvalue()


def parquet() -> bytes:
    sink = io.BytesIO()
    pq.write_table(pa.table({"text": TEXTS}), sink, row_group_size=4)
    return sink.getvalue()


def pages() -> bytes:
    page = "<page><title>{}</title><ns>0</ns><text bytes='9'>{{{{a|[[b]]}}}} {}</text></page>\n"
    return "".join(page.format(number, text) for number, text in enumerate(TEXTS)).encode()


PLAIN = "\n\n".join(TEXTS).encode()
ARTICLES = "".join(f'<doc id="1" title="T">\nT\n{text}\n</doc>\n' for text in TEXTS).encode()
CORPORA: dict[str, tuple[str, bytes]] = {
    "text": ("text", PLAIN),
    "gzip": ("text", gzip.compress(PLAIN)),
    "zstd": ("text", zstandard.compress(PLAIN)),
    "blank_line_text": ("blank_line_text", PLAIN),
    "sentence_lines": ("sentence_lines", PLAIN),
    "jsonl": ("jsonl", "".join(json.dumps({"text": text}) + "\n" for text in TEXTS).encode()),
    "parquet": ("parquet", parquet()),
    "arrow file": ("arrow", arrow(pa.ipc.new_file)),
    "arrow stream": ("arrow", arrow(pa.ipc.new_stream)),
    "wikiextractor": ("wikiextractor", ARTICLES),
    "mediawiki": ("mediawiki", pages()),
}

DAMAGE = st.lists(
    st.one_of(
        st.tuples(st.just("set"), st.integers(0, 1 << 20), st.integers(0, 255)),
        st.tuples(st.just("cut"), st.integers(0, 1 << 20), st.just(0)),
        st.tuples(st.just("put"), st.integers(0, 1 << 20), st.integers(0, 255)),
    ),
    max_size=8,
)


def damaged(content: bytes, damage: list[tuple[str, int, int]]) -> bytes:
    """`content` with bytes changed, put in, and its end cut off."""
    found = bytearray(content)
    for kind, place, value in damage:
        at = place % (len(found) + 1)
        if kind == "cut" and value == 0 and at > len(found) // 2:
            del found[at:]
        elif kind == "put":
            found[at:at] = bytes([value]) * (value % 9)
        elif at < len(found):
            found[at] = value
    return bytes(found)


@pytest.mark.parametrize("name", CORPORA)
def test_a_damaged_corpus_gives_documents_or_an_error_that_names_the_file(
    name: str, tmp_path: Path
) -> None:
    reader, content = CORPORA[name]
    path = tmp_path / "corpus"

    @FUZZ
    @given(DAMAGE)
    def attack(damage: list[tuple[str, int, int]]) -> None:
        path.write_bytes(damaged(content, damage))
        source = SourceConfig(reader=reader, path=str(path))
        try:
            for block in reader_named(reader).read(Piece(str(path)), source):
                assert len(block.text) == (block.ends[-1] if len(block.ends) else 0)
        except ClozeError as error:
            assert str(path) in str(error)

    attack()


def tokenizer_json() -> bytes:
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "b", "##a"]
    model = WordPiece(dict(zip(words, range(8), strict=True)), unk_token="[UNK]")
    return Tokenizer(model).to_str().encode()


@FUZZ
@given(DAMAGE)
def test_a_damaged_tokenizer_is_read_or_refused(
    tmp_path_factory: pytest.TempPathFactory, damage: list[tuple[str, int, int]]
) -> None:
    path = tmp_path_factory.getbasetemp() / "tokenizer.json"
    path.write_bytes(damaged(tokenizer_json(), damage))
    try:
        read_tokenizer_json(path)
    except ClozeError as error:
        assert str(path) in str(error)


@FUZZ
@given(DAMAGE, st.integers(0, 1 << 64 - 1))
def test_damaged_weights_are_read_or_refused(
    tmp_path_factory: pytest.TempPathFactory, damage: list[tuple[str, int, int]], header: int
) -> None:
    folder = tmp_path_factory.getbasetemp() / "model"
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text("{}")
    whole = save({"encoder.a": np.zeros((2, 3), np.float32), "bias": np.ones(4, np.float32)})
    for content in (damaged(whole, damage), struct.pack("<Q", header) + whole[8:]):
        (folder / "model.safetensors").write_bytes(content)
        try:
            read_weights(open_source(folder), LAYOUTS["bert"])
        except ClozeError as error:
            assert str(folder) in str(error)


MANIFEST = {
    "manifest_version": 1,
    "stage": "tokens",
    "key": "0" * 64,
    "format_version": 1,
    "config": {"a": [1, {"b": None}]},
    "inputs": {"corpus": "1" * 64},
    "files": [{"name": "a.arrow", "size": 1, "sha256": "2" * 64}],
}
JSON = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=8)),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.text(), inner)),
    max_leaves=6,
)


@FUZZ
@given(DAMAGE, st.dictionaries(st.sampled_from(sorted(MANIFEST)), JSON, max_size=3))
def test_a_damaged_manifest_is_read_or_refused(
    damage: list[tuple[str, int, int]], changes: dict[str, object]
) -> None:
    for content in (
        damaged(json.dumps(MANIFEST).encode(), damage),
        json.dumps({**MANIFEST, **changes}).encode(),
    ):
        try:
            assert parse_manifest(content, source="here").digest
        except ClozeError as error:
            assert "here" in str(error)
