"""`cloze search`: the passages of a folder that best match a question.

In:  a model, a folder of documents, and questions.
Out: for each question the nearest passages by cosine similarity, with file, line and score.

The passages and their vectors are an artifact, `vectors`, made once per model, folder contents and
passage length; with --index, a graph of the vectors is a second artifact. If interrupted, they are
made again from the start. No run refers to them, so `cloze gc` deletes them.
"""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from importlib import import_module
from itertools import islice, tee
from pathlib import Path
from tempfile import TemporaryDirectory, gettempdir
from typing import Annotated

import numpy as np
from cyclopts import Parameter

from artifacts import filesystem
from artifacts.digests import digest_of
from artifacts.errors import UsageError
from artifacts.filesystem import find_files
from artifacts.progress import say
from artifacts.stage import InputRef, StageTable
from artifacts.store import WORK, Artifact, commit, put_file
from cloze.answer import Answer, print_lines
from cloze.inference.document_passages import placed_passages, source_of
from cloze.inference.input_texts import ModelName, Text, metered, texts_or_lines
from cloze.init.corpus_samples import look
from cloze.lookup import vectors_directory
from cloze.options import PLACE, Place
from flows.external_inputs import digest_of_files, digest_of_model
from flows.workspace import Workspace, writable_workspace
from model.inference.load import Model, load
from model.inference.passage_index import (
    PASSAGES,
    VECTORS,
    Hit,
    nearest,
    read_passage,
    write_index,
)

STAGE, GRAPH_STAGE = "vectors", "vector_graph"
FORMAT_VERSION = 2
"""2: the index contains the passages' lines."""
GRAPH_FORMAT_VERSION = 1

QUESTIONS_AT_ONCE = 64
Folder = Annotated[str, Parameter(help="File, folder, glob or URL of the documents.")]
TopK = Annotated[int, Parameter(help="Number of excerpts for each question.")]
Words = Annotated[
    int, Parameter(help="Approximate words per excerpt, which ends at a sentence boundary.")
]
UseIndex = Annotated[
    bool,
    Parameter(
        name="index",
        negative="",
        show_default=False,
        help="For millions of vectors: search a graph of them, built once, instead of comparing "
        "with all; it occasionally misses one of the nearest. Needs the extra `index`.",
    ),
]
Nearest = Callable[..., list[list[Hit]]]
"""From vectors of questions and `count` to the nearest `count` rows per question, best first."""


@dataclass(frozen=True)
class Found:
    """A passage in the result."""

    score: float
    file: str
    line: int | None
    """Where it begins; None if the file does not contain the text verbatim."""
    text: str


def search(
    model: ModelName,
    folder: Folder,
    /,
    *questions: Text,
    top_k: TopK = 5,
    words: Words = 100,
    use_index: UseIndex = False,
    place: Place = PLACE,
) -> Answer | None:
    """Search a folder."""
    if use_index:
        import_module("model.inference.vector_graph")  # report a missing library early
    if top_k < 1 or words < 1:
        raise UsageError(f"--top-k {top_k} --words {words}: expected at least 1 of each")
    space = writable_workspace(place.machine().workspace)
    directory = vectors_directory(model, space)
    loaded = load(directory, precision="fp32")
    if loaded.modules is None:
        say(f"{model} was not trained for retrieval (no modules.json): expect a rough ranking")
    index = passage_index(loaded, directory, folder, words=words, space=space)
    by_all = partial(nearest, index.path(VECTORS))
    find: Nearest = _find_in_graph(index, space) if use_index else by_all
    answers = _answers(loaded, index, find, texts_or_lines(questions), count=top_k)
    if place.json:
        data = [
            {"question": question, "passages": [asdict(found) for found in passages]}
            for question, passages in answers
        ]
        return Answer(data, "", as_json=True)
    for question, passages in answers:
        lines = [question]
        for found in passages:
            where = f"{found.file}, line {found.line}" if found.line else found.file
            lines += [f"  {found.score:.3f}  {where}", f"         {found.text}"]
        print_lines(lines)
    return None


def passage_index(
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
    with _scratch(output) as scratch:
        count = write_index(
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
            put_file(output, f"{scratch}/{name}", name=name, rows=count)
            for name in (VECTORS, PASSAGES)
        ]
    return commit(
        table.model_copy(update={"output": output}),
        files,
        statistics={"passages": count, "width": model.config.hidden_size},
        execution={"source": folder, "model": directory},
    )


@contextmanager
def _scratch(output: str) -> Iterator[str]:
    """A directory for this attempt alone."""
    work = filesystem.join(output, WORK)
    place = filesystem.local_path(work) if filesystem.is_local(work) else gettempdir()
    Path(place).mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(dir=place) as scratch:
        yield scratch


def _find_in_graph(index: Artifact, space: Workspace) -> Nearest:
    """Search by the graph of the index's vectors: an existing artifact, or a new one."""
    from model.inference.vector_graph import GRAPH, SETTINGS, VERSION, nearest_in, write_graph

    table = StageTable(
        stage=GRAPH_STAGE,
        format_version=GRAPH_FORMAT_VERSION,
        config={"usearch": VERSION, **SETTINGS},
        inputs={"vectors": InputRef(digest=index.digest)},
        output="",
    )
    artifact = space.store.find(GRAPH_STAGE, table.key)
    vectors = index.path(VECTORS)
    if not artifact:
        output = space.store.directory(GRAPH_STAGE, table.key)
        with _scratch(output) as scratch:
            rows = write_graph(vectors, f"{scratch}/{GRAPH}")
            count = sum(1 for _ in metered(rows, verb="graph", unit="vectors"))
            file = put_file(output, f"{scratch}/{GRAPH}", name=GRAPH, rows=count)
        artifact = commit(table.model_copy(update={"output": output}), [file])
    return partial(nearest_in, artifact.path(GRAPH), vectors)


def _answers(
    model: Model, index: Artifact, find: Nearest, questions: Iterator[str], *, count: int
) -> Iterator[tuple[str, list[Found]]]:
    """Each question with its passages, in batches of questions."""
    asked, shown = tee(questions)
    vectors = model.sentence_vectors(asked)
    while together := list(islice(vectors, QUESTIONS_AT_ONCE)):
        hits = find(np.stack(together), count=count)
        for best, question in zip(hits, shown, strict=False):
            passages = []
            for hit in best:
                file, line, text = read_passage(index.path(PASSAGES), hit.row)
                where = os.path.relpath(file) if filesystem.is_local(file) else file
                passages.append(Found(hit.score, where, line, text))
            yield question, passages
