"""The stage examples → encoder, as a program.

In:  a stage table (`python -P -m model.training.pretrain --config TABLE`, or the same module under
     DeepSpeed's launcher).
Out: the artifact `pretrain`: weights under Hugging Face's names, config.json, the tokenizer, the
     loss curve; or a checkpoint from which the same command goes on.
"""

import sys

from artifacts.config import parse
from artifacts.program import run_program
from artifacts.stage import StageTable
from artifacts.store import Artifact, open_artifact
from model.config import PretrainStage, TrainingMachine
from model.training.distributed import join_world
from model.training.environment import restart_prepared, threads_per_rank
from model.training.fault_injection import Strike, undisturbed
from model.training.run import Run
from model.training.watchdog import Watchdog


def pretrain(table: StageTable, options: list[str], *, at: Strike = undisturbed) -> Artifact:
    """Train, or go on training, and leave the finished artifact."""
    stage = parse(PretrainStage, table.config, source="stage table")
    machine = parse(TrainingMachine, table.machine, source="stage table, machine")
    world = join_world(threads=threads_per_rank(machine), timeout=machine.hang_timeout)
    with Watchdog(world.rank, machine.hang_timeout) as watchdog:
        Run(table, stage, machine, world, watchdog, at).complete()
    if not world.is_first:
        sys.exit(0)  # the first rank speaks for all
    return open_artifact(table.output)


if __name__ == "__main__":
    restart_prepared()
    run_program(pretrain)
