"""Bytes from elsewhere, damaged at random: every reader gives documents or one of our errors.

`make fuzz` tries for as long as one wants; here each reader gets a few seconds. A crash of the
interpreter is found as well: it ends the tests.
"""

import bz2
import copy
import gzip
import io
import itertools
import json
import lzma
import os
import struct
from collections.abc import Callable, Iterator
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
from tokenizers.models import BPE, Unigram
from tokenizers.pre_tokenizers import ByteLevel, Metaspace
from tokenizers.processors import TemplateProcessing

from cloze.artifacts.errors import ClozeError
from cloze.artifacts.manifest import parse_manifest
from cloze.artifacts.tokenizer import WordPieceTokenizer, read_tokenizer_json
from cloze.model.hugging_face.layout import LAYOUTS
from cloze.model.hugging_face.model_files import read_encoder_files
from cloze.model.hugging_face.source import open_source, read_weights
from cloze.model.inference.export import contents
from cloze.model.tasks.files.table_files import read_table
from cloze.model.tasks.files.task_table import Wanted
from cloze.pipeline.config.settings import SourceConfig
from cloze.pipeline.readers.documents import Piece
from cloze.pipeline.readers.input_shards import reader_named
from tests.cloze.tiny_model import write_model

EXAMPLES = int(os.environ.get("CLOZE_FUZZ_EXAMPLES", "150"))
"""Damaged files a reader; whoever asks for more gets others each time (tests/conftest.py)."""

FUZZ = settings(
    max_examples=EXAMPLES,
    database=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
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
    "bzip2": ("text", bz2.compress(PLAIN)),
    "xz": ("text", lzma.compress(PLAIN)),
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


QUESTIONS = {
    "data": [
        {
            "title": "T",
            "paragraphs": [
                {
                    "context": "The first.",
                    "qas": [
                        {
                            "id": "q",
                            "question": "Which?",
                            "answers": [{"text": "first", "answer_start": 4}],
                        }
                    ],
                }
            ],
        }
    ]
}
ROWS = [{"text_a": text, "label": label} for text, label in zip(TEXTS, "abc" * 5, strict=True)]
SENTENCE = Wanted(required=("text_a", "label"))
LABELLED: dict[str, tuple[str, bytes, Wanted]] = {
    "csv": (".csv", b"text_a,label\n" + b'"The ""a"", b",x\n' * 9, SENTENCE),
    "tsv": (".tsv", b"text_a\tlabel\n" + 'Ümlaut "a\tx\n'.encode() * 9, SENTENCE),
    "utf-16": (".csv", "text_a,label\nÄ b,x\n".encode("utf-16") * 3, SENTENCE),
    "jsonl": (".jsonl", "".join(json.dumps(row) + "\n" for row in ROWS).encode(), SENTENCE),
    "json": (".json", json.dumps(ROWS).encode(), SENTENCE),
    "squad": (".json", json.dumps(QUESTIONS).encode(), Wanted(required=("question", "context"))),
    "parquet": (".parquet", parquet(), Wanted(required=("text",))),
    "arrow": (".arrow", arrow(pa.ipc.new_file), Wanted(required=("text",))),
    "conll": (
        ".conll",
        b"The O\nUN B-ORG\n\nGo O\n" * 5,
        Wanted(required=("words", "tags"), sentences=True),
    ),
}


@pytest.mark.parametrize("name", LABELLED)
def test_a_damaged_labelled_file_gives_rows_or_an_error_that_names_the_file(
    name: str, tmp_path: Path
) -> None:
    suffix, content, wanted = LABELLED[name]
    path = tmp_path / f"train{suffix}"

    @FUZZ
    @given(DAMAGE)
    def attack(damage: list[tuple[str, int, int]]) -> None:
        path.write_bytes(damaged(content, damage))
        try:
            table = read_table(str(path), wanted)
            assert {len(values) for values in table.columns.values()} <= {len(table)}
        except ClozeError as error:
            assert str(path) in str(error)

    attack()


WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "b", "##a", "ab"]
IDS = {word: number for number, word in enumerate(WORDS)}
AROUND = TemplateProcessing(
    single="[CLS] $A [SEP]", special_tokens=[(word, IDS[word]) for word in ("[CLS]", "[SEP]")]
)


def tokenizer_json(kind: str) -> bytes:
    if kind == "wordpiece":
        return WordPieceTokenizer(tuple(WORDS), lowercase=True).tokenizer_json().encode()
    model = (
        BPE(IDS, [("a", "b")], unk_token="[UNK]")
        if kind == "bpe"
        else Unigram([(word, -1.0) for word in WORDS], unk_id=1)
    )
    tokenizer = Tokenizer(model)
    tokenizer.add_special_tokens(WORDS[:5])
    tokenizer.pre_tokenizer = ByteLevel() if kind == "bpe" else Metaspace()
    tokenizer.post_processor = AROUND
    return tokenizer.to_str().encode()


def changed(value: object, choices: Iterator[int], depth: int = 0) -> object:
    """A JSON value with one value in it replaced, of another type or size."""
    if isinstance(value, dict | list) and value and (depth == 0 or next(choices) % 4):
        keys = list(value) if isinstance(value, dict) else list(range(len(value)))
        key = keys[next(choices) % len(keys)]
        copied = copy.copy(value)
        copied[key] = changed(value[key], choices, depth + 1)  # type: ignore[index]
        return copied
    odd = (None, True, -1, 1 << 70, 1e308, "", "a", "\ud800", "a" * 999, [], {}, [[]], {"a": {}})
    return odd[next(choices) % len(odd)]


CHOICES = st.lists(st.integers(0, 1 << 16), min_size=40, max_size=40)


@pytest.mark.parametrize("kind", ["wordpiece", "bpe", "unigram"])
def test_a_damaged_tokenizer_is_read_or_refused(kind: str, tmp_path: Path) -> None:
    path, content = tmp_path / "tokenizer.json", tokenizer_json(kind)
    path.write_bytes(content)
    assert read_tokenizer_json(path).encode("ab"), "the whole one"

    @FUZZ
    @given(DAMAGE, CHOICES)
    def attack(damage: list[tuple[str, int, int]], choices: list[int]) -> None:
        table = changed(json.loads(content), itertools.cycle(choices))
        for written in (damaged(content, damage), json.dumps(table).encode()):
            path.write_bytes(written)
            try:
                read_tokenizer_json(path).encode("ab ä")
            except ClozeError as error:
                assert str(path) in str(error)

    attack()


MODULES = [
    {"type": "sentence_transformers.models.Transformer", "path": ""},
    {"type": "sentence_transformers.models.Pooling", "path": "1_Pooling"},
    {"type": "sentence_transformers.models.Normalize", "path": "2_Normalize"},
]
CARD = b"---\nlicense: mit\nlicense_name: x\ntags:\n- cloze\n---\n# A model\n"
SHARDS = {"metadata": {}, "weight_map": {"a": "a.safetensors", "b": "b.safetensors"}}


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("README.md", CARD),
        ("modules.json", json.dumps(MODULES).encode()),
        (
            "1_Pooling/config.json",
            b'{"word_embedding_dimension": 8, "pooling_mode_mean_tokens": true}',
        ),
        ("config.json", b""),
        ("model.safetensors.index.json", json.dumps(SHARDS).encode()),
    ],
    ids=["card", "modules", "pooling", "config", "shards"],
)
def test_a_damaged_file_of_a_model_is_read_or_refused(
    name: str, content: bytes, tmp_path: Path
) -> None:
    folder = tmp_path / "model"
    write_model(folder)
    (folder / "1_Pooling").mkdir()
    (folder / "1_Pooling" / "config.json").write_text('{"word_embedding_dimension": 8}')
    (folder / "modules.json").write_text(json.dumps(MODULES))
    content = content or (folder / name).read_bytes()
    if name.endswith(".index.json"):
        (folder / "model.safetensors").unlink()

    @FUZZ
    @given(DAMAGE, CHOICES)
    def attack(damage: list[tuple[str, int, int]], choices: list[int]) -> None:
        written = [damaged(content, damage)]
        if name.endswith(".json"):
            table = changed(json.loads(content), itertools.cycle(choices))
            written.append(json.dumps(table).encode())
        for one in written:
            (folder / name).write_bytes(one)
            try:
                assert contents(read_encoder_files(folder))
            except ClozeError as error:
                assert str(folder) in str(error)

    attack()


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
