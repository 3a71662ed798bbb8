"""The console of a run: one line per stage.

In:  events of the run (flows/events.py).
Out: on a terminal, a table that is redrawn in place; elsewhere, plain lines. Standard error only.

The reason for a stage's failure appears once, in the command's last line: a program's own `error:`
line is shown only if the run continues after it.
"""

import logging
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from rich.console import Console
from rich.live import Live
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

from cloze.artifacts.progress import clock, discard
from cloze.flows.events import add_handler, remove_handler

STYLES = {
    "waiting": ("·", "dim"),
    "reused": ("✓", "green"),
    "made": ("✓", "green"),
    "running": (" ", "cyan"),
    "failed": ("✗", "red"),
}
"""Mark and colour of each state of a stage."""

ERROR = "error: "
"""Prefix of the line with the reason for a program's failure."""


class StandardError(Console):
    """Standard error; if its reader disappears, the run continues, which rich would end."""

    def on_broken_pipe(self) -> None:
        """Discard further output."""
        discard(sys.stderr)


@contextmanager
def watching() -> Iterator[None]:
    """Show the run's events while in the context."""
    console = StandardError(stderr=True, highlight=False)
    handler = TerminalHandler(console) if console.is_terminal else PlainHandler(console)
    add_handler(handler, progress=console.is_terminal)
    try:
        yield
    finally:
        remove_handler(handler)
        handler.close()


class PlainHandler(logging.Handler):
    """One line per event, for logs and pipes."""

    def __init__(self, console: Console) -> None:
        super().__init__()
        self.console = console
        self._held = ""

    def emit(self, record: logging.LogRecord) -> None:
        """Print the event, except for waiting stages and the reasons for failures."""
        stage, state, text = facts(record)
        if state == "waiting":
            return
        # The run goes on after the line that was held, so it is not the reason for a failure.
        if self._held and state != "failed":
            self._print(self._held)
        self._held = ""
        line = text if state in ("output", "progress") else f"{state} {text}".rstrip()
        if state == "output" and text.startswith(ERROR):
            self._held = f"{stage}: {line}"
        else:
            self._print(f"{stage}: {'failed' if state == 'failed' else line}")

    def _print(self, line: str) -> None:
        # Without markup, as lines may have brackets; unbroken, as nobody knows how wide a log is
        # shown.
        self.console.print(line, markup=False, soft_wrap=True)


@dataclass
class StageRow:
    """One stage on the terminal."""

    state: str = "waiting"
    text: str = ""
    since: float = 0.0


class TerminalHandler(logging.Handler):
    """A table that is redrawn in place."""

    def __init__(self, console: Console) -> None:
        super().__init__()
        self.console = console
        self.rows: dict[str, StageRow] = {}
        self._spinner = Spinner("dots", style="cyan")
        self._live = Live(console=console, get_renderable=self.table, refresh_per_second=8)
        self._live.start()

    def close(self) -> None:
        """Draw the table for the last time."""
        self._live.stop()
        super().close()

    def emit(self, record: logging.LogRecord) -> None:
        """Update the stage's row, or print a line above the table."""
        stage, state, text = facts(record)
        row = self.rows.setdefault(stage, StageRow())
        if state == "warning":
            self.console.print(Text(f"! {stage} {text}", style="yellow"))
        elif state == "progress":
            row.text = text
        elif state == "running":
            row.state, row.text, row.since = state, "starting", time.monotonic()
        elif state != "output":
            row.state, row.text = state, "" if state == "failed" else text

    def table(self) -> Table:
        """One line per stage: mark, name, state or elapsed time, last message."""
        table = Table.grid(padding=(0, 2, 0, 0))
        for _ in range(3):
            table.add_column(no_wrap=True)
        table.add_column(no_wrap=True, overflow="ellipsis")
        for stage, row in self.rows.items():
            mark, style = STYLES[row.state]
            running = row.state == "running"
            word = clock(time.monotonic() - row.since) if running else row.state
            table.add_row(
                self._spinner if running else Text(mark, style=style),
                Text(stage, style="bold" if running else ""),
                Text(word, style=style),
                Text(row.text, style="" if running else "dim"),
            )
        return table


def facts(record: logging.LogRecord) -> tuple[str, str, str]:
    """Stage, state and text of an event, without the stage's name at the start of the text."""
    values = vars(record)
    stage, text = str(values["stage"]), str(values["text"])
    return stage, str(values["state"]), text.removeprefix(f"{stage}: ").removeprefix(f"{stage} ")
