"""`cloze inspect`: a look into an artifact.

In:  an artifact's directory, or RUN/STAGE.
Out: what it is, what it was made of, its figures, and its first rows as text; of tokens also single
     documents, and those that were dropped.
"""

from dataclasses import asdict
from typing import Annotated, Any

from cyclopts import Parameter

from artifacts.errors import UsageError
from artifacts.store import Artifact
from cloze.answer import Answer
from cloze.inspection.artifact_text import Row, shown_rows
from cloze.inspection.dropped_text import dropped_documents, dropped_lines
from cloze.names import named_artifact
from cloze.options import PLACE, Place

WITH_ROWS = ("tokens", "examples")
STAGES = {"--split": WITH_ROWS, "--document": ("tokens",), "--dropped": ("tokens",)}
"""The stages whose artifacts have what an option asks for."""
SHOWN_ROWS, SHOWN_DROPPED = 2, 20
SHOWN_LIST = 12
"""Longer lists of figures are left to --json."""

Name = Annotated[str, Parameter(help="Directory of an artifact, or RUN/STAGE.")]
Rows = Annotated[
    int | None,
    Parameter(
        help=f"How many to show: of documents or examples {SHOWN_ROWS} unless told, of dropped "
        f"documents {SHOWN_DROPPED}."
    ),
]
Split = Annotated[
    str,
    Parameter(
        help="Which split: train (the first looked at), heldout, or a held-out source's name.",
        show_default=False,
    ),
]
Document = Annotated[
    str, Parameter(help="Show the documents whose digest begins so.", show_default=False)
]
Dropped = Annotated[
    list[str] | None,
    Parameter(
        help="List the documents that were dropped, for these reasons or for any.",
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
    """Look into an artifact."""
    found = named_artifact(artifact, place.space())
    options = {"--split": split, "--document": document, "--dropped": dropped is not None}
    _refuse(found.manifest.stage, [option for option, given in options.items() if given])
    shown: list[Row] = []
    listed: list[dict[str, Any]] = []
    count = rows if rows is not None else SHOWN_ROWS if dropped is None else SHOWN_DROPPED
    if dropped is not None:
        listed = dropped_documents(found, reasons=dropped, document=document, count=count)
    elif found.manifest.stage in WITH_ROWS:
        shown = shown_rows(found, split=split, count=count, document=document)
    data = {
        "directory": found.directory,
        "digest": found.digest,
        "manifest": found.manifest.model_dump(mode="json"),
        "rows": [asdict(row) for row in shown],
        "dropped": listed,
    }
    lines = _texts(shown) if dropped is None else dropped_lines(listed)
    return Answer(data, "\n".join([*_facts(found), *lines]), place.json)


def _refuse(stage: str, options: list[str]) -> None:
    """An option that asks for what a stage's artifacts do not have is a mistake."""
    for option in options:
        if stage not in STAGES[option]:
            where = " or ".join(f"RUN/{name}" for name in STAGES[option])
            raise UsageError(f"{option}: {stage} has nothing of the kind; look into {where}")


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
        **_short(manifest.statistics),
        **manifest.execution,
    }
    width = max(len(name) for name in facts)
    return [f"{name:<{width}}  {value}" for name, value in facts.items()]


def _short(statistics: dict[str, Any]) -> dict[str, Any]:
    """The figures, flat, without long lists (a histogram is for the report)."""
    found: dict[str, Any] = {}
    for name, value in statistics.items():
        if isinstance(value, dict):
            found.update({f"{name}.{key}": inner for key, inner in _short(value).items()})
        elif not isinstance(value, list) or len(value) <= SHOWN_LIST:
            found[name] = value
    return found


def _texts(rows: list[Row]) -> list[str]:
    return [line for row in rows for line in ("", f"— {row.title}", row.text)]
