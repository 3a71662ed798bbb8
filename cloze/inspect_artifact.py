"""`cloze inspect`: a look into an artifact.

In:  an artifact's directory, or RUN/STAGE.
Out: what it is, what it was made of, its figures, and its first rows as text.
"""

from dataclasses import asdict
from typing import Annotated, Any

from cyclopts import Parameter

from artifacts.store import Artifact
from cloze.answer import Answer
from cloze.artifact_text import Row, shown_rows
from cloze.names import named_artifact
from cloze.options import PLACE, Place

WITH_ROWS = ("tokens", "examples")
SHOWN_LIST = 12
"""Longer lists of figures are left to --json."""

Name = Annotated[str, Parameter(help="Directory of an artifact, or RUN/STAGE.")]
Rows = Annotated[int, Parameter(help="How many documents or examples to show.")]
Split = Annotated[str, Parameter(help="Which split: train, heldout, or a held-out source's name.")]
Document = Annotated[
    str, Parameter(help="Show the document whose digest begins so.", show_default=False)
]


def inspect(
    artifact: Name,
    /,
    *,
    rows: Rows = 2,
    split: Split = "train",
    document: Document = "",
    place: Place = PLACE,
) -> Answer:
    """Look into an artifact."""
    found = named_artifact(artifact, place.space())
    shown: list[Row] = []
    if found.manifest.stage in WITH_ROWS:
        shown = shown_rows(found, split=split, count=rows, document=document)
    data = {
        "directory": found.directory,
        "digest": found.digest,
        "manifest": found.manifest.model_dump(mode="json"),
        "rows": [asdict(row) for row in shown],
    }
    return Answer(data, "\n".join([*_facts(found), *_texts(shown)]), place.json)


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
