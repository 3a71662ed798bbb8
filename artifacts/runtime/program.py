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

from cloze.artifacts.errors import ClozeError, explained, is_panic
from cloze.artifacts.progress import clock, say
from cloze.artifacts.stage import StageTable, read_stage_table
from cloze.artifacts.store import Artifact

StageFunction = Callable[[StageTable, list[str]], Artifact]

ORPHAN_SECONDS = 60
"""How long a program whose launcher is gone may take to exit after SIGTERM."""


AGAIN_SECONDS = 0.05
"""After which a signal that a library has swallowed is sent again."""


class Terminated(BaseException):
    """Raised in the main thread on SIGTERM, so that `finally` blocks run."""


RAISED: dict[signal.Signals, type[BaseException]] = {
    signal.SIGTERM: Terminated,
    signal.SIGINT: KeyboardInterrupt,
}


@contextmanager
def stops_raising(
    on_arrival: Callable[[], object] = lambda: None,
) -> Iterator[Callable[[], BaseException | None]]:
    """Let SIGTERM raise `Terminated` meanwhile, and SIGINT `KeyboardInterrupt` if not ignored.

    Yields a function that returns what the first such signal raised, or None. Compiled code drops
    an exception where it cannot pass one on, or makes an error of its own out of it, and may go on
    with a wrong answer: a dropped signal is sent again, and no error since the first one need be
    true. `on_arrival` is called in the handler.
    """
    came: list[BaseException] = []
    repeated: list[threading.Timer] = []

    def stop(signum: int, frame: FrameType | None) -> NoReturn:
        came.append(RAISED[signal.Signals(signum)]())
        on_arrival()
        raise came[-1]

    def note_dropped(dropped: "sys.UnraisableHookArgs") -> None:
        kinds = (signum for signum, kind in RAISED.items() if isinstance(dropped.exc_value, kind))
        if (signum := next(kinds, None)) is None:
            report(dropped)
            return
        again = threading.Timer(AGAIN_SECONDS, os.kill, (os.getpid(), signum))
        again.daemon = True
        repeated.append(again)
        again.start()

    # As an exception, so that everything that is open is cleaned up.
    before = {signal.SIGTERM: signal.signal(signal.SIGTERM, stop)}
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        before[signal.SIGINT] = signal.signal(signal.SIGINT, stop)
    report, sys.unraisablehook = sys.unraisablehook, note_dropped
    try:
        yield lambda: next(iter(came), None)
    finally:
        for again in repeated:
            again.cancel()
        sys.unraisablehook = report
        for signum, handler in before.items():
            signal.signal(signum, handler or signal.SIG_DFL)


def run_program(stage: StageFunction, arguments: list[str] | None = None) -> NoReturn:
    """Run `stage` on the stage table given by `--config`, and exit.

    Any outcome other than a bug becomes one line and an exit code.
    """
    launcher = os.getppid()

    def limit_cleanup() -> None:
        # The exception may interrupt code, also a library's, that has just taken a lock, which may
        # then deadlock. Launchers send SIGKILL after a grace period, unless they were killed.
        if os.getppid() != launcher:
            signal.alarm(ORPHAN_SECONDS)

    started = time.monotonic()
    # Unknown options are the engine's; with abbreviations, some of its would be taken for ours.
    parser = argparse.ArgumentParser(description="Run one stage.", allow_abbrev=False)
    parser.add_argument(
        "--config", required=True, help="the stage table (JSON); `cloze plan` writes them"
    )
    with stops_raising(limit_cleanup) as stopped:
        try:
            known, engine_options = parser.parse_known_args(arguments)
            table = read_stage_table(known.config)
            artifact = stage(table, [option for option in engine_options if option != "--"])
        except BaseException as error:
            message, code = _failure(stopped() or error)
            say(message)
            sys.exit(code)
    took = clock(time.monotonic() - started)
    say(f"{table.stage} finished in {took}, digest {artifact.digest[:12]}")
    print(artifact.digest, flush=True)
    sys.exit(0)


def _failure(error: BaseException) -> tuple[str, int]:
    """Line and exit code of an error that is no bug; any other is raised again."""
    if isinstance(error, ClozeError):
        return f"error: {error}", error.exit_code
    if isinstance(error, KeyboardInterrupt):
        return "interrupted; finished parts are kept, run the same command to resume", 130
    if isinstance(error, Terminated):
        return "terminated; finished parts are kept, run the same command to resume", 143
    # of no file: for example a broken connection between workers; the traceback shows where
    is_nowhere = isinstance(error, OSError) and error.filename is None
    if is_panic(error) or (isinstance(error, OSError | MemoryError) and not is_nowhere):
        return f"error: {explained(error)}", 1
    raise error
