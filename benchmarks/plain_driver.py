"""The stages' own functions in a plain multiprocessing loop: what Beam is compared with.

    python benchmarks/plain_driver.py tokens|examples --config TABLE.json

Reading the table, the work on each piece, the manifest: all is the stage's own code. Only the graph
is not run by Beam; its pieces go through `multiprocessing.Pool`. Times are counted from after the
imports, because importing Beam is Beam's cost.
"""

import json
import multiprocessing
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from artifacts.program import exit_code
from pipeline import examples, tokens
from pipeline.config import PipelineMachine
from pipeline.engine.meter import Meter

STAGES = {"tokens": (tokens, tokens.make_tokens), "examples": (examples, examples.make_examples)}


class Pieces:
    """Stands for a collection of pieces: applying a step does the work."""

    def __init__(self, pieces: Sequence[Any], *, workers: int) -> None:
        self.pieces = list(pieces)
        self.workers = workers

    def __or__(self, named: Any) -> "Pieces":
        """Run the step's function on every piece."""
        fork = multiprocessing.get_context("fork")  # the step is inherited, not pickled
        pool = fork.Pool(self.workers, initializer=_begin, initargs=(named.transform,))
        for _ in pool.imap_unordered(_work, self.pieces, chunksize=1):
            pass
        pool.close()
        pool.join()
        return self


_step: list[Any] = []


def _begin(step: Any) -> None:
    step.fn.setup()
    _step.append(step)


def _work(piece: Any) -> None:
    (step,) = _step
    for _ in step.fn.process(piece, *step.args, **step.kwargs):
        pass


def main() -> int:
    """Run one stage."""
    module, make = STAGES[sys.argv[1]]

    def run_graph(build: Any, *, machine: PipelineMachine, **_: Any) -> None:
        for name, loaded in sys.modules.items():
            if name.startswith("pipeline.") and hasattr(loaded, "spread"):
                loaded.spread = lambda _, pieces: Pieces(pieces, workers=machine.workers)
        build(None, Meter(""))

    module.run_graph = run_graph
    wall, cpu = time.monotonic(), sum(os.times()[:4])
    code = exit_code(make, sys.argv[2:])
    took = {"wall": time.monotonic() - wall, "cpu": sum(os.times()[:4]) - cpu}
    print(json.dumps(took))
    return code


if __name__ == "__main__":
    sys.exit(main())
