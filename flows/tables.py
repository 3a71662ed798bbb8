"""Tables of the stages that could begin now, for starting them by other hands than ours.

In:  a run's configuration and a machine's.
Out: `<workspace>/<run>/stages/<stage>.json` for each stage that is missing while its inputs are
     there: what `sbatch`, `kubectl` or a person gives to the stage's program.
"""

from pathlib import Path

from artifacts.stage import write_stage_table
from flows.config import MachineConfig, RunConfig
from flows.ensure import look_up
from flows.run import Bench
from flows.stages import chain
from flows.workspace import writable_workspace


def write_tables(run: RunConfig, machine: MachineConfig) -> list[Path]:
    """Write them; where they lie."""
    bench = Bench(run, machine, writable_workspace(machine.workspace), options=(), last="")
    written = []
    for stage in chain(run):
        if not bench.finished.keys() >= set(stage.inputs.values()):
            continue
        table, file = bench.table(stage), bench.table_file(stage)
        found = look_up(table).artifact
        if found:
            bench.finished[stage.name] = found
        else:
            write_stage_table(table, file)
            written.append(file)
    return written
