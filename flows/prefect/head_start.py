"""A head start: the first stages of a run, which do not wait for Prefect.

In:  the plan of a run; whether Prefect is ready yet.
Out: a running executor, to be continued by the flow of the same run, and the events so far, which
     the flow's tasks replay so that Prefect's page shows them at their times.

Importing Prefect and starting its server takes as long as several stages of a small run. Prefect is
not imported here.
"""

import logging
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, ExitStack
from typing import Self

from cloze.flows.events import add_handler, remove_handler
from cloze.flows.executor import Executor
from cloze.flows.job import StageFailed
from cloze.flows.plan import Plan


class HeadStart(logging.Handler):
    """A run that has begun before its flow; a context, in which the flow is called."""

    def __init__(self, plan: Plan) -> None:
        super().__init__()
        self.executor = Executor(plan)
        self._running = ExitStack()
        self._events: dict[str, list[logging.LogRecord]] = {}
        self._failures: dict[str, StageFailed] = {}

    def __enter__(self) -> Self:
        self._running.enter_context(self.executor.running())
        return self

    def __exit__(self, *error: object) -> None:
        self._running.__exit__(*error)  # type: ignore[arg-type]

    def run_until(self, ready: Callable[[], bool]) -> None:
        """Run stages until Prefect is ready, or one fails, which its task will raise."""
        add_handler(self, progress=False)
        try:
            for stage in self.executor.plan.stages:
                if ready():
                    return
                try:
                    self.executor.ensure(stage)
                except StageFailed as error:
                    self._failures[stage] = error
                    return
                # A stage that has reported nothing has finished, too.
                self._events.setdefault(stage, [])
        finally:
            remove_handler(self)

    def rest(self) -> AbstractContextManager[object]:
        """A context in which the run ends, however it does; from now on, that of the caller."""
        return self._running.pop_all()

    def replay(self, stage: str, handlers: Iterable[logging.Handler]) -> bool:
        """Send the events of `stage` to Prefect's `handlers`; returns whether it has finished.

        Raises its failure. A stage is replayed once, so that retrying it runs it.
        """
        events = self._events.pop(stage, None)
        for event in events or ():
            for handler in handlers:
                handler.handle(event)
        if failure := self._failures.pop(stage, None):
            raise failure
        return events is not None

    def emit(self, record: logging.LogRecord) -> None:
        """Keep the event."""
        self._events.setdefault(str(vars(record)["stage"]), []).append(record)
