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
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from importlib.metadata import version
from itertools import islice, tee
from pathlib import Path
from typing import Annotated, Literal

import numpy as np
from cyclopts import Parameter

from cloze.answer import Answer, print_lines
from cloze.artifacts import filesystem
from cloze.artifacts.digests import digest_of
from cloze.artifacts.errors import ClozeError, UsageError
from cloze.artifacts.progress import say
from cloze.artifacts.stage import InputRef, StageTable
from cloze.artifacts.store import Artifact, commit, put_local_file, scratch_directory
from cloze.flows.external_inputs import digest_of_model, digests_of_files
from cloze.flows.inventory import look_up, remove_damage
from cloze.flows.report.units import plural
from cloze.flows.workspace import Workspace, writable_workspace
from cloze.inference.input_texts import ModelName, Text, metered, texts_or_lines
from cloze.inference.placed_passages import (
    PlacedPassage,
    placed_passages,
    source_of,
)
from cloze.init.corpus_files import LEFT_OUT, own_files
from cloze.init.corpus_samples import Look, look
from cloze.model.hugging_face.sentence_modules import DOCUMENT, QUERY
from cloze.model.inference import passage_index
from cloze.model.inference.load import Model, load_model
from cloze.model.inference.passage_index import Vectors
from cloze.options import PLACE, Place, reading_artifacts, vectors_directory
from cloze.pipeline.text.account import Account

STAGE, GRAPH_STAGE = "vectors", "vector_graph"
FORMAT_VERSION = 4
"""4: passages are embedded with the model's prompts; 3: contents are known by name, lines by
record; 2: the index contains the passages' lines."""
GRAPH_FORMAT_VERSION = 1

QUESTIONS_AT_ONCE = 64

Nearest = Callable[..., list[list[passage_index.Hit]]]
"""From vectors of questions and `count` to the nearest `count` rows per question, best first."""


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
    place: Place = PLACE,
) -> Answer | None:
    """Embed texts.

    :param output: File to write, NAME.npy; by default vectors are printed, one per line.
    :param truncate: Truncate texts that are too long.
    :param passages: Treat the arguments as files and folders of documents, and embed passages of
        about this many words, which end at sentence boundaries.
    """
    # Options are checked before the model is loaded, which takes seconds.
    chosen = form.numbers()
    if output is not None and output.suffix != ".npy":
        raise UsageError(f"--output {output}: expected a NumPy file; name it {output.stem}.npy")
    if passages < 0:
        raise UsageError(f"--passages {passages}: expected a number of words, for example 100")
    loaded = load_model(vectors_directory(model, place.space()))
    # Twice: the texts for the model, and the passages for the output.
    placed, read = tee(_passages_of(texts, words=passages, space=place.space()) if passages else ())
    found = loaded.embed_stream(
        (passage.text for passage in read) if passages else texts_or_lines(texts),
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


def _passages_of(
    paths: tuple[str, ...], *, words: int, space: Workspace
) -> Iterator[PlacedPassage]:
    """The passages of all documents; what was read and left out is logged."""
    if not paths:
        raise UsageError("--passages: nothing to read; give files or folders of documents")
    for path in paths:
        seen = look(path, own_files(path, space))
        account = Account()
        yield from placed_passages(source_of(seen), words=words, account=account)
        for line in _said(account, seen):
            say(f"embed: {line}")


def _said(account: Account, seen: Look) -> list[str]:
    """What was read of a folder, and what was left out, and why."""
    return [*account.lines(), *(f"left out: {odd}" for odd in seen.odd if odd.endswith(LEFT_OUT))]


def _beside(
    placed: Iterable[PlacedPassage], vectors: Iterable[Vectors], path: Path
) -> Iterator[Vectors]:
    """Pass on the vectors and write their passages to `path`, which appears once complete."""
    with (
        filesystem.partial_file(str(path)) as temporary,
        open(temporary, "w", encoding="utf-8") as file,
    ):
        for one, vector in zip(placed, vectors, strict=True):
            file.write(json.dumps(one._asdict(), ensure_ascii=False) + "\n")
            yield vector


@reading_artifacts
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
    # One precision on every machine: the key of an index does not contain it.
    loaded = load_model(directory, precision="fp32")
    if loaded.modules is None:
        say(f"{model} was not trained for retrieval (no modules.json): expect a rough ranking")
    elif loaded.modules.similarity != "cosine":
        raise UsageError(
            f"{model}: its vectors are to be compared by {loaded.modules.similarity}, and search "
            "compares by cosine; use `cloze embed` and rank yourself"
        )
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
    seen = look(folder, own_files(folder, space))
    source = source_of(seen)

    def documents() -> InputRef:
        """The digest of all contents with their names, which an index shows."""
        found = digests_of_files(source.path, place="folder", exclude=source.exclude)
        return InputRef(digest=digest_of(found))

    table = StageTable(
        stage=STAGE,
        format_version=FORMAT_VERSION,
        config={
            # Not where the files are; what they contain is in the inputs.
            "source": source.model_dump(mode="json", exclude={"path", "exclude"}),
            "passage_words": words,
        },
        inputs={
            "model": InputRef(digest=digest_of_model(directory, place="model")),
            "documents": documents(),
        },
        output="",
    )
    table = table.model_copy(update={"output": space.store.directory(STAGE, table.key)})
    artifact, output = _intact(table), table.output
    if artifact:
        # The first line counts the documents read, of which there are none now.
        for line in artifact.manifest.execution.get("account", [])[1:]:
            say(f"search: {line}")
        return artifact
    account = Account()
    with scratch_directory(output) as scratch:
        count = passage_index.write_passage_index(
            Path(scratch),
            placed_passages(source, words=words, account=account),
            partial(_vectors, model, known=_earlier_vectors(space, table)),
            width=model.vector_width(),
        )
        said = _said(account, seen)
        for line in said:
            say(f"search: {line}")
        if not count:
            raise UsageError(
                f"{folder}: no text in {plural(seen.files, 'file')}; expected documents"
            )
        # The key says what was read only if nothing has changed meanwhile.
        if documents() != table.inputs["documents"]:
            raise UsageError(f"{folder}: changed while it was read; run the command again")
        files = [
            put_local_file(output, f"{scratch}/{name}", name=name, rows=count)
            for name in (passage_index.VECTORS, passage_index.PASSAGES)
        ]
    return commit(
        table,
        files,
        statistics={"passages": count, "width": model.vector_width()},
        execution={"source": folder, "model": directory, "account": said},
    )


def _vectors(
    model: Model, texts: Iterable[str], *, known: Mapping[bytes, Vectors]
) -> Iterator[Vectors]:
    """The vectors of the texts in their order; only those that are not known are computed."""
    # Texts whose vectors are not passed on yet, in order: the digest of a known one, None for one
    # that is being computed.
    waiting: deque[bytes | None] = deque()

    def unknown() -> Iterator[str]:
        for text in texts:
            digest = passage_index.digest_of_text(text)
            waiting.append(digest if digest in known else None)
            if waiting[-1] is None:
                yield text

    def ready() -> Iterator[Vectors]:
        while waiting and waiting[0] is not None:
            yield known[waiting[0]]
            waiting.popleft()

    # The model takes texts ahead, in batches; its vectors are put back in order by `waiting`.
    computed = model.sentence_vectors(unknown(), prompt=DOCUMENT)
    for vector in metered(computed, verb="index", unit="passages"):
        yield from ready()
        waiting.popleft()
        yield vector
    yield from ready()


def _earlier_vectors(space: Workspace, table: StageTable) -> Mapping[bytes, Vectors]:
    """The vectors of the largest index that the same model made, by the digests of the texts.

    One new file then costs its own passages. Indexes are the only cache, which `cloze gc` clears.
    """
    best: Artifact | None = None
    for key in filesystem.list_names(filesystem.join(space.store.root, STAGE)):
        with suppress(ClozeError):
            found = space.store.find(STAGE, key)
            same = found and found.manifest.inputs.get("model") == table.inputs["model"].digest
            if found and same and found.manifest.format_version == FORMAT_VERSION:
                passages = [one.manifest.statistics["passages"] for one in (found, best) if one]
                best = found if passages[0] >= max(passages) else best
    if best is None:
        return {}
    return passage_index.vectors_by_text(
        best.path(passage_index.VECTORS), best.path(passage_index.PASSAGES)
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
    table = table.model_copy(update={"output": space.store.directory(GRAPH_STAGE, table.key)})
    artifact, output = _intact(table), table.output
    vectors = index.path(passage_index.VECTORS)
    if not artifact:
        with scratch_directory(output) as scratch:
            graph = f"{scratch}/{passage_index.GRAPH}"
            rows = passage_index.write_graph(vectors, graph)
            count = sum(1 for _ in metered(rows, verb="graph", unit="vectors"))
            file = put_local_file(output, graph, name=passage_index.GRAPH, rows=count)
        artifact = commit(table, [file])
    return partial(passage_index.nearest_in, artifact.path(passage_index.GRAPH), vectors)


def _intact(table: StageTable) -> Artifact | None:
    """The artifact of `table`, verified; what is damaged of it is removed, to be made again."""
    found = look_up(table)
    if found.damage:
        say(f"search: {found.damage}; making it again")
        remove_damage(table.output, found)
    return found.artifact


def _answers(
    model: Model, index: Artifact, find: Nearest, questions: Iterator[str], *, count: int
) -> Iterator[tuple[str, list[tuple[float, PlacedPassage]]]]:
    """Each question with its passages and their scores, in batches of questions."""
    asked, shown = tee(questions)
    vectors = model.sentence_vectors(asked, prompt=QUERY)
    while together := list(islice(vectors, QUESTIONS_AT_ONCE)):
        hits = find(np.stack(together), count=count)
        # In this order, `zip` ends with `hits` before it takes a question of the next batch.
        for best, question in zip(hits, shown, strict=False):
            passages = []
            for hit in best:
                found = passage_index.read_passage(index.path(passage_index.PASSAGES), hit.row)
                passage = PlacedPassage(*found)
                if filesystem.is_local(passage.file):
                    passage = passage._replace(file=os.path.relpath(passage.file))
                passages.append((hit.score, passage))
            yield question, passages
