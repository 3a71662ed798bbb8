"""The paper's ablations as a Prefect flow: many runs, one table.

In:  a run's configuration, a machine's, and which tables.
Out: `<workspace>/<run>-ablations/` with ablations.html and ablations.json.

Each row is a whole run; what rows have in common is made once. A row that fails ends the flow, and
the same call goes on there.
"""

from typing import Any

from prefect import flow

from artifacts import filesystem
from artifacts.errors import ClozeError
from flows.ablation.result import as_data, as_page, written
from flows.ablation.rows import Row, Table, rows
from flows.config import THIS_MACHINE, MachineConfig, RunConfig
from flows.figures import read_summary
from flows.prefect.tracking import worked_off
from flows.report.form.summary import Summary
from flows.workspace import Workspace, workspace

ALL: tuple[Table, ...] = ("objective", "size", "masking")


@flow(name="ablations", flow_run_name="{run.name}-ablations", persist_result=False)
def ablations(
    run: RunConfig, machine: MachineConfig = THIS_MACHINE, tables: tuple[Table, ...] = ALL
) -> dict[str, Any]:
    """Work off every row of the tables and put their figures side by side."""
    wanted = rows(run, tables)
    for row in wanted:
        worked_off(row.run, machine)
    return publish(run, wanted, workspace(machine.workspace))


def publish(run: RunConfig, wanted: list[Row], space: Workspace) -> dict[str, Any]:
    """Write the tables of finished rows; their place and figures."""
    results = {row.run.name: _summary(row.run.name, space) for row in wanted}
    folder = space.run_folder(f"{run.name}-ablations")
    page = filesystem.join(folder, "ablations.html")
    data = {"page": page, **as_data(wanted, results)}
    filesystem.write_bytes(filesystem.join(folder, "ablations.json"), written(data))
    title = run.report.title or f"{run.name}: ablations"
    filesystem.write_bytes(page, as_page(wanted, results, title=title).encode())
    return data


def _summary(run: str, space: Workspace) -> Summary:
    found = read_summary(space, run)
    if found is None:
        raise ClozeError(f"run {run} ended without a summary; see its report stage")
    return found
