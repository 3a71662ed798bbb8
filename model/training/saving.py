"""Checkpoints written beside the training: gathered by all ranks, written by a thread of the first.

In:  the engine, and a JSON value.
Out: a checkpoint on disk some time later; an error in the thread is raised by the next call.
"""

import time
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from model.training.checkpoints import Checkpoints
from model.training.distributed import World
from model.training.engine import Engine


@dataclass
class Saver:
    """Saves one run's state."""

    checkpoints: Checkpoints
    world: World
    seconds: float = 0.0
    """Time for which training stood still."""
    _thread: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(1, "checkpoint"))
    _writing: "Future[Path] | None" = None

    def save(self, step: int, engine: Engine, state: Mapping[str, Any]) -> None:
        """Gather now, on all ranks; write in the background, on the first."""
        started = time.monotonic()
        self.wait()
        first = self.world.is_first
        parameters = {name: kept for name, kept in engine.state() if first}
        if first:
            write = self.checkpoints.save
            self._writing = self._thread.submit(write, step, parameters, dict(state))
        self.seconds += time.monotonic() - started

    def wait(self) -> None:
        """Until what was begun is on disk; raises what went wrong."""
        if self._writing is not None:
            self._writing.result()
            self._writing = None

    def check(self) -> None:
        """Raise what has gone wrong in the background, without waiting."""
        if self._writing is not None and self._writing.done():
            self.wait()

    def close(self) -> None:
        """End the thread, when what it has begun is on disk."""
        self._thread.shutdown()
