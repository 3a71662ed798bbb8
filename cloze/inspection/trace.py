"""`cloze trace`: score ← model ← examples ← tokens ← document, one line each.

In:  a run, and the number of the example to trace to its document.
Out: every step with its digest, from the score to the text.

A pre-trained encoder from elsewhere is traced as far as this workspace records it. Examples do not
name their documents; the document is found by searching for the example's ids. Nor do tokens name
files; the file is found by reading the corpus until a document has the digest.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Annotated

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from cyclopts import Parameter

from cloze.answer import Answer, aligned
from cloze.artifacts.errors import UsageError
from cloze.artifacts.manifest import FileEntry
from cloze.artifacts.progress import say
from cloze.artifacts.store import Artifact
from cloze.artifacts.tables import DocumentRow, ExampleRow, tokens_name
from cloze.artifacts.tokenizer import read_tokenizer_json
from cloze.flows.config import RunConfig
from cloze.flows.inventory import ancestors
from cloze.flows.report.figures import figures, read_summary
from cloze.flows.workspace import read_record, run_artifact
from cloze.inspection.inspect_artifact import document_text, example_text
from cloze.options import PLACE, Place, RunName, reading_artifacts
from cloze.pipeline.config.settings import CleaningConfig, CorpusConfig
from cloze.pipeline.readers.documents import place_of
from cloze.pipeline.readers.input_shards import find_corpus, reader_named
from cloze.pipeline.text.texts import read_documents

Ids = npt.NDArray[np.int64]

SHOWN_CHARACTERS = 400
"""Longer texts are truncated, except with --json."""


@dataclass(frozen=True)
class TraceStep:
    """One step of the trace."""

    what: str
    digest: str
    words: str


@dataclass(frozen=True)
class TracedExample:
    """One row of an examples artifact."""

    file: FileEntry
    row: int
    """Within its file."""
    copy: int
    """Which copy of the corpus, each masked differently."""
    values: ExampleRow


@reading_artifacts
def trace(
    run: RunName,
    /,
    *,
    row: Annotated[int, Parameter(show_default=True)] = 0,
    split: str = "train",
    without_file: bool = False,
    place: Place = PLACE,
) -> Answer:
    """Trace a run's score back to a document.

    :param row: Number of the example to trace, from 0.
    :param split: Split of the example.
    :param without_file: Do not look for the document's file, for which the corpus is read.
    """
    space = place.space()
    record = read_record(space, run)
    finished = record.stages
    # From the end: the scores if there are any, else the model.
    last = next((stage for stage in ("evaluate", "finetune") if stage in finished), "pretrain")
    found = ancestors(run_artifact(space, run, stage=last), store=space.store)
    steps: list[TraceStep] = []
    if "evaluate" in found:
        summary = read_summary(space, run)
        first = list(figures(summary).items())[:3] if summary else []
        words = ", ".join(f"{name} {value:.4g}" for name, value in first)
        steps.append(TraceStep("score", found["evaluate"].digest, words))
    steps += _model_steps(found)
    if "examples" in found:
        example = find_example(found["examples"], split=split, row=row)
        origin = find_origin(example, found["tokens"])
        steps += _document_steps(example, origin, found)
        config = RunConfig.model_validate(record.config)
        if config.corpus and not without_file:
            cleaning = config.cleaning
            if lines := found.get("boilerplate"):  # a digest is that of the text without them
                cleaning = cleaning.model_copy(update={"boilerplate": lines.directory})
            if scores := found.get("scores"):
                cleaning = cleaning.model_copy(update={"scores": scores.directory})
            where = find_file(origin.document["document_digest"], config.corpus, cleaning)
            steps.append(TraceStep("file", "", where))
    elif row or split != "train" or without_file:
        raise UsageError(
            f"{run}: its encoder was not trained on a corpus here, so no example can be traced; "
            "leave out --row, --split and --without-file"
        )
    rows = []
    for step in steps:
        more = "…" if len(step.words) > SHOWN_CHARACTERS else ""
        rows.append((step.what, step.digest[:12], step.words[:SHOWN_CHARACTERS] + more))
    return Answer([asdict(step) for step in steps], aligned(rows), place.json)


def _document_steps(
    example: TracedExample, origin: "Origin", found: Mapping[str, Artifact]
) -> list[TraceStep]:
    """From an example to the text of its document."""
    examples, tokens = found["examples"], found["tokens"]
    tokenizer = read_tokenizer_json(tokens.path("tokenizer.json"))
    masked = example_text(example.values, tokenizer)
    document = document_text(origin.document, tokenizer)
    digest = origin.document["document_digest"].hex()
    several = ""
    if origin.documents > 1:
        several = f" (the first of {origin.documents} documents with this segment)"
    position = f"row {example.row} of {example.file.rows}, copy {example.copy}"
    shard = f"{example.file.name}, {position}: {masked.title}"
    corpus = tokens.manifest.inputs["corpus"]
    return [
        TraceStep("examples", examples.digest, f"{len(examples.manifest.files)} files"),
        TraceStep("shard", example.file.sha256, shard),
        TraceStep("example", "", masked.text.replace("\n", " ")),
        TraceStep("tokens", tokens.digest, f"from corpus {corpus[:12]}"),
        TraceStep("shard", origin.file.sha256, f"{origin.file.name}, row {origin.row}"),
        TraceStep("document", digest, document.title.partition(", ")[2] + several),
        TraceStep("text", "", document.text.replace("\n", " ")),
    ]


def _model_steps(found: dict[str, Artifact]) -> list[TraceStep]:
    if "pretrain" not in found:
        user = found.get("evaluate") or found["finetune"]
        imported = found.get("import")
        source = f"imported from {imported.manifest.execution['source']}" if imported else "given"
        return [
            TraceStep("model", user.manifest.inputs["encoder"], f"pretrained encoder, {source}")
        ]
    manifest = found["pretrain"].manifest
    encoder, recipe = manifest.config["encoder"], manifest.config["pretrain"]
    size = f"{encoder['num_hidden_layers']}×{encoder['hidden_size']}"
    words = f"{size} encoder after {recipe['steps']:,} steps of {recipe['batch_size']} examples"
    weights = manifest.file("model.safetensors")
    return [
        TraceStep("model", found["pretrain"].digest, words),
        TraceStep("weights", weights.sha256, f"{weights.stored_name}, {weights.size:,} bytes"),
    ]


def find_example(examples: Artifact, *, split: str, row: int) -> TracedExample:
    """Row `row` of `split`, counting through its files in order."""
    left = row
    entries = [e for e in examples.manifest.files if e.statistics.get("split") == split]
    # Pass over whole files until the row is in one.
    for entry in entries:
        if 0 <= left < (entry.rows or 0):
            break
        left -= entry.rows or 0
    else:
        total = sum(entry.rows or 0 for entry in entries)
        if not total:
            splits = sorted({str(e.statistics["split"]) for e in examples.manifest.files if e.rows})
            raise UsageError(f"--split {split}: no such split; the splits are {', '.join(splits)}")
        raise UsageError(f"--row {row}: {split} has {total} examples; choose from 0 to {total - 1}")
    with pa.memory_map(examples.path(entry.name)) as source:
        file = pa.ipc.open_file(source)
        # Record batch c holds copy c (artifacts/tables.py).
        sizes = [file.get_batch(copy).num_rows for copy in range(file.num_record_batches)]
        copy = int(np.searchsorted(np.cumsum(sizes), left, side="right"))
        (values,) = file.get_batch(copy).slice(left - sum(sizes[:copy]), 1).to_pylist()
    return TracedExample(entry, left, copy, values)


@dataclass(frozen=True)
class Origin:
    """The first document that contains an example's first segment."""

    file: FileEntry
    row: int
    """Within its file."""
    document: DocumentRow
    documents: int
    """Number of documents that contain the segment: a short one may occur in several."""


def find_origin(example: TracedExample, tokens: Artifact) -> Origin:
    """The document that contains the example's first segment, the first one if several do."""
    facts = example.file.statistics
    entry = tokens.manifest.file(tokens_name(facts["split"], facts["bucket"]))
    wanted = first_segment(example.values)
    with pa.memory_map(tokens.path(entry.name)) as source:
        table = pa.ipc.open_file(source).read_all()
    ids = table.column("token_ids").combine_chunks()
    places = places_of(wanted, ids.values.to_numpy().astype(np.int64))
    ends = ids.offsets.to_numpy()[1:] - ids.offsets.to_numpy()[0]
    # The first document that ends beyond a place contains it, if the segment ends there, too: the
    # end of one and the beginning of the next may look like it.
    rows = np.searchsorted(ends, places, side="right")
    rows = np.unique(rows[places + len(wanted) <= ends[rows]])
    if not len(rows):
        raise UsageError(
            f"{entry.name}: no document contains the example's first segment; "
            "the example was made from other tokens"
        )
    row = int(rows[0])
    return Origin(entry, row, table.slice(row, 1).to_pylist()[0], len(rows))


def find_file(digest: bytes, corpus: CorpusConfig, cleaning: CleaningConfig) -> str:
    """Where the document with this digest begins: its file and line, row or ordinal."""
    found = find_corpus(corpus)
    readers = {
        file.path: reader_named(source.reader)
        for source, files in zip(corpus.sources, found, strict=True)
        for file in files
    }
    size = sum(file.size for files in found for file in files)
    say(f"looking for the document in {len(readers):,} files, {size / 1e6:,.1f} MB")
    for document in read_documents(corpus, cleaning):
        if document.digest == digest:
            return place_of(document.file, document.position, readers[document.file])
    return "not found: the corpus has changed since"


def first_segment(row: ExampleRow) -> Ids:
    """The unmasked ids of segment A, or of the first of several documents, without [CLS], [SEP]."""
    ids = np.array(row["input_ids"], dtype=np.int64)
    # Put the original ids back where tokens were masked.
    ids[np.array(row["masked_lm_positions"], dtype=np.int64)] = row["masked_lm_ids"]
    return ids[1 : row.get("document_lengths", [row["segment_a_length"]])[0] - 1]


def places_of(wanted: Ids, ids: Ids) -> Ids:
    """All positions at which `wanted` begins in `ids`."""
    places: Ids = np.arange(max(len(ids) - len(wanted) + 1, 0), dtype=np.int64)
    # Candidates that agree so far; few are left after the first ids.
    for offset, value in enumerate(wanted):
        places = places[ids[places + offset] == value]
    return places
