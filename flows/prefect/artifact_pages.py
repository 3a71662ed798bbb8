"""What a Prefect server shows of a run beside states and logs: a bar per stage, tables at the end.

In:  events (flows/events.py), the finished record and its figures.
Out: progress artifacts that fill up, and table artifacts.
"""

import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import cast
from uuid import UUID

from httpx import HTTPError
from prefect.artifacts import (
    create_progress_artifact,
    create_table_artifact,
    update_progress_artifact,
)

from artifacts.progress import clock
from flows.events import listen, unlisten
from flows.figures import ERROR, Figures
from flows.launchers.watch import PROGRESS
from flows.record import RunRecord

GIB = 1 << 30

AWAY_SECONDS = 60.0
"""So long a server that did not answer is left alone: each call to it takes Prefect's retries."""


@contextmanager
def progress_bars(run: str) -> Iterator[None]:
    """Keep a bar for every stage that runs inside."""
    handler = ProgressBars(run)
    listen(handler, progress=False)
    try:
        yield
    finally:
        unlisten(handler)


class ProgressBars(logging.Handler):
    """Turns events into progress artifacts; must be used inside a flow."""

    def __init__(self, run: str) -> None:
        super().__init__()
        self.run = run
        self._bars: dict[str, UUID] = {}
        self._asked_again = 0.0

    def emit(self, record: logging.LogRecord) -> None:
        """Create, move or fill the bar of a stage; a server that is away must not stop the work."""
        if time.monotonic() < self._asked_again:
            return
        values = vars(record)
        try:
            self._show(str(values["stage"]), str(values["state"]), str(values["text"]))
        except HTTPError as error:
            logging.getLogger(__name__).debug("bar not moved: %s", error)
            self._asked_again = time.monotonic() + AWAY_SECONDS

    def _show(self, stage: str, state: str, text: str) -> None:
        if state == "running":
            key = artifact_key(self.run, stage)
            bar = create_progress_artifact(0.0, key=key, description=stage)
            self._bars[stage] = cast(UUID, bar)  # a coroutine only where a loop runs
        elif stage in self._bars and state in ("progress", "made"):
            share = 1.0 if state == "made" else share_done(text)
            update_progress_artifact(self._bars[stage], 100.0 * share, description=text)


def share_done(line: str) -> float:
    """How much of a stage is done, from a line of progress."""
    found = PROGRESS.search(line)
    if not found:
        return 0.0
    done, total = (float(found[name].replace(",", "")) for name in ("done", "total"))
    return min(done / total, 1.0) if total else 1.0


def show_table(record: RunRecord) -> None:
    """The run's stages as a table."""
    rows = [
        {
            "stage": stage,
            "state": found.state,
            "time": clock(found.seconds) if found.seconds is not None else "",
            "memory": f"{found.peak_memory / GIB:.2f} GiB" if found.peak_memory else "",
            "digest": found.digest[:12],
            "directory": found.directory,
        }
        for stage, found in record.stages.items()
    ]
    description = f"Stages of run `{record.name}`, {record.state}; `cloze show {record.name}`"
    create_table_artifact(rows, key=artifact_key(record.name, "stages"), description=description)


def show_figures(run: str, known: Figures) -> None:
    """The run's figures as a table, the headline first."""
    description = f"What run `{run}` has come to; its report.html says what it means"
    key = artifact_key(run, "figures")
    create_table_artifact(figure_rows(known), key=key, description=description)


def figure_rows(known: Figures) -> list[dict[str, str]]:
    """One row a figure, its standard error beside it."""
    return [
        {"figure": name, "value": f"{value:.4g}", "±": _error(known, name)}
        for name, value in known.items()
        if not name.endswith(ERROR)
    ]


def _error(known: Figures, name: str) -> str:
    return f"{known[name + ERROR]:.2g}" if name + ERROR in known else ""


def artifact_key(run: str, name: str) -> str:
    """A key as Prefect wants it: lower case, digits and dashes."""
    return f"{run}-{name}".lower().replace("_", "-")
