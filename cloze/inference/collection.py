"""The indexes of a folder's passages: artifacts that are made once.

In:  a model, a folder of documents, and how its passages are cut.
Out: `vectors`, the passages with their vectors, per model, folder contents and form of passages;
     `compact_vectors`, the same vectors in int8, of large collections; `lexical_index`, BM25 over
     the same passages, which all models share; `vector_graph`, a graph of the vectors.

If interrupted, they are made again from the start. No run refers to them: `cloze gc` keeps those of
the last 30 days.
"""

import math
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from importlib.metadata import version
from pathlib import Path

import numpy as np

from cloze.artifacts import filesystem
from cloze.artifacts.digests import digest_of
from cloze.artifacts.errors import ClozeError, UsageError
from cloze.artifacts.manifest import FileEntry
from cloze.artifacts.progress import say
from cloze.artifacts.stage import InputRef, StageTable
from cloze.artifacts.store import Artifact, commit, put_local_file, scratch_directory
from cloze.flows.external_inputs import digest_of_model, digests_of_files
from cloze.flows.inventory import intact
from cloze.flows.report.units import plural
from cloze.flows.workspace import Workspace
from cloze.inference.input_texts import metered
from cloze.inference.placed_passages import kinds_and_rest, placed_passages, said_of, sources_of
from cloze.init.corpus_files import left_out
from cloze.init.corpus_samples import look, stemmer
from cloze.model.hugging_face.sentence_modules import DOCUMENT, QUERY
from cloze.model.inference.load import Model
from cloze.model.retrieval import compact_vectors, lexical_index, passage_index
from cloze.model.retrieval.compact_vectors import CompactVectors
from cloze.model.retrieval.lexical_index import NO_LANGUAGE, LexicalIndex
from cloze.model.retrieval.passage_index import Graph, Vectors
from cloze.model.retrieval.questions import CORPUS, is_beir
from cloze.model.retrieval.standing import FEWEST, part_of, sampled_rows, standing_of
from cloze.pipeline.text.account import Account

STAGE, LEXICAL_STAGE, GRAPH_STAGE = "vectors", "lexical_index", "vector_graph"
COMPACT_STAGE = "compact_vectors"
FORMAT_VERSION = 7
"""7: how far passages stand out, and every kind of documents; 6: passages may overlap; 5: passages
have titles; 4: passages are embedded with the model's prompts; 3: contents are known by name, lines
by record; 2: the index contains the passages' lines.
"""
LEXICAL_FORMAT_VERSION = 2
"""2: terms are alike however they are encoded."""
COMPACT_FORMAT_VERSION = 1
GRAPH_FORMAT_VERSION = 3
"""3: its share of the nearest is that of made-up questions; 2: one vector for equal texts."""

AUTOMATIC = "auto"
SAMPLED_PASSAGES = 200
"""Passages by which the language of a collection is guessed."""


@dataclass(frozen=True)
class SearchedFolder:
    """A folder to search, and how its documents are cut into passages."""

    path: str
    """File, folder, glob or URL."""
    words: int
    """Most words of a passage."""
    overlap: int = 0
    """Words that a passage shares with the one before."""
    others: Sequence[str] = ()
    """Files of ours, such as questions, which are no documents if they are in the folder."""

    @property
    def documents(self) -> str:
        """Where its documents are: of a collection in BEIR's layout, not its questions."""
        return filesystem.join(self.path, CORPUS) if is_beir(self.path) else self.path


def index_folder(
    model: Model, directory: str, searched: SearchedFolder, *, space: Workspace
) -> Artifact:
    """The passages of a folder with their vectors: an existing artifact, or a new one."""
    folder, words, overlap = searched.documents, searched.words, searched.overlap
    seen = look(folder, left_out(folder, space, *searched.others))
    sources = sources_of(seen)

    def documents() -> InputRef:
        """The digest of all contents with their names, which an index shows."""
        found = [digests_of_files(one.path, place="folder", exclude=one.exclude) for one in sources]
        return InputRef(digest=digest_of(found))

    # Not where the files are; what they contain is in the inputs.
    forms = [one.model_dump(mode="json", exclude={"path", "exclude"}) for one in sources]
    model_digest = InputRef(digest=digest_of_model(directory, place="model"))
    table = _table(
        space,
        (STAGE, FORMAT_VERSION),
        config={"sources": forms, "passage_words": words, "overlap": overlap},
        inputs={"model": model_digest, "documents": documents()},
    )
    artifact, output = intact(table, said_by="search"), table.output
    if artifact:
        # The first line counts the documents read, of which there are none now.
        for line in [*artifact.manifest.execution.get("account", [])[1:], *kinds_and_rest(seen)]:
            say(f"search: {line}")
        return artifact
    account = Account()
    with scratch_directory(output) as scratch, filesystem.naming_full_disk(output):
        count = passage_index.write_passage_index(
            Path(scratch),
            placed_passages(sources, words=words, overlap=overlap, account=account),
            partial(_vectors, model, known=_earlier_vectors(space, table)),
            width=model.vector_width(),
        )
        for line in said_of(account, seen):
            say(f"search: {line}")
        if not count:
            raise UsageError(
                f"{folder}: no text in {plural(seen.files, 'file')}; expected documents"
            )
        # The key says what was read only if nothing has changed meanwhile.
        if documents() != table.inputs["documents"]:
            raise UsageError(f"{folder}: changed while it was read; run the command again")
        standing = _standing(model, scratch, count)
        files = _put(scratch, output, (passage_index.VECTORS, passage_index.PASSAGES), rows=count)
    return commit(
        table,
        files,
        statistics={"passages": count, "width": model.vector_width(), "standing": standing},
        # Without what is left out, for which no index is made anew.
        execution={"source": folder, "model": directory, "account": account.lines()},
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
    # An index need not be of this folder: vectors are found by model and text.
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


def _standing(model: Model, folder: str, count: int) -> float | None:
    """How far passages stand out by their vectors; None of too few to say."""
    if count < FEWEST:
        return None
    rows = sampled_rows(count)
    passages = f"{folder}/{passage_index.PASSAGES}"
    parts = (part_of(passage_index.read_passage(passages, row).text) for row in rows)
    parts_QH = np.stack([*model.sentence_vectors(parts, prompt=QUERY)])
    vectors_NH = passage_index.open_vectors(f"{folder}/{passage_index.VECTORS}")
    return standing_of(vectors_NH, rows, parts_QH)


def index_words(index: Artifact, *, language: str, space: Workspace) -> LexicalIndex:
    """BM25 over the passages of `index`: an existing artifact, or a new one.

    `language` is one of Snowball's, `none`, or `auto` to guess it from the passages.
    """
    passages = index.path(passage_index.PASSAGES)
    if language == AUTOMATIC:
        language = _language_of(passages, index.manifest.statistics["passages"])
    lexical_index.analyzer(language)  # report an unknown one, or a missing library, early
    (digest,) = (f.sha256 for f in index.manifest.files if f.name == passage_index.PASSAGES)
    table = _table(
        space,
        (LEXICAL_STAGE, LEXICAL_FORMAT_VERSION),
        # Other versions have other stems, stopwords and arrays.
        config={name: version(name) for name in ("bm25s", "PyStemmer")} | {"language": language},
        inputs={"passages": InputRef(digest=digest)},
    )
    artifact, output = intact(table, said_by="search"), table.output
    if not artifact:
        with scratch_directory(output) as scratch, filesystem.naming_full_disk(output):
            texts = metered(passage_index.indexed_texts(passages), verb="words", unit="passages")
            count = lexical_index.write_lexical_index(Path(scratch), texts, language=language)
            files = _put(scratch, output, lexical_index.FILES, rows=count)
        artifact = commit(table, files, statistics={"passages": count}, execution=_source_of(index))
        say(f"words: {language}" + (", unstemmed" if language == NO_LANGUAGE else " stemmer"))
    paths = {name: artifact.path(name) for name in lexical_index.FILES}
    return LexicalIndex(paths, language=language)


def _language_of(passages: str, count: int) -> str:
    """The language of a sample of passages, spread over all."""
    rows = range(0, count, max(1, count // SAMPLED_PASSAGES))
    texts = (passage_index.read_passage(passages, row).text for row in rows)
    return stemmer(" ".join(texts))


def compact_vectors_of(index: Artifact, space: Workspace) -> CompactVectors:
    """The index's vectors in int8: an existing artifact, or a new one."""
    table = _table(
        space,
        (COMPACT_STAGE, COMPACT_FORMAT_VERSION),
        config={},
        inputs={"vectors": InputRef(digest=index.digest)},
    )
    artifact, output = intact(table, said_by="search"), table.output
    if not artifact:
        with scratch_directory(output) as scratch, filesystem.naming_full_disk(output):
            vectors = index.path(passage_index.VECTORS)
            rows = compact_vectors.write_compact_vectors(vectors, Path(scratch))
            count = sum(1 for _ in metered(rows, verb="compact", unit="vectors"))
            files = _put(scratch, output, compact_vectors.COMPACT_FILES, rows=count)
        artifact = commit(table, files, statistics={}, execution=_source_of(index))
    return CompactVectors({name: artifact.path(name) for name in compact_vectors.COMPACT_FILES})


def graph_of(index: Artifact, space: Workspace) -> Graph:
    """The graph of the index's vectors: an existing artifact, or a new one."""
    table = _table(
        space,
        (GRAPH_STAGE, GRAPH_FORMAT_VERSION),
        # Another version of the library builds its own graph.
        config={"usearch": version("usearch"), **passage_index.GRAPH_SETTINGS},
        inputs={"vectors": InputRef(digest=index.digest)},
    )
    artifact, output = intact(table, said_by="search"), table.output
    vectors = index.path(passage_index.VECTORS)
    if not artifact:
        with scratch_directory(output) as scratch, filesystem.naming_full_disk(output):
            texts = passage_index.indexed_texts(index.path(passage_index.PASSAGES))
            rows = passage_index.write_graph(vectors, texts, Path(scratch))
            count = sum(1 for _ in metered(rows, verb="graph", unit="vectors"))
            paths = {name: f"{scratch}/{name}" for name in passage_index.GRAPH_FILES}
            # An approximate index that does not say how approximate it is could be wrong in
            # silence.
            recall = passage_index.recall_of(Graph(paths, vectors), vectors)
            files = _put(scratch, output, passage_index.GRAPH_FILES, rows=count)
        artifact = commit(table, files, statistics={"recall": recall}, execution=_source_of(index))
    # Rounded down: 100.0% is all of them.
    tenths = math.floor(1000 * artifact.manifest.statistics["recall"])
    say(
        f"graph: finds {tenths / 10:.1f}% of the {passage_index.COMPARED} passages nearest to "
        "made-up questions; without --index all are compared"
    )
    return Graph({name: artifact.path(name) for name in passage_index.GRAPH_FILES}, vectors)


def _table(
    space: Workspace,
    made_by: tuple[str, int],
    *,
    config: Mapping[str, object],
    inputs: dict[str, InputRef],
) -> StageTable:
    """The table of one index, which lies in the store under its own key.

    `made_by` is the stage and the version of its format.
    """
    stage, format_version = made_by
    # The key does not depend on the output, whose place it decides.
    table = StageTable(
        stage=stage, format_version=format_version, config=dict(config), inputs=inputs, output=""
    )
    return table.model_copy(update={"output": space.store.directory(stage, table.key)})


def _source_of(index: Artifact) -> dict[str, str]:
    """The folder, by which `cloze gc` names what is made from its index."""
    source = index.manifest.execution.get("source")
    return {"source": str(source)} if source else {}


def _put(scratch: str, output: str, names: Iterable[str], *, rows: int) -> list[FileEntry]:
    """Upload files of the scratch directory, each with `rows` rows, as those of the artifact."""
    return [put_local_file(output, f"{scratch}/{name}", name=name, rows=rows) for name in names]
