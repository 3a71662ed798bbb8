"""The whole job as a Prefect flow: corpus → … → report.

In:  a run's configuration and a machine's, which the server shows as a form.
Out: the run's record.
"""

from typing import Any

from prefect import flow

from flows.config import THIS_MACHINE, MachineConfig, RunConfig
from flows.prefect.tracking import worked_off


@flow(name="end-to-end", flow_run_name="{run.name}", persist_result=False)
def end_to_end(run: RunConfig, machine: MachineConfig = THIS_MACHINE) -> dict[str, Any]:
    """Turn documents into an evaluated encoder; what is there already is reused."""
    return worked_off(run, machine)
