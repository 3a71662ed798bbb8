"""One step's work for one rank: packed micro-batches, and the counts all ranks divide by.

In:  the curriculum (which examples), the shards (their columns), the cut (whose they are).
Out: `StepBatch`, made ahead of time by a thread that NumPy lets run beside the training.

Lengths, mask counts and labels of the *whole* global batch are read on every rank (a few bytes an
example), so the counts that normalise the losses are known without communication; tokens only of
the rank's own share.
"""

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from model.data.dynamic_masking import Masking, redraw
from model.data.micro_batches import CostModel, Cut, cut
from model.data.order import BatchAddress, Curriculum
from model.data.shards import Examples, ExampleShards
from model.encoder.batch import NO_NEXT_SENTENCE, PackedBatch
from model.training.chance import address

Int64 = NDArray[np.int64]


@dataclass(frozen=True)
class StepBatch:
    """What one rank computes in one step."""

    step: int
    address: BatchAddress
    micro_batches: tuple[PackedBatch, ...]
    """As many on every rank; an empty one is one [CLS] [SEP] of which nothing is asked."""

    masked: int
    """Masked tokens of the global batch."""

    labelled: int
    """Examples of the global batch with a next-sentence label."""

    examples: int
    """Examples of the global batch."""

    tokens: int
    """Tokens of the global batch."""

    squared_lengths: int
    """Sum of squared lengths of the global batch: attention's work."""

    imbalance: float
    """Largest rank's cost over the mean rank's, minus 1."""


@dataclass(frozen=True)
class Share:
    """Which part of every batch this process computes."""

    rank: int
    ranks: int
    token_budget: int


@dataclass(frozen=True)
class BatchSource:
    """Steps of one run, as this rank sees them."""

    curriculum: Curriculum
    shards: dict[int, ExampleShards]
    share: Share
    cost: CostModel
    cls_sep: tuple[int, int]
    masking: Masking | None = None
    """Draw masks anew by this rule; None: as stored."""

    purpose: str = ""
    """What addresses the redrawn masks: the artifact's digest and the seed."""

    def __call__(self, step: int) -> StepBatch:
        """The batch of `step`, counted from 0."""
        batch = self.curriculum.batch(step)
        length = self.curriculum.lengths[batch.max_seq_length]
        copy = batch.epoch % length.copies
        shards, rows = self.curriculum.locate(batch)
        sizes = self.shards[batch.max_seq_length].sizes(copy, shards, rows)
        costs = self.cost(sizes.lengths, sizes.masked_counts)
        plan = cut(
            sizes.lengths, costs, ranks=self.share.ranks, token_budget=self.share.token_budget
        )
        return StepBatch(
            step=step,
            address=batch,
            micro_batches=tuple(
                self._micro_batch(batch, plan.share(self.share.rank, micro), shards, rows)
                for micro in range(plan.micro_batches)
            ),
            masked=int(sizes.masked_counts.sum()),
            labelled=int((sizes.next_sentence_labels != NO_NEXT_SENTENCE).sum()),
            examples=len(rows),
            tokens=int(sizes.lengths.sum()),
            squared_lengths=int((sizes.lengths**2).sum()),
            imbalance=_imbalance(plan, costs, self.share.ranks),
        )

    def rows_of(self, batch: StepBatch) -> list[str]:
        """Every example of the global batch as `shard:row`, for messages about a bad batch."""
        shards, rows = self.curriculum.locate(batch.address)
        files = self.shards[batch.address.max_seq_length]
        return [f"{files.name(s)}:{r}" for s, r in zip(shards, rows, strict=True)]

    def _micro_batch(
        self, batch: BatchAddress, places: Int64, shards: Int64, rows: Int64
    ) -> PackedBatch:
        if not len(places):
            return nothing_asked(*self.cls_sep)
        length = self.curriculum.lengths[batch.max_seq_length]
        examples = self.shards[batch.max_seq_length].gather(
            batch.epoch % length.copies, shards[places], rows[places]
        )
        if self.masking is not None:
            key = address(self.purpose, "masks", batch.max_seq_length, batch.epoch)
            examples = redraw(examples, batch.first + places, masking=self.masking, key=key)
        return pack_examples(examples)


def pack_examples(examples: Examples) -> PackedBatch:
    """The examples one after another, in their order."""
    ends = np.cumsum(examples.lengths)
    starts = ends - examples.lengths
    position_ids = np.arange(int(ends[-1])) - np.repeat(starts, examples.lengths)
    token_types = position_ids >= np.repeat(examples.segment_a_lengths, examples.lengths)
    masked = np.repeat(starts, examples.masked_counts) + examples.masked_lm_positions
    return PackedBatch(
        input_ids=_tensor(examples.input_ids),
        token_type_ids=_tensor(token_types),
        position_ids=_tensor(position_ids),
        cu_seqlens=torch.from_numpy(np.concatenate(([0], ends)).astype(np.int32)),
        max_seqlen=int(examples.lengths.max()),
        masked_lm_positions=_tensor(masked),
        masked_lm_ids=_tensor(examples.masked_lm_ids),
        next_sentence_label=_tensor(examples.next_sentence_labels),
    )


def nothing_asked(cls_id: int, sep_id: int) -> PackedBatch:
    """A micro-batch for a rank that has run out: its losses are sums over nothing."""
    nothing = np.empty(0, np.int64)
    one = np.array([2], np.int64)
    return pack_examples(
        Examples(
            lengths=one,
            input_ids=np.array([cls_id, sep_id]),
            segment_a_lengths=one,
            masked_counts=np.zeros(1, np.int64),
            masked_lm_positions=nothing,
            masked_lm_ids=nothing,
            next_sentence_labels=np.array([NO_NEXT_SENTENCE], np.int64),
        )
    )


def _tensor(values: NDArray[np.generic]) -> torch.Tensor:
    return torch.from_numpy(values.astype(np.int64))


def _imbalance(plan: Cut, costs: NDArray[np.float64], ranks: int) -> float:
    work = np.bincount(plan.rank, weights=costs, minlength=ranks)
    return float(work.max() / work.mean() - 1) if len(costs) else 0.0
