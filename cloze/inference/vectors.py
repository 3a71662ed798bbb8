"""`cloze embed`: vectors of texts and passages.

In:  a model and texts; with --passages, files and folders of documents.
Out: a NumPy file of float32, [texts, width]; without --output, one JSON array per line and text;
     with --json, one document at the end. With --passages the NumPy file is accompanied by a JSONL
     file of the passages (file, line, text, title); without --output these objects contain a
     `vector`.
"""

import json
from collections.abc import Generator, Iterable, Iterator
from contextlib import ExitStack, closing
from dataclasses import dataclass
from itertools import tee
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter

from cloze.answer import Answer, print_array, print_lines
from cloze.artifacts import filesystem
from cloze.artifacts.errors import UsageError
from cloze.artifacts.progress import say
from cloze.flows.workspace import Workspace
from cloze.inference.input_texts import ModelName, Text, metered, texts_or_lines
from cloze.inference.placed_passages import placed_passages, said_of, sources_of
from cloze.init.corpus_files import left_out
from cloze.init.corpus_samples import look
from cloze.model.encoder.precision import Precision
from cloze.model.inference.ranks import load_over_ranks
from cloze.model.retrieval import passage_index
from cloze.model.retrieval.passage_index import Passage, Vectors
from cloze.named import vectors_directory
from cloze.options import PLACE, Place, reading_artifacts
from cloze.pipeline.text.account import Account


@Parameter(name="*")
@dataclass(frozen=True)
class Form:
    """How to compute a vector."""

    pooling: Literal["mean", "cls", "pooler"] | None = None
    """Mean of all tokens, the first token, or the pooler's output for it; by default as in the
    model's modules.json, else the mean."""

    layers: Annotated[str, Parameter(allow_leading_hyphen=True)] = ""
    """Layers to concatenate: 0 is the embeddings, -1 the last layer, the default; the paper's best
    features are -4,-3,-2,-1."""

    normalize: bool = False
    """Scale vectors to length 1."""

    prompt: str | None = None
    """Name of one of the model's prompts to put before every text, instead of the default one."""

    def numbers(self) -> tuple[int, ...] | None:
        """The layers as numbers; None if not given."""
        if not self.layers:
            return None
        try:
            return tuple(int(number) for number in self.layers.split(","))
        except ValueError:
            raise UsageError(
                f"--layers {self.layers}: expected numbers separated by commas, for example "
                "-4,-3,-2,-1"
            ) from None


FORM = Form()


@reading_artifacts
def embed(
    model: ModelName,
    /,
    *texts: Text,
    output: Path | None = None,
    form: Form = FORM,
    truncate: bool = False,
    passages: int = 0,
    precision: Precision = "auto",
    place: Place = PLACE,
) -> Answer | None:
    """Embed texts.

    :param output: File to write, NAME.npy; by default vectors are printed, one per line.
    :param truncate: Truncate texts that are too long.
    :param passages: Treat the arguments as files and folders of documents, and embed passages of
        about this many words, which end at sentence boundaries.
    :param precision: `int8` is the fastest on a CPU, with vectors that differ by a few thousandths;
        `bf16` is for processors that multiply in it; `auto` is fp32 on a CPU.
    """
    # Options are checked before the model is loaded, which takes seconds.
    chosen = form.numbers()
    if output is not None and output.suffix != ".npy":
        raise UsageError(f"--output {output}: expected a NumPy file; name it {output.stem}.npy")
    if passages < 0:
        raise UsageError(f"--passages {passages}: expected a number of words, for example 100")
    loaded = load_over_ranks(
        vectors_directory(model, place.space()), precision=precision, machine=place.training()
    )
    # Twice: the texts for the model, and the passages for the output.
    placed, read = tee(_passages_of(texts, words=passages, space=place.space()) if passages else ())
    found = loaded.embed_stream(
        (passage.indexed for passage in read) if passages else texts_or_lines(texts),
        pooling=form.pooling,
        layers=chosen,
        truncate=truncate or bool(passages),
        normalize=form.normalize,
        prompt=form.prompt,
    )
    unit = "passages" if passages else "texts"
    vectors = metered(found, verb="embed", unit=unit) if passages or not texts else found
    width = loaded.vector_width(pooling=form.pooling, layers=chosen)
    if output is not None:
        with ExitStack() as files:
            if passages:
                both = _beside(placed, vectors, output.with_suffix(".jsonl"))
                # Else a full disk would be met again where nobody hears of it.
                vectors = files.enter_context(closing(both))
            count = passage_index.write_vectors(output, vectors, width=width)
        text = f"{output}: {count} vectors of {width} float32"
        return Answer({"shape": [count, width], "file": str(output)}, text, place.json)
    rows: Iterator[object] = (vector.tolist() for vector in vectors)
    if passages:
        rows = ({**one._asdict(), "vector": row} for one, row in zip(placed, rows, strict=True))
    if place.json:
        print_array(rows, within=lambda count: {"shape": [count, width], "vectors": []})
        return None
    print_lines(json.dumps(row, ensure_ascii=False) for row in rows)
    return None


def _passages_of(paths: tuple[str, ...], *, words: int, space: Workspace) -> Iterator[Passage]:
    """The passages of all documents; what was read and left out is logged."""
    if not paths:
        raise UsageError("--passages: nothing to read; give files or folders of documents")
    for path in paths:
        seen = look(path, left_out(path, space))
        account = Account()
        yield from placed_passages(sources_of(seen), words=words, account=account)
        for line in said_of(account, seen):
            say(f"embed: {line}")


def _beside(
    placed: Iterable[Passage], vectors: Iterable[Vectors], path: Path
) -> Generator[Vectors]:
    """Pass on the vectors and write their passages to `path`, which appears once complete."""
    with (
        filesystem.partial_file(str(path)) as temporary,
        open(temporary, "w", encoding="utf-8") as file,
    ):
        # As the vectors are taken, so that neither they nor the passages are ever all in memory.
        for one, vector in zip(placed, vectors, strict=True):
            file.write(json.dumps(one._asdict(), ensure_ascii=False) + "\n")
            yield vector
