"""Segment pairs for next-sentence prediction, vectorised over the documents of a bucket.

In:  a tokens file (artifacts/tables.py) as `Documents`, flat arrays without a Python object per
     document; the rule for the second segment.
Out: `Pairs`: for each example two ranges of the bucket's token ids and the label.

The algorithm is the reference's (create_pretraining_data.py:237-334): collect sentences up to a
target length; the first segment takes some of them, the second is the rest or a random passage of
another document; then put back the unused sentences, since otherwise half of the corpus would only
ever be a first segment.

Where a chunk begins depends on earlier draws, which seems to require a sequential walk. But each
draw is addressed by the sentence at which its chunk begins. So the chunk of every sentence is
computed at once, as if one began there, and then the chain from the first sentence is followed.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from cloze.artifacts.arrays import (
    Int64s,
    Mask,
    TokenIds,
    UInt64s,
    digest_bytes,
    digest_halves,
    list_lengths,
    list_values,
    offsets_of,
)
from cloze.artifacts.errors import IntegrityError
from cloze.artifacts.rng import (
    below,
    coin_flips,
    document_streams,
    draw,
    happens,
    high_half,
    low_half,
)
from cloze.artifacts.tables import SOURCE_FIELD

# D documents, S sentences, T tokens, N examples
SecondSegment = Literal["next_sentence", "sentence_order", "none"]

IS_NEXT, RANDOM_NEXT, NOT_ASKED = 0, 1, -1

# counters of a document's stream, then of an example's
_SHORT, _TARGET, _CHUNKS = 0, 1, 2
_SPLIT, _OTHER, _CUT_A, _CUT_B, MASKS, ORDER = 0, 1, 2, 3, 4, 5


@dataclass(frozen=True)
class Documents:
    """Documents sorted by digest, with concatenated sentences and tokens."""

    digests_D2: UInt64s
    """The digest's two halves as little-endian integers, which address the random streams."""

    weights_D: Int64s
    """How often each document occurs in every copy of the examples."""

    token_ids_T: TokenIds
    """Ids of the whole bucket, uint16 or uint32."""

    starts_S: Int64s
    """Ascending start of each sentence in `token_ids_T`."""

    ends_S: Int64s
    """End of each sentence."""

    first_sentence_D1: Int64s
    """The first sentence of each document, then the number of sentences."""

    sources_D: Int64s | None = None
    """The index of each document's source in the corpus, if the tokens have it."""

    @property
    def count(self) -> int:
        """Number of documents."""
        return len(self.weights_D)

    @cached_property
    def sentence_counts_D(self) -> Int64s:
        """Number of sentences of each document."""
        return np.diff(self.first_sentence_D1)

    @cached_property
    def document_of_sentence_S(self) -> Int64s:
        """The document each sentence belongs to."""
        return np.repeat(np.arange(self.count), self.sentence_counts_D)

    def subset(self, chosen: Int64s) -> "Documents":
        """The `chosen` documents, over the same `token_ids_T`."""
        wanted_D = np.zeros(self.count, dtype=bool)
        wanted_D[chosen] = True
        kept_S = wanted_D[self.document_of_sentence_S]
        return Documents(
            digests_D2=self.digests_D2[chosen],
            weights_D=self.weights_D[chosen],
            token_ids_T=self.token_ids_T,
            starts_S=self.starts_S[kept_S],
            ends_S=self.ends_S[kept_S],
            first_sentence_D1=offsets_of(self.sentence_counts_D[chosen]),
            sources_D=None if self.sources_D is None else self.sources_D[chosen],
        )


def read_bucket(path: str) -> Documents:
    """Read the tokens file at `path`."""
    with pa.memory_map(path) as source:
        table = pa.ipc.open_file(source).read_all().combine_chunks()
        return documents_of(table, source=path)


def documents_of(table: pa.Table, *, source: str) -> Documents:
    """Convert a tokens table; empty sentences and documents are left out."""
    lengths_S = list_values(table["sentence_lengths"]).astype(np.int64)
    ends_S = np.cumsum(lengths_S)
    counts_D = list_lengths(table["sentence_lengths"])
    # Token offset at which each document ends, from its number of sentences.
    token_ends_D1 = np.concatenate([[0], ends_S])[offsets_of(counts_D)]
    if not np.array_equal(np.diff(token_ends_D1), list_lengths(table["token_ids"])):
        raise IntegrityError(
            f"{source}: sentence_lengths do not sum to the number of token_ids; "
            "run the tokens stage again"
        )
    digests_D2 = digest_halves(digest_bytes(table["document_digest"]), byte_order="<")
    weights_D = table["copies"].to_numpy().astype(np.int64)
    sources_D = None
    if SOURCE_FIELD.name in table.column_names:
        sources_D = table[SOURCE_FIELD.name].to_numpy().astype(np.int64)
    starts_S = ends_S - lengths_S
    # Sentences without tokens would be chunks without text.
    if not lengths_S.all():
        kept_S = lengths_S > 0
        documents_S = np.repeat(np.arange(len(counts_D)), counts_D)
        counts_D = np.bincount(documents_S[kept_S], minlength=len(counts_D))
        kept_D = counts_D > 0
        starts_S, ends_S = starts_S[kept_S], ends_S[kept_S]
        digests_D2, weights_D, counts_D = digests_D2[kept_D], weights_D[kept_D], counts_D[kept_D]
        sources_D = None if sources_D is None else sources_D[kept_D]
    return Documents(
        digests_D2=digests_D2,
        weights_D=weights_D,
        token_ids_T=list_values(table["token_ids"]),
        starts_S=starts_S,
        ends_S=ends_S,
        first_sentence_D1=offsets_of(counts_D),
        sources_D=sources_D,
    )


@dataclass(frozen=True)
class PairingRule:
    """The settings that determine segments."""

    max_seq_length: int
    """Tokens of an example, including special ones."""

    short_seq_prob: float
    """Share of documents that are divided into shorter examples."""

    second_segment: SecondSegment
    """The paper's next or random sentences, ALBERT's next or swapped ones, or none."""

    @property
    def max_tokens(self) -> int:
        """Room for text, besides [CLS] and one [SEP] per segment."""
        return self.max_seq_length - (2 if self.second_segment == "none" else 3)


@dataclass(frozen=True)
class Pairs:
    """Examples as ranges of a bucket's `token_ids_T`, after truncation."""

    a_start_N: Int64s
    a_length_N: Int64s
    """The first segment, at least one token."""
    b_start_N: Int64s
    b_length_N: Int64s
    """The second segment; empty exactly where the label is `NOT_ASKED`."""
    label_N: NDArray[np.int8]
    """`IS_NEXT`, `RANDOM_NEXT` (or swapped), or `NOT_ASKED`."""
    cut_N: Int64s
    """Tokens lost to truncation."""
    stream_N: UInt64s
    """Stream of random numbers of each example."""

    @property
    def count(self) -> int:
        """Number of examples."""
        return len(self.label_N)

    @classmethod
    def joined(cls, parts: Sequence["Pairs"]) -> "Pairs":
        """Concatenate examples."""
        return cls(
            *(
                np.concatenate([getattr(part, name) for part in parts])
                for name in cls.__dataclass_fields__
            )
        )

    def rows(self, chosen: Int64s) -> "Pairs":
        """The `chosen` examples, in that order."""
        return Pairs(*(getattr(self, name)[chosen] for name in self.__dataclass_fields__))


@dataclass(frozen=True)
class _Chunks:
    """Consecutive sentences of a document, up to `end_N`; the first `in_a_N` of them are A."""

    document_N: Int64s
    first_N: Int64s
    in_a_N: Int64s
    end_N: Int64s
    target_N: Int64s
    other_N: Mask
    """Whether B is other than the sentences after A."""
    stream_N: UInt64s


def pair_segments(
    documents: Documents, *, rule: PairingRule, start: np.uint64, own_D: Int64s | None = None
) -> Pairs:
    """One copy of the examples, document by document (reference: create_instances_from_document).

    A document of weight w is used w times, each time with its own stream. Random sentences come
    from the bucket's other documents. If there are none, all pairs are true, and a chunk of a
    single sentence becomes an example without second segment.

    own_D: the documents of one source, to make its examples alone. Their random sentences come from
    the same source; only those of a document without another one of its source in the bucket come
    from any.
    """
    pool = documents
    if own_D is None:
        own_D = np.arange(documents.count)
    elif len(own_D) != 1:
        pool, own_D = documents.subset(own_D), np.arange(len(own_D))
    passes = []
    # In pass number w, the documents that are used more than w times.
    for ordinal in range(int(pool.weights_D[own_D].max(initial=1))):
        chosen_D = own_D[pool.weights_D[own_D] > ordinal]
        part = pool if len(chosen_D) == pool.count else pool.subset(chosen_D)
        streams_D = draw(document_streams(part.digests_D2, start), ordinal)
        chunks = _cut_chunks(part, streams_D, rule=rule, alone=pool.count == 1)
        if rule.second_segment == "next_sentence":
            b_start_N, b_end_N = _random_or_next(part, chunks, pool=pool, chosen_D=chosen_D)
        else:
            b_start_N, b_end_N = _rest(part, chunks)
        passes.append(_truncated(part, chunks, b_start_N, b_end_N, rule=rule))
    return passes[0] if len(passes) == 1 else Pairs.joined(passes)


def _cut_chunks(
    documents: Documents, streams_D: UInt64s, *, rule: PairingRule, alone: bool
) -> _Chunks:
    """Divide every document into chunks of about its target length."""
    document_S = documents.document_of_sentence_S
    first_S = np.arange(len(document_S))
    # the full length, or for some documents any length from 2 tokens
    short_D = happens(high_half(draw(streams_D, _SHORT)), rule.short_seq_prob)
    target_D = 2 + below(high_half(draw(streams_D, _TARGET)), rule.max_tokens - 1)
    target_S = np.where(short_D, target_D, rule.max_tokens)[document_S]
    document_end_S = documents.first_sentence_D1[1:][document_S]
    # the first sentence after which the target is reached, or the document's last one
    reached_S = np.searchsorted(documents.starts_S, documents.starts_S + target_S)
    end_S = np.minimum(reached_S, document_end_S)
    counter_S = first_S - documents.first_sentence_D1[:-1][document_S]
    stream_S = draw(draw(streams_D, _CHUNKS)[document_S], counter_S)
    # how many of the chunk's sentences A takes, and whether B is other than the rest
    bits_S, sentences_S = draw(stream_S, _SPLIT), end_S - first_S
    never_S = np.zeros(len(sentences_S), dtype=bool)
    # Without a second segment, A takes the whole chunk and nothing is put back.
    in_a_S, other_S, put_back_S = sentences_S, never_S, never_S
    if rule.second_segment != "none":
        # 1 to n - 1 sentences; a single sentence is all A's
        in_a_S = 1 + below(high_half(bits_S), sentences_S - 1)
        other_S = (bits_S & np.uint64(1)).astype(bool)
    # swapping needs a second part
    if rule.second_segment == "sentence_order":
        other_S &= sentences_S > 1
    elif rule.second_segment == "next_sentence":
        # As in the reference: B is random for half of the chunks, and where there is nothing left
        # for it. Its unused sentences begin the next chunk.
        put_back_S = other_S = never_S if alone else other_S | (sentences_S == 1)
    # The last chunk of a document leads to the next document, so the bucket is a single chain,
    # which is walked fastest as a Python list.
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


def _rest(documents: Documents, chunks: _Chunks) -> tuple[Int64s, Int64s]:
    """B as the sentences of the chunk after A, in token offsets; empty if there are none."""
    last_N = chunks.end_N - 1
    # The clip only keeps the index valid where B is empty.
    begin_N = np.minimum(chunks.first_N + chunks.in_a_N, last_N)
    b_end_N = documents.ends_S[last_N]
    empty_N = chunks.first_N + chunks.in_a_N == chunks.end_N
    return np.where(empty_N, b_end_N, documents.starts_S[begin_N]), b_end_N


def _random_or_next(
    documents: Documents, chunks: _Chunks, *, pool: Documents, chosen_D: Int64s
) -> tuple[Int64s, Int64s]:
    """B as the rest of the chunk, or a random passage of another document in the pool."""
    b_start_N, b_end_N = _rest(documents, chunks)
    random = np.flatnonzero(chunks.other_N)
    bits = draw(chunks.stream_N[random], _OTHER)
    own = chosen_D[chunks.document_N[random]]
    # drawn by weight from all other documents
    # Documents on a line, each as long as its weight: draw from it without the own document's
    # stretch, and step over that where it begins.
    weight_ends_D = np.cumsum(pool.weights_D)
    own_weight = pool.weights_D[own]
    place = below(high_half(bits), weight_ends_D[-1:] - own_weight)
    place += np.where(place >= weight_ends_D[own] - own_weight, own_weight, 0)
    other = np.searchsorted(weight_ends_D, place, side="right")
    first = pool.first_sentence_D1[other] + below(low_half(bits), pool.sentence_counts_D[other])
    a_end = documents.ends_S[chunks.first_N[random] + chunks.in_a_N[random] - 1]
    a_length = a_end - documents.starts_S[chunks.first_N[random]]
    # The same rule as for chunks: sentences until the wanted length is reached or the document
    # ends.
    begin = pool.starts_S[first]
    # at least one sentence, even if A alone reaches the target
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
    """Cut the longer segment token by token, at random ends (reference: truncate_seq_pair)."""
    a_start_N = documents.starts_S[chunks.first_N]
    a_length_N = documents.ends_S[chunks.first_N + chunks.in_a_N - 1] - a_start_N
    b_length_N = b_end_N - b_start_N
    # No label where there is no B; else 0 for next, 1 for random or swapped.
    label_N = np.where(b_length_N > 0, chunks.other_N, NOT_ASKED).astype(np.int8)
    if rule.second_segment == "sentence_order":
        swap_N = chunks.other_N
        a_start_N, b_start_N = np.where(swap_N, (b_start_N, a_start_N), (a_start_N, b_start_N))
        a_length_N, b_length_N = np.where(
            swap_N, (b_length_N, a_length_N), (a_length_N, b_length_N)
        )
    cut_a_N, cut_b_N = tokens_to_cut(a_length_N, b_length_N, max_tokens=rule.max_tokens)
    return Pairs(
        # A cut token comes off the front or the end, by coin flip: those off the front move the
        # start.
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
    """Tokens to cut from A and B: always from the longer one, from B if they are equal."""
    # First from the longer one until both are equal, then in turns, B first.
    excess_N = np.maximum(a_length_N + b_length_N - max_tokens, 0)
    difference_N = a_length_N - b_length_N
    uneven_N = np.minimum(excess_N, np.abs(difference_N))
    even_N = excess_N - uneven_N  # then B and A take turns
    cut_a_N = np.where(difference_N > 0, uneven_N, 0) + even_N // 2
    return cut_a_N, excess_N - cut_a_N
