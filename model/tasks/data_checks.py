"""What is odd about a task's data: said before training, and in the report.

In:  a task's splits as tables.
Out: one sentence for each thing that makes scores say less than they seem to.
"""

from collections import Counter
from collections.abc import Iterator, Mapping

from model.tasks.task_table import TaskTable

FEW_ROWS = 10
"""Training rows of a label that are too few to learn it from."""

SHOWN_LABELS = 5

INPUTS = ("text_a", "text_b", "words", "context", "question", "endings")
"""Columns that a model reads; two rows that agree in all of them are the same example."""


def data_notes(tables: Mapping[str, TaskTable]) -> Iterator[str]:
    """Overlap of the other splits with train; labels that are rare, or missing in dev."""
    train = tables["train"]
    known = set(_inputs(train))
    for split, table in tables.items():
        shared = sum(inputs in known for inputs in _inputs(table)) if split != "train" else 0
        if shared:
            yield (
                f"{shared:,} of {len(table):,} {split} rows are training rows, too "
                f"(the first: {_first_shared(table, known)}); their scores are too good"
            )
    counts = _labels(train)
    rare = [f"{label} ({count})" for label, count in counts.items() if count < FEW_ROWS]
    if rare:
        yield f"labels with fewer than {FEW_ROWS} training rows: {_some(rare)}"
    dev = _labels(tables["dev"]) if "dev" in tables else counts
    missing = [label for label in counts if label not in dev]
    if missing and dev:
        yield f"labels without a dev row, whose scores are unknown: {_some(missing)}"


def _inputs(table: TaskTable) -> Iterator[str]:
    columns = [table.columns[name] for name in INPUTS if table.has(name)]
    return (repr(values) for values in zip(*columns, strict=True))


def _first_shared(table: TaskTable, known: set[str]) -> str:
    return next(table.place(row) for row, one in enumerate(_inputs(table)) if one in known)


def _labels(table: TaskTable) -> Counter[str]:
    """Rows by label, where a label is a word: numbers of a regression are not counted."""
    labels = [
        str(one)
        for label in table.columns.get("label", [])
        for one in (label if isinstance(label, list) else [label])
    ]
    return Counter(labels) if len(set(labels)) <= max(2, len(labels) // 2) else Counter()


def _some(names: list[str]) -> str:
    return ", ".join(names[:SHOWN_LABELS]) + (", …" if len(names) > SHOWN_LABELS else "")
