"""The stages' own functions in a plain multiprocessing loop: what Beam is compared with.

    python benchmarks/preparing/plain_driver.py tokens|examples --config TABLE.json

Reading the table, the work on each piece, the manifest: all is the stage's own code. Only the graph
is not run by Beam; its pieces go through `multiprocessing.Pool`. Beam is not imported either, so
that this program, from its start to its end, is the stage's without Beam.
"""

import multiprocessing
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from types import ModuleType
from typing import Protocol

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))


def _unused(name: str) -> "type[Unused]":
    if name.startswith("__"):
        raise AttributeError(name)
    return Unused


class _Names(type):
    def __getattr__(cls, name: str) -> "type[Unused]":
        return _unused(name)

    def __getitem__(cls, _: object) -> "_Names":
        return cls

    def __call__(cls, *args: object, **kwargs: object) -> object:
        """Of a class of ours that is derived from it an instance, as ever."""
        return cls if cls is Unused else super().__call__(*args, **kwargs)


class Unused(metaclass=_Names):
    """Stands for whatever the stages import from Beam and the loop does not use."""


@dataclass(frozen=True)
class Step:
    """What is done with every piece; each gives any number of results."""

    begin: Callable[[], None]
    work: Callable[[object], list[object]]

    def __rrshift__(self, name: str) -> "Step":
        """`name >> step`."""
        return self


class PieceFunction(Protocol):
    """What the loop uses of a DoFn."""

    def setup(self) -> None:
        """Called once a worker."""

    def process(self, piece: object, /) -> Iterable[object]:
        """Called with every piece."""


def par_do(fn: PieceFunction) -> Step:
    """Stands for ParDo."""
    return Step(fn.setup, lambda piece: list(fn.process(piece)))


def each(fn: Callable[..., object], *args: object, **kwargs: object) -> Step:
    """Stands for Map."""
    return Step(lambda: None, lambda piece: [fn(piece, *args, **kwargs)])


_beam = ModuleType("pipeline.runner.beam")
vars(_beam).update(ParDo=par_do, Map=each, __getattr__=_unused)
sys.modules["pipeline.runner.beam"] = _beam

from artifacts.runtime.program import exit_code
from pipeline import examples, tokens
from pipeline.config.stage_tables import PipelineMachine
from pipeline.runner import graph
from pipeline.runner.work_queue import WorkQueue

STAGES = {"tokens": (tokens, tokens.make_tokens), "examples": (examples, examples.make_examples)}


Build = Callable[[None, WorkQueue], object]
"""A graph's function; applying its steps to `Pieces` does the work at once."""


class Pieces:
    """Stands for a collection of pieces: applying a step does the work."""

    def __init__(self, pieces: Sequence[object], *, workers: int) -> None:
        self.pieces = list(pieces)
        self.workers = workers

    def __or__(self, step: Step) -> "Pieces":
        """Do the step with every piece: in the pool, unless there is but one."""
        if len(self.pieces) == 1:
            step.begin()
            return Pieces(step.work(self.pieces[0]), workers=self.workers)
        fork = multiprocessing.get_context("fork")  # the step is inherited, not pickled
        with fork.Pool(self.workers, initializer=_begin, initargs=(step,)) as pool:
            results = list(pool.imap_unordered(_work, self.pieces, chunksize=1))
            pool.close()
            pool.join()
        return Pieces(list(chain.from_iterable(results)), workers=self.workers)


_steps: list[Step] = []


def _begin(step: Step) -> None:
    step.begin()
    _steps.append(step)


def _work(piece: object) -> list[object]:
    return _steps[-1].work(piece)


def stand_ins(workers: int) -> dict[str, Callable[..., Pieces]]:
    """What stands for the functions that a graph is made of."""
    return {
        "spread": lambda _, pieces, queue: Pieces(pieces, workers=workers),
        "share_out": lambda every, queue, *, label: Pieces(*every.pieces, workers=workers),
        "gather": lambda results, *, label: Pieces([results.pieces], workers=workers),
    }


def main() -> int:
    """Run one stage."""
    module, make = STAGES[sys.argv[1]]

    def run_graph(build: Build, *, machine: PipelineMachine, **_: object) -> None:
        loaded = [found for name, found in sys.modules.items() if name.startswith("pipeline.")]
        for name, stand_in in stand_ins(machine.workers).items():
            original = getattr(graph, name)
            for found in loaded:
                if vars(found).get(name) is original:
                    setattr(found, name, stand_in)
        build(None, WorkQueue())

    vars(module)["run_graph"] = run_graph
    return exit_code(make, sys.argv[2:])


if __name__ == "__main__":
    sys.exit(main())
