"""Tokens and examples as text that a person can read.

In:  an artifact's Arrow files (artifacts/tables.py) and its tokenizer.
Out: one string per document or example; masked places are marked.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any

import pyarrow as pa

from artifacts.special_tokens import CONTINUATION, MASK
from artifacts.store import Artifact
from artifacts.tokenizer import WordPieceTokenizer, read_tokenizer_json

LABELS = {0: "B follows A", 1: "B is from elsewhere", -1: "one segment"}
"""What a next_sentence_label says."""


@dataclass(frozen=True)
class Row:
    """One document or example, shown."""

    title: str
    """What is known about it."""
    text: str
    """Its text."""


def shown_rows(artifact: Artifact, *, split: str, count: int, document: str) -> list[Row]:
    """The first `count` rows of `split`; with `document`, the one whose digest begins so."""
    tokenizer = read_tokenizer_json(artifact.path("tokenizer.json"))
    show = show_example if artifact.manifest.stage == "examples" else show_document
    rows = _rows(artifact, split)
    if document:
        rows = (row for row in rows if row["document_digest"].hex().startswith(document))
    return [show(row, tokenizer) for row in islice(rows, count)]


def show_document(row: dict[str, Any], tokenizer: WordPieceTokenizer) -> Row:
    """A document, one sentence a line."""
    ids, lines, start = row["token_ids"], [], 0
    for length in row["sentence_lengths"]:
        lines.append(_join(_words(ids[start : start + length], tokenizer)))
        start += length
    copies = f", {row['copies']} copies" if row["copies"] > 1 else ""
    title = f"document {row['document_digest'].hex()}, {len(lines)} sentences, {len(ids)} tokens"
    return Row(title + copies, "\n".join(lines))


def show_example(row: dict[str, Any], tokenizer: WordPieceTokenizer) -> Row:
    """An example; `[MASK:word]` is masked, `[other:word]` replaced, `[word:word]` kept."""
    words = _words(row["input_ids"], tokenizer)
    for position, truth in zip(row["masked_lm_positions"], row["masked_lm_ids"], strict=True):
        seen = words[position].removeprefix(CONTINUATION)
        truth_word = tokenizer.vocabulary[truth]
        joint = CONTINUATION if truth_word.startswith(CONTINUATION) else ""
        seen = "MASK" if words[position] == MASK else seen
        words[position] = f"{joint}[{seen}:{truth_word.removeprefix(CONTINUATION)}]"
    cut = row["segment_a_length"]
    label = LABELS[row["next_sentence_label"]]
    title = f"{label}, {len(words)} tokens, {len(row['masked_lm_ids'])} to predict"
    segments = [_join(words[:cut]), _join(words[cut:])]
    return Row(title, "\n".join(segment for segment in segments if segment))


def _rows(artifact: Artifact, split: str) -> Iterator[dict[str, Any]]:
    for entry in artifact.manifest.files:
        if entry.name.startswith(f"{split}-") and entry.name.endswith(".arrow"):
            with pa.memory_map(artifact.path(entry.name)) as source:
                yield from _rows_of_file(pa.ipc.open_file(source))


def _rows_of_file(file: Any) -> Iterator[dict[str, Any]]:
    for index in range(file.num_record_batches):
        batch = file.get_batch(index)
        for row in range(batch.num_rows):
            yield batch.slice(row, 1).to_pylist()[0]


def _words(ids: list[int], tokenizer: WordPieceTokenizer) -> list[str]:
    return [tokenizer.vocabulary[index] for index in ids]


def _join(words: list[str]) -> str:
    """Word-pieces as text: continuations join the word before them."""
    return " ".join(words).replace(f" {CONTINUATION}", "")
