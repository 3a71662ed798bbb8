"""A stage that reads the corpus, with the structure of a large one, killed at a given moment.

    python killed_stage.py TABLE.json SITE COUNT

A process that reaches SITE for the COUNT-th time kills itself (0: never).
"""

import os
import signal
import sys
from collections.abc import Callable
from typing import Any

from cloze.artifacts.runtime.program import run_program
from cloze.artifacts.stage import read_stage_table
from cloze.pipeline import boilerplate, dedup, tokens, vocabulary
from cloze.pipeline.config import settings
from cloze.pipeline.readers import input_shards
from cloze.pipeline.shuffle import buckets, local_spill

STAGES = {
    "vocabulary": vocabulary.make_vocabulary,
    "boilerplate": boilerplate.make_line_list,
    "dedup": dedup.make_drop_list,
    "tokens": tokens.make_tokens,
}

SITES: dict[str, tuple[Any, str]] = {
    "before a sample is put": (vocabulary.filesystem, "put_file"),
    "before lines are put": (boilerplate, "put_local_file"),
    "before candidates are put": (dedup, "put_local_file"),
    "before a run is renamed": (local_spill.os, "replace"),
    "before a run is finished": (local_spill, "write_index"),
    "before a bucket is put": (buckets, "put_local_file"),
    "before a group is finished": (buckets, "put_bytes"),
    "before the manifest": (tokens, "commit"),
}


def dying(function: Callable[..., Any], passages: int) -> Callable[..., Any]:
    """`function`, but the process is killed before its n-th call."""
    left = [passages]

    def call(*arguments: Any, **options: Any) -> Any:
        left[0] -= 1
        if not left[0]:
            os.kill(os.getpid(), signal.SIGKILL)
        return function(*arguments, **options)

    return call


if __name__ == "__main__":
    table, site, count = sys.argv[1:]
    settings.BUCKET_BYTES, settings.DOCUMENTS_PER_BUCKET = 8_000, 40
    buckets.MOST_GROUPS, input_shards.BLOCK_BYTES = 2, 10_000
    if int(count):
        module, name = SITES[site]
        setattr(module, name, dying(getattr(module, name), int(count)))
    run_program(STAGES[read_stage_table(table).stage], ["--config", table])
