"""What a run tells its watchers, as ordinary log records.

In:  `tell("tokens", "running", "…")` from wherever a run has got to.
Out: records of the logger `cloze.execution.run`; each carries `stage` and `state`.

The console, the log of a Prefect server and the tests are handlers of these two loggers. What only
those want who look every second comes on `cloze.progress`: which stages wait, and every line of
progress; `cloze.execution.run` gets one in ten seconds.
"""

import logging
from typing import Literal

State = Literal["waiting", "reused", "warned", "running", "said", "progress", "made", "failed"]

RUN = logging.getLogger("cloze.run")
PROGRESS = logging.getLogger("cloze.progress")

for _logger in (RUN, PROGRESS):
    _logger.setLevel(logging.INFO)
    _logger.propagate = False


def tell(stage: str, state: State, text: str = "") -> None:
    """Say that `stage` is now in `state`."""
    _log(RUN, stage, state, text)


def tell_waiting(stage: str) -> None:
    """Say that `stage` will have its turn."""
    _log(PROGRESS, stage, "waiting", "")


def tell_progress(stage: str, text: str) -> None:
    """Say how far `stage` has got, to those who look every second."""
    _log(PROGRESS, stage, "progress", text)


def _log(logger: logging.Logger, stage: str, state: State, text: str) -> None:
    logger.info(
        "%s %s %s", stage, state, text, extra={"stage": stage, "state": state, "text": text}
    )


def listen(handler: logging.Handler, *, progress: bool) -> None:
    """Send events to `handler`, those of every second too if `progress`."""
    for logger in (RUN, PROGRESS) if progress else (RUN,):
        logger.addHandler(handler)


def unlisten(handler: logging.Handler) -> None:
    """Stop sending events to `handler`."""
    for logger in (RUN, PROGRESS):
        logger.removeHandler(handler)
