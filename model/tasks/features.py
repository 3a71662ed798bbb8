"""Encoder inputs: token ids in one flat array with offsets, taken from it as packed batches.

In:  texts or pairs of texts, or lists of words.
Out: `Sequences`, N times [CLS] A [SEP] (B [SEP]), unpadded; a `PackedBatch` of any of them.

Truncation follows the reference (run_classifier.py:557-610): tokens are removed from the end of the
longer segment, or of B if both are equally long.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from cloze.artifacts.arrays import offsets_of
from cloze.artifacts.tokenizer import SubwordTokenizer
from cloze.model.data.batch import NO_NEXT_SENTENCE, PackedBatch, on, ragged_indices

CPU_TOKENS = 2048
GPU_TOKENS = 65_536
"""Larger batches are no faster."""

Ids = NDArray[np.int32]
Places = NDArray[np.int64]


def tokens_at_once(device: torch.device) -> int:
    """Token budget of a batch at inference.

    Small batches are just as fast on a CPU. On a GPU, as many tokens as fit in half of the free
    memory for BERT-large in fp32, with the states of every layer and the logits of the masked
    tokens: 200 KB per token.
    """
    if device.type == "cpu":
        return CPU_TOKENS
    free, _ = torch.cuda.mem_get_info(device)
    return max(CPU_TOKENS, min(GPU_TOKENS, free // (400 << 10)))


@dataclass(frozen=True)
class Ragged:
    """Lists of different lengths in one array: list i is values[offsets[i]:offsets[i+1]]."""

    values: NDArray[np.generic]
    offsets: Places

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @property
    def lengths(self) -> Places:
        """[N] length of each list."""
        return np.diff(self.offsets)

    def row(self, index: int) -> NDArray[np.generic]:
        """List `index`."""
        return self.values[self.offsets[index] : self.offsets[index + 1]]

    def take(self, rows: Places) -> "Ragged":
        """These lists, in this order."""
        lengths = self.lengths[rows]
        return Ragged(self.values[ragged_indices(self.offsets[rows], lengths)], offsets_of(lengths))


def ragged(lists: Sequence[Sequence[int]]) -> Ragged:
    """`lists` as one array of int32."""
    lengths = np.fromiter((len(one) for one in lists), np.int64, count=len(lists))
    flat = (value for one in lists for value in one)
    return Ragged(np.fromiter(flat, np.int32, count=int(lengths.sum())), offsets_of(lengths))


@dataclass(frozen=True)
class Sequences:
    """N inputs of the encoder."""

    input_ids: Ragged
    """[CLS] A [SEP] (B [SEP])."""

    segment_a_lengths: Places
    """[N] tokens of token type 0."""

    truncated: int = 0
    """Number of truncated inputs."""

    def __len__(self) -> int:
        return len(self.input_ids)

    @property
    def lengths(self) -> Places:
        """[N] tokens."""
        return self.input_ids.lengths

    def batch(self, rows: Places) -> PackedBatch:
        """The inputs `rows`, packed."""
        taken = self.input_ids.take(rows)
        lengths = taken.lengths
        # type 1 from the end of segment A on
        positions = ragged_indices(0, lengths)
        types = positions >= np.repeat(self.segment_a_lengths[rows], lengths)
        empty = torch.empty(0, dtype=torch.int64)
        return PackedBatch(
            input_ids=torch.from_numpy(taken.values.astype(np.int64)),
            token_type_ids=torch.from_numpy(types.astype(np.int64)),
            position_ids=torch.from_numpy(positions),
            cu_seqlens=torch.from_numpy(taken.offsets.astype(np.int32)),
            max_seqlen=int(lengths.max()),
            masked_lm_positions=empty,
            masked_lm_ids=empty,
            next_sentence_label=torch.full((len(rows),), NO_NEXT_SENTENCE),
        )


def joined(first: Sequences, second: Sequences) -> Sequences:
    """The inputs of both, one after the other."""
    return Sequences(
        Ragged(
            np.concatenate((first.input_ids.values, second.input_ids.values)),
            offsets_of(np.concatenate((first.lengths, second.lengths))),
        ),
        np.concatenate((first.segment_a_lengths, second.segment_a_lengths)),
        first.truncated + second.truncated,
    )


def tokenize(tokenizer: SubwordTokenizer, texts: Sequence[str]) -> Ragged:
    """Token ids of every text, without [CLS] and [SEP]."""
    return ragged(tokenizer.encode_all(texts))


def around_masks(tokenizer: SubwordTokenizer, text: str) -> tuple[list[int], list[int]]:
    """[CLS] text [SEP], whose [MASK]s are special tokens here, and their positions."""
    first, *others = tokenizer.encode_around_masks(text)
    # Each [MASK] of the text becomes the special token; tokenising the text whole would spell it.
    ids, places = [tokenizer.cls_id, *first], []
    for part in others:
        places.append(len(ids))
        ids += [tokenizer.mask_id, *part]
    return [*ids, tokenizer.sep_id], places


def encode(
    tokenizer: SubwordTokenizer,
    texts_a: Sequence[str],
    texts_b: Sequence[str] | None = None,
    *,
    max_seq_length: int,
) -> Sequences:
    """[CLS] A [SEP], or [CLS] A [SEP] B [SEP], truncated to `max_seq_length`."""
    ids_a = tokenize(tokenizer, texts_a)
    if texts_b is None:
        return assemble(tokenizer, ids_a, kept_a=np.minimum(ids_a.lengths, max_seq_length - 2))
    ids_b = tokenize(tokenizer, texts_b)
    kept_a, kept_b = truncated_lengths(ids_a.lengths, ids_b.lengths, room=max_seq_length - 3)
    return assemble(tokenizer, ids_a, kept_a=kept_a, ids_b=ids_b, kept_b=kept_b)


def truncated_lengths(lengths_a: Places, lengths_b: Places, *, room: int) -> tuple[Places, Places]:
    """Lengths of A and B of all pairs after popping one token at a time, as in the reference."""
    # The longer one is cut until both fit; if both are longer than half, A keeps the odd token.
    kept_a = np.minimum(lengths_a, np.maximum(room - lengths_b, (room + 1) // 2))
    return kept_a, np.minimum(lengths_b, room - kept_a)


def assemble(
    tokenizer: SubwordTokenizer,
    ids_a: Ragged,
    *,
    kept_a: Places,
    ids_b: Ragged | None = None,
    kept_b: Places | None = None,
) -> Sequences:
    """The first `kept_a` ids of A and `kept_b` of B, with special tokens."""
    # Filled with [SEP], then overwritten: what remains are the [SEP] after each segment.
    offsets = offsets_of(kept_a + 2 if kept_b is None else kept_a + kept_b + 3)
    flat = np.full(offsets[-1], tokenizer.sep_id, np.int32)
    flat[offsets[:-1]] = tokenizer.cls_id
    _put(flat, offsets[:-1] + 1, ids_a, kept_a)
    truncated = kept_a < ids_a.lengths
    if ids_b is not None and kept_b is not None:
        _put(flat, offsets[:-1] + kept_a + 2, ids_b, kept_b)
        truncated |= kept_b < ids_b.lengths
    return Sequences(Ragged(flat, offsets), kept_a + 2, int(truncated.sum()))


def batches_by_length(lengths: Places, *, token_budget: int) -> Iterator[Places]:
    """Rows in length-grouped batches of about `token_budget` tokens, longest first.

    In this order a batch that does not fit in memory fails at once, not at the end.
    """
    order = np.argsort(-lengths, kind="stable")
    yield from cut_by_budget(order, lengths[order], token_budget=token_budget)


def cut_by_budget(rows: Places, lengths: Places, *, token_budget: int) -> list[Places]:
    """`rows`, in order, in parts of about `token_budget` tokens each."""
    if lengths.sum() <= token_budget:
        return [rows]  # of a single short text, each small array counts
    # Which part each row's last token falls into; a part may exceed the budget by a row's rest.
    parts = (np.cumsum(lengths) - 1) // max(token_budget, 1)
    return list(np.split(rows, np.flatnonzero(np.diff(parts)) + 1))


def by_group(values_T: Tensor, sizes_G: Tensor) -> Tensor:
    """[T] values of consecutive groups as [G, S]; S is the size of the largest group.

    Rows are padded with minus infinity, so that a softmax over a row is over its group alone. The
    sizes are on the CPU: S must be known there without synchronising with a GPU.
    """
    places_1S = torch.arange(int(sizes_G.max()))[None]
    starts_G = sizes_G.cumsum(0) - sizes_G
    # The clip only keeps indices valid; what is outside is masked below.
    taken_GS = (starts_G[:, None] + places_1S).clamp_max(len(values_T) - 1)
    outside_GS = on(values_T.device, places_1S >= sizes_G[:, None])
    return values_T[on(values_T.device, taken_GS)].masked_fill(outside_GS, -math.inf)


def _put(flat: Ids, starts: Places, ids: Ragged, kept: Places) -> None:
    """Copy the first `kept[i]` ids of each list i to flat[starts[i]:]."""
    flat[ragged_indices(starts, kept)] = ids.values[ragged_indices(ids.offsets[:-1], kept)]
