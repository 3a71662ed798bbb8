"""`cloze ablations`: the rows of the paper's ablation tables, at the size of a run.

In:  a configuration.
Out: a page and a table of figures; every row is a run that can be looked at by its name.
"""

from importlib import import_module
from typing import Annotated

from cyclopts import Parameter

from cloze.answer import Answer
from cloze.execution.console import watching
from cloze.options import WANTED, ConfigPath, Wanted
from cloze.tables import columns
from flows.ablation.rows import Table
from flows.prefect.server import prefect_server
from flows.workspace import writable_workspace

Tables = Annotated[
    list[Table], Parameter(help="Which tables: Table 5, 6, 8 of the paper.", negative="")
]

LEFT_OUT = ("mlm_accuracy", "nsp_accuracy", "tokens seen")
"""Figures that only the page and --json show."""


def ablations(
    config: ConfigPath,
    /,
    *,
    table: Tables = ["objective"],  # noqa: B006 - never changed
    wanted: Wanted = WANTED,
) -> Answer:
    """Run ablations."""
    run, machine = wanted.run(config), wanted.machine()
    space = writable_workspace(machine.workspace)
    with watching(), prefect_server(space, meanwhile=_import_prefect) as server:
        # only now: Prefect reads its settings when it is imported
        from flows.prefect.flows import ablations as flow
        from flows.prefect.tracking import reporting_to

        with reporting_to(server):
            data = flow(run, machine, tuple(table))
    parts = [columns(_shown(lines)) for lines in data["tables"].values()]
    seeds = ", ".join(str(seed) for seed in data["seeds"])
    note = f"task scores: mean ± standard error over seeds {seeds}" if seeds else ""
    return Answer(
        data, "\n\n".join([*parts, f"{note}\npage: {data['page']}".lstrip()]), wanted.json
    )


def _import_prefect() -> None:
    import_module("flows.prefect.flows")


def _shown(lines: list[tuple[str, ...]]) -> list[tuple[str, ...]]:
    """The columns a terminal has room for: losses, and the tasks' scores."""
    kept = [place for place, name in enumerate(lines[0]) if not name.endswith(LEFT_OUT)]
    return [tuple(line[place] for place in kept) for line in lines]
