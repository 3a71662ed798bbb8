"""Byte-level ids of blocks equal those of running text, sentence by sentence."""

from pathlib import Path

import numpy as np
import pytest

from cloze.artifacts.tokenizer import ByteLevelTokenizer
from cloze.pipeline.text.sentences import split_sentences
from cloze.pipeline.tokenizer.running_text import RunningText
from cloze.pipeline.tokenizer.wordpiece import form_for
from tests.byte_level import byte_level

DOCUMENTS = [
    ["The list of names.", "It isn't 東京 🤗.", "", "A copy."],
    ["(of) names", "naïve café"],
    [""],
    ["list"],
]


def test_a_documents_tokens_are_those_of_its_sentences_joined_by_spaces(tmp_path: Path) -> None:
    tokenizer = byte_level(tmp_path)
    assert isinstance(tokenizer, ByteLevelTokenizer)
    form = form_for(tokenizer)
    assert isinstance(form, RunningText)
    documents = ["".join(f"{sentence}\n" for sentence in one).encode() for one in DOCUMENTS]
    text = np.frombuffer(b"".join(documents), dtype=np.uint8)
    ends_S = np.flatnonzero(text == ord("\n")) + 1
    ends_D = np.cumsum([len(one) for one in documents])
    ids, counts_S = form.encode(text, ends_S, ends_D, np.zeros(0, np.int64))
    assert ids.dtype == np.uint16
    per_sentence = np.split(ids, counts_S[:-1])
    number = 0
    for sentences in DOCUMENTS:
        found = np.concatenate(per_sentence[number : number + len(sentences)])
        assert found.tolist() == tokenizer.encode(" ".join(filter(None, sentences)))
        lengths = [len(one) > 0 for one in per_sentence[number : number + len(sentences)]]
        assert lengths == [bool(sentence) for sentence in sentences]
        number += len(sentences)


@pytest.mark.parametrize(
    ("document", "sentences"),
    [
        ("今天很好。明天呢？好！", ["今天很好。", "明天呢？", "好！"]),
        ("他说：「好。」「不。」", ["他说：「好。」", "「不。」"]),
        ("यह घर है।वह गया। हम आए।", ["यह घर है।", "वह गया।", "हम आए।"]),
        ("東京。 (of) 東京。", ["東京。", "(of) 東京。"]),
    ],
)
def test_sentences_without_a_space_between_them_have_the_ids_of_the_document(
    document: str, sentences: list[str], tmp_path: Path
) -> None:
    tokenizer = byte_level(tmp_path)
    raw = np.frombuffer(f"{document}\n".encode(), dtype=np.uint8)
    text, ends, glued = split_sentences(raw, np.array([len(raw)]))
    assert text.tobytes().decode().splitlines() == sentences
    ends_S = np.flatnonzero(text == ord("\n")) + 1
    ids, counts = RunningText(tokenizer).encode(text, ends_S, ends, glued)
    assert ids.tolist() == tokenizer.encode(document)
    assert (np.diff(counts, prepend=0) > 0).all()


def test_nothing_has_no_tokens(tmp_path: Path) -> None:
    tokenizer = byte_level(tmp_path)
    assert isinstance(tokenizer, ByteLevelTokenizer)
    nothing, nowhere = np.zeros(0, dtype=np.uint8), np.zeros(0, np.int64)
    ids, counts = RunningText(tokenizer).encode(nothing, nowhere, nowhere, nowhere)
    assert len(ids) == len(counts) == 0
