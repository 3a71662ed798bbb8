"""`cloze embed`: one vector per text, or one per passage of documents.

In:  a model and texts; with --excerpts, files and folders of documents.
Out: a NumPy file of float32, [texts, width]; without --output, one JSON array per line and text;
     with --json, one document at the end. With --excerpts the NumPy file is accompanied by a JSONL
     file of the passages (file, line, text); without --output these objects contain a `vector`.
"""

import json
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import tee
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter

from artifacts.errors import UsageError
from artifacts.progress import say
from cloze.answer import Answer, print_lines
from cloze.inference.document_passages import PlacedPassage, placed_passages, source_of
from cloze.inference.input_texts import ModelName, Text, metered, texts_or_lines
from cloze.init.corpus_samples import look
from cloze.lookup import vectors_directory
from cloze.options import PLACE, Place
from model.inference.load import load
from model.inference.passage_index import Vectors, write_vectors

OutputFile = Annotated[
    Path | None,
    Parameter(help="File to write, NAME.npy; by default vectors are printed, one per line."),
]
Truncate = Annotated[
    bool, Parameter(negative="", show_default=False, help="Truncate texts that are too long.")
]
Excerpts = Annotated[
    int,
    Parameter(
        help="Treat the arguments as files and folders of documents, and embed excerpts of about "
        "this many words, which end at sentence boundaries.",
        show_default=False,
    ),
]


@Parameter(name="*")
@dataclass(frozen=True)
class Form:
    """How to compute a vector."""

    pooling: Literal["mean", "cls", "pooler"] = "mean"
    """Mean of all tokens, the first token, or the pooler's output for it."""

    layers: Annotated[str, Parameter(allow_leading_hyphen=True)] = "-1"
    """Layers to concatenate: 0 is the embeddings, -1 the last layer; the paper's best features are
    -4,-3,-2,-1."""

    normalize: Annotated[bool, Parameter(negative="", show_default=False)] = False
    """Scale vectors to length 1."""

    def numbers(self) -> tuple[int, ...]:
        """The layers as numbers."""
        try:
            return tuple(int(number) for number in self.layers.split(","))
        except ValueError:
            raise UsageError(
                f"--layers {self.layers}: expected numbers separated by commas, for example "
                "-4,-3,-2,-1"
            ) from None


FORM = Form()


def embed(
    model: ModelName,
    /,
    *texts: Text,
    output: OutputFile = None,
    form: Form = FORM,
    truncate: Truncate = False,
    excerpts: Excerpts = 0,
    place: Place = PLACE,
) -> Answer | None:
    """Embed texts."""
    chosen = form.numbers()
    if output is not None and output.suffix != ".npy":
        raise UsageError(f"--output {output}: expected a NumPy file; name it {output.stem}.npy")
    if excerpts < 0:
        raise UsageError(f"--excerpts {excerpts}: expected a number of words, for example 100")
    loaded = load(vectors_directory(model, place.space()))
    placed, read = tee(_passages_of(texts, words=excerpts) if excerpts else ())
    found = loaded.embed_stream(
        (text for _, _, text in read) if excerpts else texts_or_lines(texts),
        pooling=form.pooling,
        layers=chosen,
        truncate=truncate or bool(excerpts),
        normalize=form.normalize,
    )
    unit = "passages" if excerpts else "texts"
    vectors = metered(found, verb="embed", unit=unit) if excerpts or not texts else found
    width = loaded.config.hidden_size * len(chosen)
    if output is not None:
        if excerpts:
            vectors = _beside(placed, vectors, output.with_suffix(".jsonl"))
        count = write_vectors(output, vectors, width=width)
        text = f"{output}: {count} vectors of {width} float32"
        return Answer({"shape": [count, width], "file": str(output)}, text, place.json)
    rows: Iterator[object] = (vector.tolist() for vector in vectors)
    if excerpts:
        rows = ({**_described(one), "vector": row} for one, row in zip(placed, rows, strict=True))
    if place.json:
        listed = list(rows)
        return Answer({"shape": [len(listed), width], "vectors": listed}, "", as_json=True)
    print_lines(json.dumps(row, ensure_ascii=False) for row in rows)
    return None


def _passages_of(paths: tuple[str, ...], *, words: int) -> Iterator[PlacedPassage]:
    """The passages of all documents."""
    if not paths:
        raise UsageError("--excerpts: nothing to read; give files or folders of documents")
    for path in paths:
        seen = look(path)
        for file in seen.odd:
            say(f"embed: skipped: {file}")
        yield from placed_passages(source_of(seen), words=words)


def _beside(
    placed: Iterable[PlacedPassage], vectors: Iterable[Vectors], path: Path
) -> Iterator[Vectors]:
    """Pass on the vectors and write their passages to `path`, which appears once complete."""
    unfinished = path.with_name(f"{path.name}.unfinished-{os.getpid()}")
    try:
        with unfinished.open("w", encoding="utf-8") as file:
            for one, vector in zip(placed, vectors, strict=True):
                file.write(json.dumps(_described(one), ensure_ascii=False) + "\n")
                yield vector
        unfinished.replace(path)
    finally:
        unfinished.unlink(missing_ok=True)


def _described(passage: PlacedPassage) -> dict[str, str | int | None]:
    return dict(zip(("file", "line", "text"), passage, strict=True))
