"""Questions and texts as overlapping windows that the encoder reads (reference: run_squad.py).

In:  one file's questions.
Out: `SpanSplit`: sequences and training targets, and the text between two tokens of a context.

Distinct contexts are tokenised once, with the characters that each token covers. A context longer
than the room beside its question becomes several windows, one every `doc_stride` tokens.
"""

from dataclasses import dataclass
from typing import TypedDict, cast

import numpy as np
from numpy.typing import NDArray

from artifacts.errors import UsageError
from artifacts.tokenizer import SubwordTokenizer
from model.config import TaskConfig
from model.data.shards import ragged_indices
from model.tasks.features import (
    Places,
    Ragged,
    Sequences,
    assemble,
    offsets_of,
    ragged,
    tokenize,
)
from model.tasks.task_table import TaskTable

SHOWN_PLACES = 3

# N windows, Q questions, P tokens of all windows' texts together


class Answers(TypedDict):
    """The right answers to one question, as SQuAD has them."""

    text: list[str]
    answer_start: list[int]


@dataclass(frozen=True)
class Windows:
    """N windows, those of one question one after another."""

    question: Places
    """[N] whose text it is."""

    start: Places
    """[N] first token of the text."""

    length: Places
    """[N] tokens of the text."""

    def __len__(self) -> int:
        return len(self.question)


def cut_texts(room_Q: Places, lengths_Q: Places, *, stride: int) -> Windows:
    """Windows of at most `room` tokens, one every `stride`; a text that fits is one window.

    Reference: run_squad.py:284-320.
    """
    step_Q = np.minimum(stride, room_Q)
    counts_Q = 1 + np.maximum(0, -(-(lengths_Q - room_Q) // step_Q))
    question = np.repeat(np.arange(len(room_Q)), counts_Q)
    start = ragged_indices(0, counts_Q) * step_Q[question]
    return Windows(question, start, np.minimum(room_Q[question], lengths_Q[question] - start))


def max_context(windows: Windows, lengths_Q: Places) -> NDArray[np.bool_]:
    """[P] whether the token has its maximum context (the smaller side's) in this window.

    Ties go to the first window. In hundredths, as the reference adds 0.01 per token of length
    (run_squad.py:722-754).
    """
    inside = ragged_indices(0, windows.length)
    length = np.repeat(windows.length, windows.length)
    score = 100 * np.minimum(inside, length - 1 - inside) + length
    first_of_question = offsets_of(lengths_Q)[:-1]
    token = ragged_indices(first_of_question[windows.question] + windows.start, windows.length)
    best = np.full(int(lengths_Q.sum()), -1, np.int64)
    np.maximum.at(best, token, score)
    candidates = np.flatnonzero(score == best[token])
    _, first = np.unique(token[candidates], return_index=True)
    chosen = np.zeros(len(token), np.bool_)
    chosen[candidates[first]] = True
    return chosen


class SpanSplit:
    """One file's questions, cut into windows."""

    def __init__(self, config: TaskConfig, table: TaskTable, tokenizer: SubwordTokenizer) -> None:
        self.table = table
        self.config = config
        self.impossible = [bool(flag) for flag in table.columns.get("is_impossible", [])]
        self.answers = self._read_answers()
        numbers: dict[str, int] = {}
        contexts = table.texts("context")
        self.context = np.array([numbers.setdefault(text, len(numbers)) for text in contexts])
        self.contexts = list(numbers)
        encodings = tokenizer.backend.encode_batch(self.contexts, add_special_tokens=False)
        self.ids = ragged([encoding.ids for encoding in encodings])
        self.begins = ragged([[begin for begin, _ in e.offsets] for e in encodings])
        self.ends = ragged([[end for _, end in e.offsets] for e in encodings])
        self._cut(tokenizer)
        # [Q, 2] first and last token of the first answer, -1 without
        self.spans = np.full((len(table), 2), -1, np.int64)
        self.unusable = np.zeros(len(table), np.bool_)
        for row, answers in enumerate(self.answers):
            if answers["text"]:
                found = self._locate(row, answers["text"][0], int(answers["answer_start"][0]))
                self.unusable[row] = found is None
                self.spans[row] = found or (-1, -1)
        # [windows, 2] start and end in the sequence; 0, 0 where the answer is not inside
        windows, spans = self.windows, self.spans[self.windows.question]
        inside = (
            (spans[:, 0] >= 0)
            & (spans[:, 0] >= windows.start)
            & (spans[:, 1] < windows.start + windows.length)
        )
        shift = (self.text_offsets - windows.start)[:, None]
        self.targets = np.where(inside[:, None], spans + shift, 0)

    def trainable(self) -> Places:
        """Windows of questions whose answer is at its `answer_start`."""
        return np.flatnonzero(~self.unusable[self.windows.question])

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

    @property
    def gold(self) -> list[list[str]]:
        """The right answers of every question, as the file has them."""
        return [answers["text"] for answers in self.answers]

    def text(self, question: int, first: int, last: int) -> str:
        """The characters of a question's context from token `first` to `last`; "" below 0."""
        if first < 0:
            return ""
        number = int(self.context[question])
        begin, end = self.begins.row(number)[first], self.ends.row(number)[last]
        return self.contexts[number][int(begin) : int(end)].strip()  # of a byte-level token's space

    def _read_answers(self) -> list[Answers]:
        column = self.table.columns.get("answers")
        if column is None:
            return [{"text": [], "answer_start": []} for _ in range(len(self.table))]
        for row, answers in enumerate(column):
            if not isinstance(answers, dict) or set(answers) != {"text", "answer_start"}:
                raise UsageError(
                    f"{self.table.place(row)}: answers is {answers!r}, expected the lists text and "
                    "answer_start"
                )
        return cast(list[Answers], list(column))

    def _cut(self, tokenizer: SubwordTokenizer) -> None:
        """Cut the contexts into windows and append each to its question."""
        config = self.config.span
        questions = tokenize(tokenizer, [text.strip() for text in self.table.texts("question")])
        kept = np.minimum(questions.lengths, config.max_query_length)
        self.cut_questions = int((kept < questions.lengths).sum())
        room = self.config.max_seq_length - 3 - kept
        if int(room.min()) < 1:
            raise UsageError(
                f"task {self.config.name}: max_seq_length {self.config.max_seq_length} leaves no "
                f"room beside questions of {int(kept.max())} tokens; raise it (reference: 384)"
            )
        lengths = self.ids.lengths[self.context]
        self.windows = windows = cut_texts(room, lengths, stride=config.doc_stride)
        self.most_context = max_context(windows, lengths)
        kept = kept[windows.question]
        self.text_offsets = kept + 2
        first = self.ids.offsets[self.context[windows.question]] + windows.start
        read = Ragged(
            self.ids.values[ragged_indices(first, windows.length)], offsets_of(windows.length)
        )
        asked = questions.take(windows.question)
        whole = assemble(tokenizer, asked, kept_a=kept, ids_b=read, kept_b=windows.length)
        self.sequences = Sequences(whole.input_ids, whole.segment_a_lengths)

    def _locate(self, row: int, text: str, start: int) -> tuple[int, int] | None:
        """Tokens of an answer; None if it is not at `start` or covers no token."""
        number = self.context[row]
        if not text or self.contexts[number][start : start + len(text)] != text:
            return None
        first = int(np.searchsorted(self.ends.row(number), start, "right"))
        last = int(np.searchsorted(self.begins.row(number), start + len(text), "left")) - 1
        return (first, last) if first <= last else None
