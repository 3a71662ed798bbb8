"""Held-out quality of the masked language model, beside its baselines.

In:  examples of a held-out split; models; the count model.
Out: losses in nats and accuracies over exactly the same masked positions for everyone.
"""

import itertools
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from model.data.micro_batches import pack_examples
from model.data.shards import Examples, ExampleShards, select
from model.encoder.batch import NO_NEXT_SENTENCE
from model.encoder.pretraining import PretrainingModel
from model.evaluation.ngram import NOTHING, CountModel

Int64 = NDArray[np.int64]

EVALUATION_TOKENS = 8192


@dataclass(frozen=True)
class Judged:
    """Means over the judged positions and examples."""

    mlm_loss: float
    mlm_accuracy: float
    next_sentence_accuracy: float | None = None


@dataclass(frozen=True)
class Cloze:
    """The masked positions of some examples as the count model sees them."""

    left: Int64
    """[M] visible left neighbour; `NOTHING` for special tokens."""

    right: Int64
    """[M] visible right neighbour."""

    words: Int64
    """[M] what stood there."""


def read_examples(shards: ExampleShards, *, limit: int) -> Examples:
    """The first `limit` examples of copy 0, buckets in order: hashed, so a fair sample."""
    counts = np.minimum(np.array(shards.rows[0]), limit)
    shard = np.repeat(np.arange(len(counts)), counts)
    row = np.arange(len(shard)) - np.repeat(np.cumsum(counts) - counts, counts)
    return shards.gather(0, shard[:limit], row[:limit])


def cloze_of(examples: Examples, special_ids: frozenset[int]) -> Cloze:
    """Neighbours and answers of every masked position."""
    starts = np.cumsum(examples.lengths) - examples.lengths
    places = np.repeat(starts, examples.masked_counts) + examples.masked_lm_positions
    ids = examples.input_ids.astype(np.int64)
    visible = np.where(np.isin(ids, sorted(special_ids)), NOTHING, ids)
    # Position 0 is [CLS] and the last one [SEP]: a masked position always has neighbours.
    return Cloze(visible[places - 1], visible[places + 1], examples.masked_lm_ids.astype(np.int64))


def judge_counts(model: CountModel, cloze: Cloze) -> Judged:
    """The count model on these positions."""
    loss, hits = 0.0, 0
    for part, probabilities in model.chunks(cloze.left, cloze.right):
        words = cloze.words[part]
        loss -= float(np.log(probabilities[np.arange(len(words)), words]).sum(dtype=np.float64))
        hits += int((probabilities.argmax(-1) == words).sum())
    return Judged(loss / len(cloze.words), hits / len(cloze.words))


def judge_unigram(unigram_V: NDArray[np.float32], cloze: Cloze) -> Judged:
    """Training frequencies on these positions, their context unseen."""
    probabilities = unigram_V[cloze.words].astype(np.float64)
    return Judged(
        float(-np.log(probabilities).mean()), float((cloze.words == unigram_V.argmax()).mean())
    )


@torch.inference_mode()
def judge_encoder(model: PretrainingModel, examples: Examples) -> Judged:
    """The encoder with its heads."""
    model.eval()
    device = next(model.parameters()).device
    sums = np.zeros(3)
    for part in by_length(examples):
        found = model(pack_examples(part).to(device))
        sums += (
            float(found.masked_lm_loss),
            float(found.masked_lm_correct),
            float(found.next_sentence_correct),
        )
    masked = int(examples.masked_counts.sum())
    asked = int((examples.next_sentence_labels != NO_NEXT_SENTENCE).sum())
    return Judged(sums[0] / masked, sums[1] / masked, sums[2] / asked if asked else None)


def by_length(examples: Examples) -> Iterator[Examples]:
    """Batches of similar length, at most about `EVALUATION_TOKENS` tokens each."""
    order = np.argsort(-examples.lengths, kind="stable")
    ordered = select(examples, order)
    groups = (np.cumsum(ordered.lengths) - 1) // EVALUATION_TOKENS
    cuts = [0, *(np.flatnonzero(np.diff(groups)) + 1).tolist(), len(order)]
    for begin, end in itertools.pairwise(cuts):
        yield select(ordered, np.arange(begin, end))


def entropy(counts: Int64) -> float:
    """Of the distribution that counts describe, in nats."""
    shares = counts[counts > 0] / counts.sum()
    return float(-(shares * np.log(shares)).sum())


def majority_share(labels: Int64) -> float | None:
    """Share of the more frequent next-sentence answer; None where none is asked."""
    asked = labels[labels != NO_NEXT_SENTENCE]
    return float(np.bincount(asked).max() / len(asked)) if len(asked) else None
