"""One rank of a test: pre-trains on a list of stage tables, with faults injected as requested.

    python rank_program.py '[{"table": PATH, "strike": {"site": …, "step": …, "rank": …, "do": …}}]'

In a table's path, `{rank}` stands for the number of the rank.
Out: one JSON line for each table: `{"end": "done" | error name, "message": …}`.
"""

import json
import os
import resource
import signal
import sys
import time
from typing import Any

from torch import Tensor

from cloze.artifacts.errors import ClozeError
from cloze.artifacts.runtime.program import Terminated
from cloze.artifacts.stage import read_stage_table
from cloze.model.training.checkpoints import FaultHook, no_fault
from cloze.model.training.engine import Engine, Replicated
from cloze.model.training.pretrain import make_encoder
from cloze.model.training.sharded import Sharded

SIGNALS = {"kill": signal.SIGKILL, "terminate": signal.SIGTERM, "stop": signal.SIGSTOP}


class StruckDown(Exception):
    """The fault that a test has requested."""


def strike(wish: dict[str, Any] | None) -> FaultHook:
    """The fault hook of this rank."""
    if not wish or wish["rank"] != int(os.environ.get("RANK", "0")):
        return no_fault

    def fault(site: str, step: int) -> None:
        last = wish.get("last", wish["step"])
        if site == wish["site"] and wish["step"] <= step <= last:
            _act(wish["do"])

    return fault


def _act(what: str) -> None:
    if what == "nan":
        _spoil_the_next_gradient()
    elif what == "raise":
        raise StruckDown
    elif what == "sleep":
        time.sleep(3600)
    elif what == "fill":
        fill_disk()
    else:
        os.kill(os.getpid(), SIGNALS[what])


def _spoil_the_next_gradient() -> None:
    """Make the loss of the next backward pass of this process NaN."""
    kinds: tuple[Any, ...] = (Replicated, Sharded)
    originals = {kind: kind.backward for kind in kinds}

    def spoilt(engine: Engine, loss: Tensor, *, last: bool = False) -> None:
        for kind, backward in originals.items():
            kind.backward = backward
        originals[type(engine)](engine, loss * float("nan"), last=last)

    for kind in kinds:
        kind.backward = spoilt


def fill_disk(size: int = 200) -> None:
    """Limit all files of this process to `size` bytes from now on.

    Python ignores SIGXFSZ, so exceeding the limit raises an OSError.
    """
    _, most = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, most))


def run_one(wish: dict[str, Any]) -> dict[str, str]:
    """Pre-train once; expected failures are returned as a word."""
    path = wish["table"].format(rank=os.environ["RANK"])
    try:
        make_encoder(read_stage_table(path), [], fault=strike(wish.get("strike")))
    except (ClozeError, Terminated, StruckDown) as error:
        return {"end": type(error).__name__, "message": str(error)}
    except SystemExit as left:
        return {"end": "done" if not left.code else "exit", "message": str(left.code)}
    return {"end": "done", "message": ""}


if __name__ == "__main__":
    for one in json.loads(sys.argv[1]):
        print(json.dumps(run_one(one)), flush=True)
