"""The documents that a tokens artifact left out, for a person to read.

In:  `dropped.arrow`, the record beside the tokens.
Out: the first of them, each with its reason, its file and its place in it.
"""

from itertools import islice
from typing import Any

from artifacts.errors import UsageError
from artifacts.store import Artifact
from artifacts.tables import DROPPED_NAME
from cloze.inspection.artifact_text import read_rows
from cloze.tables import columns


def dropped_documents(
    artifact: Artifact, *, reasons: list[str], document: str, count: int
) -> list[dict[str, Any]]:
    """The first `count` dropped for one of `reasons`, or any; `document` begins their digest."""
    known = artifact.manifest.statistics["dropped"]
    unknown = [reason for reason in reasons if reason not in known]
    if unknown:
        there = ", ".join(f"{reason} {found:,}" for reason, found in known.items()) or "none"
        raise UsageError(f"--dropped {' '.join(unknown)}: no document was; dropped are: {there}")
    rows = read_rows(artifact, DROPPED_NAME, document=document)
    wanted = (row for row in rows if not reasons or row["reason"] in reasons)
    return [
        {**row, "document_digest": row["document_digest"].hex()} for row in islice(wanted, count)
    ]


def dropped_lines(rows: list[dict[str, Any]]) -> list[str]:
    """One line a document."""
    if not rows:
        return ["", "no document was dropped"]
    cells = [
        (row["reason"], row["document_digest"], f"{row['path']}, position {row['position']}")
        for row in rows
    ]
    return ["", columns(cells)]
