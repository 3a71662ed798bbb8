"""Questions and texts as chunks that the encoder reads, and answers cut out of the texts again.

In:  one file's questions.
Out: `SpanSplit`: sequences, training targets, and from logits the answers' texts.

Distinct texts are tokenised once, with the characters that each token covers.
"""

import numpy as np
from numpy.typing import NDArray

from artifacts.errors import UsageError
from artifacts.tokenizer import WordPieceTokenizer
from model.tasks.base import Logits, Prediction, Texts
from model.tasks.features import Places, Ragged, Sequences, assemble, ragged, tokenize
from model.tasks.files import TaskTable
from model.tasks.span_decoding import best_answer, chunk_spans
from model.tasks.text_windows import Chunks, cut_texts, max_context

SHOWN_PLACES = 3


class SpanSplit:
    """One file's questions, chunked."""

    def __init__(self, texts: Texts, table: TaskTable) -> None:
        self.table = table
        self.config = texts.config
        self.impossible = [bool(flag) for flag in table.columns.get("is_impossible", [])]
        self.gold = [list(answers["text"]) for answers in self._answers()]
        self._read_contexts(texts.tokenizer)
        self._chunk(texts.tokenizer)
        self.spans, self.unusable = self._answer_spans()
        self.targets = self._targets()

    def trainable(self) -> Places:
        """Chunks of questions whose answer stands where it is said to."""
        return np.flatnonzero(~self.unusable[self.chunks.question])

    def notes(self) -> list[str]:
        """What a person must know of this file."""
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

    def decode(self, logits: Logits) -> list[Prediction]:
        """Best span and null margin of every question. logits: [tokens of all sequences, 2]."""
        config, chunks = self.config.span, self.chunks
        allowed = np.split(self._most_context, np.cumsum(chunks.length)[:-1])
        rows = np.split(logits, self.sequences.input_ids.offsets[1:-1])
        spans = [
            chunk_spans(
                rows[chunk],
                allowed[chunk],
                text=(
                    int(self.text_offsets[chunk]),
                    int(chunks.length[chunk]),
                    int(chunks.start[chunk]),
                ),
                limits=(config.n_best, config.max_answer_length),
            )
            for chunk in range(len(chunks))
        ]
        bounds = np.searchsorted(chunks.question, np.arange(len(self.table) + 1))
        results = []
        for question in range(len(self.table)):
            answer = best_answer(spans[bounds[question] : bounds[question + 1]])
            text = self._text(question, answer.first, answer.last)
            results.append({"text": text, "best": text, "margin": answer.margin})
        return results

    def _answers(self) -> list[dict[str, list[Prediction]]]:
        column = self.table.columns.get("answers")
        if column is None:
            return [{"text": [], "answer_start": []} for _ in range(len(self.table))]
        for row, answers in enumerate(column):
            if not isinstance(answers, dict) or set(answers) != {"text", "answer_start"}:
                raise UsageError(
                    f"{self.table.place(row)}: answers is {answers!r}, expected the lists text and "
                    "answer_start"
                )
        return list(column)

    def _read_contexts(self, tokenizer: WordPieceTokenizer) -> None:
        """Ids of every distinct context, and which characters each token covers."""
        numbers: dict[str, int] = {}
        contexts = self.table.texts("context")
        self.context = np.array([numbers.setdefault(text, len(numbers)) for text in contexts])
        encodings = tokenizer.backend.encode_batch(list(numbers), add_special_tokens=False)
        self.ids = ragged([encoding.ids for encoding in encodings])
        self.begins = ragged([[begin for begin, _ in e.offsets] for e in encodings])
        self.ends = ragged([[end for _, end in e.offsets] for e in encodings])
        self.lengths = self.ids.lengths[self.context]

    def _chunk(self, tokenizer: WordPieceTokenizer) -> None:
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
        self.chunks = cut_texts(room, self.lengths, stride=config.doc_stride)
        self._most_context = max_context(self.chunks, self.lengths)
        self.text_offsets = kept[self.chunks.question] + 2
        self.sequences = _assembled(
            tokenizer,
            questions.take(self.chunks.question),
            kept[self.chunks.question],
            self._texts_of(self.chunks),
        )

    def _texts_of(self, chunks: Chunks) -> Ragged:
        first = self.ids.offsets[self.context[chunks.question]] + chunks.start
        offsets = np.concatenate(([0], np.cumsum(chunks.length)))
        places = np.arange(offsets[-1]) + np.repeat(first - offsets[:-1], chunks.length)
        return Ragged(self.ids.values[places], offsets)

    def _answer_spans(self) -> tuple[Places, NDArray[np.bool_]]:
        """[Q, 2] first and last token of the first answer, -1 without; and which cannot be used."""
        spans = np.full((len(self.table), 2), -1, np.int64)
        unusable = np.zeros(len(self.table), np.bool_)
        for row, answers in enumerate(self._answers()):
            if answers["text"]:
                found = self._locate(row, answers["text"][0], int(answers["answer_start"][0]))
                unusable[row] = found is None
                spans[row] = found or (-1, -1)
        return spans, unusable

    def _locate(self, row: int, text: str, start: int) -> tuple[int, int] | None:
        """Tokens of an answer; None where it does not stand at `start` or covers no token."""
        context = self.table.columns["context"][row]
        if not text or context[start : start + len(text)] != text:
            return None
        begins, ends = self.begins.row(self.context[row]), self.ends.row(self.context[row])
        first = int(np.searchsorted(ends, start, "right"))
        last = int(np.searchsorted(begins, start + len(text), "left")) - 1
        return (first, last) if first <= last else None

    def _targets(self) -> Places:
        """[chunks, 2] start and end place in the sequence; 0, 0 where the answer is not inside."""
        chunks = self.chunks
        spans = self.spans[chunks.question]
        inside = (
            (spans[:, 0] >= 0)
            & (spans[:, 0] >= chunks.start)
            & (spans[:, 1] < chunks.start + chunks.length)
        )
        shift = (self.text_offsets - chunks.start)[:, None]
        return np.where(inside[:, None], spans + shift, 0)

    def _text(self, question: int, first: int, last: int) -> str:
        if first < 0:
            return ""
        number = self.context[question]
        begin, end = self.begins.row(number)[first], self.ends.row(number)[last]
        return str(self.table.columns["context"][question][int(begin) : int(end)])


def _assembled(
    tokenizer: WordPieceTokenizer, questions: Ragged, kept: Places, texts: Ragged
) -> Sequences:
    """[CLS] question [SEP] text [SEP]."""
    sequences = assemble(tokenizer, questions, kept_a=kept, ids_b=texts, kept_b=texts.lengths)
    return Sequences(sequences.input_ids, sequences.segment_a_lengths)
