"""A stage as a program: `python -P -m cloze.pipeline.tokens --config FILE [engine options]`.

In:  the command line.
Out: the finished artifact's digest on standard output; an exit code.

Exit codes: 0 success, 1 failure, 2 usage or configuration error, 130 interrupted, 137 a worker was
killed, 143 terminated.
"""

import argparse
import os
import signal
import sys
import time
from collections.abc import Callable
from types import FrameType
from typing import NoReturn

from cloze.artifacts.errors import ClozeError, explained
from cloze.artifacts.progress import clock, say
from cloze.artifacts.stage import StageTable, read_stage_table
from cloze.artifacts.store import Artifact

StageFunction = Callable[[StageTable, list[str]], Artifact]

ORPHAN_SECONDS = 60
"""How long a program whose launcher is gone may take to exit after SIGTERM."""


class Terminated(BaseException):
    """Raised in the main thread on SIGTERM, so that `finally` blocks run."""


def run_program(stage: StageFunction, arguments: list[str] | None = None) -> NoReturn:
    """Run `stage` on the stage table given by `--config`, and exit.

    Any outcome other than a bug becomes one line and an exit code.
    """
    launcher = os.getppid()

    def terminate(signum: int, frame: FrameType | None) -> NoReturn:
        # The exception may interrupt code, also a library's, that has just taken a lock, which may
        # then deadlock. Launchers send SIGKILL after a grace period, unless they were killed.
        if os.getppid() != launcher:
            signal.alarm(ORPHAN_SECONDS)
        raise Terminated

    signal.signal(signal.SIGTERM, terminate)
    started = time.monotonic()
    parser = argparse.ArgumentParser(description="Run one stage.", allow_abbrev=False)
    parser.add_argument(
        "--config", required=True, help="the stage table (JSON); `cloze plan` writes them"
    )
    try:
        known, engine_options = parser.parse_known_args(arguments)
        table = read_stage_table(known.config)
        artifact = stage(table, [option for option in engine_options if option != "--"])
    except ClozeError as error:
        say(f"error: {error}")
        sys.exit(error.exit_code)
    except (OSError, MemoryError) as error:
        if isinstance(error, OSError) and error.filename is None:
            raise  # for example a broken connection between workers: the traceback shows where
        say(f"error: {explained(error)}")
        sys.exit(1)
    except KeyboardInterrupt:
        say("interrupted; finished parts are kept, run the same command to resume")
        sys.exit(130)
    except Terminated:
        say("terminated; finished parts are kept, run the same command to resume")
        sys.exit(143)
    took = clock(time.monotonic() - started)
    say(f"{table.stage} finished in {took}, digest {artifact.digest[:12]}")
    print(artifact.digest, flush=True)
    sys.exit(0)
