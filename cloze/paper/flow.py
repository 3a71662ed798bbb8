"""The Prefect flow that runs the rows of the ablation tables.

In:  the configurations of a run and a machine; the tables.
Out: the result as JSON, `ablations.json` and its page.
"""

from prefect import flow

from cloze.flows.config import THIS_MACHINE
from cloze.flows.external_inputs import Digests
from cloze.flows.plan import Plan
from cloze.flows.prefect.flows import Machine, Run, announced
from cloze.flows.prefect.tracking import Record, tracked
from cloze.flows.stages import PREPARE
from cloze.flows.variants import Settings, changed
from cloze.flows.workspace import run_artifact, workspace
from cloze.paper.result import publish
from cloze.paper.rows import HELDOUT_ROW, Table, rows_of_tables

ALL_TABLES: tuple[Table, ...] = ("objective", "size", "masking")
"""The paper's tables."""


@announced
@flow(name="ablations", flow_run_name="{run.name}-ablations", persist_result=False)
def run_rows(
    run: Run,
    machine: Machine = THIS_MACHINE,
    tables: tuple[Table, ...] = ALL_TABLES,
    seeds: int = 3,
    only: tuple[str, ...] = (),
) -> Record:
    """Run all rows of the tables, or only some, and compare their figures.

    All rows of a table are evaluated on the same held-out examples, usually those of `run` itself,
    and share the artifacts they have in common. If a row fails, the flow ends, and the same call
    resumes there.
    """
    wanted, space = (
        rows_of_tables(run, tables, seeds=seeds, only=only),
        workspace(machine.workspace),
    )
    heldout, digests = {}, Digests()
    for table in {row.table: None for row in wanted}:
        # All rows of the table, since `only` may leave out the one with the held-out examples.
        by_name = {row.name: row.runs[0] for row in rows_of_tables(run, (table,))}
        base = by_name.get(HELDOUT_ROW.get(table, ""), run)
        tracked(Plan(base, machine, wanted=PREPARE, digests=digests))
        heldout[table] = run_artifact(space, base.name, stage="examples").directory
    for row in wanted:
        # The second encoder must exist before the run that uses it.
        for partner in row.partners:
            tracked(Plan(partner, machine, wanted=("pretrain",), digests=digests))
        partners = [run_artifact(space, one.name, stage="pretrain") for one in row.partners]
        for number, one in enumerate(row.runs):
            found: Settings = {"evaluate.heldout_examples": heldout[row.table]}
            if partners:
                found["finetune.second_encoder"] = partners[number].directory
            compared = changed(one, one.name, found, source=f"ablation {row.name}")
            tracked(Plan(compared, machine, digests=digests))
    return publish(run, wanted, space).model_dump(mode="json")
