"""Tagging of words (CoNLL-2003 NER as the paper has it, section 5.3: not in the reference's code).

In:  columns words and tags, a list of each per sentence; `document` where there is context.
Out: a `Problem` whose head reads the first word-piece of each word only.

No conditional random field. With `document_context` a sentence is surrounded by as much of its own
document as fits. Sentences longer than the sequence are split into several, so that every word is
evaluated.
"""

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import ClassVar, cast

import numpy as np
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from artifacts.errors import UsageError
from artifacts.tokenizer import SubwordTokenizer, well_formed
from model.config import TaskConfig
from model.data.batch import on
from model.data.shards import ragged_indices
from model.tasks.base import Gold, Logits, Prediction, Problem
from model.tasks.features import Places, Ragged, assemble, offsets_of, ragged, tokenize
from model.tasks.metrics.classification_metrics import measure
from model.tasks.metrics.entity_metrics import count_entities, is_entity_scheme
from model.tasks.task_table import TaskTable

ENTITY_F1 = "entity_f1"


@dataclass(frozen=True)
class _Windows:
    """One row for each sequence, in word-pieces of the whole split."""

    first: Places
    """[N] first piece read."""

    last: Places
    """[N] one past the last piece read."""

    words: Places
    """[N+1] the words that are predicted: words[i]:words[i+1]."""


class Tagging(Problem):
    """Which tag every word has."""

    required: ClassVar[tuple[str, ...]] = ("words",)
    optional: ClassVar[tuple[str, ...]] = ("tags", "document")
    default_metrics: ClassVar[tuple[str, ...]] = ()
    reads: ClassVar = "tokens"

    def __init__(
        self, config: TaskConfig, tables: Mapping[str, TaskTable], tokenizer: SubwordTokenizer
    ) -> None:
        self.config = config
        self.words = {name: _word_lists(table) for name, table in tables.items()}
        self.tags = {
            name: _tag_lists(table, self.words[name])
            for name, table in tables.items()
            if table.has("tags")
        }
        self.labels = config.labels
        if not self.labels:
            lists = (tags for tags in tables["train"].every("tags") if isinstance(tags, list))
            self.labels = tuple(sorted({str(tag) for tag in chain.from_iterable(lists)}))
        self.outputs = len(self.labels)
        self.sequences = {}
        self._places: dict[str, Ragged] = {}
        self._targets: dict[str, Ragged] = {}
        for name, table in tables.items():
            words = chain.from_iterable(map(tokenizer.running, self.words[name]))
            pieces = _pieces(tokenizer, list(words))
            counts = np.array([len(sentence) for sentence in self.words[name]])
            room = self.config.max_seq_length - 2
            documents = None
            if self.config.document_context:
                documents = np.repeat(_documents(table), counts)
            windows = _windows(pieces, offsets_of(counts), documents, room=room)
            lengths = windows.last - windows.first
            read = Ragged(
                pieces.values[ragged_indices(windows.first, lengths)], offsets_of(lengths)
            )
            self.sequences[name] = assemble(tokenizer, read, kept_a=lengths)
            first = np.repeat(windows.first, np.diff(windows.words))
            self._places[name] = Ragged(1 + pieces.offsets[:-1] - first, windows.words)
            if name in self.tags:
                indices = _tag_indices(table, self.tags[name], self.labels)
                self._targets[name] = Ragged(indices, windows.words)

    @property
    def metrics(self) -> tuple[str, ...]:
        """Entity F1 and accuracy if the tags mark entities, else accuracy and macro F1."""
        if self.config.metrics:
            return self.config.metrics
        entity = is_entity_scheme(self.labels)
        return (ENTITY_F1, "accuracy") if entity else ("accuracy", "f1_macro")

    def examples(self, split: str) -> int:
        """Sentences."""
        return len(self.words[split])

    def labelled(self, split: str) -> bool:
        """Whether the file has tags."""
        return split in self.tags

    def gold(self, split: str) -> Sequence[Gold]:
        """Lists of tags."""
        return list(self.tags[split])

    def shown(self, split: str, example: int) -> str:
        """The sentence."""
        return " ".join(self.words[split][example])

    def positions(self, split: str, rows: Places) -> Places:
        """First word-pieces of the predicted words."""
        places = self._places[split].take(rows)
        starts = offsets_of(self.sequences[split].lengths[rows])[:-1]
        return np.asarray(places.values + np.repeat(starts, places.lengths), np.int64)

    def reads_of(self, split: str) -> Places:
        """Predicted words of each sequence."""
        return self._places[split].lengths

    def targets(self, split: str, units: Places) -> NDArray[np.generic]:
        """[words] int64 tag indices."""
        return self._targets[split].take(units).values

    def loss(self, logits: Tensor, targets: Tensor) -> Tensor:
        """Cross-entropy over words."""
        return functional.cross_entropy(logits, on(logits.device, targets), reduction="sum")

    def predictions(self, split: str, logits: Logits) -> list[Prediction]:
        """A list of tags for every sentence."""
        flat = iter(logits.argmax(-1).tolist())
        return [[self.labels[next(flat)] for _ in sentence] for sentence in self.words[split]]

    def score(self, split: str, predictions: Sequence[Prediction]) -> dict[str, float]:
        """Word accuracy, F1 over tags; entity precision, recall and F1, of all and by type."""
        gold = self.tags[split]
        flat_gold = np.array(list(chain.from_iterable(gold)))
        predicted = cast(Sequence[list[str]], predictions)
        flat = np.array(list(chain.from_iterable(predicted)))
        words = tuple(name for name in self.metrics if name != ENTITY_F1)
        scores = measure(words, flat_gold, flat)
        if ENTITY_F1 in self.metrics:
            counts = count_entities(gold, predicted)
            scores |= {
                ENTITY_F1: counts.f1,
                "entity_precision": counts.precision,
                "entity_recall": counts.recall,
            }
            for kind in sorted({label[2:] for label in self.labels if label != "O"}):
                of_kind = count_entities(gold, predicted, kind=kind)
                scores |= {
                    f"{ENTITY_F1}_{kind}": of_kind.f1,
                    f"entity_precision_{kind}": of_kind.precision,
                    f"entity_recall_{kind}": of_kind.recall,
                }
        return scores


def _word_lists(table: TaskTable) -> list[list[str]]:
    found = []
    for row, words in enumerate(table.columns["words"]):
        if not isinstance(words, list) or not words:
            raise UsageError(f"{table.place(row)}: words is {words!r}, expected a list of words")
        found.append([well_formed(str(word)) for word in words])
    return found


def _tag_lists(table: TaskTable, words: list[list[str]]) -> list[list[str]]:
    found = []
    for row, tags in enumerate(table.columns["tags"]):
        if not isinstance(tags, list) or len(tags) != len(words[row]):
            raise UsageError(
                f"{table.place(row)}: {len(words[row])} words, but tags is {tags!r}; "
                "expected one each"
            )
        found.append([str(tag) for tag in tags])
    return found


def _tag_indices(
    table: TaskTable, tags: list[list[str]], labels: tuple[str, ...]
) -> NDArray[np.int64]:
    known = {label: index for index, label in enumerate(labels)}
    for row, sentence in enumerate(tags):
        unknown = [tag for tag in sentence if tag not in known]
        if unknown:
            raise UsageError(
                f"{table.place(row)}: unknown tag {unknown[0]!r}, known are {', '.join(labels)}"
            )
    return np.array([known[tag] for tag in chain.from_iterable(tags)], np.int64)


def _documents(table: TaskTable) -> NDArray[np.int64]:
    if not table.has("document"):
        raise UsageError(
            f"{table.path}: document_context wants a column document (-DOCSTART- in CoNLL)"
        )
    names = [str(document) for document in table.columns["document"]]
    begins = [0, *(now != before for before, now in itertools.pairwise(names))]
    return np.cumsum(np.array(begins, np.int64))


def _pieces(tokenizer: SubwordTokenizer, words: list[str]) -> Ragged:
    """Word-pieces of every word; [UNK] for one without any (a control character)."""
    numbers: dict[str, int] = {}
    inverse = np.fromiter((numbers.setdefault(word, len(numbers)) for word in words), np.int64)
    ids = tokenize(tokenizer, list(numbers))
    lists = [ids.row(row).tolist() or [tokenizer.unk_id] for row in range(len(ids))]
    return ragged(lists).take(inverse)


def _windows(pieces: Ragged, sentences: Places, documents: Places | None, *, room: int) -> _Windows:
    """A sequence per sentence; of one longer than `room`, parts as long as fit.

    With `documents`, the number of each word's document, a sequence is extended by text of its own
    document, as evenly as possible on both sides.
    """
    bounds = [0]
    for start, end in itertools.pairwise(sentences.tolist()):
        fits = pieces.offsets[end] - pieces.offsets[start] <= room
        for word in () if fits else range(start + 1, end):
            if pieces.offsets[word + 1] - pieces.offsets[bounds[-1]] > room:
                bounds.append(word)
        bounds.append(end)
    words = np.array(bounds, np.int64)
    first = pieces.offsets[words[:-1]]
    last = np.minimum(pieces.offsets[words[1:]], first + room)
    if documents is not None:
        own = documents[words[:-1]]
        starts = pieces.offsets[np.searchsorted(documents, own, "left")]
        ends = pieces.offsets[np.searchsorted(documents, own, "right")]
        spare = np.maximum(room - (last - first), 0)
        left = np.minimum(first - starts, np.maximum(spare // 2, spare - (ends - last)))
        right = np.minimum(ends - last, spare - left)
        first, last = first - left, last + right
    return _Windows(first, last, words)
