"""A run that Prefect follows: stages never wait for it.

In:  the plan of a run.
Out: the run, executed in the calling thread; meanwhile its events, which a flow in another thread
     repeats, so that Prefect's page shows them at their times.

Importing Prefect and starting its server takes as long as several stages of a small run, and each
call of the server some more. The flow begins when Prefect is ready and catches up. Prefect is not
imported here.
"""

import logging
from collections.abc import Iterable
from queue import SimpleQueue

from cloze.flows.events import add_handler, remove_handler
from cloze.flows.executor import Executor, run_stages
from cloze.flows.plan import Plan
from cloze.flows.workspace import RunRecord


class Unfinished(Exception):
    """The run ended before a stage that the flow expected."""


class Followed(logging.Handler):
    """A run in this thread, and its events for another one."""

    def __init__(self, plan: Plan) -> None:
        super().__init__()
        self.plan = plan
        self.failure: BaseException | None = None
        """What ended the run, if it did not finish."""
        self.shown = 0
        """How much of the run the flow has shown: it grows as long as the server answers."""
        self._record: RunRecord | None = None
        # Events, and between them how each attempt at a stage ended; None is the end of the run.
        self._told: SimpleQueue[logging.LogRecord | _Ended | None] = SimpleQueue()

    def execute(self) -> RunRecord:
        """Execute the run; returns its record."""
        add_handler(self, progress=False)
        try:
            self._record = run_stages(_Told(self.plan, self))
            return self._record
        except BaseException as error:
            self.failure = error
            raise
        finally:
            remove_handler(self)
            self._told.put(None)

    def emit(self, record: logging.LogRecord) -> None:
        """Keep the event for the flow."""
        self._told.put(record)

    def ended(self, error: BaseException | None) -> None:
        """An attempt at a stage has ended, with this error if it failed."""
        self._told.put(_Ended(error))

    def follow(self, handlers: Iterable[logging.Handler]) -> None:
        """Send events to Prefect's `handlers` until an attempt has ended; raises its failure."""
        while told := self._told.get():
            self.shown += 1
            if isinstance(told, logging.LogRecord):
                for handler in handlers:
                    handler.handle(told)
            elif told.error:
                raise told.error
            else:
                return
        self._told.put(None)  # for whoever asks next
        raise self.failure or Unfinished

    def record(self) -> RunRecord:
        """The run's record, once the run has ended; raises its failure."""
        while self._told.get():
            self.shown += 1
        if self._record is None:
            raise self.failure or Unfinished
        return self._record


class _Ended:
    """The end of an attempt at a stage."""

    def __init__(self, error: BaseException | None) -> None:
        self.error = error


class _Told(Executor):
    """An executor that tells how each attempt at a stage has ended."""

    def __init__(self, plan: Plan, followed: Followed) -> None:
        super().__init__(plan)
        self._followed = followed

    def ensure(self, name: str) -> None:
        """Reuse or make the artifact of the stage called `name`."""
        try:
            super().ensure(name)
        except BaseException as error:
            self._followed.ended(error)
            raise
        self._followed.ended(None)
