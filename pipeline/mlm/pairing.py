"""Segment pairs for next-sentence prediction, for all documents of a bucket at once.

In:  `Documents` and the rule that says what the second segment is.
Out: `Pairs`: for every example two stretches of the bucket's token ids and the label.

The algorithm is the reference's (create_pretraining_data.py:237-334): sentences are gathered until
a target length is reached, the first segment takes some of them, the second one is the rest, or a
random place of another document; then the unused sentences are put back, or half of the corpus
would only ever be a first segment.

Where a chunk begins depends on the draws before it, which seems to force a sequential walk. But
each draw is addressed by the sentence at which its chunk begins; so every sentence's chunk is
computed at once, as if it began one, and then the chain from the first sentence on is followed.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from artifacts.arrays import Int64s, Mask, UInt64s
from artifacts.rng import (
    below,
    coin_flips,
    document_streams,
    draw,
    happens,
    high_half,
    low_half,
)
from pipeline.mlm.bucket_documents import Documents

# D documents, S sentences, N examples
SecondSegment = Literal["next_sentence", "sentence_order", "none"]

IS_NEXT, RANDOM_NEXT, NOT_ASKED = 0, 1, -1

# the draws of a document's stream, then of an example's
_SHORT, _TARGET, _CHUNKS = 0, 1, 2
_SPLIT, _OTHER, _CUT_A, _CUT_B, MASKS, ORDER = 0, 1, 2, 3, 4, 5


@dataclass(frozen=True)
class PairingRule:
    """What decides the segments of an example."""

    max_seq_length: int
    """Tokens of an example, special ones included."""

    short_seq_prob: float
    """Share of documents that are cut into shorter examples."""

    second_segment: SecondSegment
    """The paper's next or random sentences, ALBERT's next or swapped, or none at all."""

    @property
    def max_tokens(self) -> int:
        """Room for text beside [CLS] and one [SEP] per segment."""
        return self.max_seq_length - (2 if self.second_segment == "none" else 3)


@dataclass(frozen=True)
class Pairs:
    """Examples as stretches of a bucket's `token_ids_T`, after truncation."""

    a_start_N: Int64s
    a_length_N: Int64s
    """The first segment, at least one token."""
    b_start_N: Int64s
    b_length_N: Int64s
    """The second one; empty exactly where the label is `NOT_ASKED`."""
    label_N: NDArray[np.int8]
    """`IS_NEXT`, `RANDOM_NEXT` (also: swapped), or `NOT_ASKED`."""
    cut_N: Int64s
    """Tokens that truncation took away."""
    stream_N: UInt64s
    """Each example's own stream of random numbers."""

    @property
    def count(self) -> int:
        """Number of examples."""
        return len(self.label_N)

    @classmethod
    def joined(cls, parts: Sequence["Pairs"]) -> "Pairs":
        """The examples of all parts."""
        return cls(
            *(
                np.concatenate([getattr(part, name) for part in parts])
                for name in cls.__dataclass_fields__
            )
        )

    def rows(self, chosen: Int64s) -> "Pairs":
        """The examples with the `chosen` numbers, in that order."""
        return Pairs(*(getattr(self, name)[chosen] for name in self.__dataclass_fields__))


@dataclass(frozen=True)
class _Chunks:
    """Runs of sentences of one document: `in_a_N` of them in A, then others, up to `end_N`."""

    document_N: Int64s
    first_N: Int64s
    in_a_N: Int64s
    end_N: Int64s
    target_N: Int64s
    other_N: Mask
    """Whether B is something else than the sentences after A."""
    stream_N: UInt64s


def pair_segments(documents: Documents, *, rule: PairingRule, start: np.uint64) -> Pairs:
    """One copy of the examples, document by document (reference: create_instances_from_document).

    A document of weight w is read w times, with a stream of its own each time. Random sentences
    come from the bucket's other documents; where there are none, only true pairs are made, and a
    chunk of a single sentence becomes an example without second segment.
    """
    readings = []
    for ordinal in range(int(documents.weights_D.max(initial=1))):
        chosen_D = np.flatnonzero(documents.weights_D > ordinal)  # those that are heavy enough
        part = documents if len(chosen_D) == documents.count else documents.subset(chosen_D)
        streams_D = draw(document_streams(part.digests_D2, start), ordinal)
        chunks = _cut_chunks(part, streams_D, rule=rule, alone=documents.count == 1)
        if rule.second_segment == "next_sentence":
            b_start_N, b_end_N = _random_or_next(part, chunks, pool=documents, chosen_D=chosen_D)
        else:
            b_start_N, b_end_N = _rest(part, chunks)
        readings.append(_truncated(part, chunks, b_start_N, b_end_N, rule=rule))
    return readings[0] if len(readings) == 1 else Pairs.joined(readings)


def _cut_chunks(
    documents: Documents, streams_D: UInt64s, *, rule: PairingRule, alone: bool
) -> _Chunks:
    """Every document as a sequence of chunks of about its target length."""
    document_S = documents.document_of_sentence_S
    first_S = np.arange(len(document_S))
    # the full length, or for some documents anything from 2 tokens on
    short_D = happens(high_half(draw(streams_D, _SHORT)), rule.short_seq_prob)
    target_D = 2 + below(high_half(draw(streams_D, _TARGET)), rule.max_tokens - 1)
    target_S = np.where(short_D, target_D, rule.max_tokens)[document_S]
    document_end_S = documents.first_sentence_D1[1:][document_S]
    # the first sentence after which the target is reached, or the document's last one
    reached_S = np.searchsorted(documents.starts_S, documents.starts_S + target_S)
    end_S = np.minimum(reached_S, document_end_S)
    counter_S = first_S - documents.first_sentence_D1[:-1][document_S]
    stream_S = draw(draw(streams_D, _CHUNKS)[document_S], counter_S)
    in_a_S, other_S = _split(draw(stream_S, _SPLIT), end_S - first_S, rule=rule, alone=alone)
    put_back_S = other_S if rule.second_segment == "next_sentence" else np.zeros(1, dtype=bool)
    # A document's last chunk leads to the next document, so the bucket is a single chain. A Python
    # list is the fastest thing to walk along.
    successor = np.where(put_back_S, first_S + in_a_S, end_S).tolist()
    chain: list[int] = []
    sentence = 0
    while sentence < len(successor):
        chain.append(sentence)
        sentence = successor[sentence]
    chain_N = np.array(chain, dtype=np.int64)
    return _Chunks(
        document_N=document_S[chain_N],
        first_N=chain_N,
        in_a_N=in_a_S[chain_N],
        end_N=end_S[chain_N],
        target_N=target_S[chain_N],
        other_N=other_S[chain_N],
        stream_N=stream_S[chain_N],
    )


def _split(
    bits_S: UInt64s, sentences_S: Int64s, *, rule: PairingRule, alone: bool
) -> tuple[Int64s, Mask]:
    """How many of a chunk's sentences A takes, and whether B is something else than the rest."""
    if rule.second_segment == "none":
        return sentences_S, np.zeros(len(sentences_S), dtype=bool)
    in_a_S = 1 + below(high_half(bits_S), sentences_S - 1)
    coin_S = (bits_S & np.uint64(1)).astype(bool)
    if rule.second_segment == "sentence_order":
        return in_a_S, coin_S & (sentences_S > 1)
    return in_a_S, np.zeros_like(coin_S) if alone else coin_S | (sentences_S == 1)


def _rest(documents: Documents, chunks: _Chunks) -> tuple[Int64s, Int64s]:
    """B as the sentences of the chunk after A, as token offsets; empty if there are none."""
    last_N = chunks.end_N - 1
    begin_N = np.minimum(chunks.first_N + chunks.in_a_N, last_N)
    b_end_N = documents.ends_S[last_N]
    empty_N = chunks.first_N + chunks.in_a_N == chunks.end_N
    return np.where(empty_N, b_end_N, documents.starts_S[begin_N]), b_end_N


def _random_or_next(
    documents: Documents, chunks: _Chunks, *, pool: Documents, chosen_D: Int64s
) -> tuple[Int64s, Int64s]:
    """B as the rest of the chunk, or a random place of another document of the pool."""
    b_start_N, b_end_N = _rest(documents, chunks)
    random = np.flatnonzero(chunks.other_N)
    bits = draw(chunks.stream_N[random], _OTHER)
    own = chosen_D[chunks.document_N[random]]
    # drawn by weight from all documents but one's own
    weight_ends_D = np.cumsum(pool.weights_D)
    own_weight = pool.weights_D[own]
    place = below(high_half(bits), weight_ends_D[-1:] - own_weight)
    place += np.where(place >= weight_ends_D[own] - own_weight, own_weight, 0)
    other = np.searchsorted(weight_ends_D, place, side="right")
    first = pool.first_sentence_D1[other] + below(low_half(bits), pool.sentence_counts_D[other])
    a_end = documents.ends_S[chunks.first_N[random] + chunks.in_a_N[random] - 1]
    a_length = a_end - documents.starts_S[chunks.first_N[random]]
    begin = pool.starts_S[first]
    # at least one sentence, even if A alone has reached the target
    wanted = np.maximum(chunks.target_N[random] - a_length, 1)
    reached = np.searchsorted(pool.starts_S, begin + wanted)
    last = np.minimum(reached, pool.first_sentence_D1[other + 1]) - 1
    b_start_N[random] = begin
    b_end_N[random] = pool.ends_S[last]
    return b_start_N, b_end_N


def _truncated(
    documents: Documents,
    chunks: _Chunks,
    b_start_N: Int64s,
    b_end_N: Int64s,
    *,
    rule: PairingRule,
) -> Pairs:
    """Cut the longer segment token by token, at either end (reference: truncate_seq_pair)."""
    a_start_N = documents.starts_S[chunks.first_N]
    a_length_N = documents.ends_S[chunks.first_N + chunks.in_a_N - 1] - a_start_N
    b_length_N = b_end_N - b_start_N
    label_N = np.where(b_length_N > 0, chunks.other_N, NOT_ASKED).astype(np.int8)
    if rule.second_segment == "sentence_order":
        swap_N = chunks.other_N
        a_start_N, b_start_N = (
            np.where(swap_N, b_start_N, a_start_N),
            np.where(swap_N, a_start_N, b_start_N),
        )
        a_length_N, b_length_N = (
            np.where(swap_N, b_length_N, a_length_N),
            np.where(swap_N, a_length_N, b_length_N),
        )
    cut_a_N, cut_b_N = tokens_to_cut(a_length_N, b_length_N, max_tokens=rule.max_tokens)
    return Pairs(
        a_start_N=a_start_N + coin_flips(draw(chunks.stream_N, _CUT_A), cut_a_N),
        a_length_N=a_length_N - cut_a_N,
        b_start_N=b_start_N + coin_flips(draw(chunks.stream_N, _CUT_B), cut_b_N),
        b_length_N=b_length_N - cut_b_N,
        label_N=label_N,
        cut_N=cut_a_N + cut_b_N,
        stream_N=chunks.stream_N,
    )


def tokens_to_cut(
    a_length_N: Int64s, b_length_N: Int64s, *, max_tokens: int
) -> tuple[Int64s, Int64s]:
    """How many tokens A and B lose until they fit: always the longer one, B if they are equal."""
    excess_N = np.maximum(a_length_N + b_length_N - max_tokens, 0)
    difference_N = a_length_N - b_length_N
    uneven_N = np.minimum(excess_N, np.abs(difference_N))
    even_N = excess_N - uneven_N  # from here on B and A take turns
    cut_a_N = np.where(difference_N > 0, uneven_N, 0) + even_N // 2
    return cut_a_N, excess_N - cut_a_N
