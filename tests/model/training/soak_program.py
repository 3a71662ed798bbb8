"""A run that is killed and resumed many times, each time in a fork of this process.

    python soak_program.py TABLE KILLS SEED

Each fork but the last is killed with SIGKILL at a site chosen by the seed: one of the loop's within
the next six steps, or one of the next checkpoint's. Out: one JSON line with these sites.
"""

import json
import os
import random
import signal
import sys

from cloze.artifacts.stage import read_stage_table
from cloze.model.training.checkpoints import FaultHook
from cloze.model.training.pretrain import make_encoder

SITES = (
    "after_forward",
    "after_backward",
    "before_step",
    "after_step",
    "checkpoint.begin",
    "checkpoint.mid_file",
    "checkpoint.after_file",
    "checkpoint.before_commit",
    "checkpoint.after_commit",
    "checkpoint.purge",
)
"""Named points of a run, at which tests inject faults."""

AHEAD = 6


def deadly(site: str, ahead: int) -> FaultHook:
    """Kills at `site`: the first time in a checkpoint, or `ahead` steps into the loop."""
    first: list[int] = []

    def fault(here: str, step: int) -> None:
        if not here.startswith("checkpoint"):
            first.append(step)
        if here == site and (here.startswith("checkpoint") or step >= first[0] + ahead):
            os.kill(os.getpid(), signal.SIGKILL)

    return fault


def killed(table: str, site: str, ahead: int) -> bool:
    """Run until `site`; whether the fork was killed."""
    pid = os.fork()
    if not pid:
        make_encoder(read_stage_table(table), [], fault=deadly(site, ahead))
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == -signal.SIGKILL


def main() -> None:
    """Kill as often as requested, then let the run finish."""
    table, kills, seed = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    chance = random.Random(seed)
    ends = [chance.choice(SITES) for _ in range(kills)]
    lived = [site for site in ends if not killed(table, site, chance.randrange(AHEAD))]
    finished = not killed(table, "", 0)
    print(json.dumps({"sites": ends, "not_killed": lived, "finished": finished}))


if __name__ == "__main__":
    main()
