"""`cloze ablations`: the rows of the paper's ablation tables, at the scale of a run.

In:  a configuration.
Out: a page and a table of figures; every row is an ordinary run in the workspace.
"""

from typing import Annotated

from cyclopts import Parameter

from cloze.answer import Answer, aligned
from cloze.execution.console import watching
from cloze.execution.run import tracked_by_prefect
from cloze.flows.locks import locked
from cloze.flows.workspace import writable_workspace
from cloze.options import TARGET, ConfigPath, Target
from cloze.paper.result import AblationResult, cell, clear_differences
from cloze.paper.rows import Table


def ablations(
    config: ConfigPath,
    /,
    *,
    table: list[Table] = ["objective"],  # noqa: B006 - never changed
    row: Annotated[list[str], Parameter(show_default=True)] = [],  # noqa: B006 - never changed
    seeds: int = 3,
    target: Target = TARGET,
) -> Answer:
    """Run ablations.

    :param table: Which ablation: objective, size, masking (the paper's Tables 5, 6 and 8), or
        modern, the ladder from BERT to ModernBERT. Repeatable.
    :param row: Only this row, by its name on the page, for example rotary; the selected rows are
        compared with each other. Repeatable.
    :param seeds: Pre-training runs per main row; fewer than 3 allow no verdict.
    """
    run, machine = target.read(config)
    space = writable_workspace(machine.workspace)
    with locked(space.local, run=run.name), watching(), tracked_by_prefect(space, run=run.name):
        from cloze.paper.flow import run_rows

        data = run_rows(run, machine, tuple(table), seeds, tuple(row))
    result = AblationResult.model_validate(data)
    parts = []
    for found in result.tables:
        titles = (f"{column.title}, {column.unit}" for column in found.columns)
        lines = [["", *titles]]
        for one in found.rows:
            cells = (cell(column, one.figures.get(column.key)) for column in found.columns)
            lines.append([one.title, *(" ".join(words).strip() for words in cells)])
        parts.append("\n".join([aligned(lines), "", *clear_differences(found)]).rstrip())
    text = "\n\n".join([*parts, f"page: {result.page}"])
    return Answer(data, text, target.json)
