"""Dynamic masking: new masks every epoch, regardless of the number of copies on disk.

In:  examples as stored, including their masks; a key; the number of each example in its epoch.
Out: the same examples with as many new masks, drawn by the reference's rule.

The rule (reference: create_pretraining_data.py:342-405): as many tokens as before are drawn from
those that are neither [CLS] nor [SEP]; 80 % become [MASK], 10 % a random word-piece, 10 % stay.
With `masks = "static"` the stored masks are used (RoBERTa compares both: Liu et al. 2019, section
4.1). A draw is addressed by (key, example, token), so it does not depend on how a batch is split.
"""

from dataclasses import dataclass, replace

import numpy as np

from artifacts.errors import UsageError
from artifacts.rng import address, draw
from artifacts.store import Artifact
from artifacts.tokenizer import SubwordTokenizer
from model.data.shards import Examples, Int64

_TOKENS_PER_EXAMPLE = 1 << 16  # positions are uint16


@dataclass(frozen=True)
class DynamicMasking:
    """The replacement of predicted tokens."""

    mask_id: int
    vocabulary_size: int
    mask_share: float
    random_share: float

    @staticmethod
    def of(artifact: Artifact, tokenizer: SubwordTokenizer) -> "DynamicMasking":
        """The rule by which `artifact` was masked."""
        masking = artifact.manifest.config["examples"]["masking"]
        if masking["unit"] != "token":
            raise UsageError(
                f"pretrain.masks is dynamic, but {artifact.directory} masks by {masking['unit']}; "
                'dynamic masking supports single tokens only: use masks = "static"'
            )
        return DynamicMasking(
            mask_id=tokenizer.mask_id,
            vocabulary_size=tokenizer.size,
            mask_share=masking["mask_share"],
            random_share=masking["random_share"],
        )

    def __call__(self, examples: Examples, numbers: Int64, *, key: int) -> Examples:
        """`examples` with new masks; `numbers[i]` addresses example i's draws."""
        lengths, counts = examples.lengths, examples.masked_counts
        starts = np.cumsum(lengths) - lengths
        example_of_token = np.repeat(np.arange(len(examples)), lengths)
        place = np.arange(len(example_of_token)) - starts[example_of_token]
        counters = numbers[example_of_token] * _TOKENS_PER_EXAMPLE + place

        originals = examples.input_ids.copy()
        originals[examples.masked_places] = examples.masked_lm_ids

        # The tokens with the smallest draws of each example are predicted.
        order = (draw(_stream(key, "which"), counters) >> np.uint64(11)).astype(np.float64)
        ends = np.cumsum(examples.document_lengths)
        end_of_a = starts + examples.segment_a_lengths
        for special in (ends - examples.document_lengths, end_of_a - 1, ends - 1):
            order[special] = np.inf  # never drawn, since there are at least as many other tokens
        by_example = np.lexsort((order, example_of_token))
        chosen = np.sort(by_example[place < counts[example_of_token]])

        fate = (draw(_stream(key, "how"), counters[chosen]) >> np.uint64(11)) * 2.0**-53
        words = draw(_stream(key, "word"), counters[chosen]) % np.uint64(self.vocabulary_size)
        masked = fate < self.mask_share
        random = ~masked & (fate < self.mask_share + self.random_share)
        input_ids = originals.copy()
        input_ids[chosen] = np.where(
            masked, self.mask_id, np.where(random, words, originals[chosen])
        )
        return replace(
            examples,
            input_ids=input_ids,
            masked_lm_positions=place[chosen],
            masked_lm_ids=originals[chosen],
        )


def _stream(key: int, purpose: str) -> np.uint64:
    return np.uint64(address(key, purpose))
