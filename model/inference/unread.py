"""What a model could not read of its inputs: counted, to be said.

In:  token ids of inputs.
Out: how many are truncated, and how many consist mostly of words that the vocabulary lacks. These
     are all [UNK] to the model, which answers alike whatever they say.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from cloze.model.tasks.features import Sequences

UNREAD = 0.5
"""Share of an input's tokens that are [UNK], above which hardly anything of it is read."""


@dataclass
class Unread:
    """Counts of inputs."""

    inputs: int = 0
    truncated: int = 0
    unknown: int = 0

    def add(self, other: "Unread") -> None:
        """Count those of `other`, too."""
        self.inputs += other.inputs
        self.truncated += other.truncated
        self.unknown += other.unknown

    def report(self, say: Callable[[str], object], *, longest: int) -> None:
        """Say what was not read; `longest`: tokens beyond which inputs are truncated."""
        if self.truncated:
            say(f"{self.truncated:,} texts of more than {longest} tokens were truncated")
        if self.unknown:
            say(
                f"{self.unknown:,} of {self.inputs:,} texts are mostly words that the model's "
                "vocabulary lacks ([UNK]): what it computes of them says little"
            )


def unread_texts(texts: Iterable[Sequence[int]], *, unk_id: int) -> Unread:
    """The counts of tokenised texts, none of which is truncated yet."""
    found = Unread()
    for ids in texts:
        found.inputs += 1
        found.unknown += ids.count(unk_id) > UNREAD * len(ids)
    return found


def unread_sequences(sequences: Sequences, *, unk_id: int) -> Unread:
    """The counts of a task's inputs."""
    ids, lengths = sequences.input_ids, sequences.lengths
    unknown = np.add.reduceat(ids.values == unk_id, ids.offsets[:-1]) if len(ids) else lengths
    # [CLS] and [SEP] are no words
    mostly = unknown > UNREAD * (lengths - 2)
    return Unread(len(sequences), sequences.truncated, int((mostly & (unknown > 0)).sum()))
