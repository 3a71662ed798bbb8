"""One rank of a test: pre-trains on a list of stage tables, struck where the test says.

    python rank_program.py '[{"table": PATH, "strike": {"site": …, "step": …, "rank": …, "do": …}}]'

In a table's path `{rank}` stands for the number of the rank.
Out: one JSON line for each table: `{"end": "done" | error name, "message": …}`.
"""

import json
import os
import resource
import signal
import sys
import time
from typing import Any

from artifacts.errors import ClozeError
from artifacts.program import Terminated
from artifacts.stage import read_stage_table
from model.training.fault_injection import Strike, undisturbed
from model.training.pretrain import pretrain

SIGNALS = {"kill": signal.SIGKILL, "terminate": signal.SIGTERM, "stop": signal.SIGSTOP}


class StruckDown(Exception):
    """The end that a test asked for."""


def strike(wish: dict[str, Any] | None) -> Strike:
    """What happens at the sites of this rank."""
    if not wish or wish["rank"] != int(os.environ.get("RANK", "0")):
        return undisturbed

    def at(site: str, step: int) -> float:
        last = wish.get("last", wish["step"])
        if site != wish["site"] or not wish["step"] <= step <= last:
            return 1.0
        return _act(wish["do"])

    return at


def _act(what: str) -> float:
    if what == "nan":
        return float("nan")
    if what == "raise":
        raise StruckDown
    if what == "sleep":
        time.sleep(3600)
    elif what == "fill":
        fill_disk()
    else:
        os.kill(os.getpid(), SIGNALS[what])
    return 1.0


def fill_disk(size: int = 200) -> None:
    """From now on no file of this process may be larger than `size` bytes.

    Python ignores SIGXFSZ, so writing more is an OSError.
    """
    _, most = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, most))


def run_one(wish: dict[str, Any]) -> dict[str, str]:
    """Pre-train once; every expected end as a word."""
    path = wish["table"].format(rank=os.environ["RANK"])
    try:
        pretrain(read_stage_table(path), [], at=strike(wish.get("strike")))
    except (ClozeError, Terminated, StruckDown) as error:
        return {"end": type(error).__name__, "message": str(error)}
    except SystemExit as left:
        return {"end": "done" if not left.code else "exit", "message": str(left.code)}
    return {"end": "done", "message": ""}


if __name__ == "__main__":
    for one in json.loads(sys.argv[1]):
        print(json.dumps(run_one(one)), flush=True)
