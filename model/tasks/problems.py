"""From a task's configuration to its `Problem`.

In:  `TaskConfig`, which names files or a labels artifact's task; a tokenizer.
Out: the family's `Problem`, everything read, checked and tokenised.
"""

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from artifacts.errors import IntegrityError, UsageError
from artifacts.rng import address, permutation
from artifacts.store import Artifact
from artifacts.tokenizer import WordPieceTokenizer
from model.config import TaskConfig
from model.tasks.base import Problem, Texts
from model.tasks.classification import Classification, PairClassification, Regression
from model.tasks.multiple_choice import MultipleChoice
from model.tasks.span import Spans
from model.tasks.tagging import Tagging
from model.tasks.task_files import read_table
from model.tasks.task_table import TaskTable, Wanted

FAMILIES: Mapping[str, type[Problem]] = {
    "classification": Classification,
    "pair_classification": PairClassification,
    "regression": Regression,
    "tagging": Tagging,
    "span": Spans,
    "multiple_choice": MultipleChoice,
}

SPLITS = ("train", "dev", "test")
SAMPLE_SEED = 20181011
"""Of the choice of `train_examples`: the same sample for every fit."""


def load_problem(
    config: TaskConfig, tokenizer: WordPieceTokenizer, tables: Mapping[str, TaskTable]
) -> Problem:
    """The task whose files are read, in its family's form."""
    return FAMILIES[config.kind](Texts(config, tables, tokenizer))


def load_tables(config: TaskConfig, labels: Artifact | None = None) -> dict[str, TaskTable]:
    """The task's splits as tables; `train` always, and `dev` or `test`."""
    family = FAMILIES[config.kind]
    tables = {
        split: read_table(path, wanted_columns(config, split))
        for split, path in task_paths(config, labels).items()
    }
    if 0 < config.train_examples < len(tables["train"]):
        order = permutation(address(SAMPLE_SEED, "sample"), len(tables["train"]))
        tables["train"] = tables["train"].take(np.sort(order[: config.train_examples]).tolist())
    for split in ("train", "dev"):
        for name in ("label", "tags", "answers"):
            if split in tables and name in family.optional and not tables[split].has(name):
                raise UsageError(
                    f"{tables[split].path}: no column {name}, which training and development data "
                    f'need; say which one it is: columns.{name} = "..."'
                )
    return tables


def wanted_columns(config: TaskConfig, split: str) -> Wanted:
    """What the task wants from the file of a split."""
    family = FAMILIES[config.kind]
    return Wanted(
        required=family.required,
        optional=family.optional,
        names=(split.startswith("test") and config.test_columns) or config.columns,
        skip_short_rows=config.skip_short_rows,
    )


def task_paths(config: TaskConfig, labels: Artifact | None = None) -> dict[str, str]:
    """Where each split lies."""
    named = {"train": config.train, "dev": config.dev, "test": config.test, **config.more}
    paths = {
        split: path
        for split, path in named.items()
        # GLUE's folders may lack test files; every other file that is named must be there.
        if path and (not config.glue or split in ("train", "dev") or Path(path).exists())
    }
    if not config.train:
        paths = {**_labelled_paths(config, labels), **paths}
    if "train" not in paths or len(paths) < 2:
        raise UsageError(
            f"task {config.name}: has {', '.join(paths) or 'no files'}, wants train, and dev or "
            "test; name files, or let the labels stage make them"
        )
    return paths


def _labelled_paths(config: TaskConfig, labels: Artifact | None) -> dict[str, str]:
    if labels is None:
        raise UsageError(
            f"task {config.name}: names no training file and there is no labels artifact; "
            'give train = "FILE", or add the table [labels]'
        )
    paths = {}
    for split in SPLITS:
        try:
            paths[split] = labels.path(f"{config.name}/{split}.jsonl")
        except IntegrityError:
            if split == "train":
                raise
    return paths
