"""Entity-level precision, recall and F1, as conlleval counts them.

In:  gold and predicted tags of sentences, in IOB1, BIO2 or IOBES.
Out: counts and F1; an entity is correct if both boundaries and the type are.

conlleval.pl (Tjong Kim Sang & Buchholz 2000) reads every scheme with the same two rules, `_begins`
and `_ends`, so that malformed predictions count as well.
"""

from collections.abc import Sequence
from dataclasses import dataclass

Entity = tuple[int, int, str]


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
    for place, tag in enumerate([*tags, "O"]):
        prefix, _, kind = tag.partition("-")
        now = (prefix, kind)
        if start is not None and _ends(before, now):
            found.append((start, place - 1, before[1]))
            start = None
        if _begins(before, now):
            start = place
        before = now
    return found


def is_entity_scheme(tags: Sequence[str]) -> bool:
    """Whether a tag set marks entities (O, B-X, I-X, …) rather than word classes."""
    marked = [tag for tag in tags if tag != "O"]
    return bool(marked) and all(tag[:2] in ("B-", "I-", "E-", "S-", "L-", "U-") for tag in marked)


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
