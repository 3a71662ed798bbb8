"""Byte-level ids of blocks equal those of running text, sentence by sentence."""

from pathlib import Path

import numpy as np

from cloze.artifacts.tokenizer import ByteLevelTokenizer
from cloze.pipeline.tokenizer.byte_level import ByteLevel, with_spaces
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
    assert isinstance(form, ByteLevel)
    documents = ["".join(f"{sentence}\n" for sentence in one).encode() for one in DOCUMENTS]
    text = np.frombuffer(b"".join(documents), dtype=np.uint8)
    ends_S = np.flatnonzero(text == ord("\n")) + 1
    spaced, spaced_ends_S = with_spaces(text, ends_S, np.cumsum([len(one) for one in documents]))
    ids, counts_S = form.encode(spaced.tobytes(), spaced_ends_S)
    assert ids.dtype == np.uint16
    per_sentence = np.split(ids, counts_S[:-1])
    number = 0
    for sentences in DOCUMENTS:
        found = np.concatenate(per_sentence[number : number + len(sentences)])
        assert found.tolist() == tokenizer.encode(" ".join(filter(None, sentences)))
        lengths = [len(one) > 0 for one in per_sentence[number : number + len(sentences)]]
        assert lengths == [bool(sentence) for sentence in sentences]
        number += len(sentences)


def test_nothing_has_no_tokens(tmp_path: Path) -> None:
    tokenizer = byte_level(tmp_path)
    assert isinstance(tokenizer, ByteLevelTokenizer)
    nothing = np.zeros(0, dtype=np.uint8)
    text, ends = with_spaces(nothing, np.zeros(0, np.int64), np.zeros(0, np.int64))
    ids, counts = ByteLevel(tokenizer).encode(text.tobytes(), ends)
    assert len(ids) == len(counts) == 0
