"""`cloze inspect`: an artifact's manifest, its inputs, its statistics and its first rows.

In:  an artifact's directory, or RUN/STAGE.
Out: text, or with --json the manifest and the rows; for tokens also individual documents, and those
     that were dropped.
"""

from collections.abc import Iterator
from dataclasses import asdict
from itertools import islice
from typing import Annotated

from cyclopts import Parameter
from pydantic import JsonValue

from artifacts.errors import UsageError
from artifacts.filesystem import is_local
from artifacts.store import Artifact
from artifacts.tables import DROPPED_NAME, DroppedRow
from cloze.answer import Answer, columns
from cloze.inspection.row_text import RowText, rows_of_file, texts_of_rows
from cloze.lookup import named_artifact
from cloze.options import PLACE, Place

WITH_ROWS = ("tokens", "examples")
STAGES = {"--split": WITH_ROWS, "--document": ("tokens",), "--dropped": ("tokens",)}
"""Stages whose artifacts support each option."""
SHOWN_ROWS, SHOWN_DROPPED = 2, 20
LONGEST_LIST = 12
"""Longer lists of statistics, such as histograms, appear only with --json."""

Name = Annotated[str, Parameter(help="Directory of an artifact, or RUN/STAGE.")]
Rows = Annotated[
    int | None,
    Parameter(
        help=f"Number of rows: documents or examples [default: {SHOWN_ROWS}], dropped documents "
        f"[default: {SHOWN_DROPPED}]."
    ),
]
Split = Annotated[
    str,
    Parameter(
        help="Split to read: train (the default), heldout, or the name of a held-out source.",
        show_default=False,
    ),
]
Document = Annotated[
    str, Parameter(help="Show documents whose digest starts with this.", show_default=False)
]
Dropped = Annotated[
    list[str] | None,
    Parameter(
        help="List the documents that were dropped, for the given reasons or for any.",
        negative="",
        consume_multiple=True,
    ),
]


def inspect(
    artifact: Name,
    /,
    *,
    rows: Rows = None,
    split: Split = "",
    document: Document = "",
    dropped: Dropped = None,
    place: Place = PLACE,
) -> Answer:
    """Inspect an artifact."""
    found = named_artifact(artifact, place.space())
    # verify all files, even those not shown; files already verified cost nothing
    if is_local(found.directory):
        for entry in (*found.manifest.files, *found.manifest.records):
            found.path(entry.name)
    stage = found.manifest.stage
    given = {"--split": split, "--document": document, "--dropped": dropped is not None}
    for option in (option for option, value in given.items() if value):
        if stage not in STAGES[option]:
            where = " or ".join(f"RUN/{name}" for name in STAGES[option])
            raise UsageError(f"{option}: not supported for {stage}; inspect {where}")
    shown: list[RowText] = []
    listed: list[dict[str, JsonValue]] = []
    if dropped is not None:
        count = SHOWN_DROPPED if rows is None else rows
        listed = _dropped(found, reasons=dropped, document=document, count=count)
    elif stage in WITH_ROWS:
        count = SHOWN_ROWS if rows is None else rows
        shown = texts_of_rows(found, split=split, count=count, document=document)
    data = {
        "directory": found.directory,
        "digest": found.digest,
        "manifest": found.manifest.model_dump(mode="json"),
        "rows": [asdict(row) for row in shown],
        "dropped": listed,
    }
    lines = _facts(found)
    lines += [line for row in shown for line in ("", f"— {row.title}", row.text)]
    if listed:
        cells = ("{reason}", "{document_digest}", "{path}, position {position}")
        lines += ["", columns([[cell.format(**row) for cell in cells] for row in listed])]
    elif dropped is not None:
        lines += ["", "no document was dropped"]
    return Answer(data, "\n".join(lines), place.json)


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
    rows: Iterator[DroppedRow] = (row.to_pylist()[0] for row in found)
    wanted = (row for row in rows if not reasons or row["reason"] in reasons)
    return [
        {
            "document_digest": row["document_digest"].hex(),
            "source": row["source"],
            "path": row["path"],
            "position": row["position"],
            "reason": row["reason"],
        }
        for row in islice(wanted, count)
    ]


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
