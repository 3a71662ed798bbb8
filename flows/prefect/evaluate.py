"""Encoder → scores, as a Prefect flow.

In:  a run's configuration and a machine's.
Out: the run's record. What comes before is made as well, unless it is there already.
"""

from typing import Any

from prefect import flow

from flows.config import THIS_MACHINE, MachineConfig, RunConfig
from flows.prefect.tracking import worked_off


@flow(name="evaluate", flow_run_name="{run.name}", persist_result=False)
def evaluate(run: RunConfig, machine: MachineConfig = THIS_MACHINE) -> dict[str, Any]:
    """Judge the encoder and what was fine-tuned from it; what is there already is reused."""
    return worked_off(run, machine, wanted=("evaluate",))
