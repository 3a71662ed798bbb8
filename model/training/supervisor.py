"""Starts the ranks of a training program, and restarts them when they die.

    python -P -m cloze.model.training.supervisor PROGRAM --config TABLE --max-restarts 3

In:  the program's module, its stage table; with further options, DeepSpeed's launcher starts the
     ranks, on several machines.
Out: the program's standard output and exit code.

The supervisor is stateless: checkpoints hold everything needed to resume, so a restart runs the
same command again. Stopping it (SIGTERM, SIGINT) stops the ranks, which save first. An invalid
configuration (exit code 2) is not retried.
"""

import argparse
import math
import os
import sys
from collections.abc import Sequence

from cloze.artifacts.errors import ClozeError, UsageError
from cloze.artifacts.progress import say
from cloze.artifacts.runtime.children import Supervisor, shell_code, start
from cloze.model.training.start import Rank, machine_of, ranks_of

FINAL = (0, 2, 130, 143)
"""Exit codes that are not retried: success, usage error, interrupted, terminated."""

LARGEST_CODE = 128 + 64
"""The largest exit code by which a shell reports a signal; larger ones were negative. DeepSpeed's
launcher passes a killed rank's -9 to sys.exit, which turns it into 247."""

PAUSE = 1.0
"""Seconds before a restart."""


def supervise(ranks: Sequence[Rank], *, max_restarts: int, pause: float = PAUSE) -> int:
    """Run all ranks until they succeed, are stopped, or have died too often.

    Returns the last exit code, as a shell would.
    """
    with Supervisor(grace=math.inf) as supervisor:  # ranks that are told to stop save first
        for left in range(max_restarts, -1, -1):
            started = [
                start(rank.argv, environment={**os.environ, **rank.environment}, cores=rank.cores)
                for rank in ranks
            ]
            # One rank's end is the end of all: the others would wait for it in a collective
            # operation, and a fresh set of ranks resumes from the same checkpoint in any case.
            code = supervisor.watch(*started)
            code = shell_code(code - 256 if code > LARGEST_CODE else code)
            # A request to stop outranks the exit code: ranks that saved and left must not be
            # started again.
            if supervisor.received or code in FINAL or not left:
                break
            say(f"warning: training ended with exit code {code}; starting again ({left} left)")
            supervisor.pause(pause)
            if supervisor.received:
                break
    return shell_code(-supervisor.received) if supervisor.received else code


def main(arguments: Sequence[str]) -> int:
    """Supervise the program that `arguments` name."""
    parser = argparse.ArgumentParser(description="Run training, again where it died.")
    parser.add_argument("module", help="the program, for example cloze.model.training.pretrain")
    parser.add_argument("--config", required=True, help="the stage table (JSON)")
    parser.add_argument("--ranks", type=int, default=None, help="default: the machine's")
    parser.add_argument("--max-restarts", type=int, default=None, help="default: the machine's")
    known, launcher_options = parser.parse_known_args(arguments)
    options = [option for option in launcher_options if option != "--"]
    try:
        _refuse_missing_hosts(options)
        machine = machine_of(known.config)
        if known.ranks is not None:
            machine = machine.model_copy(update={"ranks": known.ranks})
        ranks = ranks_of(known.module, known.config, machine=machine, launcher_options=options)
    except ClozeError as error:
        say(f"error: {error}")
        return error.exit_code
    restarts = machine.max_restarts if known.max_restarts is None else known.max_restarts
    return supervise(ranks, max_restarts=restarts)


def _refuse_missing_hosts(options: Sequence[str]) -> None:
    """Refuse a hostfile that does not exist: the launcher would warn, and train on this host."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("-H", "--hostfile")
    named = parser.parse_known_args(options)[0].hostfile
    if named is not None and not os.path.isfile(named):
        raise UsageError(
            f"--hostfile {named}: no such file; expected a line for every host, NAME slots=RANKS"
        )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
