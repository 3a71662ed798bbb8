"""Labels as numbers.

In:  a column of labels and the label set.
Out: indices; a label outside the set is named with its place.
"""

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from artifacts.errors import UsageError
from model.config import TaskConfig
from model.tasks.files import TaskTable


def label_set(config: TaskConfig, tables: Mapping[str, TaskTable]) -> tuple[str, ...]:
    """The configured labels, or those of the training data in order."""
    if config.labels:
        return config.labels
    found = tuple(sorted({str(label) for label in tables["train"].columns["label"]}))
    if len(found) < 2:
        raise UsageError(
            f"task {config.name}: only the label {', '.join(found)} in the training data, "
            "expected at least two; name them with labels = [...], or use kind = 'regression'"
        )
    return found


def label_indices(table: TaskTable, labels: tuple[str, ...]) -> NDArray[np.int64]:
    """Index of every row's label."""
    known = {label: index for index, label in enumerate(labels)}
    indices = np.empty(len(table), np.int64)
    for row, label in enumerate(table.columns["label"]):
        indices[row] = known.get(str(label), -1)
    unknown = np.flatnonzero(indices < 0)
    if len(unknown):
        row = int(unknown[0])
        raise UsageError(
            f"{table.place(row)}: unknown label {table.columns['label'][row]!r} "
            f"({len(unknown)} such rows), expected one of {', '.join(labels)}"
        )
    return indices


def scores_column(table: TaskTable) -> NDArray[np.float64]:
    """The `label` column as numbers, for regression."""
    values = np.empty(len(table))
    for row, label in enumerate(table.columns["label"]):
        try:
            values[row] = float(label)
        except (TypeError, ValueError):
            raise UsageError(
                f"{table.place(row)}: label {label!r} is not a number, which regression wants"
            ) from None
    if not np.isfinite(values).all():
        row = int(np.flatnonzero(~np.isfinite(values))[0])
        raise UsageError(f"{table.place(row)}: label is not finite, expected a number")
    return values
