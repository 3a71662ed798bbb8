"""The figures of an ablation's rows as one table of text.

In:  the rows of one of the paper's tables and the summaries of their runs.
Out: a header and a line a row; a figure and its standard error share a cell.
"""

from collections.abc import Mapping, Sequence

from flows.ablation.rows import Row
from flows.figures import ERROR, Figures, figures
from flows.report.form.summary import Summary

Results = Mapping[str, Summary]
"""Summary by the run's name."""

ROLES = ("pretrained",)


def table(rows: Sequence[Row], results: Results) -> list[tuple[str, ...]]:
    """Header first; a row that lacks a figure has an empty cell."""
    known = {row.name: figures(results[row.run.name], roles=ROLES) for row in rows}
    names = list(dict.fromkeys(name for one in known.values() for name in one))
    names = [name for name in names if not name.endswith(ERROR)]
    lines = [(row, *(_cell(one, name) for name in names)) for row, one in known.items()]
    return [("", *names), *lines]


def seeds(results: Results) -> tuple[int, ...]:
    """The fine-tuning seeds over which means and errors were taken."""
    found = {seed for one in results.values() for task in one.tasks for seed in task.seeds}
    return tuple(sorted(found))


def _cell(known: Figures, name: str) -> str:
    if name not in known:
        return ""
    error = known.get(f"{name}{ERROR}")
    return f"{known[name]:.4g}" + (f" ± {error:.2g}" if error else "")
