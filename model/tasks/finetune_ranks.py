"""Stage finetune on several ranks: `deepspeed --module model.tasks.finetune_ranks --config FILE`.

In:  what `model.tasks.finetune` takes.
Out: the same artifact.

As long as there are fits enough, each rank runs its own: nothing is faster. Ranks that would have
none share the batches of all, through the DeepSpeed engine of pre-training. This module is a
program of its own because DeepSpeed takes seconds to import.
"""

from artifacts.program import run_program
from artifacts.stage import StageTable
from artifacts.store import Artifact
from model.tasks.finetune import finetune
from model.tasks.split_updates import Splitting


def finetune_on_ranks(table: StageTable, engine_options: list[str]) -> Artifact:
    """Run the stage."""
    return finetune(table, engine_options, split=Splitting)


if __name__ == "__main__":
    run_program(finetune_on_ranks)
