"""Predictions of a fine-tuned model for new data.

In:  a saved model, and rows: a task file, or dictionaries one by one.
Out: one dictionary a row, in order: `prediction`, and a classifier's `probability` of it.

A stream is read in windows, each computed by length, so memory does not grow with it. Sentences
that are read with the rest of their document are kept together with it.
"""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

import numpy as np
import torch
from pydantic import JsonValue

from artifacts import filesystem
from artifacts.errors import UsageError
from artifacts.manifest import MANIFEST_NAME
from artifacts.store import Artifact, open_artifact
from artifacts.tokenizer import WordPieceTokenizer
from model.finetune.approaches import FineTuning, split_logits
from model.finetune.heads import TaskModel
from model.finetune.saved import SavedTask, read_model
from model.hugging_face.source import artifact_source, open_source
from model.tasks.problems import load_problem, wanted_columns
from model.tasks.task_files import read_table
from model.tasks.task_table import TaskTable, select

MODELS = "models/"
WINDOW = 2048
SPLIT = "test"
ANSWERS = ("label", "tags", "answers", "is_impossible")
"""Columns that are not looked at where a model is asked."""

Row = dict[str, JsonValue]
ItemT = TypeVar("ItemT")


@dataclass(frozen=True)
class Predictor:
    """A fine-tuned model, ready to use."""

    model: TaskModel
    saved: SavedTask
    tokenizer: WordPieceTokenizer
    precision: str = "fp32"

    def predict(self, rows: Sequence[Mapping[str, JsonValue]]) -> list[Row]:
        """Predictions for N dictionaries: N dictionaries, in their order.

        `prediction` is a label (and `probability` its softmax), a number, a list of N_words tags,
        or the number of an ending; a span has `text`, `best` (the best answer even where "none" is
        given) and `margin` (score of no answer minus that of the best). `rows` streams.
        """
        return list(self.rows(rows))

    def rows(
        self, rows: Iterable[Mapping[str, JsonValue]], *, source: str = "rows"
    ) -> Iterator[Row]:
        """Predictions for dictionaries, in order.

        Their columns have our names (text_a, text_b, words, question, context, endings …) or those
        of the training files; `text` may be written for the only text.
        """
        named: Iterator[Row] = (
            {("text_a" if name == "text" else name): value for name, value in row.items()}
            for row in rows
        )
        first = 1
        for window in self._windows(named, lambda row: row.get("document")):
            lines = tuple(range(first, first + len(window)))
            first += len(window)
            wanted = wanted_columns(self.saved.task, SPLIT)
            if any(name in window[0] for name in wanted.required):
                wanted = replace(wanted, names={})
            names = [wanted.in_file(name) for name in wanted.required]
            for line, row in zip(lines, window, strict=True):
                if any(name not in row for name in names):
                    shape = json.dumps(dict.fromkeys(names, "…"), ensure_ascii=False)
                    raise UsageError(
                        f"{source}:{line}: has {', '.join(row) or 'nothing'}; task "
                        f"{self.saved.task.name} ({self.saved.task.kind}) wants {shape}"
                    )
            yield from self._table(select(source, window, wanted, lines=lines))

    def file(self, path: str | Path) -> Iterator[Row]:
        """Predictions for a task file, in its order."""
        table = read_table(str(path), wanted_columns(self.saved.task, SPLIT))
        documents = table.columns.get("document", [None] * len(table))
        for window in self._windows(range(len(table)), documents.__getitem__):
            yield from self._table(table.take(window))

    def _windows(
        self, rows: Iterable[ItemT], document: Callable[[ItemT], object]
    ) -> Iterator[list[ItemT]]:
        """The rows in windows, which end with a document where its sentences are read together."""
        window: list[ItemT] = []
        for row in rows:
            if len(window) >= WINDOW and (
                not self.saved.task.document_context or document(row) != document(window[-1])
            ):
                yield window
                window = []
            window.append(row)
        if window:
            yield window

    def _table(self, table: TaskTable) -> Iterator[Row]:
        problem = load_problem(self.saved.task, self.tokenizer, {SPLIT: table.without(ANSWERS)})
        logits = split_logits(
            problem, FineTuning(problem, self.model, precision=self.precision), SPLIT
        )
        guesses = problem.thresholded(None, problem.predictions(SPLIT, logits))
        found: list[Row] = [
            guess if isinstance(guess, dict) else {"prediction": guess} for guess in guesses
        ]
        if problem.reads == "pooled" and len(problem.labels) > 1:
            powers = np.exp(logits.astype(np.float64) - logits.max(-1, keepdims=True))
            for row, probability in zip(found, powers.max(-1) / powers.sum(-1), strict=True):
                row["probability"] = round(float(probability), 6)
        yield from found


def load_predictor(
    location: str | Path, *, task: str = "", device: str = "auto", precision: str = "fp32"
) -> Predictor:
    """The fine-tuned model at `location`: a finetune artifact and a task's name, or a folder."""
    directory = str(location)
    if filesystem.exists(filesystem.join(directory, MANIFEST_NAME)):
        artifact = open_artifact(directory)
        source = artifact_source(artifact, folder=f"{MODELS}{saved_task(artifact, task)}/")
    else:
        source = open_source(directory)
    model, saved, tokenizer = read_model(source)
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    return Predictor(model.to(device), saved, tokenizer, precision)


def saved_task(artifact: Artifact, task: str) -> str:
    """`task`, or the only one whose model the artifact holds."""
    names = [entry.name for entry in artifact.manifest.files if entry.name.startswith(MODELS)]
    known = sorted({name.removeprefix(MODELS).split("/")[0] for name in names})
    if task in known or (not task and len(known) == 1):
        return task or known[0]
    found = ", ".join(known) or "none; fine-tune without save = 'none'"
    raise UsageError(
        f"{artifact.directory}: no model of task {task!r}, it has {found}"
        if task or not known
        else f"{artifact.directory}: has the tasks {found}; say which one"
    )
