"""Masked sentences from held-out text: from each document in turn, never from training text."""

from itertools import chain
from pathlib import Path

import pyarrow as pa
import pytest

from cloze.artifacts.store import Artifact, commit, put_local_file
from cloze.artifacts.tables import tokens_name, tokens_schema
from cloze.artifacts.tokenizer import MASK, SPECIAL_TOKENS, WordPieceTokenizer
from cloze.model.evaluation.language_model import SENTENCES, heldout_sentences
from tests.model.task_builders import stage_table

WORDS = ("the", "town", "lies", "river", "on", "old", "market", "##s", ".", ",", "and")
TOKENIZER = WordPieceTokenizer((*SPECIAL_TOKENS, *WORDS), lowercase=True)
LONG = "The old towns, and the old market, lies on the river."
SHORT = "The town."


def tokens(
    directory: Path,
    splits: dict[str, list[list[str]]],
    tokenizer: WordPieceTokenizer = TOKENIZER,
) -> Artifact:
    """A tokens artifact from documents, given as sentences."""
    directory.mkdir()
    entries = []
    for split, documents in splits.items():
        encoded = [[tokenizer.encode(text) for text in document] for document in documents]
        columns = {
            "document_digest": [number.to_bytes(16) for number in range(len(documents))],
            "copies": [1] * len(documents),
            "token_ids": [list(chain(*sentences)) for sentences in encoded],
            "sentence_lengths": [list(map(len, sentences)) for sentences in encoded],
        }
        table = pa.table(columns, schema=tokens_schema(tokenizer.size))
        path = directory / "table"
        with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, table.schema) as writer:
            writer.write_table(table)
        name = tokens_name(split, 0)
        entries.append(put_local_file(str(directory), str(path), name=name, rows=len(table)))
    return commit(stage_table("tokens", directory), entries)


def test_each_document_gives_sentences_in_turn_and_the_masked_word_is_the_answer(
    tmp_path: Path,
) -> None:
    documents = [[SHORT, LONG, LONG], [LONG], [SHORT]]
    artifact = tokens(tmp_path / "tokens", {"train": [[LONG] * 9], "heldout": documents})
    found = heldout_sentences(artifact, TOKENIZER, seed=1)
    assert len(found) == 3
    for sentence in found:
        assert sentence.answer in ("town", "market", "lies", "river")
        assert sentence.sentence.replace(MASK, sentence.answer) == LONG.lower()
        assert "towns" not in sentence.answer
    assert heldout_sentences(artifact, TOKENIZER, seed=1) == found


@pytest.mark.parametrize(("documents", "expected"), [([[LONG] * 50], SENTENCES), ([[SHORT]], 0)])
def test_one_document_is_enough_if_it_has_sentences_of_some_length(
    tmp_path: Path, documents: list[list[str]], expected: int
) -> None:
    artifact = tokens(tmp_path / "tokens", {"train": [[LONG]], "heldout": documents})
    assert len(heldout_sentences(artifact, TOKENIZER, seed=1)) == expected


@pytest.mark.parametrize(
    ("sentence", "masked", "answer"),
    [
        ("在 上 ， 「 他 」 也 。", "", ""),
        ("他 ， 在 。 「 」 好", "", ""),
        ("में, है: पहिया में में है।", "में, है: [MASK] में में है।", "पहिया"),
        ("في ، من « منزل » في ؟", "في، من «[MASK]» في؟", "منزل"),
        ("왜 ? 왜 . 왜 , 그녀 .", "왜? 왜. 왜, [MASK].", "그녀"),
    ],
)
def test_words_of_every_script_are_masked_and_written_as_it_is_usual(
    sentence: str, masked: str, answer: str, tmp_path: Path
) -> None:
    pieces = dict.fromkeys(
        sentence.replace("।", " ।").replace(",", " ,").replace(":", " :").split()
    )
    tokenizer = WordPieceTokenizer((*SPECIAL_TOKENS, *pieces), lowercase=True, strip_accents=False)
    artifact = tokens(tmp_path / "tokens", {"heldout": [[sentence]]}, tokenizer)
    (found,) = heldout_sentences(artifact, tokenizer, seed=1)
    if answer:
        assert (found.sentence, found.answer) == (masked, answer)
    else:
        # any of the ideographs
        assert found.sentence.replace(MASK, found.answer) == sentence.replace(" ", "")


def test_without_held_out_text_there_are_none(tmp_path: Path) -> None:
    artifact = tokens(tmp_path / "tokens", {"train": [[LONG] * 9]})
    assert heldout_sentences(artifact, TOKENIZER, seed=1) == ()
