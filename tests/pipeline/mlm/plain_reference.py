"""Google's algorithm in plain Python: one document, one sentence, one token at a time.

In:  documents as lists of sentences of ids, and a source of random numbers.
Out: `PlainExample`, to compare the vectorised code with.

`StreamChance` draws from one `random.Random` in the reference's order, so it reproduces the
reference's examples. `AddressedChance` makes our own draws, so its examples must equal ours.
"""

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from cloze.artifacts import rng
from cloze.pipeline.mlm import pairing

Sentences = Sequence[Sequence[int]]


@dataclass(frozen=True)
class PlainPair:
    a: tuple[int, ...]
    b: tuple[int, ...]
    label: int


class Chance(Protocol):
    def is_short(self, probability: float) -> bool: ...
    def target(self, low: int, high: int) -> int: ...
    def begin_chunk(self, sentence: int) -> None: ...
    def split(self, sentences: int) -> int: ...
    def is_random(self) -> bool: ...
    def other_document(self) -> int: ...
    def start_sentence(self, sentences: int) -> int: ...
    def cuts(self, a_cut: int, b_cut: int) -> Iterator[bool]: ...


@dataclass
class StreamChance:
    """Draws in the order of the reference, for document number `own` of `count`."""

    rng: random.Random
    own: int
    count: int

    def is_short(self, probability: float) -> bool:
        return self.rng.random() < probability

    def target(self, low: int, high: int) -> int:
        return self.rng.randint(low, high)

    def begin_chunk(self, sentence: int) -> None:
        """Nothing: the stream continues."""

    def split(self, sentences: int) -> int:
        return self.rng.randint(1, sentences - 1)

    def is_random(self) -> bool:
        return self.rng.random() < 0.5

    def other_document(self) -> int:
        for _ in range(10):
            other = self.rng.randint(0, self.count - 1)
            if other != self.own:
                break
        return other

    def start_sentence(self, sentences: int) -> int:
        return self.rng.randint(0, sentences - 1)

    def cuts(self, a_cut: int, b_cut: int) -> Iterator[bool]:
        while True:
            yield self.rng.random() < 0.5


class AddressedChance:
    """The draws that `cloze.pipeline.mlm.pairing` makes for a document of weight one, one at a
    time."""

    def __init__(self, digest: bytes, start: np.uint64, *, own: int, count: int) -> None:
        digests = np.frombuffer(digest, dtype="<u8").reshape(1, 2)
        self.document = rng.draw(rng.document_streams(digests, start), 0)
        self.chunk = self.document
        self.own, self.count = own, count

    def _below(self, half, limit: int) -> int:
        return int(half[0]) * limit >> 32

    def is_short(self, probability: float) -> bool:
        bits = rng.draw(self.document, pairing._SHORT)
        return int(bits[0] >> 32) < round(probability * 2**32)

    def target(self, low: int, high: int) -> int:
        bits = rng.draw(self.document, pairing._TARGET)
        return low + self._below(rng.high_half(bits), high - low + 1)

    def begin_chunk(self, sentence: int) -> None:
        chunks = rng.draw(self.document, pairing._CHUNKS)
        self.chunk = rng.draw(chunks, sentence)

    def _bits(self, purpose: int):
        return rng.draw(self.chunk, purpose)

    def split(self, sentences: int) -> int:
        half = rng.high_half(self._bits(pairing._SPLIT))
        return 1 + self._below(half, sentences - 1)

    def is_random(self) -> bool:
        return bool(self._bits(pairing._SPLIT)[0] & np.uint64(1))

    def other_document(self) -> int:
        half = rng.high_half(self._bits(pairing._OTHER))
        other = self._below(half, self.count - 1)
        return other + (other >= self.own)

    def start_sentence(self, sentences: int) -> int:
        return self._below(rng.low_half(self._bits(pairing._OTHER)), sentences)

    def cuts(self, a_cut: int, b_cut: int) -> Iterator[bool]:
        raise NotImplementedError("one draw a side: `front_cuts` says it whole")

    def front_cuts(self, a_cut: int, b_cut: int) -> tuple[int, int]:
        return self._heads(pairing._CUT_A, a_cut), self._heads(pairing._CUT_B, b_cut)

    def _heads(self, purpose: int, flips: int) -> int:
        stream, heads = self._bits(purpose), 0
        for word in range((flips + 63) // 64):
            bits = min(64, flips - 64 * word)
            value = int(rng.draw(stream, word)[0]) >> (64 - bits)
            heads += value.bit_count()
        return heads


def plain_pairs(
    documents: Sequence[Sentences], index: int, *, max_tokens: int, short: float, chance: Chance
) -> Iterator[PlainPair]:
    """The pairs of one document, made like the reference."""
    document = documents[index]
    target = max_tokens
    if chance.is_short(short):
        target = chance.target(2, max_tokens)
    position = 0
    while position < len(document):
        chance.begin_chunk(position)
        end, length = position, 0
        while end < len(document) and length < target:
            length += len(document[end])
            end += 1
        chunk = document[position:end]
        in_a = chance.split(len(chunk)) if len(chunk) > 1 else 1
        a = [token for sentence in chunk[:in_a] for token in sentence]
        if len(chunk) == 1 or chance.is_random():
            b = _random_segment(documents, wanted=target - len(a), chance=chance)
            label, position = 1, position + in_a
        else:
            b = [token for sentence in chunk[in_a:] for token in sentence]
            label, position = 0, end
        _truncate(a, b, max_tokens=max_tokens, chance=chance)
        yield PlainPair(tuple(a), tuple(b), label)


def _random_segment(documents: Sequence[Sentences], *, wanted: int, chance: Chance) -> list[int]:
    other = documents[chance.other_document()]
    segment: list[int] = []
    for sentence in other[chance.start_sentence(len(other)) :]:
        segment.extend(sentence)
        if len(segment) >= wanted:
            break
    return segment


def _truncate(a: list[int], b: list[int], *, max_tokens: int, chance: Chance) -> None:
    taken = {id(a): 0, id(b): 0}
    lengths = {id(a): len(a), id(b): len(b)}
    while sum(lengths.values()) > max_tokens:
        longer = a if lengths[id(a)] > lengths[id(b)] else b
        lengths[id(longer)] -= 1
        taken[id(longer)] += 1
        if isinstance(chance, StreamChance) and chance.rng.random() < 0.5:
            del longer[0]
        elif isinstance(chance, StreamChance):
            longer.pop()
    if isinstance(chance, AddressedChance):
        fronts = chance.front_cuts(taken[id(a)], taken[id(b)])
        for segment, front in zip((a, b), fronts, strict=True):
            segment[:] = segment[front : front + lengths[id(segment)]]


@dataclass(frozen=True)
class PlainMasks:
    input_ids: tuple[int, ...]
    positions: tuple[int, ...]
    original_ids: tuple[int, ...]


@dataclass(frozen=True)
class PlainVocabulary:
    cls_id: int
    sep_id: int
    mask_id: int
    size: int
    continuations: frozenset[int]


def plain_masks(
    pair: PlainPair,
    *,
    vocabulary: PlainVocabulary,
    max_predictions: int,
    rng: random.Random,
    whole_word: bool = False,
) -> PlainMasks:
    """The masks of one pair, with draws in the reference's order."""
    ids = [vocabulary.cls_id, *pair.a, vocabulary.sep_id, *pair.b, vocabulary.sep_id]
    special = {0, len(pair.a) + 1, len(ids) - 1}
    units: list[list[int]] = []
    for place, token in enumerate(ids):
        if place in special:
            continue
        if whole_word and units and token in vocabulary.continuations:
            units[-1].append(place)
        else:
            units.append([place])
    rng.shuffle(units)
    budget = min(max_predictions, max(1, round(len(ids) * 0.15)))
    seen, chosen = list(ids), []
    for unit in units:
        if len(chosen) >= budget:
            break
        if len(chosen) + len(unit) > budget:
            continue
        for place in unit:
            chosen.append(place)
            if rng.random() < 0.8:
                seen[place] = vocabulary.mask_id
            elif rng.random() >= 0.5:
                seen[place] = rng.randint(0, vocabulary.size - 1)
    chosen.sort()
    return PlainMasks(tuple(seen), tuple(chosen), tuple(ids[place] for place in chosen))
