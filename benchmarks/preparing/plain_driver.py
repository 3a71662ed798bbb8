"""The stages' own functions in a plain multiprocessing loop: the baseline for Beam.

    python benchmarks/preparing/plain_driver.py tokens|examples --config TABLE.json

Reading the table, processing each item and writing the manifest are the stage's own code; only the
graph's items go through `multiprocessing.Pool`. Beam is not even imported, so that this whole
program, from start to end, is the stage without Beam.
"""

import multiprocessing
import sys
from collections.abc import Callable, Iterable
from importlib import import_module
from itertools import chain
from pathlib import Path
from typing import Any, NoReturn

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from cloze.artifacts.progress import Progress
from cloze.artifacts.runtime.program import run_program
from cloze.pipeline.runner.execution import Runner
from cloze.pipeline.runner.graph import Build, Step, WorkQueue

_functions: list[Callable[[Any], Iterable[Any]]] = []
"""In a worker process: the function of the step that it runs."""


def done(step: Step, items: list[Any], *, workers: int) -> list[Any]:
    """A step's results for all items: in a pool, unless there is only one."""
    # A step without a function groups by key.
    if step.function is None:
        groups: dict[Any, list[Any]] = {}
        for key, value in items:
            groups.setdefault(key, []).append(value)
        return list(groups.items())
    if len(items) == 1:
        _begin(step)
        return _work(items[0])
    fork = multiprocessing.get_context("fork")  # the step is inherited, not pickled
    with fork.Pool(workers, initializer=_begin, initargs=(step,)) as pool:
        results = list(pool.imap_unordered(_work, items, chunksize=1))
        pool.close()
        pool.join()
    return list(chain.from_iterable(results))


def _begin(step: Step) -> None:
    _functions.append(step.ready())


def _work(item: Any) -> list[Any]:
    return list(_functions[-1](item))


def main() -> NoReturn:
    """Run one stage."""
    stage = sys.argv[1]
    module = vars(import_module(f"cloze.pipeline.{stage}"))

    def run(runner: Runner, build: Build, progress: Progress, **_: object) -> None:
        items: list[Any] = [None]
        for step in build(WorkQueue()).steps:  # without a folder every item is a share of its own
            items = done(step, items, workers=runner.machine.workers)

    # All but the running of the graph is the stage's own program.
    Runner.run = run  # type: ignore[assignment,method-assign]
    run_program(module[f"make_{stage}"], sys.argv[2:])


if __name__ == "__main__":
    main()
