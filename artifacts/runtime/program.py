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
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import NoReturn

from cloze.artifacts.errors import ClozeError, explained
from cloze.artifacts.progress import clock, say
from cloze.artifacts.stage import StageTable, read_stage_table
from cloze.artifacts.store import Artifact

StageFunction = Callable[[StageTable, list[str]], Artifact]

ORPHAN_SECONDS = 60
"""How long a program whose launcher is gone may take to exit after SIGTERM."""


AGAIN_SECONDS = 0.05
"""After which a SIGTERM that a library has swallowed is sent again."""


class Terminated(BaseException):
    """Raised in the main thread on SIGTERM, so that `finally` blocks run."""


@contextmanager
def sigterm_raising() -> Iterator[Callable[[], bool]]:
    """Let SIGTERM raise `Terminated` meanwhile; yields a function that says whether one has come.

    Compiled code drops an exception where it cannot pass one on, and may go on with a wrong answer:
    then the signal is sent again, and an error since the first one need not be true.
    """
    came: list[int] = []
    repeated: list[threading.Timer] = []

    def terminate(signum: int, frame: FrameType | None) -> NoReturn:
        came.append(signum)
        raise Terminated

    def note_dropped(dropped: "sys.UnraisableHookArgs") -> None:
        if not isinstance(dropped.exc_value, Terminated):
            report(dropped)
            return
        again = threading.Timer(AGAIN_SECONDS, os.kill, (os.getpid(), signal.SIGTERM))
        again.daemon = True
        repeated.append(again)
        again.start()

    # As an exception, so that everything that is open is cleaned up.
    before, report = signal.signal(signal.SIGTERM, terminate), sys.unraisablehook
    sys.unraisablehook = note_dropped
    try:
        yield lambda: bool(came)
    finally:
        for again in repeated:
            again.cancel()
        sys.unraisablehook = report
        signal.signal(signal.SIGTERM, before or signal.SIG_DFL)


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
