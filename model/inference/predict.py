"""Predictions of a fine-tuned model for new data.

In:  a saved model, and rows: a task file, or a stream of dictionaries.
Out: one dictionary per row, in order: `prediction`; for a classifier also the probabilities of all
     labels and, unless a text may have several, its own `probability`; for a tagger also the words
     and the spans that their tags mark.

Streams and files are read in windows, each in length-grouped batches, so that memory use is
constant. With document context, all sentences of a document are in the same window.
"""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from threading import Lock
from typing import TypeVar

import numpy as np
from pydantic import JsonValue
from torch import nn

from cloze.artifacts import filesystem
from cloze.artifacts.errors import UsageError
from cloze.artifacts.progress import say
from cloze.artifacts.runtime.arguments import checked
from cloze.artifacts.tokenizer import SubwordTokenizer
from cloze.model.encoder.models import SentenceModel, TaskModel
from cloze.model.encoder.precision import Precision, placed
from cloze.model.finetune.approaches import FineTuning, split_logits
from cloze.model.hugging_face.model_files import SavedTask, read_model, saved_source
from cloze.model.hugging_face.source import open_source
from cloze.model.inference.load import WINDOW_CHARACTERS, pack_encoder, require_finite
from cloze.model.inference.task_file import ANSWERS, SPLIT, TaskFile, to_score
from cloze.model.inference.unread import Unread, unread_sequences
from cloze.model.tasks.base import Logits, Problem
from cloze.model.tasks.files.task_table import TaskTable, tabulated
from cloze.model.tasks.problems import family_of, load_problem, wanted_columns
from cloze.model.uncertainty.confidence import CONFIDENCE, Confidence
from cloze.model.uncertainty.familiarity import read_vectors

WINDOW = 2048

Row = dict[str, JsonValue]
ItemT = TypeVar("ItemT")


@dataclass(frozen=True)
class Predictor:
    """A fine-tuned model, ready to use.

    Threads may share it; they compute one after another. A wrong argument is a `UsageError`.
    """

    model: nn.Module
    """A `TaskModel`, or a module with the same signature."""

    saved: SavedTask
    tokenizer: SubwordTokenizer
    precision: str = "fp32"
    confidence: float | None = None
    """The probability with which sets of labels, or intervals of numbers, hold the truth; None:
    predictions without them."""

    known: Confidence | None = None
    """What the model's training has left for such sets."""
    _one_at_a_time: Lock = field(default_factory=Lock, repr=False, compare=False)
    """Held while the model computes: in bf16, rounded parameters take the place of its own."""

    @checked
    def predict(self, rows: Sequence[Mapping[str, JsonValue] | str]) -> list[Row]:
        """Predictions for N dictionaries or texts: N dictionaries, in the same order.

        `prediction` is a label (with its softmax `probability`, and the `probabilities` of all
        labels), a list of labels if a text may have several (with the `probabilities` of each), a
        number, a list of tags (with the `words` and the `spans` that they mark), or the number of
        an ending. An answer has `text`, `best` (the best span even if `text` is empty) and `margin`
        (score of no answer minus that of the best span). For streams, see `rows`.

        With a `confidence`, a classifier also gives the `labels` that hold the true one with at
        least that probability, and `unsure` if these are none or several; if a text may have
        several, the `labels` it has, and those of which it is `unsure`. A number has an `interval`.
        `unfamiliar` texts are unlike the training rows.
        """
        return list(self.rows(rows))

    @checked
    def rows(
        self, rows: Iterable[Mapping[str, JsonValue] | str], *, source: str = "rows"
    ) -> Iterator[Row]:
        """Predictions for a stream of dictionaries or texts, in order.

        Columns have our names (text_a, text_b, words, question, context, endings …) or those of the
        training files. A single text may be given as `text`, which a tagger splits into words.
        """

        def named() -> Iterator[Row]:
            for row in rows:
                columns: Row = {"text": row} if isinstance(row, str) else dict(row)
                text = columns.get("text")
                if isinstance(text, str):
                    del columns["text"]
                    columns |= family_of(self.saved.task.kind).columns_of(text)
                yield columns

        # A stream of any length is predicted a window at a time: memory holds one window, and a
        # batch has enough texts of similar lengths to be even.
        first, unread = 1, Unread()
        for window in self._windows(named(), lambda row: row.get("document"), characters):
            # Rows keep their numbers in the stream, which error messages name.
            lines = tuple(range(first, first + len(window)))
            first += len(window)
            wanted = wanted_columns(self.saved.task, SPLIT)
            # Rows may use our names or those of the training files.
            if any(name in window[0] for name in wanted.required):
                wanted = replace(wanted, names={})
            names = [wanted.in_file(name) for name in wanted.required]
            for line, row in zip(lines, window, strict=True):
                if any(name not in row for name in names):
                    shape = json.dumps(dict.fromkeys(names, "…"), ensure_ascii=False)
                    raise UsageError(
                        f"{source}:{line}: has {', '.join(row) or 'nothing'}; task "
                        f"{self.saved.task.name} ({self.saved.task.kind}) expects {shape}"
                    )
            yield from self._table(tabulated(source, window, wanted, lines=lines), unread)
        self._report(unread)

    @checked
    def open(self, path: str | Path) -> TaskFile:
        """A file in the task's own format; labels may be missing."""
        return TaskFile(str(path), self.saved.task)

    @checked
    def answers(self, file: TaskFile) -> Iterator[tuple[Mapping[str, JsonValue], Row]]:
        """Each row of a file, as it is read, with its prediction; its labels are ignored."""
        document = wanted_columns(self.saved.task, SPLIT).in_file("document")
        unread = Unread()
        for window in self._windows(
            iter(file), lambda row: row[1].get(document), lambda row: characters(row[1])
        ):
            found = self._table(file.window(window), unread)
            yield from zip((row for _, row in window), found, strict=True)
        self._report(unread)

    @checked
    def file(self, path: str | Path) -> Iterator[Row]:
        """Predictions for a task file, in its order."""
        return (answer for _, answer in self.answers(self.open(path)))

    @checked
    def evaluate(self, path: str | Path) -> dict[str, float]:
        """The task's official metrics on a labelled file, as fractions, the headline first.

        They are those that `cloze predict` and a run's report give for the file. What was read is
        not kept, but for the labels. A file without labels is a `UsageError`.
        """
        file = self.open(path)
        for remark in file.remarks:
            say(remark)
        if not file.is_scored:
            wanted = wanted_columns(self.saved.task, SPLIT)
            names = {*wanted.required, *wanted.optional}.intersection(ANSWERS)
            columns = " or ".join(sorted(wanted.in_file(name) for name in names))
            raise UsageError(
                f"{path}: no labels that can be scored, expected some as {columns}; `file` "
                "predicts rows without labels"
            )
        answers = [to_score(found) for row, found in self.answers(file) if file.has_label(row)]
        return file.score(answers)

    @checked
    def table(self, table: TaskTable) -> Iterator[Row]:
        """Predictions for the rows of a table, in order; its labels are ignored."""
        documents = table.columns.get("document", [None] * len(table))
        unread = Unread()
        # The rows are in memory already, whatever their length.
        for window in self._windows(range(len(table)), documents.__getitem__, lambda _: 0):
            yield from self._table(table.take(window), unread)
        self._report(unread)

    def _report(self, unread: Unread) -> None:
        unread.report(say, longest=self.saved.task.max_seq_length)

    def _windows(
        self,
        rows: Iterable[ItemT],
        document: Callable[[ItemT], object],
        size: Callable[[ItemT], int],
    ) -> Iterator[list[ItemT]]:
        """Rows in windows, which end at document boundaries if the task uses document context."""
        window: list[ItemT] = []
        total = 0
        for row in rows:
            # A task that reads neighbouring rows must see a document whole, whatever its length.
            if (len(window) >= WINDOW or total >= WINDOW_CHARACTERS) and (
                not self.saved.task.document_context or document(row) != document(window[-1])
            ):
                yield window
                window, total = [], 0
            window.append(row)
            total += size(row)
        if window:
            yield window

    def _table(self, table: TaskTable, unread: Unread) -> Iterator[Row]:
        """The predictions of a window; `unread` counts what the model does not see of it."""
        if parts := self.saved.task.family.parts:
            # A text without words has no tags to predict, but keeps its place among the answers.
            kept = [row for row, words in enumerate(table.columns[parts]) if words != []]
            if len(kept) < len(table):
                found = self._table(table.take(kept), unread) if kept else iter(())
                blank: Row = {"prediction": [], **family_of(self.saved.task.kind).no_details}
                wordless = set(range(len(table))).difference(kept)
                yield from (
                    {**blank} if row in wordless else next(found) for row in range(len(table))
                )
                return
        yield from self._answers(table, unread)

    def _answers(self, table: TaskTable, unread: Unread) -> Iterator[Row]:
        # Answers in the file are left out: an unreadable label must not stop a prediction.
        problem = load_problem(self.saved.task, self.tokenizer, {SPLIT: table.without(ANSWERS)})
        unread.add(unread_sequences(problem.sequences[SPLIT], unk_id=self.tokenizer.unk_id))
        with self._one_at_a_time:
            approach = FineTuning(problem, self.model, precision=self.precision)
            logits = split_logits(problem, approach, SPLIT)
        require_finite(logits, f"task {self.saved.task.name}: what the model predicts")
        # The threshold was tuned on dev and saved with the task.
        guesses = problem.thresholded(None, problem.predictions(SPLIT, logits))
        found: list[Row] = [
            guess if isinstance(guess, dict) else {"prediction": guess} for guess in guesses
        ]
        details = problem.details(SPLIT, logits, guesses)
        found = [{**row, **more} for row, more in zip(found, details, strict=True)]
        if self.known is not None and self.confidence is not None:
            extra = self._confidence(problem, logits, self.known, self.confidence)
            found = [{**row, **fields} for row, fields in zip(found, extra, strict=True)]
        yield from found

    def _confidence(
        self, problem: Problem, logits: Logits, known: Confidence, confidence: float
    ) -> Iterator[Row]:
        """The fields of each row for the wanted confidence."""
        if problem.predicts in ("label", "labels"):
            sets = known.sets(
                problem.labels,
                problem.probabilities(logits),
                exclusive=problem.predicts == "label",
                confidence=confidence,
            )
        else:
            sets = known.intervals(logits[:, 0].astype(np.float64), confidence=confidence)
        familiar: list[Row] = [{} for _ in sets]
        if isinstance(self.model, TaskModel):
            sequences = problem.sequences[SPLIT]
            vectors = read_vectors(self.model, sequences, np.arange(len(sequences)))
            familiar = known.familiar(vectors)
        for own, likeness in zip(sets, familiar, strict=True):
            yield {**own, **likeness}


def characters(row: Mapping[str, JsonValue]) -> int:
    """The length of a row's texts, also of those in lists."""
    cells = (cell if isinstance(cell, list) else [cell] for cell in row.values())
    return sum(len(one) for cell in cells for one in cell if isinstance(one, str))


@checked
def load_predictor(
    location: str | Path,
    *,
    task: str = "",
    device: str = "auto",
    precision: Precision = "auto",
    confidence: float | None = None,
) -> Predictor:
    """The fine-tuned model at `location`: a finetune artifact and a task's name, or a folder.

    `precision`: as for encoders (`encoder/precision.py`).

    confidence: see `Predictor.predict`.
    """
    if confidence is not None and not 0.0 < confidence < 1.0:
        raise UsageError(f"confidence {confidence:g}: expected a probability between 0 and 1")
    source = open_source(location)
    if source.manifest is not None:
        source = saved_source(source, task)
    model, saved, tokenizer = read_model(source)
    if isinstance(model, SentenceModel):
        raise UsageError(
            f"{source.directory}: the model of task {saved.task.name} computes vectors to compare, "
            "not predictions; use it with `cloze search` or `cloze embed`"
        )
    if saved.task.family.reranks:
        raise UsageError(
            f"{source.directory}: the model of task {saved.task.name} ranks the passages of a "
            "query; use it with `cloze search --rerank`"
        )
    if confidence is not None and family_of(saved.task.kind).predicts == "other":
        raise UsageError(
            f"{source.directory}: task {saved.task.name} is {saved.task.kind}, and label sets are "
            "made for classifications and regressions only; predict without --confidence"
        )
    if confidence is not None and CONFIDENCE not in source.names:
        raise UsageError(
            f"{source.directory}: no {CONFIDENCE}, which label sets need; it is written if task "
            f"{saved.task.name} has labelled dev rows: train again, with such rows"
        )
    known = None
    if confidence is not None:
        place = source.path(CONFIDENCE)
        several = family_of(saved.task.kind).predicts == "labels"
        known = Confidence.from_bytes(
            filesystem.read_bytes(place),
            place=place,
            limits=len(saved.task.labels) if several else 1,
            width=model.head.in_features if isinstance(model, TaskModel) else None,
        )
    where, chosen = placed(device, precision)
    model.to(where)
    if chosen != "bf16":  # parameters are rounded for every batch otherwise
        pack_encoder(model.encoder, chosen)
        chosen = "fp32"
    else:
        model.head.set_bias_apart()
    return Predictor(model, saved, tokenizer, chosen, confidence, known)
