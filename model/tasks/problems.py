"""From a task's configuration to its `Problem`.

In:  `TaskConfig`, which names files or a task in a labels artifact; a tokenizer.
Out: the `Problem` of the task's family: data read, checked and tokenised.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from pkgutil import resolve_name
from typing import TypeVar, cast

import numpy as np

from cloze.artifacts import filesystem
from cloze.artifacts.errors import ClozeError, UsageError
from cloze.artifacts.results import TASK_SPLITS
from cloze.artifacts.rng import address, permutation
from cloze.artifacts.store import Artifact
from cloze.artifacts.tokenizer import SubwordTokenizer
from cloze.model.config import ChoiceConfig, TaskConfig
from cloze.model.task_families import TASK_FAMILIES
from cloze.model.tasks.base import Problem
from cloze.model.tasks.files.judgments import GRADE, read_collection
from cloze.model.tasks.files.table_files import read_table
from cloze.model.tasks.files.task_table import (
    TaskTable,
    Wanted,
    is_missing,
    refuse_spelt_nan,
)

LoadedT = TypeVar("LoadedT")

SAMPLE_SEED = 20181011
"""Seed for sampling `train_examples` and dev rows: the same for every trial."""


def family_of(kind: str) -> type[Problem]:
    """The class of a task's `kind`."""
    return cast(type[Problem], resolve_name(TASK_FAMILIES[kind].problem))


def load_problem(
    config: TaskConfig, tokenizer: SubwordTokenizer | None, tables: Mapping[str, TaskTable]
) -> Problem:
    """The problem of the task's family, from tables that have been read.

    Without a tokenizer it has labels and scores predictions, but no inputs.
    """
    return family_of(config.kind)(config, tables, tokenizer)


def for_all(tasks: Sequence[TaskConfig], load: Callable[[TaskConfig], LoadedT]) -> list[LoadedT]:
    """`load` for every task; what is wrong with any of them is reported together."""
    # Not one at a time: whoever has ten tasks should correct them in one go.
    loaded, errors = [], list[ClozeError]()
    for task in tasks:
        try:
            loaded.append(load(task))
        except ClozeError as error:
            errors.append(error)
    if len(errors) > 1:
        raise UsageError(
            f"{len(errors)} of {len(tasks)} tasks cannot be trained: "
            + "; ".join(f"({number}) {error}" for number, error in enumerate(errors, start=1))
        )
    if errors:
        raise errors[0]
    return loaded


def check_tables(
    config: TaskConfig, labels: Artifact | None = None, *, choice: ChoiceConfig | None = None
) -> None:
    """Refuse whatever in the task's files or metrics would be refused before training."""
    tables = load_tables(config, labels, holds_out=choice is None)
    family_of(config.kind)(config, tables, None)
    if choice is not None:
        check_lone_rows(config, tables["train"])


def check_lone_rows(config: TaskConfig, train: TaskTable) -> None:
    """Refuse a class with a single training row, which cannot be held out and trained on."""
    if family_of(config.kind).predicts != "label":
        return
    counts = Counter(str(label) for label in train.columns["label"])
    for row, label in enumerate(train.columns["label"]):
        if counts[str(label)] == 1:
            raise UsageError(
                f"{train.place(row)}: the only row with the label {label!r}, and cross-validation "
                "needs two of each; label another one, remove it, or leave out finetune.choose"
            )


def load_tables(
    config: TaskConfig,
    labels: Artifact | None = None,
    *,
    mined: Artifact | None = None,
    holds_out: bool = True,
) -> dict[str, TaskTable]:
    """The task's splits as tables: always `train`, and `dev` or `test` if it `holds_out`.

    `mined`: an artifact with the rows of some tasks, which have been through all of this.
    """
    family = family_of(config.kind)
    if mined and config.family.ranks:
        return mined_tables(config, mined)
    tables = {
        split: read_split(config, split, path) for split, path in task_paths(config, labels).items()
    }
    collection = read_collection(config.collection)
    if collection:
        tables = {split: collection.joined(table) for split, table in tables.items()}
    for table in (tables[split] for split in ("train", "dev") if split in tables):
        name = family.label_column
        if not table.has(name):
            raise UsageError(
                f"{table.path}: no column {name}, which training and development data need, or it "
                f'is blank in every row; name the right one: columns.{name} = "..."'
            )
    if config.skip_unlabelled_rows:
        tables |= {
            split: labelled_rows(tables[split], family.label_column)
            for split in ("train", "dev")
            if split in tables
        }
    for table in (tables[split] for split in ("train", "dev") if split in tables):
        # GLUE's own files have a few blank texts (QQP), which count as examples.
        _refuse_blanks(table, () if config.glue else family.required)
    for table in tables.values():
        _refuse_blanks(table, ("label",))
        if family.predicts != "number":
            refuse_spelt_nan(table, config.labels)
    if config.weights:
        tables["train"] = without_rows(tables["train"], config.weights)
    if holds_out and "dev" not in tables and "test" not in tables:
        tables["train"], tables["dev"] = hold_out(tables["train"], config.dev_share)
        _refuse_labels_held_out(config, tables["train"], tables["dev"])
    if 0 < config.train_examples < len(tables["train"]):
        # Sorted, so that the sample is in the file's order, as the whole would be.
        order = permutation(address(SAMPLE_SEED, "sample"), len(tables["train"]))
        sample = tables["train"].take(np.sort(order[: config.train_examples]).tolist())
        whole = tables["train"]
        tables["train"] = replace(sample, whole=whole, remarks=whole.remarks)
    if collection and family.reads == "vectors":
        others = tables.keys() - {"train"}
        tables |= {split: collection.whole(tables[split]) for split in others}
    return tables


def mined_tables(config: TaskConfig, mined: Artifact) -> dict[str, TaskTable]:
    """The splits of a task in an artifact of the stage `negatives`."""
    family, folder = family_of(config.kind), f"{config.name}/"
    wanted = Wanted(required=family.required, optional=(*family.optional, GRADE))
    names = [one.name for one in mined.manifest.files if one.name.startswith(folder)]
    found = {
        name.removeprefix(folder).removesuffix(".jsonl"): read_table(mined.path(name), wanted)
        for name in names
    }
    remarks = mined.manifest.statistics["remarks"][config.name]
    return {split: table.remarked(*remarks.get(split, ())) for split, table in found.items()}


def labelled_rows(table: TaskTable, name: str) -> TaskTable:
    """The rows with a label, in the column `name`: at least one, or the table would not have it."""
    rows = [row for row, label in enumerate(table.columns[name]) if not is_missing(label)]
    left = len(table) - len(rows)
    if not left:
        return table
    remark = f"{left:,} of {len(table):,} rows of {table.path} have no label and are left out"
    return replace(table.take(rows), remarks=(*table.remarks, remark))


def without_rows(table: TaskTable, path: str) -> TaskTable:
    """The training rows without those to which the file `path` gives weight 0."""
    listed = read_table(path, Wanted(required=("row", "weight"), optional=("text",)))
    dropped: set[int] = set()
    # The file names rows by their place in the training file, of which some may be left out.
    places = {table.number(row): row for row in range(len(table))}
    for place, (row, weight) in enumerate(
        zip(listed.columns["row"], listed.columns["weight"], strict=True)
    ):
        where, number = listed.place(place), str(row).strip()
        index = places.get(int(number) - 1) if number.isdigit() else None
        if index is None:
            raise UsageError(
                f"{where}: row is {row!r}, expected a row of {table.path}, 1 to "
                f"{max(places) + 1:,}, with a label"
            )
        shown = " | ".join(
            str(table.columns[name][index]) for name in ("text_a", "text_b") if table.has(name)
        )
        # White space is compared loosely: a spreadsheet changes it.
        if listed.has("text") and str(listed.columns["text"][place]).split() != shown.split():
            raise UsageError(
                f"{where}: its text is {str(listed.columns['text'][place])[:60]!r}, but row "
                f"{number} of {table.path} is {shown[:60]!r}; the file was changed since: list "
                "its rows again, or remove the column text"
            )
        # A column of numbers with gaps is read as floats: 0.0 and 1.0.
        mark = str(weight).strip().removesuffix(".0")
        if mark not in ("0", "1"):
            raise UsageError(
                f"{where}: weight is {weight!r}; expected 0, to leave the row out, or 1"
            )
        if mark == "0":
            dropped.add(index)
    kept = table.take([row for row in range(len(table)) if row not in dropped])
    remark = f"{len(dropped):,} of {len(table):,} training rows are left out, by {path}"
    return replace(kept, remarks=(*table.remarks, remark))


def _refuse_blanks(table: TaskTable, names: Sequence[str]) -> None:
    for name in names:
        for row, value in enumerate(table.columns.get(name, [])):
            if is_missing(value):
                raise UsageError(
                    f"{table.place(row)}: {name} is blank; fill it in, or remove the row"
                )


def read_split(config: TaskConfig, split: str, path: str) -> TaskTable:
    """The table of one split, in its family's canonical form."""
    return canonical(config, split, read_table(path, wanted_columns(config, split)))


def canonical(config: TaskConfig, split: str, table: TaskTable) -> TaskTable:
    """The whole table of a split in its family's canonical form, unlabelled if it has no labels."""
    family, wanted = family_of(config.kind), wanted_columns(config, split)
    if split not in ("train", "dev") and family.unlabelled_tests:
        # An unlabelled test file may still have label columns, filled with placeholders: blanks, or
        # -1 as in Hugging Face's data sets.
        names = ["label", *wanted.optional[len(family.optional) :]]
        known = [name for name in names if table.has(name)]
        values = (value for name in known for value in table.columns[name])
        if all(is_missing(value) or str(value).strip() in ("-1", "-1.0") for value in values):
            table = table.without(known)
    return family.prepared(table, config)


def hold_out(table: TaskTable, share: float) -> tuple[TaskTable, TaskTable]:
    """Split training rows into train and dev, in the same way for every trial.

    Stratified by label: at least one dev row of every label that has two. Rows of one document,
    context or passage stay together, unless all rows belong to the same.
    """
    # Rows of one document in both train and dev would make dev look better than it is.
    groups: dict[str, list[int]] = defaultdict(list)
    named = (table.columns.get(name) for name in ("document", "context", "passage"))
    for row, unit in enumerate(next(filter(None, named), [None] * len(table))):
        groups[f"row {row}" if unit is None else f"unit {unit}"].append(row)
    members = list(groups.values()) if len(groups) > 1 else [[row] for row in range(len(table))]
    labels = [
        [str(one) for one in label] if isinstance(label, list) else [str(label)]
        for label in table.columns.get("label", [""] * len(table))
    ]
    counts = Counter(chain.from_iterable(labels))
    strata = [  # a row with several labels belongs to the rarest one's
        min(several, key=lambda label: (counts[label], label), default="") for several in labels
    ]
    by_label: dict[str, list[list[int]]] = defaultdict(list)
    # Shuffled groups by stratum, that is, by the label of their first row.
    for number in permutation(address(SAMPLE_SEED, "dev"), len(members)).tolist():
        by_label[strata[members[number][0]]].append(members[number])
    if len(by_label) > len(members) // 2:  # numbers, or labels that hardly ever repeat
        by_label = {"": [group for found in by_label.values() for group in found]}
    chosen = [
        row
        for found in by_label.values()
        # The share, but at least one, and never all.
        for group in found[: min(max(1, round(share * len(found))), len(found) - 1)]
        for row in group
    ]
    if not chosen:
        raise UsageError(
            f"{table.path}: too few rows to hold some out as dev; name a dev file, or add rows"
        )
    remark = (
        f"no dev file: {len(chosen):,} of {len(table):,} rows of {table.path} are held out as dev "
        f"(dev_share = {share:g})"
    )
    kept = table.take(sorted(set(range(len(table))) - set(chosen)))
    return replace(kept, remarks=(*table.remarks, remark)), table.take(sorted(chosen))


def _refuse_labels_held_out(config: TaskConfig, train: TaskTable, dev: TaskTable) -> None:
    """Refuse held-out rows with a label that no training row has."""
    if config.labels or family_of(config.kind).predicts != "label":
        return
    known = {str(label) for label in train.columns["label"]}
    for row, label in enumerate(dev.columns["label"]):
        if str(label) not in known:
            raise UsageError(
                f"{dev.place(row)}: no other row is left to learn the label {label!r} from, since "
                f"this one is held out as dev (dev_share = {config.dev_share:g}); label two rows "
                "or more of each, remove the label, or name a dev file"
            )


def wanted_columns(config: TaskConfig, split: str) -> Wanted:
    """The columns that the task needs from the file of a split."""
    family = family_of(config.kind)
    names = (split.startswith("test") and config.test_columns) or config.columns
    # If a text may have several labels, each of them may be a column of its own.
    own = config.labels if family.predicts == "labels" else ()
    optional = (*family.optional, *own)
    if config.collection.passages:
        query = {"query": "query-id"} if config.collection.queries else {}
        names = {**query, "passage": "corpus-id", GRADE: "score", **names}
        optional = (*optional, GRADE)
    return Wanted(
        required=family.required,
        optional=optional,
        names=names,
        # Predictions, and files of them, go by the rows of a test file: none may be missing.
        skip_short_rows=config.skip_short_rows and split in ("train", "dev"),
        sentences=bool(config.family.parts),
    )


def task_paths(config: TaskConfig, labels: Artifact | None = None) -> dict[str, str]:
    """Path of each split."""
    named = {"train": config.train, "dev": config.dev, "test": config.test, **config.more}
    paths = {
        split: path
        for split, path in named.items()
        # GLUE's folders may lack test files; every other configured file must exist.
        if path and (not config.glue or split in ("train", "dev") or filesystem.exists(path))
    }
    if config.train:
        return paths
    if labels is None:
        raise UsageError(
            f"task {config.name}: has no training file and there is no labels artifact; "
            'give train = "FILE", or add the table [labels]'
        )
    known = {entry.name for entry in labels.manifest.files}
    files = {split: f"{config.name}/{split}.jsonl" for split in TASK_SPLITS}
    labelled = {
        split: labels.path(name)  # raises for `train` if the artifact has no such task
        for split, name in files.items()
        if split == "train" or name in known
    }
    return {**labelled, **paths}
