"""`cloze ablations`: the rows of the paper's ablation tables, at the size of a run.

In:  a configuration.
Out: a page and a table of figures; every row is an ordinary run of the workspace.
"""

from importlib import import_module
from typing import Annotated

from cyclopts import Parameter

from cloze.answer import Answer, columns
from cloze.execution.console import watching
from cloze.options import TARGET, ConfigPath, Target
from flows.ablation.result import AblationResult, cell, lede
from flows.ablation.rows import Table
from flows.locks.on_disk import locked
from flows.prefect.server import prefect_server
from flows.workspace import writable_workspace

Tables = Annotated[
    list[Table],
    Parameter(
        help="Which ablation: objective (the paper's Table 5), size (6), masking (8), or modern, "
        "the ladder from BERT to ModernBERT. Repeatable.",
        negative="",
    ),
]

Rows = Annotated[
    list[str],
    Parameter(
        help="Only this row, by its name on the page, for example rotary; the rows chosen are "
        "compared with one another. Repeatable.",
        negative="",
    ),
]

Seeds = Annotated[
    int, Parameter(help="Pre-trainings of each main row; fewer than 3 allow no verdict.")
]


def ablations(
    config: ConfigPath,
    /,
    *,
    table: Tables = ["objective"],  # noqa: B006 - never changed
    row: Rows = [],  # noqa: B006 - never changed
    seeds: Seeds = 3,
    target: Target = TARGET,
) -> Answer:
    """Run ablations."""
    run, machine = target.run(config), target.machine()
    space = writable_workspace(machine.workspace)
    server_starting = prefect_server(
        space, run=run.name, meanwhile=lambda: import_module("flows.prefect.flows")
    )
    with locked(space.local, run=run.name), watching(), server_starting as server:
        # only now: Prefect reads its settings when it is imported
        from flows.prefect.flows import ablations as flow
        from flows.prefect.tracking import reporting_to

        with reporting_to(server):
            data = flow(run, machine, tuple(table), seeds, tuple(row))
    result = AblationResult.model_validate(data)
    parts = []
    for found in result.tables:  # its figures, and below them what they say
        titles = (f"{column.title}, {column.unit}" for column in found.columns)
        lines = [["", *titles]]
        for one in found.rows:
            cells = (cell(column, one.figures.get(column.key)) for column in found.columns)
            lines.append([one.title, *(" ".join(words).strip() for words in cells)])
        parts.append("\n".join([columns(lines), "", *lede(found)]).rstrip())
    text = "\n\n".join([*parts, f"page: {result.page}"])
    return Answer(data, text, target.json)
