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
from flows.ablation.rows import Table
from flows.prefect.server import prefect_server
from flows.workspace import locked, writable_workspace

Tables = Annotated[
    list[Table],
    Parameter(
        help="Which ablation: objective (the paper's Table 5), size (6), masking (8). Repeatable.",
        negative="",
    ),
]

LEFT_OUT = ("mlm_accuracy", "nsp_accuracy", "tokens seen")
"""Columns that only the page and --json show: a terminal has room for losses and scores."""


def ablations(
    config: ConfigPath,
    /,
    *,
    table: Tables = ["objective"],  # noqa: B006 - never changed
    target: Target = TARGET,
) -> Answer:
    """Run ablations."""
    run, machine = target.run(config), target.machine()
    space = writable_workspace(machine.workspace)
    server_starting = prefect_server(space, meanwhile=lambda: import_module("flows.prefect.flows"))
    with locked(space.local, run=run.name), watching(), server_starting as server:
        # only now: Prefect reads its settings when it is imported
        from flows.prefect.flows import ablations as flow
        from flows.prefect.tracking import reporting_to

        with reporting_to(server):
            data = flow(run, machine, tuple(table))
    parts = []
    for lines in data["tables"].values():
        shown = [place for place, name in enumerate(lines[0]) if not name.endswith(LEFT_OUT)]
        parts.append(columns([[line[place] for place in shown] for line in lines]))
    seeds = ", ".join(str(seed) for seed in data["seeds"])
    note = f"task scores: mean ± standard error over seeds {seeds}\n" if seeds else ""
    text = "\n\n".join([*parts, f"{note}page: {data['page']}"])
    return Answer(data, text, target.json)
