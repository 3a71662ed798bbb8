"""Byte-level BPE: the same ids as transformers, readable tokens, rejected tokenizers."""

import json
from collections.abc import Callable
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
from transformers import PreTrainedTokenizerFast

from cloze.artifacts.errors import UsageError
from cloze.artifacts.tokenizer import CLS, CONTINUATION, MASK, read_tokenizer_json
from tests.byte_level import TEXT, byte_level, byte_level_json

TEXTS = (
    "",
    " ",
    "The list of names",
    " the  list\t of\nnames ",
    "isn't naïve café cafe\u0301 Zürich",
    "東京は日本の首都です。中国",
    "🤗👩\u200d👩\u200d👧 and 🇨🇭",
    "a\u0000b\u0007c\u200bd\ufeff",
    "x" * 3000,
    "3.14159, (nested [brackets]) ... -- ## ###",
    TEXT,
)


@pytest.mark.parametrize("text", TEXTS)
def test_ids_are_those_of_transformers(tmp_path: Path, text: str) -> None:
    ours = byte_level(tmp_path)
    theirs = PreTrainedTokenizerFast(tokenizer_file=str(tmp_path / "tokenizer.json"))
    assert [ours.cls_id, *ours.encode(text), ours.sep_id] == theirs(text)["input_ids"]


@pytest.mark.parametrize("text", ["the [MASK] of", "[MASK][MASK], a", "a\n [MASK]", " [MASK]"])
def test_a_mask_takes_the_space_before_it_along_as_in_transformers(
    tmp_path: Path, text: str
) -> None:
    ours = byte_level(tmp_path)
    theirs = PreTrainedTokenizerFast(tokenizer_file=str(tmp_path / "tokenizer.json"))
    first, *parts = ours.encode_around_masks(text)
    ids = [ours.cls_id, *first]
    for part in parts:
        ids += [ours.mask_id, *part]
    assert [*ids, ours.sep_id] == theirs(text)["input_ids"]
    assert ours.mask_id not in ours.encode(text)  # only `encode_around_masks` treats it as special


def test_its_vocabulary_reads_like_one_of_word_pieces(tmp_path: Path) -> None:
    tokenizer = byte_level(tmp_path)
    pieces = [tokenizer.vocabulary[i] for i in tokenizer.encode("A new array, isn't 東京 of ##")]
    assert pieces[:4] == ["##A", "new", "array", ","]  # no space before the first
    text = " ".join(pieces).replace(f" {CONTINUATION}", "")
    assert text == "##A new array , isn 't 東京 of \\##"
    assert tokenizer.vocabulary[tokenizer.cls_id] == CLS


def test_words_and_sentences_have_the_ids_of_running_text(tmp_path: Path) -> None:
    tokenizer = byte_level(tmp_path)
    for words in (["The", "list", "(", "of", "names", ")", ".", "'s", "東京"], []):
        apart = [tokenizer.encode(word) for word in tokenizer.running(words)]
        assert [*chain.from_iterable(apart)] == tokenizer.encode(" ".join(words))


def test_the_digest_sees_what_changes_ids_and_nothing_else(tmp_path: Path) -> None:
    digest, path = byte_level(tmp_path).digest, tmp_path / "tokenizer.json"

    def changed(change: Callable[[dict[str, Any]], object]) -> str:
        table = json.loads(byte_level_json())
        change(table)
        path.write_text(json.dumps(table))
        return read_tokenizer_json(path).digest

    spelled = [" ".join(merge) for merge in json.loads(byte_level_json())["model"]["merges"]]
    assert changed(lambda table: table["model"].update(merges=spelled)) == digest
    assert changed(lambda table: table.update(truncation=None, padding=None)) == digest
    assert changed(lambda table: table.update(normalizer=None)) != digest
    assert changed(lambda table: table["model"]["merges"].pop()) != digest


def without(token: str) -> Callable[[dict[str, Any]], None]:
    def change(table: dict[str, Any]) -> None:
        for word in table["added_tokens"]:
            if word["content"] == token:
                word["content"] = "<other>"

    return change


def ordinary(token: str) -> Callable[[dict[str, Any]], None]:
    def change(table: dict[str, Any]) -> None:
        for word in table["added_tokens"]:
            word["special"] &= word["content"] != token

    return change


REFUSED: dict[str, tuple[Callable[[dict[str, Any]], object], str]] = {
    "dropout": (lambda table: table["model"].update(dropout=0.1), "model.dropout is 0.1"),
    "no mask": (without(MASK), r"without the special tokens \[MASK\]; BERT's are"),
    "a mask that is text": (ordinary(MASK), r"without the special tokens \[MASK\]"),
    "no template": (
        lambda table: table.update(post_processor=None),
        r"encodes 'a' as \['a'\], expected it between",
    ),
    "damaged": (lambda table: table["model"].update(merges=[["q", "zz"]]), "not a tokenizer.json"),
}


@pytest.mark.parametrize(
    "model",
    [
        {},
        {"vocab": {}, "merges": []},
        {"vocab": {"": 0}, "merges": []},
        {"vocab": 3},
        {"merges": 1},
    ],
)
@pytest.mark.parametrize("steps", [None, 3, [], {"pretokenizers": 3}, {"type": "ByteLevel"}])
def test_a_damaged_file_is_one_line(
    tmp_path: Path, model: dict[str, object], steps: object
) -> None:
    table = {"model": {"type": "BPE", **model}, "pre_tokenizer": steps, "added_tokens": []}
    (tmp_path / "tokenizer.json").write_text(json.dumps(table))
    with pytest.raises(UsageError) as refused:
        read_tokenizer_json(tmp_path / "tokenizer.json")
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("name", REFUSED)
def test_what_would_give_other_ids_is_refused_in_one_line(tmp_path: Path, name: str) -> None:
    change, said = REFUSED[name]
    table = json.loads(byte_level_json())
    change(table)
    (tmp_path / "tokenizer.json").write_text(json.dumps(table))
    with pytest.raises(UsageError, match=said) as refused:
        read_tokenizer_json(tmp_path / "tokenizer.json")
    assert "\n" not in str(refused.value)
