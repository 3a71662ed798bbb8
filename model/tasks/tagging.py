"""Tagging of words (CoNLL-2003 NER as in the paper, section 5.3; not in the reference's code).

In:  columns words and tags, one list of each per sentence; `document` for document context.
Out: a `Problem` whose head reads the first word-piece of each word only.

There is no conditional random field. With `document_context`, a sentence is surrounded by as much
of its own document as fits. Sentences longer than the sequence are split into several, so that
every word is predicted and scored.

Precision, recall and F1 of entities are counted as by conlleval.pl (Tjong Kim Sang & Buchholz
2000), in IOB1, BIO2 or IOBES; an entity is correct if both boundaries and the type are. The script
reads every scheme with the same two rules, `_begins` and `_ends`, so that malformed predictions
count as well.
"""

import itertools
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import ClassVar, cast

import numpy as np
from numpy.typing import NDArray
from pydantic import JsonValue
from torch import Tensor
from torch.nn import functional

from cloze.artifacts.arrays import offsets_of
from cloze.artifacts.errors import UsageError
from cloze.artifacts.tokenizer import SubwordTokenizer, well_formed
from cloze.model.data.batch import on, ragged_indices
from cloze.model.tasks.base import (
    Details,
    Exported,
    Gold,
    Learn,
    Logits,
    Prediction,
    Problem,
)
from cloze.model.tasks.baselines import lookup_tag, majority_tag
from cloze.model.tasks.classification import label_order, metric_values
from cloze.model.tasks.features import Places, Ragged, assemble, ragged, tokenize
from cloze.model.tasks.files.task_table import TaskTable, is_missing

Entity = tuple[int, int, str]
"""First word, last word, type."""

ENTITY_F1 = "entity_f1"

MARKED = re.compile(r"[BIESLUMW]-.+")
"""A tag that marks an entity."""

BARE = frozenset("BIESLUMW")
"""Tags that mark entities of a single type."""

MEANT = re.compile(r"(?i:[BIESLUMW][-_.:/].+|.+[-_.:/][BIESLUMW])")
"""A tag that seems to be meant so: `B_PER`, `b-per`, `PER-B`."""

OUTSIDE = ("O", "o", "0", "OUT", "_")

SAME_PREFIX = {"M": "I", "W": "S"}
"""BMES and BMEW name the middle of an entity and a single word otherwise than IOBES."""

SHOWN_TAGS = 5

WORD = re.compile(r"\w+(?:['’.-]\w+)*|[^\w\s]")
"""Splits plain text into words like CoNLL: hyphens stay inside, other punctuation is separate."""


class Tagging(Problem):
    """One tag per word."""

    required: ClassVar[tuple[str, ...]] = ("words",)
    optional: ClassVar[tuple[str, ...]] = ("tags", "document")
    label_column: ClassVar[str] = "tags"
    default_metrics: ClassVar[tuple[str, ...]] = ()
    baselines: ClassVar[Mapping[str, Learn]] = {"majority": majority_tag, "lookup": lookup_tag}
    predicts: ClassVar = "other"
    no_details: ClassVar[Details] = {"words": [], "spans": []}
    reads: ClassVar = "tokens"
    exported_as: ClassVar = Exported("ForTokenClassification", "token-classification")

    @classmethod
    def columns_of(cls, text: str) -> Details:
        """The words of the text."""
        return {"words": [*WORD.findall(text)]}

    def _read(self) -> None:
        config, tables = self.config, self._tables
        read = {name: sentences_of(table) for name, table in tables.items()}
        self.words = {name: words for name, (words, _) in read.items()}
        self.tags = {name: tags for name, (_, tags) in read.items() if tags is not None}
        self.labels = config.labels
        if not self.labels:
            named = tables["train"].class_names.get("tags", ())
            lists = (tags for tags in tables["train"].every("tags") if isinstance(tags, list))
            found = {str(tag) for tag in chain.from_iterable(lists)}
            self.labels = named or label_order(found)
            # With metrics configured the user has said what the tags are; else a slip in one tag
            # would turn entities into word classes.
            if not config.metrics:
                self._refuse_odd_tags(found)
        self.outputs = len(self.labels)
        for name, tags in self.tags.items():
            for row, of_row in enumerate(tags):
                if unknown := set(of_row).difference(self.labels):
                    raise UsageError(
                        f"{tables[name].place(row)}: unknown tag {min(unknown)!r}, expected one of "
                        f"{', '.join(self.labels)}"
                    )

    def known_metrics(self) -> tuple[str, ...]:
        """Those of words; of entities as well, if the tags mark some."""
        entity = (ENTITY_F1,) if is_entity_scheme(self.labels) else ()
        return (*entity, "accuracy", "f1_macro", "f1_micro")

    def _encode(self, tokenizer: SubwordTokenizer) -> None:
        config, tables = self.config, self._tables
        numbers = {label: number for number, label in enumerate(self.labels)}
        self.sequences = {}
        self._places: dict[str, Ragged] = {}
        self._targets: dict[str, Ragged] = {}
        for name, table in tables.items():
            pieces = word_pieces(tokenizer, self.words[name])
            sizes = np.array([len(sentence) for sentence in self.words[name]])
            documents = None
            if config.document_context:
                if not table.has("document"):
                    raise UsageError(
                        f"{table.path}: document_context needs a column document (-DOCSTART- in "
                        "CoNLL)"
                    )
                names = [str(document) for document in table.columns["document"]]
                # A new number wherever the document's name changes.
                begins = [0, *(now != before for before, now in itertools.pairwise(names))]
                documents = np.repeat(np.cumsum(np.array(begins, np.int64)), sizes)
            first, last, words = sentence_windows(
                pieces, offsets_of(sizes), documents, room=config.max_seq_length - 2
            )
            lengths = last - first
            taken = Ragged(pieces.values[ragged_indices(first, lengths)], offsets_of(lengths))
            self.sequences[name] = assemble(tokenizer, taken, kept_a=lengths)
            # Position of each word's first piece in its sequence, behind [CLS].
            # A word's first piece counts from the beginning of all text; minus the first piece of
            # its sequence, it counts from the beginning of that.
            places = 1 + pieces.offsets[:-1] - np.repeat(first, np.diff(words))
            self._places[name] = Ragged(places, words)
            if name not in self.tags:
                continue
            targets = [numbers[tag] for tag in chain.from_iterable(self.tags[name])]
            self._targets[name] = Ragged(np.array(targets, np.int64), words)

    @property
    def metrics(self) -> tuple[str, ...]:
        """By default entity F1 and accuracy if tags mark entities, else accuracy and macro F1."""
        if self.config.metrics:
            return self.config.metrics
        entity = is_entity_scheme(self.labels)
        return (ENTITY_F1, "accuracy") if entity else ("accuracy", "f1_macro")

    def _refuse_odd_tags(self, found: Collection[str]) -> None:
        """Refuse tags that mark no entity beside others that do: a slip would change the metric."""
        odd = odd_tags(found)
        if not odd:
            return
        table, tags = self._tables["train"], self.tags["train"]
        row = next((row for row, of_row in enumerate(tags) if odd[0] in of_row), 0)
        raise UsageError(
            f"{table.place(row)}: tag {odd[0]!r} in this sentence ({len(odd)} such tags: "
            f"{' '.join(odd[:SHOWN_TAGS])}), but others mark entities; expected O, B-X and I-X, "
            'or IOBES: correct it, or set metrics = ["accuracy"] if tags are classes of words'
        )

    def gold(self, split: str) -> Sequence[Gold]:
        """Lists of tags."""
        return list(self.tags[split])

    def shown(self, split: str, example: int) -> str:
        """The sentence."""
        return " ".join(self.words[split][example])

    def positions(self, split: str, rows: Places) -> Places:
        """First word-pieces of the words predicted."""
        places = self._places[split].take(rows)
        # The model sees the sequences of a batch one behind another: a position in one becomes a
        # position in the batch.
        starts = offsets_of(self.sequences[split].lengths[rows])[:-1]
        return np.asarray(places.values + np.repeat(starts, places.lengths), np.int64)

    def reads_of(self, split: str) -> Places:
        """Words predicted in each sequence."""
        return self._places[split].lengths

    def targets(self, split: str, units: Places) -> NDArray[np.generic]:
        """[words] int64 tag indices."""
        return self._targets[split].take(units).values

    def loss(self, logits: Tensor, targets: Tensor) -> Tensor:
        """Cross-entropy over words."""
        return functional.cross_entropy(logits, on(logits.device, targets), reduction="sum")

    def predictions(self, split: str, logits: Logits) -> list[Prediction]:
        """A list of tags per sentence."""
        # Words come in the file's order, however they were cut into sequences, so their tags are
        # dealt back to sentences one after another.
        flat = iter(logits.argmax(-1).tolist())
        return [[self.labels[next(flat)] for _ in sentence] for sentence in self.words[split]]

    def details(
        self, split: str, logits: Logits, predictions: Sequence[Prediction]
    ) -> list[Details]:
        """The words, and the spans that their tags mark."""
        return [
            {"words": [*words], "spans": marked_spans(words, cast(list[str], tags))}
            for words, tags in zip(self.words[split], predictions, strict=True)
        ]

    def score(self, split: str, predictions: Sequence[Prediction]) -> dict[str, float]:
        """Accuracy and F1 over words; entity precision, recall and F1, overall and by type."""
        gold = self.tags[split]
        flat_gold = np.array(list(chain.from_iterable(gold)))
        predicted = cast(Sequence[list[str]], predictions)
        flat = np.array(list(chain.from_iterable(predicted)))
        words = tuple(name for name in self.metrics if name != ENTITY_F1)
        scores = metric_values(words, flat_gold, flat)
        if ENTITY_F1 in self.metrics:
            # `B-PER` and `I-PER` → PER; overall first, then by type.
            kinds = sorted({label[2:] for label in self.labels if label[2:]})
            for kind, suffix in [("", ""), *((kind, f"_{kind}") for kind in kinds)]:
                counts = count_entities(gold, predicted, kind=kind)
                scores |= {
                    f"{ENTITY_F1}{suffix}": counts.f1,
                    f"entity_precision{suffix}": counts.precision,
                    f"entity_recall{suffix}": counts.recall,
                }
        return scores


def sentences_of(table: TaskTable) -> tuple[list[list[str]], list[list[str]] | None]:
    """Words and tags of every sentence; None if the file has no tags."""
    words: list[list[str]] = []
    for row, cell in enumerate(table.columns["words"]):
        if not isinstance(cell, list) or not cell:
            raise UsageError(
                f"{table.place(row)}: words is {cell!r:.100}, expected a list of words, as in "
                ".jsonl or .parquet, or CoNLL's columns in a .conll"
            )
        words.append([well_formed(str(word)) for word in cell])
    if not table.has("tags"):
        return words, None
    tags: list[list[str]] = []
    for row, cell in enumerate(table.columns["tags"]):
        if not isinstance(cell, list) or len(cell) != len(words[row]):
            raise UsageError(
                f"{table.place(row)}: {len(words[row])} words, but tags is {cell!r}; "
                "expected one tag per word"
            )
        if any(is_missing(tag) for tag in cell):
            raise UsageError(
                f"{table.place(row)}: a word without a tag in {cell!r}; expected one tag per word"
            )
        tags.append([str(tag) for tag in cell])
    return words, tags


def word_pieces(tokenizer: SubwordTokenizer, sentences: list[list[str]]) -> Ragged:
    """Word-pieces of every word; [UNK] for a word without any (a control character)."""
    numbers: dict[str, int] = {}
    words = chain.from_iterable(map(tokenizer.running, sentences))
    # Distinct words are tokenised once.
    inverse = np.fromiter((numbers.setdefault(word, len(numbers)) for word in words), np.int64)
    ids = tokenize(tokenizer, list(numbers))
    lists = [ids.row(row).tolist() or [tokenizer.unk_id] for row in range(len(ids))]
    return ragged(lists).take(inverse)


def sentence_windows(
    pieces: Ragged, sentences: Places, documents: Places | None, *, room: int
) -> tuple[Places, Places, Places]:
    """A sequence per sentence; if it is longer than `room`, several of whole words.

    Returns, for N sequences, [N] the first word-piece, [N] the end of the last one, and [N+1] the
    offsets of the words predicted. With `documents`, the number of each word's document, sequences
    are extended by text of their own document, as evenly as possible on both sides.
    """
    # Sequences as runs of words: each ends where the next begins.
    bounds = [0]
    for start, end in itertools.pairwise(sentences.tolist()):
        # Only a sentence that does not fit is cut, before the word that would exceed the room.
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
        # The document's bounds in word-pieces, and the room that is left beside the sentence.
        starts = pieces.offsets[np.searchsorted(documents, own, "left")]
        ends = pieces.offsets[np.searchsorted(documents, own, "right")]
        spare = np.maximum(room - (last - first), 0)
        # Half of it to the left, or more if the right side has less text; the rest to the right.
        left = np.minimum(first - starts, np.maximum(spare // 2, spare - (ends - last)))
        right = np.minimum(ends - last, spare - left)
        first, last = first - left, last + right
    return first, last, words


@dataclass(frozen=True)
class EntityCounts:
    """Numbers of correct, predicted and gold entities, and the scores they give."""

    correct: int
    predicted: int
    gold: int

    @property
    def precision(self) -> float:
        """Share of the predicted entities that are correct."""
        return self.correct / self.predicted if self.predicted else 0.0

    @property
    def recall(self) -> float:
        """Share of the gold entities that were found."""
        return self.correct / self.gold if self.gold else 0.0

    @property
    def f1(self) -> float:
        """Harmonic mean of precision and recall."""
        both = self.precision + self.recall
        return 2 * self.precision * self.recall / both if both else 0.0


def count_entities(
    gold: Sequence[Sequence[str]], predicted: Sequence[Sequence[str]], *, kind: str = ""
) -> EntityCounts:
    """Counts over sentences, of one entity type if `kind` is given.

    No entity crosses a sentence boundary.
    """
    correct = found = there = 0
    for gold_tags, predicted_tags in zip(gold, predicted, strict=True):
        ours, theirs = (
            {entity for entity in entities(tags) if kind in ("", entity[2])}
            for tags in (predicted_tags, gold_tags)
        )
        correct += len(ours & theirs)
        found += len(ours)
        there += len(theirs)
    return EntityCounts(correct, found, there)


def entities(tags: Sequence[str]) -> list[Entity]:
    """The entities of one sentence: first word, last word, type."""
    found: list[Entity] = []
    start: int | None = None
    before = ("O", "")
    # A last O closes what is open.
    for place, tag in enumerate([*tags, "O"]):
        prefix, _, kind = tag.partition("-")
        now = (SAME_PREFIX.get(prefix, prefix), kind)
        if start is not None and _ends(before, now):
            found.append((start, place - 1, before[1]))
            start = None
        if _begins(before, now):
            start = place
        before = now
    return found


def marked_spans(words: Sequence[str], tags: Sequence[str]) -> list[JsonValue]:
    """The entities that tags mark: label, text, and indices of the first and last word."""
    return [
        {"label": kind, "text": " ".join(words[first : last + 1]), "first": first, "last": last}
        for first, last, kind in entities(tags)
    ]


def is_entity_scheme(tags: Sequence[str]) -> bool:
    """Whether a tag set marks entities (O, B-X, I-X, …) rather than word classes."""
    marked = {tag for tag in tags if tag != "O"}
    is_bare = "O" in tags and "B" in marked and marked <= BARE
    return bool(marked) and (is_bare or all(MARKED.fullmatch(tag) for tag in marked))


def odd_tags(tags: Collection[str]) -> list[str]:
    """The tags that mark no entity, if some others do or are meant to."""
    marked = {tag for tag in tags if tag != "O"}
    odd = sorted(tag for tag in marked if not MARKED.fullmatch(tag))
    meant = [tag for tag in odd if MEANT.fullmatch(tag)]
    outside = any(tag in OUTSIDE for tag in tags)
    # A few odd tags among many that mark entities; or a scheme spelt in an unknown way.
    return odd if len(odd) < len(marked) or (outside and len(meant) > len(odd) / 2) else []


def _ends(before: tuple[str, str], now: tuple[str, str]) -> bool:
    """EndOfChunk of conlleval."""
    if before[0] in ("E", "S", "L", "U"):
        return True
    return before[0] in ("B", "I") and (now[0] in ("B", "S", "U", "O") or now[1] != before[1])


def _begins(before: tuple[str, str], now: tuple[str, str]) -> bool:
    """StartOfChunk of conlleval: I- after O or after another type begins one as well (IOB1)."""
    if now[0] == "O":
        return False
    if now[0] in ("B", "S", "U"):
        return True
    return before[0] in ("O", "E", "S", "L", "U") or now[1] != before[1]
