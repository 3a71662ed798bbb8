"""Masks drawn anew: `masks = "redrawn"` gives every epoch its own, whatever the copies on disk.

In:  examples as stored, masks and all; a key; the number of each example within its epoch.
Out: the same examples with other masks: as many, by the reference's rule.

The rule (reference: create_pretraining_data.py:342-405): of the tokens that are neither [CLS] nor
[SEP], as many as before are drawn; 80 % become [MASK], 10 % a random word-piece, 10 % stay.
The draw is addressed by (key, example, token), so it does not depend on how a batch is cut.
"""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from artifacts.errors import UsageError
from artifacts.store import Artifact
from artifacts.tokenizer import WordPieceTokenizer
from model.data.shards import Examples
from model.training.chance import address, random_bits

Int64 = NDArray[np.int64]

_TOKENS_PER_EXAMPLE = 1 << 16  # positions are uint16


@dataclass(frozen=True)
class Masking:
    """What stands in the place of a predicted token."""

    mask_id: int
    vocabulary_size: int
    mask_share: float
    random_share: float

    @staticmethod
    def of(artifact: Artifact, tokenizer: WordPieceTokenizer) -> "Masking":
        """The rule by which `artifact` was masked."""
        masking: dict[str, Any] = artifact.manifest.config["examples"]["masking"]
        if masking["unit"] != "token":
            raise UsageError(
                f"pretrain.masks is redrawn, but {artifact.directory} masks by {masking['unit']}; "
                'redrawing knows single tokens only: use masks = "stored"'
            )
        return Masking(
            mask_id=tokenizer.mask_id,
            vocabulary_size=tokenizer.size,
            mask_share=masking["mask_share"],
            random_share=masking["random_share"],
        )


def redraw(examples: Examples, numbers: Int64, *, masking: Masking, key: int) -> Examples:
    """`examples` with new masks; `numbers[i]` addresses example i's draws."""
    starts = np.cumsum(examples.lengths) - examples.lengths
    originals = _unmasked(examples, starts)
    counters = _counters(examples.lengths, starts, numbers)
    chosen = _choose(examples, starts, random_bits(address(key, "which"), counters))
    row_of_chosen = np.repeat(np.arange(len(examples)), examples.masked_counts)
    input_ids = originals.copy()
    input_ids[chosen] = _replacements(originals[chosen], counters[chosen], masking, key)
    return replace(
        examples,
        input_ids=input_ids,
        masked_lm_positions=chosen - starts[row_of_chosen],
        masked_lm_ids=originals[chosen],
    )


def _unmasked(examples: Examples, starts: Int64) -> NDArray[Any]:
    """The tokens as they stood in the text."""
    places = np.repeat(starts, examples.masked_counts) + examples.masked_lm_positions
    originals = examples.input_ids.copy()
    originals[places] = examples.masked_lm_ids
    return originals


def _counters(lengths: Int64, starts: Int64, numbers: Int64) -> Int64:
    """One number for each token: example × 65,536 + place."""
    places = np.arange(int(lengths.sum())) - np.repeat(starts, lengths)
    return np.repeat(numbers, lengths) * _TOKENS_PER_EXAMPLE + places


def _choose(examples: Examples, starts: Int64, bits: NDArray[np.uint64]) -> Int64:
    """The places of the new masks among all tokens, ascending."""
    draws = (bits >> np.uint64(11)).astype(np.float64)
    ends = starts + examples.lengths - 1
    for special in (starts, starts + examples.segment_a_lengths - 1, ends):
        draws[special] = np.inf  # never drawn: there are at least as many other tokens
    rows = np.repeat(np.arange(len(examples)), examples.lengths)
    by_row_and_draw = np.lexsort((draws, rows))
    places_in_row = np.arange(len(rows)) - np.repeat(starts, examples.lengths)
    taken = places_in_row < np.repeat(examples.masked_counts, examples.lengths)
    return np.sort(by_row_and_draw[taken])


def _replacements(
    originals: NDArray[Any], counters: Int64, masking: Masking, key: int
) -> NDArray[Any]:
    share = (random_bits(address(key, "how"), counters) >> np.uint64(11)) * 2.0**-53
    words = random_bits(address(key, "word"), counters) % np.uint64(masking.vocabulary_size)
    masked = share < masking.mask_share
    random = ~masked & (share < masking.mask_share + masking.random_share)
    return np.where(masked, masking.mask_id, np.where(random, words, originals)).astype(
        originals.dtype
    )
