"""Answers as spans of a text: SQuAD 1.1 and 2.0 (reference: run_squad.py).

In:  columns id, question, context, answers; is_impossible for 2.0.
Out: a `Problem` whose head gives every token a start and an end score, without dropout before it.

Distinct contexts are tokenised once; the character offsets of their tokens give the answers' text.
A context that does not fit beside its question is cut into overlapping windows, one every
`doc_stride` tokens. As in the reference, the target is [CLS] in a window without the answer and for
a question without one. Since there is no padding, softmax is over a sequence's own tokens.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, NamedTuple, TypedDict, cast

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import JsonValue
from torch import Tensor
from torch.nn import functional

from cloze.artifacts.arrays import offsets_of
from cloze.artifacts.errors import UsageError
from cloze.artifacts.tokenizer import SubwordTokenizer
from cloze.model.config import TaskConfig
from cloze.model.data.batch import on, ragged_indices
from cloze.model.tasks.base import Exported, Gold, Logits, Prediction, Problem
from cloze.model.tasks.features import (
    Places,
    Ragged,
    Sequences,
    assemble,
    by_group,
    ragged,
    tokenize,
)
from cloze.model.tasks.files.task_table import TaskTable, is_missing
from cloze.model.tasks.squad import (
    Answers,
    answers_in,
    best_null_threshold,
    by_answerability,
    f1_v2,
    is_flagged,
    kept_golds,
    means,
    score_v1,
    score_v2,
)

SHOWN_PLACES = 3

NO_SPAN = 1e6
"""Margin of a question without any valid span; infinity is no JSON."""

# N windows, Q questions, P context tokens of all windows, S tokens of a sequence


@dataclass(frozen=True)
class Windows:
    """N windows of contexts, ordered by question."""

    question: Places
    """[N] number of the question."""

    start: Places
    """[N] first context token."""

    length: Places
    """[N] context tokens."""

    def __len__(self) -> int:
        return len(self.question)


def cut_texts(room_Q: Places, lengths_Q: Places, *, stride: int) -> Windows:
    """Windows of at most `room` tokens, one every `stride`; one window for a text that fits.

    Reference: run_squad.py:284-320.
    """
    # Never beyond the room: with a stride longer than a window, tokens would be skipped.
    step_Q = np.minimum(stride, room_Q)
    counts_Q = 1 + np.maximum(0, -(-(lengths_Q - room_Q) // step_Q))
    question = np.repeat(np.arange(len(room_Q)), counts_Q)
    start = ragged_indices(0, counts_Q) * step_Q[question]
    return Windows(question, start, np.minimum(room_Q[question], lengths_Q[question] - start))


def max_context(windows: Windows, lengths_Q: Places) -> NDArray[np.bool_]:
    """[P] whether this is the window in which the token has most context, on its shorter side.

    Ties go to the first window. Scores are in hundredths, as the reference adds 0.01 per token of
    window length (run_squad.py:722-754).
    """
    # A token's place in its window; below, its number among the context tokens of all questions.
    inside = ragged_indices(0, windows.length)
    length = np.repeat(windows.length, windows.length)
    score = 100 * np.minimum(inside, length - 1 - inside) + length
    first_of_question = offsets_of(lengths_Q)[:-1]
    token = ragged_indices(first_of_question[windows.question] + windows.start, windows.length)
    best = np.full(int(lengths_Q.sum()), -1, np.int64)
    # The best score of each token over its windows, then the first window that has it.
    np.maximum.at(best, token, score)
    candidates = np.flatnonzero(score == best[token])
    _, first = np.unique(token[candidates], return_index=True)
    chosen = np.zeros(len(token), np.bool_)
    chosen[candidates[first]] = True
    return chosen


class WindowSpans(NamedTuple):
    """Valid spans of one window, in tokens of the whole context."""

    first: Places
    last: Places
    score: NDArray[np.float32]
    null_score: float


def answers_of(table: TaskTable) -> list[Answers]:
    """The answers to every question of a prepared table; none if it is unlabelled."""
    nothing: JsonValue = {"text": [], "answer_start": []}
    return cast(list[Answers], table.columns.get("answers", [nothing] * len(table)))


class SpanSplit:
    """The questions of one file, with their contexts cut into windows."""

    def __init__(self, config: TaskConfig, table: TaskTable, tokenizer: SubwordTokenizer) -> None:
        self.table = table
        self.config = config
        self.answers = answers_of(table)
        numbers: dict[str, int] = {}
        contexts = table.texts("context")
        self.context = np.array([numbers.setdefault(text, len(numbers)) for text in contexts])
        # each text once, in order of first occurrence
        self.contexts = list(numbers)
        encodings = tokenizer.backend.encode_batch(self.contexts, add_special_tokens=False)
        self.ids = ragged([encoding.ids for encoding in encodings])
        self.begins = ragged([[begin for begin, _ in e.offsets] for e in encodings])
        self.ends = ragged([[end for _, end in e.offsets] for e in encodings])
        self._cut(tokenizer)
        self.spans = np.full((len(table), 2), -1, np.int64)  # first answer's first and last token
        self.unusable = np.zeros(len(table), np.bool_)
        for row, given in enumerate(self.answers):
            if not given["text"]:
                continue
            text, start = given["text"][0], int(given["answer_start"][0])
            number = self.context[row]
            # The first token that ends after the answer's start, and the last that begins before
            # its end.
            first = int(np.searchsorted(self.ends.row(number), start, "right"))
            last = int(np.searchsorted(self.begins.row(number), start + len(text), "left")) - 1
            # The file's offset may be wrong: an answer that is not found at it is not trained on.
            is_there = text and self.contexts[number][start : start + len(text)] == text
            if is_there and first <= last:
                self.spans[row] = first, last
            else:
                self.unusable[row] = True
        windows = self.windows
        self.trainable = np.flatnonzero(~self.unusable[windows.question])
        """Windows of questions whose answer, if any, is found at its `answer_start`."""
        spans_N2 = self.spans[windows.question]
        # All of the answer in this window, else its target is [CLS].
        inside_N = (
            (spans_N2[:, 0] >= 0)
            & (spans_N2[:, 0] >= windows.start)
            & (spans_N2[:, 1] < windows.start + windows.length)
        )
        # From tokens of the context to positions in the sequence.
        shift_N = self.text_offsets - windows.start
        self.targets = np.where(inside_N[:, None], spans_N2 + shift_N[:, None], 0)
        """[N, 2] start and end in the sequence; 0, 0 if the window does not contain the answer."""

    def notes(self) -> list[str]:
        """Remarks on this file for the report."""
        found = []
        if self.unusable.any():
            rows = np.flatnonzero(self.unusable)
            places = ", ".join(self.table.place(int(row)) for row in rows[:SHOWN_PLACES])
            found.append(
                f"{len(rows)} questions are not trained on, because their answer does not stand in "
                f"the context at answer_start ({places})"
            )
        if self.cut_questions:
            found.append(f"{self.cut_questions} questions are cut to max_query_length")
        return found

    def text(self, question: int, first: int, last: int) -> str:
        """The text of tokens `first` to `last` of a question's context."""
        number = int(self.context[question])
        begin, end = self.begins.row(number)[first], self.ends.row(number)[last]
        return self.contexts[number][int(begin) : int(end)].strip()  # byte-level tokens have spaces

    def window_spans(self, window: int, logits_S2: Logits) -> WindowSpans:
        """The spans among the `n_best` starts and ends of a window (run_squad.py:722-914)."""
        config, starts_allowed = self.config.span, self.most_context[window]
        offset, base = self.text_offsets[window], self.windows.start[window]
        # Candidates as places in the window; some are [CLS] or tokens of the question, and drop
        # out.
        starts = np.argsort(-logits_S2[:, 0], kind="stable")[: config.n_best] - offset
        ends = np.argsort(-logits_S2[:, 1], kind="stable")[: config.n_best] - offset
        starts = starts[(starts >= 0) & (starts < len(starts_allowed))]
        # As in the reference, a span starts only where its token has most context.
        starts = starts[starts_allowed[starts]]
        ends = ends[(ends >= 0) & (ends < len(starts_allowed))]
        first, last = np.repeat(starts, len(ends)), np.tile(ends, len(starts))
        valid = (first <= last) & (last - first < config.max_answer_length)
        first, last = first[valid], last[valid]
        score = logits_S2[first + offset, 0] + logits_S2[last + offset, 1]
        # [CLS] as start and end: no answer.
        null_score = float(logits_S2[0, 0] + logits_S2[0, 1])
        return WindowSpans(first + base, last + base, score, null_score)

    def _cut(self, tokenizer: SubwordTokenizer) -> None:
        """Cut the contexts into windows, and append each window to its question."""
        config = self.config.span
        questions = tokenize(tokenizer, [text.strip() for text in self.table.texts("question")])
        kept = np.minimum(questions.lengths, config.max_query_length)
        self.cut_questions = int((kept < questions.lengths).sum())
        # [CLS], the [SEP] behind the question, and the last [SEP].
        room = self.config.max_seq_length - 3 - kept
        if int(room.min()) < 1:
            raise UsageError(
                f"task {self.config.name}: max_seq_length {self.config.max_seq_length} leaves no "
                f"room beside questions of {int(kept.max())} tokens; raise it (reference: 384)"
            )
        lengths = self.ids.lengths[self.context]
        self.windows = windows = cut_texts(room, lengths, stride=config.doc_stride)
        most_context = max_context(windows, lengths)
        self.most_context = np.split(most_context, np.cumsum(windows.length)[:-1])
        """Per window, for each of its context tokens, whether a span may start there."""
        kept = kept[windows.question]
        # [CLS], the question, [SEP].
        self.text_offsets = kept + 2
        """[N] position of a window's first context token in its sequence."""
        first = self.ids.offsets[self.context[windows.question]] + windows.start
        read = Ragged(
            self.ids.values[ragged_indices(first, windows.length)], offsets_of(windows.length)
        )
        first_segments = questions.take(windows.question)
        whole = assemble(tokenizer, first_segments, kept_a=kept, ids_b=read, kept_b=windows.length)
        self.sequences = Sequences(whole.input_ids, whole.segment_a_lengths)


class SpanPrediction(TypedDict):
    """The prediction for one question."""

    text: str
    """The answer; "" for none."""

    best: str
    """Text of the best span, whether or not it is the answer."""

    margin: float
    """Null score minus the best span's score; above the threshold, the answer is ""."""


class Spans(Problem):
    """The span of a context that answers a question."""

    required: ClassVar[tuple[str, ...]] = ("question", "context")
    optional: ClassVar[tuple[str, ...]] = ("id", "title", "answers", "is_impossible")
    label_column: ClassVar[str] = "answers"
    default_metrics: ClassVar[tuple[str, ...]] = ("f1", "exact_match")
    predicts: ClassVar = "other"
    reads: ClassVar = "tokens"
    exported_as: ClassVar = Exported("ForQuestionAnswering", "question-answering")
    head_dropout: ClassVar[bool] = False
    outputs = 2

    @classmethod
    def prepared(cls, table: TaskTable, config: TaskConfig) -> TaskTable:
        """The table with answers as `Answers`, flags as booleans and ids as text.

        A question marked impossible has no answer, whatever the file gives it; without a mark, one
        without answers is impossible, as in `datasets`. A file in which no question has an answer
        or is marked impossible is unlabelled.
        """
        columns = {**table.columns}
        if table.has("id"):
            columns["id"] = [
                f"row {row}" if is_missing(value) else str(value)
                for row, value in enumerate(columns["id"])
            ]
            table = table.remarked(*_repeated(table, columns["id"]))
        if not table.has("answers") and not table.has("is_impossible"):
            return replace(table, columns=columns)
        nothing = [None] * len(table)
        flags = [
            is_flagged(value, where=table.place(row))
            for row, value in enumerate(columns.get("is_impossible", nothing))
        ]
        # `is_impossible` wins over any answers.
        answers = [
            Answers(text=[], answer_start=[]) if flag else answers_in(value, where=table.place(row))
            for row, (value, flag) in enumerate(
                zip(columns.get("answers", nothing), flags, strict=True)
            )
        ]
        # A test file may hold empty answers throughout: it is unlabelled.
        if not any(flags) and not any(found["text"] for found in answers):
            return table.without(("answers", "is_impossible"))
        for row, (found, flag) in enumerate(zip(answers, flags, strict=True)):
            if flag is False and not found["text"]:
                raise UsageError(
                    f"{table.place(row)}: no answer, but is_impossible is false; give one, or set "
                    "is_impossible = true"
                )
        columns["answers"] = cast(list[JsonValue], answers)
        columns["is_impossible"] = [not found["text"] for found in answers]
        unmarked = [
            row for row, flag in enumerate(flags) if flag is None and not answers[row]["text"]
        ]
        remark = f"{len(unmarked):,} questions without answers count as unanswerable (SQuAD 2.0)"
        remarks = [f"{table.place(unmarked[0])}: {remark}"] if unmarked else []
        return replace(table, columns=columns).remarked(*remarks)

    def _read(self) -> None:
        for table in self._tables.values():
            for name in self.required:
                table.texts(name)
        # SQuAD 2.0's rules apply if any question of any split is unanswerable, or a threshold is
        # given.
        self.impossible = self.config.span.null_threshold is not None or any(
            any(table.columns.get("is_impossible", [])) for table in self._tables.values()
        )

    def _encode(self, tokenizer: SubwordTokenizer) -> None:
        self._splits = {
            name: SpanSplit(self.config, table, tokenizer) for name, table in self._tables.items()
        }
        self.sequences = {name: split.sequences for name, split in self._splits.items()}
        train = self._splits.get("train")
        self._trained = train.trainable if train else np.empty(0, np.int64)
        if train and not len(self._trained):
            raise UsageError(
                f"{train.table.path}: none of the {len(train.table):,} answers stands in its "
                "context at answer_start, a number of characters from 0; correct the file"
            )
        self.notes = tuple(train.notes()) if train else ()

    def units(self, split: str) -> int:
        """Windows; for training, those that can be trained on."""
        return len(self._trained) if split == "train" else len(self.sequences[split])

    def unit_tokens(self, split: str) -> Places:
        """Tokens of each window."""
        return self.sequences[split].lengths[self.rows(split, np.arange(self.units(split)))]

    def rows(self, split: str, units: Places) -> Places:
        """A unit is a window, as in the reference."""
        return self._trained[units] if split == "train" else units

    def positions(self, split: str, rows: Places) -> Places:
        """Every token."""
        return np.arange(int(self.sequences[split].lengths[rows].sum()))

    def reads_of(self, split: str) -> Places:
        """Every token."""
        return self.sequences[split].lengths

    def gold(self, split: str) -> Sequence[Gold]:
        """Tuples of gold answers; ("",) for an unanswerable question."""
        return [tuple(texts) or ("",) for texts in self._gold(split)]

    def shown(self, split: str, example: int) -> str:
        """The question."""
        return str(self._tables[split].columns["question"][example])

    def targets(self, split: str, units: Places) -> NDArray[np.generic]:
        """[windows, 3] int64: start, end, number of tokens in the sequence."""
        rows = self.rows(split, units)
        bounds = self._splits[split].targets[rows]
        return np.concatenate([bounds, self.sequences[split].lengths[rows, None]], axis=1)

    def loss(self, logits: Tensor, targets: Tensor) -> Tensor:
        """Mean of the cross-entropies of start and end."""
        bounds = on(logits.device, targets[:, :2])
        losses = [
            functional.cross_entropy(
                by_group(logits[:, side], targets[:, 2]), bounds[:, side], reduction="sum"
            )
            for side in (0, 1)
        ]
        return torch.stack(losses).mean()

    def predictions(self, split: str, logits: Logits) -> list[Prediction]:
        """Best span of every question over its windows, and its margin to the lowest null score."""
        questions = self._splits[split]
        by_window = np.split(logits, questions.sequences.input_ids.offsets[1:-1])
        spans = [questions.window_spans(window, rows) for window, rows in enumerate(by_window)]
        # Windows are ordered by question, so each question's are a range.
        bounds = np.searchsorted(questions.windows.question, np.arange(self.examples(split) + 1))
        results: list[Prediction] = []
        for question in range(self.examples(split)):
            of_question = spans[bounds[question] : bounds[question + 1]]
            first, last, score = (
                np.concatenate([getattr(one, name) for one in of_question])
                for name in ("first", "last", "score")
            )
            text, margin = "", NO_SPAN
            if len(score):
                best = int(score.argmax())
                text = questions.text(question, int(first[best]), int(last[best]))
                # The lowest null score of all windows, as in the reference.
                margin = min(one.null_score for one in of_question) - float(score[best])
            results.append({"text": text, "best": text, "margin": margin})
        return results

    def thresholded(
        self, dev: Sequence[Prediction] | None, predictions: Sequence[Prediction]
    ) -> list[Prediction]:
        """SQuAD 2.0: "" if the null score wins by more than the threshold tuned on dev."""
        if not self.impossible:
            return list(predictions)
        threshold = self._threshold(dev)
        found: list[Prediction] = []
        for guess in _typed(predictions):
            best, margin = guess["best"], guess["margin"]
            text = "" if margin > threshold else best
            found.append({"text": text, "best": best, "margin": margin})
        return found

    def calibrated(self, dev: Sequence[Prediction] | None) -> TaskConfig:
        """The configuration with the null threshold tuned on dev."""
        if not self.impossible:
            return self.config
        span = self.config.span.model_copy(update={"null_threshold": self._threshold(dev)})
        return self.config.model_copy(update={"span": span})

    def score(self, split: str, predictions: Sequence[Prediction]) -> dict[str, float]:
        """Exact match and F1 of the official script for the data's version.

        For 2.0 also separately over answerable and unanswerable questions (HasAns, NoAns).
        """
        golds = self._gold(split)
        guesses = [guess["text"] for guess in _typed(predictions)]
        if self.impossible:
            scores, answerable = score_v2(golds, guesses), [bool(gold) for gold in golds]
            return means(scores) | {
                f"{group}_{metric}": value
                for group, of_group in by_answerability(scores, answerable).items()
                for metric, value in of_group.items()
                if len(set(answerable)) > 1
            }
        return means(score_v1([gold or [""] for gold in golds], guesses))

    def ids(self, split: str) -> list[str]:
        """The questions' ids in their file, or else their numbers."""
        table = self._tables[split]
        return table.texts("id") if table.has("id") else [str(row) for row in range(len(table))]

    def _gold(self, split: str) -> list[list[str]]:
        """The gold answers to every question, as in the file."""
        return [answers["text"] for answers in answers_of(self._tables[split])]

    def _threshold(self, dev: Sequence[Prediction] | None) -> float:
        fixed = self.config.span.null_threshold
        if fixed is not None or dev is None or not self.labelled("dev"):
            return fixed or 0.0
        golds, guesses = self._gold("dev"), _typed(dev)
        # The best score that the question's best span could get.
        scores = [
            max(f1_v2(guess["best"], text) for text in kept_golds(gold))
            for guess, gold in zip(guesses, golds, strict=True)
        ]
        return best_null_threshold(
            scores,
            [guess["margin"] for guess in guesses],
            [bool(gold) for gold in golds],
            [bool(guess["best"]) for guess in guesses],
        )[1]


def _repeated(table: TaskTable, ids: Sequence[JsonValue]) -> Iterator[str]:
    """What to say of ids that several questions have; official files of answers go by them."""
    first: dict[JsonValue, int] = {}
    again = [row for row, one in enumerate(ids) if first.setdefault(one, row) != row]
    if again:
        yield (
            f"{table.place(again[0])}: {len(again):,} questions have the id of an earlier one, and "
            "a submission has one answer for each id"
        )


def _typed(predictions: Sequence[Prediction]) -> Sequence[SpanPrediction]:
    return cast(Sequence[SpanPrediction], predictions)
