"""Tokens and examples as text that a person can read.

In:  an artifact's Arrow files (artifacts/tables.py) and its tokenizer.
Out: one string per document or example; masked places are marked.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any

import pyarrow as pa

from artifacts.errors import UsageError
from artifacts.store import Artifact
from artifacts.tokenizer import CONTINUATION, MASK, WordPieceTokenizer, read_tokenizer_json

TRAIN = "train"
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
    """The first `count` rows of `split`; with `document`, those whose digest begins so.

    Without `split` these are looked for in all splits, and other rows taken from `train`.
    """
    tokenizer = read_tokenizer_json(artifact.path("tokenizer.json"))
    show = show_example if artifact.manifest.stage == "examples" else show_document
    names = _names_by_split(artifact)
    if split and split not in names:
        raise UsageError(f"--split {split}: there is none; the splits are {', '.join(names)}")
    wanted = [split] if split else list(names) if document else [TRAIN]
    rows = (
        row
        for each in wanted
        for name in names.get(each, ())
        for row in read_rows(artifact, name, document=document)
    )
    found = [show(row, tokenizer) for row in islice(rows, count)]
    if document and not found:
        raise UsageError(
            f"--document {document}: no digest begins so in {', '.join(wanted)}; "
            "--dropped lists the documents left out"
        )
    return found


def read_rows(artifact: Artifact, name: str, *, document: str = "") -> Iterator[dict[str, Any]]:
    """The rows of the table `name`; with `document`, those whose digest begins so."""
    with pa.memory_map(artifact.path(name)) as source:
        file = pa.ipc.open_file(source)
        for index in range(file.num_record_batches):
            batch = file.get_batch(index)
            for place in _places(batch, document):
                yield batch.slice(place, 1).to_pylist()[0]


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


def _names_by_split(artifact: Artifact) -> dict[str, list[str]]:
    """The names of the tables of each split."""
    found: dict[str, list[str]] = {}
    for entry in artifact.manifest.files:
        if "split" in entry.statistics:
            found.setdefault(entry.statistics["split"], []).append(entry.name)
    return found


def _places(batch: pa.RecordBatch, document: str) -> Iterable[int]:
    """The rows wanted; of a search only the column of digests is looked at."""
    if not document:
        return range(batch.num_rows)
    digests = batch.column("document_digest").to_pylist()
    return [place for place, digest in enumerate(digests) if digest.hex().startswith(document)]


def _words(ids: list[int], tokenizer: WordPieceTokenizer) -> list[str]:
    return [tokenizer.vocabulary[index] for index in ids]


def _join(words: list[str]) -> str:
    """Word-pieces as text: continuations join the word before them."""
    return " ".join(words).replace(f" {CONTINUATION}", "")
