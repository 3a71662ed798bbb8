"""Stage finetune on several ranks: `deepspeed --module model.finetune.distributed --config FILE`.

In:  what `model.finetune.finetune` takes.
Out: the same artifact.

As long as there are fits enough, each rank runs its own: nothing is faster. Ranks that would have
none share the batches of all, through the DeepSpeed engine of pre-training. This module is a
program of its own because DeepSpeed takes seconds to import.
"""

from artifacts.program import run_program
from artifacts.stage import StageTable
from artifacts.store import Artifact
from model.finetune.distributed_optimizer import Splitting
from model.finetune.finetune import finetune


def finetune_on_ranks(table: StageTable, engine_options: list[str]) -> Artifact:
    """Run the stage."""
    return finetune(table, engine_options, split=Splitting)


if __name__ == "__main__":
    run_program(finetune_on_ranks)
