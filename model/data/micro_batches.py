"""The work of one rank in one step: packed micro-batches, and the counts that normalise the losses.

In:  the curriculum (which examples), the shards (their columns), the token budget.
Out: `StepBatch`, prepared ahead of time in a thread; NumPy releases the GIL for most of it.

Every rank reads the lengths, mask counts and labels of the *whole* global batch (a few bytes per
example), so these counts and the distribution of work are known without communication; tokens are
read only for the rank's own share.
"""

from collections import deque
from collections.abc import Callable, Generator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np
import torch
from numpy.typing import NDArray

from cloze.artifacts.errors import UsageError
from cloze.artifacts.rng import address
from cloze.model.config import EncoderConfig
from cloze.model.data.batch import NO_NEXT_SENTENCE, Concatenated, PackedBatch, empty_micro_batch
from cloze.model.data.order import BatchAddress, Curriculum, MixedOrder
from cloze.model.data.shards import Examples, ExampleShards, Int64, Sizes
from cloze.model.data.targets import DynamicMasking, NextToken

# N examples of a global batch

Value = TypeVar("Value")


@dataclass(frozen=True)
class CostModel:
    """Work of an example, in units of one token's linear layers.

    Per layer and token, forward: 24 H² FLOPs in linear layers, 4 H S in attention over S keys; per
    masked token 2 H V in the vocabulary logits. Local layers of a modern encoder attend to as many
    keys as fit in their window.
    """

    attention: float
    masked: float

    @staticmethod
    def of(encoder: EncoderConfig, vocabulary_size: int) -> "CostModel":
        """The weights for one architecture."""
        width, layers = encoder.hidden_size, encoder.num_hidden_layers
        if encoder.family == "modern":
            # A token's FLOPs in an average layer: 2 per weight, and in local layers attention to a
            # full window, whatever the sequence length. Only the global layers' attention depends
            # on it.
            share = encoder.global_layers / layers
            window = 4 * width * (1 - share) * (encoder.local_attention + 1)
            token = 2 * encoder.layer_weights + window
            return CostModel(
                4 * width * share / token, 2 * width * vocabulary_size / token / layers
            )
        # 4 H / 24 H² for a key, and 2 H V / (24 H² × layers) for a masked token.
        return CostModel(attention=1 / (6 * width), masked=vocabulary_size / (12 * layers * width))

    def __call__(self, sizes: Sizes) -> NDArray[np.float64]:
        """Cost of each example, `[N]`."""
        keys = sizes.squared_lengths / sizes.lengths  # visible to a token
        costs: NDArray[np.float64] = (
            sizes.lengths * (1 + self.attention * keys) + self.masked * sizes.masked_counts
        )
        return costs


def plan_micro_batches(
    lengths: Int64, costs: NDArray[np.float64], *, ranks: int, token_budget: int
) -> list[list[Int64]]:
    """The examples, of N, in each micro-batch of each rank: at most `token_budget` tokens.

    Deterministic, so every rank makes the same plan without communication. Examples are dealt by
    descending cost, back and forth: first to the ranks, then to as few micro-batches per rank as
    possible, the same number for all. In a micro-batch, which may be empty, they keep this order.
    """
    if len(lengths) and int(lengths.max()) > token_budget:
        raise UsageError(
            f"training.token_budget is {token_budget}, but an example has {int(lengths.max())} "
            "tokens; raise it to at least the longest sequence length"
        )
    # Largest first and back and forth, so that the early differences between ranks cancel out.
    order = np.argsort(-costs, kind="stable")
    lengths = lengths[order]
    # `turn` is also the position of an example among those of its rank.
    turn, rank = _deal(np.arange(len(order)), ranks)
    most_tokens = np.bincount(rank, weights=lengths, minlength=ranks).max()
    # As many as the fullest rank needs at least. Dealing by cost may overfill one of them; then one
    # more, at the latest until every example is alone, which fits by the check above.
    micro_batches = max(1, -(-int(most_tokens) // token_budget))
    while True:
        _, micro = _deal(turn, micro_batches)
        part = rank * micro_batches + micro
        tokens = np.bincount(part, weights=lengths, minlength=ranks * micro_batches)
        if tokens.max() <= token_budget:
            break
        micro_batches += 1
    # Sorted by (rank, micro-batch), the parts are consecutive runs; the stable sort keeps the order
    # of costs within each.
    ends = np.cumsum(np.bincount(part, minlength=ranks * micro_batches))
    parts = np.split(order[np.argsort(part, kind="stable")], ends[:-1])
    return [parts[first : first + micro_batches] for first in range(0, len(parts), micro_batches)]


def _deal(places: Int64, hands: int) -> tuple[Int64, Int64]:
    """The round and the recipient of each place, dealt back and forth."""
    turn, hand = places // hands, places % hands
    return turn, np.where(turn % 2 == 0, hand, hands - 1 - hand)


def pack_examples(examples: Examples) -> PackedBatch:
    """Concatenate the documents of the examples, in order; each document is a sequence."""
    return Concatenated(
        examples.input_ids,
        examples.document_lengths,
        # Columns of examples are repeated for each of their documents, which become sequences.
        segment_a_lengths=np.repeat(examples.segment_a_lengths, examples.document_counts),
        masked_lm_positions=examples.masked_places,
        masked_lm_ids=examples.masked_lm_ids,
        next_sentence_labels=np.repeat(examples.next_sentence_labels, examples.document_counts),
    ).packed()


@dataclass(frozen=True)
class StepBatch:
    """What one rank computes in one step."""

    step: int
    address: BatchAddress
    micro_batches: tuple[PackedBatch, ...]
    """The same number on every rank; see `empty_micro_batch`."""

    masked: int
    labelled: int
    """Examples with a next-sentence label; these counts are those of the global batch."""

    examples: int
    tokens: int
    squared_lengths: int
    """Sum of the squared document lengths of the global batch: the work of attention."""

    imbalance: float
    """Largest cost of a rank divided by the mean, minus 1."""

    source_tokens: tuple[int, ...] = ()
    """Tokens of each source, if they are mixed."""

    copied: torch.cuda.Event | None = None
    """Recorded once the micro-batches have been copied to the GPU, if they are."""

    def wait_for_copies(self) -> None:
        """Make the current stream wait for the micro-batches; the host does not wait."""
        if self.copied is not None:
            # The copies ran on another stream. Without `record_stream`, torch's allocator could
            # hand out their memory as soon as the batch is dropped, while kernels queued here still
            # read it.
            stream = torch.cuda.current_stream()
            stream.wait_event(self.copied)
            for micro_batch in self.micro_batches:
                for tensor in micro_batch.tensors().values():
                    tensor.record_stream(stream)  # keeps its memory until the work there is done


@dataclass(frozen=True)
class Share:
    """The part of every batch that this process computes."""

    rank: int
    ranks: int
    token_budget: int
    """Maximum tokens per micro-batch."""


@dataclass(frozen=True)
class BatchSource:
    """The steps of one run, from this rank's point of view."""

    curriculum: Curriculum
    shards: dict[int, ExampleShards]
    """By sequence length."""

    share: Share
    cost: CostModel
    cls_sep: tuple[int, int]
    masking: DynamicMasking | None = None
    """Draws new masks; None: use the stored ones."""

    next_token: NextToken | None = None
    """Predicts next tokens; None: the masked ones."""

    purpose: str = ""
    """Key of the random numbers for dynamic masks: the artifact's digest and the seed."""

    def __call__(self, step: int) -> StepBatch:
        """The batch of `step`, counted from 0."""
        batch = self.curriculum.batch(step)
        files = self.shards[batch.max_seq_length]
        order = self.curriculum.lengths[batch.max_seq_length]
        # Consecutive epochs read consecutive copies: the same text with other masks and pairs.
        places = order.locate(batch)
        sizes = files.sizes(*places)
        source_tokens = np.zeros(0, np.int64)
        if isinstance(order, MixedOrder):
            source_N = np.repeat(np.arange(len(order.sources)), order.counts(batch))
            source_tokens = np.bincount(source_N, sizes.lengths, minlength=len(order.sources))
        if self.next_token is not None:
            sizes = self.next_token.sizes(sizes)
        costs = self.cost(sizes)
        plan = plan_micro_batches(
            sizes.lengths, costs, ranks=self.share.ranks, token_budget=self.share.token_budget
        )
        micro_batches = []
        for mine in plan[self.share.rank]:
            if not len(mine):
                # Every rank computes the same number of micro-batches, because it communicates in
                # each.
                micro_batches.append(empty_micro_batch(*self.cls_sep))
                continue
            examples = files.gather(*(column[mine] for column in places))
            if self.masking is not None:
                # Addressed by the example's number in the epoch, so masks do not depend on ranks or
                # budgets.
                key = address(self.purpose, "masks", batch.max_seq_length, batch.epoch)
                examples = self.masking(examples, batch.first + mine, key=key)
            if self.next_token is not None:
                examples = self.next_token(examples)
            micro_batches.append(pack_examples(examples))
        # [ranks]: cost of each rank's share, for the log's imbalance
        work = np.array([costs[np.concatenate(theirs)].sum() for theirs in plan])
        return StepBatch(
            step=step,
            address=batch,
            micro_batches=tuple(micro_batches),
            masked=int(sizes.masked_counts.sum()),
            labelled=int((sizes.next_sentence_labels != NO_NEXT_SENTENCE).sum()),
            examples=len(sizes),
            tokens=int(sizes.lengths.sum()),
            source_tokens=tuple(int(tokens) for tokens in source_tokens),
            squared_lengths=int((sizes.document_lengths**2).sum()),
            imbalance=float(work.max() / work.mean() - 1),
        )

    def rows_of(self, batch: StepBatch) -> list[str]:
        """All examples of the global batch as `shard:row`, for messages about a bad batch."""
        length = batch.address.max_seq_length
        _, shards, rows = self.curriculum.lengths[length].locate(batch.address)
        files = self.shards[length]
        return [f"{files.name(s)}:{r}" for s, r in zip(shards, rows, strict=True)]


def on_device(
    source: Callable[[int], StepBatch], device: torch.device
) -> Callable[[int], StepBatch]:
    """The steps of `source`; for a GPU, copied there on a separate stream.

    The thread that makes the batches copies them from pinned memory while the previous step is
    computed. They are padded to few shapes. Call `wait_for_copies` before using a batch.
    """
    if device.type == "cpu":
        return source
    stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]  # torch has no types here

    def copied(step: int) -> StepBatch:
        batch = source(step)
        torch.cuda.set_device(device)  # a new thread starts on GPU 0 and would allocate there
        buckets = [micro_batch.bucketed() for micro_batch in batch.micro_batches]
        with torch.cuda.stream(stream):
            there = tuple(bucket.to(device) for bucket in buckets)
            return replace(batch, micro_batches=there, copied=stream.record_event())

    return copied


def prefetch(
    make: Callable[[int], Value], first: int, stop: int, *, depth: int = 4
) -> Generator[Value]:
    """`make(first)`, `make(first + 1)`, … up to `stop`, in order, at most `depth` of them ahead.

    One thread makes them while the caller is busy; its errors are raised where the value would have
    been consumed. Closing the generator stops the thread and drops unconsumed values.
    """
    thread = ThreadPoolExecutor(1, thread_name_prefix="prefetch")
    try:
        waiting = deque(thread.submit(make, i) for i in range(first, min(first + depth, stop)))
        # Each turn takes the oldest value, number `index - depth`, and orders one more in its
        # place.
        for index in range(first + depth, stop + depth):
            value = waiting.popleft().result()
            if index < stop:
                waiting.append(thread.submit(make, index))
            yield value
    finally:
        thread.shutdown(cancel_futures=True)
