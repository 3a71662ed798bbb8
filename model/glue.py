"""The GLUE tasks, as in glue.toml.

In:  a task's name and its folder.
Out: the fields of a `TaskConfig`. No framework is imported here, since the configuration uses this.
"""

import tomllib
from pathlib import Path

from cloze.artifacts.config import JsonObject
from cloze.artifacts.results import TASK_SPLITS

DEFAULTS = {
    "metrics": ["accuracy"],
    "labels": ["0", "1"],
    "train": "train.tsv",
    "dev": "dev.tsv",
    "test": "test.tsv",
    "more": {},
}
"""Fields of a task that glue.toml leaves out."""

GLUE: dict[str, JsonObject] = {
    name: DEFAULTS | task
    for name, task in tomllib.loads(Path(__file__).with_suffix(".toml").read_text("utf-8")).items()
}

IN_AVERAGE = tuple(name for name in GLUE if name != "WNLI")
"""The paper's average leaves WNLI out (Table 1)."""

MISMATCHED = "dev_mismatched"
"""MNLI's second development set, a column of its own in Table 1 and in its average of nine."""


def task_fields(name: str, folder: str) -> JsonObject:
    """The `TaskConfig` fields of GLUE task `name`, with its files in `folder`."""
    task = GLUE[name]
    files = {split: f"{folder}/{task[split]}" for split in TASK_SPLITS}
    more = {split: f"{folder}/{file}" for split, file in task["more"].items()}
    return {**task, **files, "more": more}
