"""Held-out loss and accuracy of the masked language model and of its baselines.

In:  the held-out splits of an examples artifact; encoders; the n-gram baseline.
Out: losses in nats and top-1 accuracies, for every model on exactly the same masked tokens.
"""

import math
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from artifacts.results import GENERAL, LanguageModelScore
from artifacts.store import Artifact
from model.data.batch import NO_NEXT_SENTENCE, ragged_indices
from model.data.micro_batches import pack_examples
from model.data.shards import Examples, ExampleShards, select
from model.data.targets import NextToken
from model.encoder.models import PretrainingModel
from model.evaluation.ngram import NOTHING, TRAIN_SPLIT, NgramModel
from model.tasks.features import batches_by_length, tokens_at_once

# M masked tokens, V vocabulary

Int64 = NDArray[np.int64]

DOCUMENT_SPLIT = "heldout"


@dataclass(frozen=True)
class MaskedTokens:
    """The masked tokens of some examples, as input to the n-gram baseline."""

    left: Int64
    """[M] visible left neighbour; `NOTHING` for a special token."""

    right: Int64
    """[M] visible right neighbour."""

    words: Int64
    """[M] the original ids."""


@dataclass(frozen=True)
class HeldOut:
    """Held-out examples of one split and length."""

    split: str
    max_seq_length: int
    examples: Examples
    masked: MaskedTokens


class Quality(NamedTuple):
    """Means over masked tokens, and over examples with a next-sentence label."""

    mlm_loss: float
    mlm_accuracy: float
    next_sentence_accuracy: float | None = None


def held_out(
    examples: Artifact, *, special_ids: frozenset[int], limit: int, mask_id: int | None = None
) -> list[HeldOut]:
    """Every split but train, at every length, with at most `limit` examples each.

    `mask_id`, if given, replaces every predicted token, whatever the examples have there.
    """
    kinds = {
        (str(entry.statistics["split"]), int(entry.statistics["max_seq_length"]))
        for entry in examples.manifest.files
        if "max_seq_length" in entry.statistics and (entry.rows is None or entry.rows > 0)
    }
    found = []
    for split, length in sorted(kinds):
        if split == TRAIN_SPLIT:
            continue
        shards = ExampleShards(examples, split=split, max_seq_length=length)
        # The first examples of copy 0: buckets are assigned by hash, so this is a fair sample.
        counts = np.minimum(np.array(shards.rows[0]), limit)
        shard, row = np.repeat(np.arange(len(counts)), counts), ragged_indices(0, counts)
        read = shards.gather(0, shard[:limit], row[:limit])
        if mask_id is not None:
            read = with_masks(read, mask_id)
        if len(read):
            found.append(HeldOut(split, length, read, masked_tokens(read, special_ids)))
    return found


def with_masks(examples: Examples, mask_id: int) -> Examples:
    """The examples with [MASK] at every predicted position."""
    input_ids = examples.input_ids.copy()
    input_ids[examples.masked_places] = mask_id
    return replace(examples, input_ids=input_ids)


def masked_tokens(examples: Examples, special_ids: frozenset[int]) -> MaskedTokens:
    """Neighbours and labels of every masked token."""
    places = examples.masked_places
    ids = examples.input_ids.astype(np.int64)
    visible = np.where(np.isin(ids, sorted(special_ids)), NOTHING, ids)
    # The first position is [CLS] and the last one [SEP], so a masked token has two neighbours.
    words = examples.masked_lm_ids.astype(np.int64)
    return MaskedTokens(visible[places - 1], visible[places + 1], words)


def evaluate_ngram(model: NgramModel, masked: MaskedTokens) -> Quality:
    """Loss and accuracy of the n-gram baseline on these tokens."""
    loss, hits = 0.0, 0
    for part, probabilities in model.chunks(masked.left, masked.right):
        words = masked.words[part]
        loss -= float(np.log(probabilities[np.arange(len(words)), words]).sum(dtype=np.float64))
        hits += int((probabilities.argmax(-1) == words).sum())
    return Quality(loss / len(masked.words), hits / len(masked.words))


def evaluate_unigram(unigram_V: NDArray[np.float32], masked: MaskedTokens) -> Quality:
    """Loss and accuracy of the unigram distribution on these tokens."""
    probabilities = unigram_V[masked.words].astype(np.float64)
    return Quality(
        float(-np.log(probabilities).mean()), float((masked.words == unigram_V.argmax()).mean())
    )


@torch.inference_mode()
def evaluate_encoder(model: PretrainingModel, examples: Examples) -> Quality:
    """Losses and accuracies of the encoder with its pre-training heads."""
    model.eval()
    device = next(model.parameters()).device
    total = torch.zeros(3, dtype=torch.float64, device=device)
    for rows in batches_by_length(examples.lengths, token_budget=tokens_at_once(device)):
        found = model(pack_examples(select(examples, rows)).to(device))
        scores = (found.masked_lm_loss, found.masked_lm_correct, found.next_sentence_correct)
        total += torch.stack([score.double() for score in scores])
    sums: list[float] = total.tolist()
    masked = int(examples.masked_counts.sum())
    pairs = int((examples.next_sentence_labels != NO_NEXT_SENTENCE).sum())
    return Quality(sums[0] / masked, sums[1] / masked, sums[2] / pairs if pairs else None)


@dataclass(frozen=True)
class LanguageModels:
    """The models to compare."""

    pretrained: PretrainingModel
    random: PretrainingModel
    ngram: NgramModel
    unigram_entropy: float
    initial: PretrainingModel | None = None
    """The initial checkpoint of pre-training, if it can fill masks."""
    next_token: NextToken | None = None
    """How the encoder predicts masked tokens if it is a unidirectional language model."""


def score_held_out(
    part: HeldOut, models: LanguageModels, parts: list[HeldOut]
) -> LanguageModelScore:
    """Scores of every model on one of the held-out `parts`."""
    # The headline is a source held out entirely, at the shortest length, else held-out documents.
    corpus = [other for other in parts if other.split != GENERAL] or parts
    sources = [other for other in corpus if other.split != DOCUMENT_SPLIT] or corpus
    first = min(sources, key=lambda other: (other.max_seq_length, other.split))
    # All encoders predict the same tokens; a unidirectional one sees only one side of the text.
    examples = models.next_token.at_masked(part.examples) if models.next_token else part.examples
    pretrained = evaluate_encoder(models.pretrained, examples)
    initial = evaluate_encoder(models.initial, examples) if models.initial else None
    ngram = evaluate_ngram(models.ngram, part.masked)
    unigram = evaluate_unigram(models.ngram.unigram_V, part.masked)
    labels = part.examples.next_sentence_labels
    return LanguageModelScore(
        split=part.split,
        headline=(part.split, part.max_seq_length) == (first.split, first.max_seq_length),
        max_seq_length=part.max_seq_length,
        examples=len(part.examples),
        masked_tokens=len(part.masked.words),
        mlm_loss=pretrained.mlm_loss,
        mlm_accuracy=pretrained.mlm_accuracy,
        mlm_perplexity=math.exp(min(pretrained.mlm_loss, 700.0)),
        initial_mlm_loss=initial.mlm_loss if initial else None,
        initial_mlm_accuracy=initial.mlm_accuracy if initial else None,
        random_mlm_loss=evaluate_encoder(models.random, examples).mlm_loss,
        unigram_entropy=models.unigram_entropy,
        unigram_loss=unigram.mlm_loss,
        unigram_accuracy=unigram.mlm_accuracy,
        count_model_loss=ngram.mlm_loss,
        count_model_accuracy=ngram.mlm_accuracy,
        next_sentence_examples=int((labels != NO_NEXT_SENTENCE).sum()),
        next_sentence_accuracy=pretrained.next_sentence_accuracy,
        next_sentence_majority=majority_share(labels),
    )


def majority_share(labels: Int64) -> float | None:
    """Share of the more frequent next-sentence label; None if no example has one."""
    present = labels[labels != NO_NEXT_SENTENCE]
    return float(np.bincount(present).max() / len(present)) if len(present) else None
