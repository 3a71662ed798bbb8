"""`cloze embed` and `cloze search`: vectors of texts and passages, and the nearest passages.

In:  for `embed`, a model and texts; with --passages, files and folders of documents.
     For `search`, a model, a folder of documents, and questions.
Out: for `embed`, a NumPy file of float32, [texts, width]; without --output, one JSON array per line
     and text; with --json, one document at the end. With --passages the NumPy file is accompanied
     by a JSONL file of the passages (file, line, text); without --output these objects contain a
     `vector`. For `search`, the nearest passages for each question by cosine similarity, with file,
     line and score.

The passages that `search` compares with and their vectors are an artifact, `vectors`, made once per
model, folder contents and passage length; with --index, a graph of the vectors is a second
artifact. If interrupted, they are made again from the start. No run refers to them, so `cloze gc`
deletes them.
"""

import json
import os
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from importlib.metadata import version
from itertools import groupby, islice, tee
from pathlib import Path
from typing import Annotated, Literal, NamedTuple

import numpy as np
from cyclopts import Parameter

from cloze.answer import Answer, print_lines
from cloze.artifacts import filesystem
from cloze.artifacts.digests import digest_of
from cloze.artifacts.errors import UsageError
from cloze.artifacts.filesystem import find_files, located
from cloze.artifacts.progress import say
from cloze.artifacts.stage import InputRef, StageTable
from cloze.artifacts.store import Artifact, commit, put_local_file, scratch_directory
from cloze.flows.external_inputs import digest_of_files, digest_of_model
from cloze.flows.workspace import Workspace, writable_workspace
from cloze.inference.input_texts import ModelName, Text, metered, texts_or_lines
from cloze.init.corpus_samples import Look, look
from cloze.model.inference import passage_index
from cloze.model.inference.load import Model, load_model
from cloze.model.inference.passage_index import Vectors
from cloze.options import PLACE, Place, vectors_directory
from cloze.pipeline.config.settings import CorpusConfig, SourceConfig
from cloze.pipeline.readers.compression import stream
from cloze.pipeline.text.scripts import has_no_spaces
from cloze.pipeline.text.texts import read_passages

STAGE, GRAPH_STAGE = "vectors", "vector_graph"
FORMAT_VERSION = 2
"""2: the index contains the passages' lines."""
GRAPH_FORMAT_VERSION = 1

QUESTIONS_AT_ONCE = 64

Nearest = Callable[..., list[list[passage_index.Hit]]]
"""From vectors of questions and `count` to the nearest `count` rows per question, best first."""

FIRST_WORDS = 12
"""Words at the start of a passage that are searched for to find its line."""

CHARACTERS_PER_WORD = 2
"""For scripts without spaces between words."""

LARGEST_FILE = 1 << 28
"""Bytes; in larger files, lines are not determined."""


class PlacedPassage(NamedTuple):
    """A passage, and where it is, as in an index."""

    file: str
    line: int | None
    """Where it begins; None if the file does not contain the text verbatim."""
    text: str


@Parameter(name="*")
@dataclass(frozen=True)
class Form:
    """How to compute a vector."""

    pooling: Literal["mean", "cls", "pooler"] = "mean"
    """Mean of all tokens, the first token, or the pooler's output for it."""

    layers: Annotated[str, Parameter(allow_leading_hyphen=True)] = "-1"
    """Layers to concatenate: 0 is the embeddings, -1 the last layer; the paper's best features are
    -4,-3,-2,-1."""

    normalize: bool = False
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
    output: Path | None = None,
    form: Form = FORM,
    truncate: bool = False,
    passages: int = 0,
    place: Place = PLACE,
) -> Answer | None:
    """Embed texts.

    :param output: File to write, NAME.npy; by default vectors are printed, one per line.
    :param truncate: Truncate texts that are too long.
    :param passages: Treat the arguments as files and folders of documents, and embed passages of
        about this many words, which end at sentence boundaries.
    """
    chosen = form.numbers()
    if output is not None and output.suffix != ".npy":
        raise UsageError(f"--output {output}: expected a NumPy file; name it {output.stem}.npy")
    if passages < 0:
        raise UsageError(f"--passages {passages}: expected a number of words, for example 100")
    loaded = load_model(vectors_directory(model, place.space()))
    placed, read = tee(_passages_of(texts, words=passages) if passages else ())
    found = loaded.embed_stream(
        (passage.text for passage in read) if passages else texts_or_lines(texts),
        pooling=form.pooling,
        layers=chosen,
        truncate=truncate or bool(passages),
        normalize=form.normalize,
    )
    unit = "passages" if passages else "texts"
    vectors = metered(found, verb="embed", unit=unit) if passages or not texts else found
    width = loaded.config.hidden_size * len(chosen)
    if output is not None:
        if passages:
            vectors = _beside(placed, vectors, output.with_suffix(".jsonl"))
        count = passage_index.write_vectors(output, vectors, width=width)
        text = f"{output}: {count} vectors of {width} float32"
        return Answer({"shape": [count, width], "file": str(output)}, text, place.json)
    rows: Iterator[object] = (vector.tolist() for vector in vectors)
    if passages:
        rows = ({**one._asdict(), "vector": row} for one, row in zip(placed, rows, strict=True))
    if place.json:
        listed = list(rows)
        return Answer({"shape": [len(listed), width], "vectors": listed}, "", as_json=True)
    print_lines(json.dumps(row, ensure_ascii=False) for row in rows)
    return None


def _passages_of(paths: tuple[str, ...], *, words: int) -> Iterator[PlacedPassage]:
    """The passages of all documents."""
    if not paths:
        raise UsageError("--passages: nothing to read; give files or folders of documents")
    for path in paths:
        seen = look(path)
        for file in seen.odd:
            say(f"embed: skipped: {file}")
        yield from placed_passages(source_of(seen), words=words)


def _beside(
    placed: Iterable[PlacedPassage], vectors: Iterable[Vectors], path: Path
) -> Iterator[Vectors]:
    """Pass on the vectors and write their passages to `path`, which appears once complete."""
    with filesystem.temporary_beside(str(path)) as temporary:
        with open(temporary, "w", encoding="utf-8") as file:
            for one, vector in zip(placed, vectors, strict=True):
                file.write(json.dumps(one._asdict(), ensure_ascii=False) + "\n")
                yield vector
        os.replace(temporary, path)


def search(
    model: ModelName,
    folder: str,
    /,
    *questions: Text,
    top_k: int = 5,
    words: int = 100,
    index: bool = False,
    place: Place = PLACE,
) -> Answer | None:
    """Search a folder.

    :param folder: File, folder, glob or URL of the documents.
    :param top_k: Number of passages for each question.
    :param words: Approximate words per passage, which ends at a sentence boundary.
    :param index: For millions of vectors: search a graph of them, built once, instead of comparing
        with all; it occasionally misses one of the nearest. Needs the extra `index`.
    """
    if index:
        import_module("usearch.index")  # report a missing library early
    if top_k < 1 or words < 1:
        raise UsageError(f"--top-k {top_k} --words {words}: expected at least 1 of each")
    space = writable_workspace(place.machine().workspace)
    directory = vectors_directory(model, space)
    loaded = load_model(directory, precision="fp32")
    if loaded.modules is None:
        say(f"{model} was not trained for retrieval (no modules.json): expect a rough ranking")
    indexed = index_folder(loaded, directory, folder, words=words, space=space)
    by_all = partial(passage_index.nearest, indexed.path(passage_index.VECTORS))
    find: Nearest = _find_in_graph(indexed, space) if index else by_all
    answers = _answers(loaded, indexed, find, texts_or_lines(questions), count=top_k)
    if place.json:
        data = [
            {
                "question": question,
                "passages": [{"score": score, **one._asdict()} for score, one in found],
            }
            for question, found in answers
        ]
        return Answer(data, "", as_json=True)
    for question, found in answers:
        lines = [question]
        for score, one in found:
            where = f"{one.file}, line {one.line}" if one.line else one.file
            lines += [f"  {score:.3f}  {where}", f"         {one.text}"]
        print_lines(lines)
    return None


def index_folder(
    model: Model, directory: str, folder: str, *, words: int, space: Workspace
) -> Artifact:
    """The passages of `folder` with their vectors: an existing artifact, or a new one."""
    seen = look(folder)
    source = source_of(seen)
    names = [file.path for file in find_files(source.path)]
    table = StageTable(
        stage=STAGE,
        format_version=FORMAT_VERSION,
        config={
            "source": source.model_dump(mode="json", exclude={"path"}),
            "files": digest_of(names),
            "passage_words": words,
        },
        inputs={
            "model": InputRef(digest=digest_of_model(directory, place="model")),
            "documents": InputRef(digest=digest_of_files(folder, place="folder")),
        },
        output="",
    )
    artifact = space.store.find(STAGE, table.key)
    if artifact:
        return artifact
    for file in seen.odd:
        say(f"search: skipped: {file}")
    output = space.store.directory(STAGE, table.key)
    with scratch_directory(output) as scratch:
        count = passage_index.write_passage_index(
            Path(scratch),
            placed_passages(source, words=words),
            lambda texts: metered(model.sentence_vectors(texts), verb="index", unit="passages"),
            width=model.config.hidden_size,
        )
        if not count:
            raise UsageError(f"{folder}: no text in {len(names):,} files; expected documents")
        if digest_of_files(folder, place="folder") != table.inputs["documents"].digest:
            raise UsageError(f"{folder}: changed while it was read; run the command again")
        files = [
            put_local_file(output, f"{scratch}/{name}", name=name, rows=count)
            for name in (passage_index.VECTORS, passage_index.PASSAGES)
        ]
    return commit(
        table.model_copy(update={"output": output}),
        files,
        statistics={"passages": count, "width": model.config.hidden_size},
        execution={"source": folder, "model": directory},
    )


def _find_in_graph(index: Artifact, space: Workspace) -> Nearest:
    """Search by the graph of the index's vectors: an existing artifact, or a new one."""
    table = StageTable(
        stage=GRAPH_STAGE,
        format_version=GRAPH_FORMAT_VERSION,
        # Another version of the library builds its own graph.
        config={"usearch": version("usearch"), **passage_index.GRAPH_SETTINGS},
        inputs={"vectors": InputRef(digest=index.digest)},
        output="",
    )
    artifact = space.store.find(GRAPH_STAGE, table.key)
    vectors = index.path(passage_index.VECTORS)
    if not artifact:
        output = space.store.directory(GRAPH_STAGE, table.key)
        with scratch_directory(output) as scratch:
            graph = f"{scratch}/{passage_index.GRAPH}"
            rows = passage_index.write_graph(vectors, graph)
            count = sum(1 for _ in metered(rows, verb="graph", unit="vectors"))
            file = put_local_file(output, graph, name=passage_index.GRAPH, rows=count)
        artifact = commit(table.model_copy(update={"output": output}), [file])
    return partial(passage_index.nearest_in, artifact.path(passage_index.GRAPH), vectors)


def _answers(
    model: Model, index: Artifact, find: Nearest, questions: Iterator[str], *, count: int
) -> Iterator[tuple[str, list[tuple[float, PlacedPassage]]]]:
    """Each question with its passages and their scores, in batches of questions."""
    asked, shown = tee(questions)
    vectors = model.sentence_vectors(asked)
    while together := list(islice(vectors, QUESTIONS_AT_ONCE)):
        hits = find(np.stack(together), count=count)
        for best, question in zip(hits, shown, strict=False):
            passages = []
            for hit in best:
                found = passage_index.read_passage(index.path(passage_index.PASSAGES), hit.row)
                passage = PlacedPassage(*found)
                if filesystem.is_local(passage.file):
                    passage = passage._replace(file=os.path.relpath(passage.file))
                passages.append((hit.score, passage))
            yield question, passages


def source_of(seen: Look) -> SourceConfig:
    """The source that reads the documents."""
    source = {**seen.source, "path": located(seen.path)}
    if seen.reader == "blank_line_text":
        # blocks between blank lines may be single lines of dialogue; a passage spans several
        source["reader"] = "text"
    return SourceConfig.model_validate(source)


def placed_passages(source: SourceConfig, *, words: int) -> Iterator[PlacedPassage]:
    """Each passage with its line, regardless of the white space between its words in the file.

    Each file is read a second time, and searched from the end of the previous passage.
    """
    corpus = CorpusConfig(sources=(source,), on_bad_file="skip")
    by_file = groupby(read_passages(corpus, words=words), lambda passage: passage.file)
    for file, of_file in by_file:
        content, place, line = "", 0, 1
        if filesystem.size_of(file) in range(LARGEST_FILE):
            content = b"".join(stream(file)).decode("utf-8", "replace")
        for passage in of_file:
            begins = beginning(passage.text).search(content, place)
            if begins is None:
                yield PlacedPassage(file, None, passage.text)
                continue
            line += content.count("\n", place, begins.start())
            yield PlacedPassage(file, line, passage.text)
            line += content.count("\n", *begins.span())
            place = begins.end()


def beginning(text: str) -> re.Pattern[str]:
    """Finds the first words of a passage, whatever the white space between them in the file.

    In scripts without spaces between words, a line may break between any two characters.
    """
    words_there = text.split()[:FIRST_WORDS]
    if any(map(has_no_spaces, words_there)):
        start = "".join(words_there)[: FIRST_WORDS * CHARACTERS_PER_WORD]
        return re.compile(r"\s*".join(map(re.escape, start)))
    return re.compile(r"\s+".join(map(re.escape, words_there)))
