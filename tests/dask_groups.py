"""Groups seeded keys on a Dask cluster, through the graph that preparation uses.

    python dask_groups.py tcp://HOST:PORT KEYS FILE FOLDER

Out: FILE, JSON: for each group its key and its values, which are the numbers of four tasks.
"""

import json
import random
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from cloze.artifacts.progress import Progress
from cloze.pipeline.config.settings import PipelineMachine
from cloze.pipeline.runner.engine_job import run_on_engine
from cloze.pipeline.runner.graph import Collection, WorkQueue, spread

ADDRESS, KEYS, FILE, FOLDER = sys.argv[1], int(sys.argv[2]), sys.argv[3], sys.argv[4]
TASKS = 8
KINDS: tuple[Callable[[int], Any], ...] = (
    int,
    np.int64,
    lambda key: bool(key) if key in (0, 1) else key,
    np.longlong,
)
"""The types that Python and numpy have for the same number."""


def pairs(task: int) -> Iterator[tuple[Any, int]]:
    """Half of the keys: each is in four of the eight tasks, in each of them as another type."""
    keys = [0, 1, *random.Random(12345).sample(range(-(1 << 61), 1 << 61), KEYS - 2)]
    for number in random.Random(task).sample(range(KEYS), KEYS):
        if (number + task) % TASKS < len(KINDS):
            yield KINDS[(number + task) % TASKS](keys[number]), task


def build(queue: WorkQueue) -> Collection[Any]:
    """Groups the pairs, then gathers all groups."""
    grouped = spread(range(TASKS), queue).flat_map("Pairs", pairs).group("Group")
    sizes = grouped.map("Size", lambda group: (0, (group[0], sorted(group[1]))))
    return sizes.group("All").map("Write", write)


def write(group: tuple[int, Iterable[Any]]) -> None:
    """All groups, as JSON."""
    Path(FILE).write_text(json.dumps(list(group[1])))


if __name__ == "__main__":
    run_on_engine(
        build,
        machine=PipelineMachine(runner="DaskRunner"),
        options=[f"--dask_client_address={ADDRESS}", f"--dask_npartitions={TASKS}"],
        progress=Progress("groups", total=1, unit="MB"),
        output=FOLDER,
    )
