"""`cloze inspect`: an artifact's manifest, its inputs, its statistics and its first rows as text.

In:  an artifact's directory, or RUN/STAGE; its Arrow files (artifacts/tables.py) and tokenizer.
Out: text, or with --json the manifest and the rows; for tokens also individual documents, those
     that were dropped, and a page about the whole corpus; for boilerplate the lines that are
     removed, largest first. One string per document or example; masked positions are marked.
"""

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import accumulate, islice, pairwise
from pathlib import Path
from typing import Annotated, Any

import pyarrow as pa
import pyarrow.compute as pc
from cyclopts import Parameter
from pydantic import JsonValue

from cloze.answer import Answer, aligned
from cloze.artifacts import filesystem
from cloze.artifacts.errors import UsageError
from cloze.artifacts.filesystem import is_local
from cloze.artifacts.progress import say
from cloze.artifacts.results import TRAIN
from cloze.artifacts.store import Artifact
from cloze.artifacts.tables import DROPPED_NAME, LINES_NAME, SPANS_NAME, DocumentRow, ExampleRow
from cloze.artifacts.tokenizer import CONTINUATION, MASK, SubwordTokenizer, read_tokenizer_json
from cloze.named import named_artifact
from cloze.options import PLACE, Place, reading_artifacts

WITH_ROWS = ("tokens", "examples")
STAGES = {
    "--split": WITH_ROWS,
    **dict.fromkeys(("--document", "--dropped", "--page"), ("tokens",)),
}
"""Stages whose artifacts support each option."""
SHOWN_ROWS, SHOWN_DROPPED, SHOWN_LINES = 2, 20, 20
LONGEST_LIST = 12
"""Longer lists of statistics, such as histograms, appear only with --json."""

Rows = Annotated[
    int | None,
    Parameter(
        help=f"Number of rows: documents or examples [default: {SHOWN_ROWS}], dropped documents "
        f"or lines of boilerplate [default: {SHOWN_DROPPED}]."
    ),
]

LINE_CELLS = ("source {source}", "{removed}", "{removed_bytes:,} bytes", "{shown}")
"""What is shown of a line of boilerplate, or of a span that came earlier."""

LABELS = {0: "B follows A", 1: "B is random", -1: "one segment"}
"""Meaning of a next_sentence_label."""


@reading_artifacts
def inspect(
    artifact: str,
    /,
    *,
    rows: Rows = None,
    split: str = "",
    document: str = "",
    dropped: Annotated[list[str] | None, Parameter(consume_multiple=True)] = None,
    page: Path | None = None,
    place: Place = PLACE,
) -> Answer:
    """Inspect an artifact.

    :param artifact: Directory of an artifact, or RUN/STAGE.
    :param split: Split to read: train (the default), heldout, or the name of a held-out source.
    :param document: Show documents whose digest starts with this.
    :param dropped: List the documents that were dropped, for the given reasons or for any.
    :param page: Read the corpus again and write a page about it: RUN/tokens only.
    """
    found = named_artifact(artifact, place.space())
    # verify all files, even those not shown; files already verified cost nothing
    if is_local(found.directory):
        for entry in (*found.manifest.files, *found.manifest.records):
            found.path(entry.name)
    stage = found.manifest.stage
    given = {
        **{"--split": split, "--document": document},
        **{"--dropped": dropped is not None, "--page": page is not None},
    }
    _refuse_without_meaning([option for option, value in given.items() if value], stage)
    shown: list[RowText] = []
    listed: list[dict[str, JsonValue]] = []
    recurring: list[dict[str, JsonValue]] = []
    if dropped is not None:
        count = SHOWN_DROPPED if rows is None else rows
        listed = _dropped(found, reasons=dropped, document=document, count=count)
    elif stage in WITH_ROWS:
        count = SHOWN_ROWS if rows is None else rows
        shown = texts_of_rows(found, split=split, count=count, document=document)
    elif stage == "boilerplate":
        recurring = _lines(found, count=SHOWN_LINES if rows is None else rows)
    data: dict[str, object] = {
        "directory": found.directory,
        "digest": found.digest,
        "manifest": found.manifest.model_dump(mode="json"),
        "rows": [asdict(row) for row in shown],
        "dropped": listed,
        "lines": recurring,
    }
    if page:
        data["survey"] = _write_page(artifact, found, place, page)
        data["page"] = str(page)
        say(f"page: {page}")
    lines = _facts(found)
    lines += [line for row in shown for line in ("", f"— {row.title}", row.text)]
    if listed:
        cells = ("{reason}", "{document_digest}", "{path}, position {position}")
        lines += ["", aligned([[cell.format(**row) for cell in cells] for row in listed])]
    elif dropped is not None:
        lines += ["", "no document was dropped"]
    if recurring:
        lines += ["", aligned([[cell.format(**row) for cell in LINE_CELLS] for row in recurring])]
    return Answer(data, "\n".join(lines), place.json)


def _refuse_without_meaning(options: Sequence[str], stage: str) -> None:
    """Refuse an option that means nothing for artifacts of `stage`."""
    for option in options:
        if stage not in STAGES[option]:
            where = " or ".join(f"RUN/{name}" for name in STAGES[option])
            raise UsageError(f"{option}: not supported for {stage}; inspect {where}")


def _write_page(name: str, artifact: Artifact, place: Place, path: Path) -> JsonValue:
    """Write the page about the corpus of `RUN/tokens`; returns what is on it."""
    # Imported here: drawing and reading take a second that no other view needs.
    from cloze.inspection.run_corpus import survey_run
    from cloze.inspection.survey_page import survey_page

    found = survey_run(name, artifact, place.space())
    filesystem.write_bytes(str(path), survey_page(found).encode())
    surveyed: JsonValue = found.model_dump(mode="json")
    return surveyed


def _dropped(
    artifact: Artifact, *, reasons: list[str], document: str, count: int
) -> list[dict[str, JsonValue]]:
    """The first `count` documents dropped for one of `reasons`, or for any."""
    known = artifact.manifest.statistics["dropped"]
    unknown = [reason for reason in reasons if reason not in known]
    if unknown:
        counts = ", ".join(f"{reason} {number:,}" for reason, number in known.items()) or "none"
        raise UsageError(
            f"--dropped {' '.join(unknown)}: no document was dropped for this reason; dropped: "
            f"{counts}"
        )
    found = rows_of_file(artifact, DROPPED_NAME, document=document)
    rows = (row.to_pylist()[0] for row in found)
    wanted = (row for row in rows if not reasons or row["reason"] in reasons)
    return [
        {**row, "document_digest": row["document_digest"].hex()} for row in islice(wanted, count)
    ]


def _lines(artifact: Artifact, *, count: int) -> list[dict[str, JsonValue]]:
    """The `count` recurring lines, and spans that came earlier, of which most bytes are removed."""
    keys = [("removed_bytes", "descending"), ("source", "ascending"), ("key", "ascending")]
    found: list[dict[str, Any]] = []
    for name in {LINES_NAME, SPANS_NAME} & {entry.name for entry in artifact.manifest.files}:
        with pa.memory_map(artifact.path(name)) as source:
            table = pa.ipc.open_file(source).read_all()
            if len(table) and count:
                # the indices of the first few, rather than the whole table sorted
                first = pc.select_k_unstable(table, min(count, len(table)), sort_keys=keys)
                found += table.take(first).to_pylist()
    found.sort(key=lambda row: (-row["removed_bytes"], row["source"], row["key"]))
    for row in found[:count]:
        lines, spans = row.get("removed_lines"), row.get("removed_spans")
        row["removed"] = f"{spans:,} spans" if lines is None else f"{lines:,} lines"
        row["shown"] = " | ".join(row["text"].splitlines())
    return found[:count]


def _facts(artifact: Artifact) -> list[str]:
    manifest = artifact.manifest
    size = sum(entry.size for entry in manifest.files)
    rows = sum(entry.rows or 0 for entry in manifest.files)
    facts = {
        "stage": manifest.stage,
        "digest": artifact.digest,
        "directory": artifact.directory,
        "files": f"{len(manifest.files)}, {size:,} bytes" + (f", {rows:,} rows" if rows else ""),
        **{f"input {role}": digest for role, digest in manifest.inputs.items()},
        **_flat(manifest.statistics),
        **manifest.execution,
    }
    width = max(len(name) for name in facts)
    return [f"{name:<{width}}  {value}" for name, value in facts.items()]


def _flat(statistics: dict[str, JsonValue]) -> dict[str, JsonValue]:
    """The statistics by dotted key, without long lists."""
    found: dict[str, JsonValue] = {}
    for name, value in statistics.items():
        if isinstance(value, dict):
            found.update({f"{name}.{key}": inner for key, inner in _flat(value).items()})
        elif not isinstance(value, list) or len(value) <= LONGEST_LIST:
            found[name] = value
    return found


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
    # A digest that somebody looks for may be in any split; rows to look at are those that train.
    searched = [split] if split else list(files) if document else [TRAIN]
    found: list[RowText] = []
    # Read row by row and left at the count: a file may have a million rows.
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
        # A continuation is marked before the bracket, so that it is still joined to the token
        # before it.
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
