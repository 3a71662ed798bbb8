"""Pre-training batches with realistic lengths, from a seed alone.

In:  how many sequences, the longest length.
Out: `Example`s, in micro-batches, and padded as Hugging Face wants them.

Lengths follow what Google's generator makes of Wikipedia: at 128, 55.6 % full and a mean of 104; at
512, 16.9 % full and a mean of 226. Full sequences alone would hide what padding costs.
"""

import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from model.data.batch import Example

VOCABULARY = 30522
FIRST_WORD = 1000
"""Word-pieces before it are special or unused in the released vocabulary."""

FULL_SHARE = {128: 0.5557, 512: 0.1692}
SHARE_BY_TENTH = {
    128: (0.0, 0.008, 0.034, 0.063, 0.070, 0.062, 0.060, 0.055, 0.050, 0.042),
    512: (0.118, 0.231, 0.134, 0.092, 0.068, 0.053, 0.043, 0.035, 0.030, 0.028),
}
"""Share of sequences whose length lies in each tenth of the longest, the full ones left out."""

PREDICTIONS = {128: 20, 512: 77}
MASKED_SHARE = 0.15
"""The reference's, of at most so many `PREDICTIONS`."""


def lengths(count: int, *, longest: int, seed: int) -> npt.NDArray[np.int64]:
    """Lengths of `count` sequences."""
    rng = np.random.default_rng([seed, longest])
    shares = np.array(SHARE_BY_TENTH[longest])
    tenth = rng.choice(10, size=count, p=shares / shares.sum())
    shorter = ((tenth + rng.random(count)) * longest / 10).astype(np.int64).clip(8, longest - 1)
    return np.where(rng.random(count) < FULL_SHARE[longest], longest, shorter)


def examples(
    count: int, *, longest: int, seed: int, full: bool = False, masked_share: float = MASKED_SHARE
) -> list[Example]:
    """Random word-pieces with exactly as many masks as the reference draws, or that share of them.

    `full`: all sequences have the longest length.
    """
    rng = np.random.default_rng([seed, longest, 1])
    sizes = [longest] * count if full else lengths(count, longest=longest, seed=seed)
    found = []
    for size in map(int, sizes):
        masked = max(1, round(masked_share * size))
        if masked_share == MASKED_SHARE:
            masked = min(PREDICTIONS.get(longest, masked), masked)
        found.append(
            Example(
                input_ids=rng.integers(FIRST_WORD, VOCABULARY, size),
                segment_a_length=size // 2,
                masked_lm_positions=np.sort(
                    rng.choice(np.arange(1, size - 1), masked, replace=False)
                ),
                masked_lm_ids=rng.integers(FIRST_WORD, VOCABULARY, masked),
                next_sentence_label=int(rng.integers(0, 2)),
            )
        )
    return found


def cut(batch: Sequence[Example], token_budget: int) -> list[list[Example]]:
    """Micro-batches of at most `token_budget` tokens."""
    parts: list[list[Example]] = [[]]
    tokens = 0
    for example in batch:
        if parts[-1] and tokens + len(example.input_ids) > token_budget:
            parts.append([])
            tokens = 0
        parts[-1].append(example)
        tokens += len(example.input_ids)
    return parts


def padded(batch: Sequence[Example], *, longest: int) -> dict[str, torch.Tensor]:
    """[B, longest] as a padding collator makes it; labels -100 where nothing is asked."""
    names = ("input_ids", "token_type_ids", "attention_mask")
    inputs = {name: torch.zeros(len(batch), longest, dtype=torch.long) for name in names}
    labels = torch.full((len(batch), longest), -100)
    for row, example in enumerate(batch):
        size = len(example.input_ids)
        inputs["input_ids"][row, :size] = torch.as_tensor(example.input_ids)
        inputs["token_type_ids"][row, example.segment_a_length : size] = 1
        inputs["attention_mask"][row, :size] = 1
        labels[row, torch.as_tensor(example.masked_lm_positions)] = torch.as_tensor(
            example.masked_lm_ids
        )
    following = torch.tensor([example.next_sentence_label for example in batch])
    return {**inputs, "labels": labels, "next_sentence_label": following}
