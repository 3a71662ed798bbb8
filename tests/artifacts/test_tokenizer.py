"""The WordPiece tokenizer: BERT's pipeline, with literal special tokens as text."""

import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cloze.artifacts import tokenizer as tokenizer_module
from cloze.artifacts.errors import UsageError
from cloze.artifacts.tokenizer import (
    SPECIAL_TOKENS,
    AddedWord,
    WordPieceTokenizer,
    read_tokenizer_json,
    read_vocab_txt,
)

WORDS = (*SPECIAL_TOKENS, "[", "]", "mask", "un", "##able", "zurich", ".", "a")


def test_a_written_special_token_is_text() -> None:
    tokenizer = WordPieceTokenizer(WORDS, lowercase=True)
    words = [tokenizer.vocabulary[i] for i in tokenizer.encode("[MASK] Zürich unable.")]
    assert words == ["[", "mask", "]", "zurich", "un", "##able", "."]


def test_it_survives_both_file_formats(tmp_path: Path) -> None:
    tokenizer = WordPieceTokenizer(WORDS, lowercase=True)
    (tmp_path / "vocab.txt").write_text(tokenizer.vocab_txt())
    (tmp_path / "tokenizer.json").write_text(tokenizer.tokenizer_json())
    assert read_vocab_txt(tmp_path / "vocab.txt", lowercase=True).digest == tokenizer.digest
    assert read_tokenizer_json(tmp_path / "tokenizer.json").digest == tokenizer.digest


def test_the_digest_sees_case_and_order() -> None:
    swapped = (*WORDS[:-2], WORDS[-1], WORDS[-2])
    digests = {
        WordPieceTokenizer(WORDS, lowercase=True).digest,
        WordPieceTokenizer(WORDS, lowercase=False).digest,
        WordPieceTokenizer(swapped, lowercase=True).digest,
    }
    assert len(digests) == 3


def test_the_digest_sees_every_option_beside_every_other() -> None:
    word = AddedWord("un", normalized=True)
    found = [
        WordPieceTokenizer(
            WORDS, lowercase=True, strip_accents=strip, split_chinese=split, added=added
        ).digest
        for strip in (None, False, True)
        for split in (False, True)
        for added in ((), (word,), (word._replace(single_word=True),))
    ]
    assert len(set(found)) == 18


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ((), "lacks"),
        (SPECIAL_TOKENS[:4], r"lacks \[MASK\]"),
        ((*SPECIAL_TOKENS, "a", "a"), "'a' twice"),
    ],
    ids=["empty", "no-mask", "duplicate"],
)
def test_a_vocabulary_that_cannot_work_is_refused(words: tuple[str, ...], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        WordPieceTokenizer(words, lowercase=True)


def test_files_that_hold_no_tokenizer_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no such vocabulary"):
        read_vocab_txt(tmp_path / "vocab.txt", lowercase=True)
    (tmp_path / "tokenizer.json").write_text('{"model": {"type": "BPE"}}')
    with pytest.raises(UsageError, match="not a tokenizer.json"):
        read_tokenizer_json(tmp_path / "tokenizer.json")


@pytest.mark.parametrize(
    ("pattern", "content", "times"),
    [
        ({"Regex": "(?=.)"}, "x", "128"),  # 2 to the 7th: every letter stays beside its x
        ({"Regex": "b*"}, "x", "128"),
        ({"Regex": ""}, "x", "128"),
        ({"String": ""}, "x", "128"),
        ({"String": "a"}, "aa", "128"),
        ({"Regex": "[ab]"}, "xx", "128"),
        ({"Regex": " {2,}"}, "x", None),  # takes away at least as much as it adds
        ({"Regex": "(?=.)"}, "", None),
    ],
)
def test_replacements_that_would_fill_the_memory_are_refused(
    tmp_path: Path, pattern: dict[str, str], content: str, times: str | None
) -> None:
    step = {"type": "Replace", "pattern": pattern, "content": content}
    words = {word: number for number, word in enumerate(WORDS)}
    table = {
        "normalizer": {"type": "Sequence", "normalizers": [step] * 7},
        "model": {"type": "WordPiece", "vocab": words},
    }
    path = tmp_path / "tokenizer.json"
    path.write_text(json.dumps(table))
    with pytest.raises(UsageError) as refused:
        read_tokenizer_json(path)  # what is let through here is not BERT's pipeline either
    expected = f"its normalizer may make a text {times} times as long"
    assert (expected in str(refused.value)) == (times is not None)


def test_google_ids_on_the_released_vocabulary(shared_data: Path) -> None:
    path = shared_data / "vocab" / "bert-base-uncased-vocab.txt"
    tokenizer = read_vocab_txt(path, lowercase=True)
    assert tokenizer.size == 30522
    assert tokenizer.encode("The man went to [MASK] store") == [
        1996, 2158, 2253, 2000, 1031, 7308, 1033, 3573,
    ]  # fmt: skip


LETTERS = "ab \n\t\u00a0\u0301\u00e9\u4e2d.,[MASK]##\U0001f600"


@given(st.lists(st.text(LETTERS, max_size=60), max_size=4))
@settings(max_examples=200)
def test_a_long_text_has_the_ids_of_its_parts(texts: list[str]) -> None:
    words = (*SPECIAL_TOKENS, "a", "b", "##a", "##b", "e", "ab", ".", "\u4e2d", "[", "]")
    tokenizer = WordPieceTokenizer(words, lowercase=True)
    whole = [tokenizer.encode(text) for text in texts]
    for longest in (1, 3, 10, 1 << 20):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(tokenizer_module, "LONG_TEXT", longest)
            assert tokenizer.encode_all(texts) == whole
            for text in texts:
                parts = [*tokenizer_module._parts(text)]
                assert "".join(parts) == text
