"""Our WordPiece gives the same ids as `tokenizers` on every text."""

import functools
import os
import subprocess
import sys
import unicodedata
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cloze.artifacts.tokenizer import SPECIAL_TOKENS, WordPieceTokenizer, read_vocab_txt
from cloze.pipeline.tokenizer import wordpiece
from cloze.pipeline.tokenizer.wordpiece import ArrowWordPiece, CompiledWordPiece, Form, form_for
from tests.conftest import PROJECT

LETTERS = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"
PIECES = (
    *SPECIAL_TOKENS,
    *LETTERS,
    *(f"##{letter}" for letter in LETTERS),
    *"!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~–—“”’…、。，中国人日本",
    *("the", "they", "##ing", "##er", "mask", "hello", "internationalisation", "##äß", "naive"),
    *(
        "caf",
        "##é",
        "é",
        "ß",
        "##ß",
        "σ",
        "##σ",
        "ς",
        "i",
        "ı",
        "к",
        "##к",
        "а",
        "##а",
        "한",
        "##국",
    ),
    *("\u302e", "##\u302e", "##\u0301", "\u0301", "##\u0338", "##ς", "##ı", "##İ", "İ"),
    *("ᄒ", "##ᅡ", "##ᆫ", "ก", "##ำ", "ा", "##ा", "क", "##क", "\U0001f600", "##\U0001f600"),
)


@functools.cache
def tokenizer(*, lowercase: bool) -> WordPieceTokenizer:
    return WordPieceTokenizer(tuple(dict.fromkeys(PIECES)), lowercase)


NAMES = ("compiled", "arrow")


def form(name: str, tokenizer: WordPieceTokenizer) -> Form:
    if name == "arrow":
        return ArrowWordPiece(tokenizer)
    library = wordpiece.wordpiece_library()
    if library is None:
        pytest.skip("no gcc here to compile the kernel with")
    return CompiledWordPiece(tokenizer, library)


CONTROLS = bytes(byte for byte in (*range(0x20), 0x7F) if chr(byte) not in "\t\n\r")
"""Bytes that BERT's normaliser deletes, as cleaning does; it turns the others into spaces."""


def encode_text(form: Form, text: str) -> list[int]:
    raw = text.encode("utf-8", "replace").translate(None, CONTROLS)
    return [int(index) for index in form.encode(raw, np.array([len(raw)]))[0]]


@functools.cache
def fast(name: str, *, lowercase: bool) -> Form:
    return form(name, tokenizer(lowercase=lowercase))


@pytest.fixture(params=NAMES)
def name(request: pytest.FixtureRequest) -> str:
    """Run every test for both implementations."""
    return str(request.param)


CHARACTERS = st.characters(exclude_categories=["Cs"])
NEAR = st.text(
    st.sampled_from("aAéÉßİıΣςσ\u0301\u0300\u0338\u0345한국ำก\u302e中–—“’. \t[]-ⅷﬁ㎏\x00\x1c\x85"),
    max_size=30,
)


@pytest.mark.parametrize("name", NAMES)
@given(text=st.one_of(st.text(CHARACTERS, max_size=60), NEAR), lowercase=st.booleans())
@settings(max_examples=1000)
def test_random_unicode_gives_the_ids_of_tokenizers(name: str, text: str, lowercase: bool) -> None:
    assert encode_text(fast(name, lowercase=lowercase), text) == tokenizer(
        lowercase=lowercase
    ).encode(text)


@pytest.mark.parametrize("lowercase", [True, False])
def test_every_character_gives_the_ids_of_tokenizers(name: str, lowercase: bool) -> None:
    ours, theirs = fast(name, lowercase=lowercase), tokenizer(lowercase=lowercase)
    codes = [code for code in range(0x20000) if not 0xD800 <= code < 0xE000]
    for start in range(0, len(codes), 1024):
        text = " ".join(f"a{chr(code)}b{chr(code)}" for code in codes[start : start + 1024])
        assert encode_text(ours, text) == theirs.encode(text), f"from U+{codes[start]:04X} on"


SPECIAL_CASES = [
    "",
    " ",
    "\n\n",
    "[MASK] is text, [CLS][SEP] too, and [mask]",
    "word of 10^6 characters: " + "x" * 1_000_000,
    "a" * 99 + " " + "a" * 100 + " " + "a" * 101,
    "é" * 100 + " " + "é" * 101,
    "\u202eright to left\u202c שלום עולם مرحبا",
    "emoji 👩‍👩‍👧‍👦 👍🏽 \U0001f1e8\U0001f1ed",
    "combining e\u0301 e\u0301\u0302 \u0301alone",
    "İstanbul ısı DİYARBAKIR ı",
    "ΌΣΟΣ ὈΔΥΣΣΕΎΣ",
    "한국어 각 \u1112\u1161\u11ab",
    "中文分词，没有空格。『引号』！？",
    "ひらがなとカタカナ、漢字。",
    "don’t—really “quoted”…",
    "nul\x00byte \x1c\x1d\x1e\x1f \x0b\x0c \x85 \x7f \u2028\u2029 \ufeff",
    "zero\u200bwidth soft\u00adhyphen non\u00a0breaking",
    "\u302e\u0301 \U0001d165\u0301 \u0340\u0341 \u0344",
    "≮ ≯ ≠ Å K ﬁ ㎏ ⅷ",
    "\ufffd replaced \ue000 private \U000e0041 tag",
]


@pytest.mark.parametrize("lowercase", [True, False])
@pytest.mark.parametrize("text", SPECIAL_CASES, ids=lambda text: ascii(text)[:40])
def test_special_cases_give_the_ids_of_tokenizers(name: str, text: str, lowercase: bool) -> None:
    assert encode_text(fast(name, lowercase=lowercase), text) == tokenizer(
        lowercase=lowercase
    ).encode(text)


ACCENTS = [
    "है वह घर में हैं",
    "Её Йод й ё ЁЛКА",
    "İstanbul ıI ß ẞ",
    "e\u0301te\u0301 ÉTÉ a\u0323\u0301 a\u0301\u0323",
    "がぎ ガ カ\u3099 ﾊﾟ",
    "ที่นี่ ไทย 한국어 각",
    "ΆΈ ςΣ Å \u212b Ｆｕｌｌ é。中é文",
]


@pytest.mark.parametrize("lowercase", [True, False])
@pytest.mark.parametrize("strip_accents", [True, False])
def test_case_and_accents_are_two_settings(name: str, lowercase: bool, strip_accents: bool) -> None:
    characters = {
        one
        for text in ACCENTS
        for cased in (text, text.lower())
        for one in cased + unicodedata.normalize("NFD", cased)
        if not one.isspace()
    }
    pieces = (*SPECIAL_TOKENS, *sorted(characters), *(f"##{one}" for one in sorted(characters)))
    both = WordPieceTokenizer(pieces, lowercase, strip_accents)
    for text in ACCENTS:
        assert encode_text(form(name, both), text) == both.encode(text)
    kept = both.backend.normalizer.normalize_str("Éé हैĐ")
    assert (
        kept
        == {
            (True, True): "ee हđ",
            (True, False): "éé हैđ",
            (False, True): "Ee हĐ",
            (False, False): "Éé हैĐ",
        }[lowercase, strip_accents]
    )


def test_an_unpaired_surrogate_is_no_reason_to_stop(name: str) -> None:
    assert encode_text(fast(name, lowercase=True), "a \ud83d b") == encode_text(
        fast(name, lowercase=True), "a ? b"
    )


def test_special_tokens_never_come_from_text(name: str) -> None:
    text = " ".join(SPECIAL_TOKENS) + " [PAD] [unused1]"
    special = tokenizer(lowercase=False).special_ids - {tokenizer(lowercase=False).unk_id}
    assert special.isdisjoint(encode_text(fast(name, lowercase=False), text))


def test_ids_do_not_depend_on_what_was_met_before(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wordpiece, "MAX_ENTRIES", 400)  # clears the cache again and again
    forgetful = form(name, tokenizer(lowercase=True))
    text = " ".join(
        f"w{number} x{number * 7}y internationalisation{number}" for number in range(3000)
    )
    assert encode_text(forgetful, text) == tokenizer(lowercase=True).encode(text)


def test_counts_before_line_ends_are_those_of_the_lines_alone(name: str) -> None:
    lines = ["hello they", "", "中文 (x)", "é" * 200, "internationalisation of the hello"] * 50
    raw = "".join(f"{line}\n" for line in lines).encode()
    ends = np.flatnonzero(np.frombuffer(raw, np.uint8) == 10) + 1
    ids, before = fast(name, lowercase=True).encode(raw, ends)
    counts = [len(tokenizer(lowercase=True).encode(line)) for line in lines]
    assert np.diff(before, prepend=0).tolist() == counts
    assert len(ids) == sum(counts)


def test_large_vocabularies_have_wide_ids(name: str) -> None:
    words = (*SPECIAL_TOKENS, *(f"w{number}" for number in range(70_000)))
    large = form(name, WordPieceTokenizer(words, lowercase=True))
    assert encode_text(large, "w69999 w0") == [70_004, 5]


@pytest.mark.parametrize("case", ["uncased", "cased"])
def test_real_text_gives_the_ids_of_tokenizers(name: str, shared_data: Path, case: str) -> None:
    path = shared_data / "vocab" / f"bert-base-{case}-vocab.txt"
    real = read_vocab_txt(path, lowercase=case == "uncased")
    ours = form(name, real)
    files = sorted((shared_data / "corpus" / "wikipedia").iterdir())[::60]
    novels = sorted((shared_data / "corpus" / "novels").iterdir())[::12]
    for file in (*files, *novels):
        text = file.read_text("utf-8")[:400_000]
        assert encode_text(ours, text) == real.encode(text), file.name


def test_without_a_compiler_the_same_ids_come_slower(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path))
    wordpiece.wordpiece_library.cache_clear()
    try:
        assert isinstance(form_for(tokenizer(lowercase=True)), ArrowWordPiece)
        assert "no gcc" in capsys.readouterr().err
    finally:
        wordpiece.wordpiece_library.cache_clear()


SHORT = ("a", "##a", "##b", "ab", "##ab", "aba", "##ba", "##bab", "babababab", "##ababababa", "c")
SHORT_TOKENIZER = WordPieceTokenizer((*SPECIAL_TOKENS, *SHORT), lowercase=True)


@pytest.mark.parametrize("name", NAMES)
@given(words=st.lists(st.text("abcd", min_size=1, max_size=16), min_size=1, max_size=80))
@settings(max_examples=200)
def test_the_longest_piece_is_taken_each_time(name: str, words: list[str]) -> None:
    text = " ".join(words)
    assert encode_text(form(name, SHORT_TOKENIZER), text) == SHORT_TOKENIZER.encode(text)


def test_a_vocabulary_without_inner_pieces_knows_whole_words(name: str) -> None:
    whole = WordPieceTokenizer((*SPECIAL_TOKENS, "whole"), lowercase=True)
    assert encode_text(form(name, whole), "whole wholes") == [5, whole.unk_id]


ATTACK = """
import random, sys
sys.path.insert(0, {tests!r})
from test_wordpiece import SPECIAL_CASES, encode_text, tokenizer
from cloze.pipeline.readers.documents import DocumentBlock
from cloze.pipeline.text.cleaning import clean
from cloze.pipeline.tokenizer.wordpiece import form_for
import numpy as np
draw = random.Random(0)
ALPHABETS = (
    *(bytes(range(256)), bytes(range(0xE0, 0xF8)), b"ab", b"a \\n.", b"a\\r\\n", "中 ".encode()),
)
for lowercase in (True, False):
    ours = form_for(tokenizer(lowercase=lowercase))
    assert type(ours).__name__ == "CompiledWordPiece"
    for text in SPECIAL_CASES:
        encode_text(ours, text)
    for size in [*range(70), 127, 128, 129, 4095, 4096, 4097, 100_000]:
        for letters in ALPHABETS:
            raw = bytes(draw.choice(letters) for _ in range(size))
            ends = np.array([size // 2, size])
            ours.encode(raw, ends)
            block = DocumentBlock(np.frombuffer(raw, dtype=np.uint8), ends, ends)
            clean(block, line_break="sentence")
print("survived")
"""


@pytest.mark.slow
def test_hostile_bytes_are_never_read_or_written_out_of_bounds(tmp_path: Path) -> None:
    """Run under GCC's address and undefined-behaviour sanitizers; they abort on any error."""
    runtimes = [
        subprocess.run(
            ["gcc", f"-print-file-name={name}"], capture_output=True, text=True, check=False
        ).stdout.strip()
        for name in ("libasan.so", "libubsan.so")
    ]
    if not all(map(os.path.isabs, runtimes)):
        pytest.skip("no gcc with sanitizers here")
    done = subprocess.run(
        [sys.executable, "-c", ATTACK.format(tests=str(Path(__file__).parent))],
        cwd=PROJECT,
        env={
            **os.environ,
            "PYTHONPATH": str(PROJECT),
            "LD_PRELOAD": " ".join(runtimes),
            "ASAN_OPTIONS": "detect_leaks=0",
            "XDG_CACHE_HOME": str(tmp_path),
            "CLOZE_KERNEL_FLAGS": "-fsanitize=address,undefined -fno-sanitize-recover=all -g",
        },
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.stdout.strip() == "survived", done.stderr[-2000:]


# Every sixth file while testing all else; all of them are minutes, of `tokenizers` itself.
@pytest.mark.slow
@pytest.mark.parametrize(
    ("case", "every"),
    [
        ("uncased", 6),
        pytest.param("uncased", 1, marks=pytest.mark.long),
        pytest.param("cased", 1, marks=pytest.mark.long),
    ],
)
def test_the_corpus_gives_the_ids_of_tokenizers(shared_data: Path, case: str, every: int) -> None:
    path = shared_data / "vocab" / f"bert-base-{case}-vocab.txt"
    real = read_vocab_txt(path, lowercase=case == "uncased")
    forms = [form(name, real) for name in NAMES]
    for folder in ("wikipedia", "novels"):
        for file in sorted((shared_data / "corpus" / folder).iterdir())[::every]:
            text = file.read_text("utf-8")
            expected = real.encode(text)
            for ours in forms:
                assert encode_text(ours, text) == expected, file.name
