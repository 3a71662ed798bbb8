"""Training batches drawn from a seed, with the lengths of real text or all full.

In:  an architecture, the maximum sequence length, the number of sequences per step.
Out: `Workload`: batches of `Example`s and their FLOPs; `cut`, which divides a batch by tokens.

The lengths follow what Google's generator makes of Wikipedia: at 128, 55.6 % of the sequences are
full and the mean is 104; at 512, 16.9 % and 226. Full sequences alone would hide the cost of
padding.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from cloze.model.config import EncoderConfig
from cloze.model.data.batch import Example

VOCABULARY = 30522
FIRST_WORD = 1000
"""Ids below it are special or unused in the released vocabulary."""

FULL_SHARE = {128: 0.5557, 512: 0.1692}
SHARE_BY_TENTH = {
    128: (0.0, 0.008, 0.034, 0.063, 0.070, 0.062, 0.060, 0.055, 0.050, 0.042),
    512: (0.118, 0.231, 0.134, 0.092, 0.068, 0.053, 0.043, 0.035, 0.030, 0.028),
}
"""Share of the sequences in each tenth of the maximum length, full sequences excluded."""

PREDICTIONS = {128: 20, 512: 77}
MASKED_SHARE = 0.15
"""The reference's mask rate, with at most `PREDICTIONS` masked tokens per sequence."""
MODERN_MASKED_SHARE = 0.3

SIZES = {
    "17M": (7, 256, 4, 384),
    "68M": (19, 512, 8, 768),
}
"""Layers, width, heads and inner width of Ettin's small encoders (Weller et al. 2025), here with
BERT's own layers: launch overhead weighs most on small models."""

LONGEST = 8192
"""Positions of modern encoders; they have no table of positions, so this costs nothing."""

DISTINCT = 4
"""Distinct batches per workload; later steps repeat them."""


def lengths(count: int, *, longest: int, seed: int) -> npt.NDArray[np.int64]:
    """Lengths of `count` sequences."""
    rng = np.random.default_rng([seed, longest])
    shares = np.array(SHARE_BY_TENTH[longest])
    tenth = rng.choice(10, size=count, p=shares / shares.sum())
    # Uniform within its tenth.
    shorter = ((tenth + rng.random(count)) * longest / 10).astype(np.int64).clip(8, longest - 1)
    return np.where(rng.random(count) < FULL_SHARE[longest], longest, shorter)


def encoder_config(size: str, **changes: object) -> EncoderConfig:
    """A preset or one of `SIZES`, with exact GELU as in Hugging Face's models.

    With the prefix `modern-`: a preset of that family, without dropout, since transformers'
    ModernBERT has none.
    """
    family, _, preset = size.rpartition("-")
    table: dict[str, object] = {"preset": size, "hidden_act": "gelu", **changes}
    if family:
        table = {"family": family, "preset": preset, "hidden_dropout_prob": 0.0, **changes}
        table |= {"max_position_embeddings": LONGEST}
    if size in SIZES:
        names = ("num_hidden_layers", "hidden_size", "num_attention_heads", "intermediate_size")
        table |= {"preset": None, **dict(zip(names, SIZES[size], strict=True))}
    return EncoderConfig.model_validate(table)


@dataclass(frozen=True)
class Workload:
    """One architecture and its batches: `sequences` of at most `longest` tokens per step."""

    size: str
    longest: int
    sequences: int
    full: bool = False
    """Whether all sequences have the maximum length."""

    @property
    def is_modern(self) -> bool:
        """Whether the encoder is of the modern family."""
        return self.size.startswith("modern-")

    @cached_property
    def batches(self) -> list[list[Example]]:
        """`DISTINCT` global batches."""
        return [list(self._examples(seed)) for seed in range(DISTINCT)]

    def _examples(self, seed: int) -> Iterator[Example]:
        """Sequences of random ids, each masked at the family's rate."""
        rng = np.random.default_rng([seed, self.longest, 1])
        sizes = np.full(self.sequences, self.longest)
        if not self.full:
            sizes = lengths(self.sequences, longest=self.longest, seed=seed)
        share = MODERN_MASKED_SHARE if self.is_modern else MASKED_SHARE
        for size in sizes.tolist():
            masked = max(1, round(share * size))
            if not self.is_modern:
                masked = min(PREDICTIONS.get(self.longest, masked), masked)
            input_ids = rng.integers(FIRST_WORD, VOCABULARY, size)
            # Neither [CLS] nor the last [SEP].
            places = rng.choice(np.arange(1, size - 1), masked, replace=False)
            yield Example(
                input_ids=input_ids,
                segment_a_length=size // 2,
                masked_lm_positions=np.sort(places),
                masked_lm_ids=rng.integers(FIRST_WORD, VOCABULARY, masked),
                next_sentence_label=int(rng.integers(0, 2)),
            )

    @cached_property
    def lengths(self) -> list[np.ndarray]:
        """[sequences] of each batch."""
        return [np.array([len(one.input_ids) for one in batch]) for batch in self.batches]

    @property
    def mean_length(self) -> float:
        """Tokens per sequence."""
        return float(np.mean(self.lengths))

    def masked(self, number: int) -> int:
        """Masked tokens of one step."""
        return sum(len(one.masked_lm_ids) for one in self.batches[number % DISTINCT])

    def flops(self, number: int, *, forward_only: bool = False) -> float:
        """FLOPs of one step's matrix products, on real tokens only.

        Of a training step, forward and backward; `forward_only`: of the encoder without its head.
        """
        sizes = self.lengths[number % DISTINCT]
        flops = encoder_config(self.size).training_flops(
            VOCABULARY,
            tokens=int(sizes.sum()),
            squared=int((sizes**2).sum()),
            masked=0 if forward_only else self.masked(number),
        )
        # The backward pass takes twice as many as the forward pass.
        return flops / 3 if forward_only else flops


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
