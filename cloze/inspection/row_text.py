"""Render tokens and examples as readable text.

In:  an artifact's Arrow files (artifacts/tables.py) and its tokenizer.
Out: one string per document or example; masked positions are marked.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import accumulate, pairwise

import pyarrow as pa

from artifacts.errors import UsageError
from artifacts.store import Artifact
from artifacts.tables import DocumentRow, ExampleRow
from artifacts.tokenizer import CONTINUATION, MASK, SubwordTokenizer, read_tokenizer_json

TRAIN = "train"
LABELS = {0: "B follows A", 1: "B is random", -1: "one segment"}
"""Meaning of a next_sentence_label."""


@dataclass(frozen=True)
class RowText:
    """One document or example."""

    title: str
    """Its digest or labels, and its size."""
    text: str


def texts_of_rows(artifact: Artifact, *, split: str, count: int, document: str) -> list[RowText]:
    """The first `count` rows of `split`; with `document`, those whose digest starts with it.

    By default, `document` is searched in all splits, and other rows are taken from `train`.
    """
    tokenizer = read_tokenizer_json(artifact.path("tokenizer.json"))
    is_examples = artifact.manifest.stage == "examples"
    files: dict[str, list[str]] = {}
    for entry in artifact.manifest.files:
        if "split" in entry.statistics:
            files.setdefault(entry.statistics["split"], []).append(entry.name)
    if split and split not in files:
        raise UsageError(f"--split {split}: no such split; the splits are {', '.join(files)}")
    searched = [split] if split else list(files) if document else [TRAIN]
    found: list[RowText] = []
    for name in (name for each in searched for name in files.get(each, ())):
        for row in rows_of_file(artifact, name, document=document):
            if len(found) == count:
                return found
            (values,) = row.to_pylist()
            text = example_text if is_examples else document_text
            found.append(text(values, tokenizer))
    if document and not found:
        raise UsageError(
            f"--document {document}: no digest starts with it in {', '.join(searched)}; "
            "--dropped lists the documents that were dropped"
        )
    return found


def rows_of_file(artifact: Artifact, name: str, *, document: str = "") -> Iterator[pa.RecordBatch]:
    """The rows of the table `name`, each a record batch of length 1.

    With `document`, those whose digest starts with it; the search reads only the digests.
    """
    with pa.memory_map(artifact.path(name)) as source:
        file = pa.ipc.open_file(source)
        for index in range(file.num_record_batches):
            batch = file.get_batch(index)
            if document:
                digests = batch.column("document_digest").to_pylist()
                rows = [row for row, d in enumerate(digests) if d.hex().startswith(document)]
            else:
                rows = list(range(batch.num_rows))
            yield from (batch.slice(row, 1) for row in rows)


def document_text(row: DocumentRow, tokenizer: SubwordTokenizer) -> RowText:
    """A document, one sentence per line."""
    ids, lines, start = row["token_ids"], [], 0
    for length in row["sentence_lengths"]:
        lines.append(_joined([tokenizer.vocabulary[i] for i in ids[start : start + length]]))
        start += length
    copies = f", {row['copies']} copies" if row["copies"] > 1 else ""
    title = f"document {row['document_digest'].hex()}, {len(lines)} sentences, {len(ids)} tokens"
    return RowText(title + copies, "\n".join(lines))


def example_text(row: ExampleRow, tokenizer: SubwordTokenizer) -> RowText:
    """An example; `[MASK:word]` is masked, `[other:word]` replaced, `[word:word]` unchanged."""
    words = [tokenizer.vocabulary[index] for index in row["input_ids"]]
    for position, original in zip(row["masked_lm_positions"], row["masked_lm_ids"], strict=True):
        seen = "MASK" if words[position] == MASK else words[position].removeprefix(CONTINUATION)
        word = tokenizer.vocabulary[original]
        joint = CONTINUATION if word.startswith(CONTINUATION) else ""
        words[position] = f"{joint}[{seen}:{word.removeprefix(CONTINUATION)}]"
    documents = row.get("document_lengths")
    if documents is None:
        ends = [row["segment_a_length"], len(words)]
        what = LABELS[row["next_sentence_label"]]
    else:
        ends = list(accumulate(documents))
        what = f"{len(documents)} document{'s' * (len(documents) > 1)}"
    title = f"{what}, {len(words)} tokens, {len(row['masked_lm_ids'])} masked"
    segments = [_joined(words[first:end]) for first, end in pairwise([0, *ends])]
    return RowText(title, "\n".join(segment for segment in segments if segment))


def _joined(tokens: list[str]) -> str:
    """Tokens as text: continuations are joined to the preceding token."""
    return " ".join(tokens).replace(f" {CONTINUATION}", "").removeprefix(CONTINUATION)
