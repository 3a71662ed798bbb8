"""Targets of next-token prediction, for left-to-right and right-to-left language models.

In:  examples as stored; the reading direction.
Out: the same examples with other targets: `masked_lm_positions` are the positions whose vectors
     predict, `masked_lm_ids` the ids they should predict.

Left to right, the vector at position i predicts the token at position i + 1: every token except
[CLS] once, including the last [SEP], which ends a text (Radford et al. 2018, 3.1). Right to left it
is the reverse.
"""

from dataclasses import dataclass, replace
from typing import Literal, TypeVar

import numpy as np

from artifacts.errors import UsageError
from artifacts.store import Artifact
from model.config import PretrainStage
from model.data.batch import NO_NEXT_SENTENCE
from model.data.shards import Examples, Sizes

SomeSizes = TypeVar("SomeSizes", bound=Sizes)


@dataclass(frozen=True)
class NextToken:
    """The targets of a language model."""

    step: Literal[1, -1]
    """Offset from the predicting position to the predicted one."""

    @staticmethod
    def of(direction: str) -> "NextToken":
        """The targets of an encoder with this `attention_direction`."""
        return NextToken(-1 if direction == "right_to_left" else 1)

    def sizes(self, sizes: SomeSizes) -> SomeSizes:
        """The sizes of the examples with these targets."""
        return replace(
            sizes,
            masked_counts=sizes.lengths - sizes.document_counts,
            next_sentence_labels=np.full_like(sizes.next_sentence_labels, NO_NEXT_SENTENCE),
        )

    def __call__(self, examples: Examples) -> Examples:
        """Predict every token except the first one in reading direction."""
        ends = np.cumsum(examples.lengths)
        places = np.arange(len(examples.input_ids)) - np.repeat(
            ends - examples.lengths, examples.lengths
        )
        of_documents = np.cumsum(examples.document_lengths)
        predicted = np.ones(len(places), dtype=np.bool_)
        predicted[of_documents - (examples.document_lengths if self.step == 1 else 1)] = False
        return replace(
            self.sizes(examples),
            masked_lm_positions=places[predicted] - self.step,
            masked_lm_ids=examples.input_ids[predicted],
        )

    def at_masked(self, examples: Examples) -> Examples:
        """Predict only the masked tokens, each from the original text on one side."""
        input_ids = examples.input_ids.copy()
        input_ids[examples.masked_places] = examples.masked_lm_ids
        return replace(
            examples,
            next_sentence_labels=np.full_like(examples.next_sentence_labels, NO_NEXT_SENTENCE),
            input_ids=input_ids,
            masked_lm_positions=examples.masked_lm_positions - self.step,
        )


def next_token(artifact: Artifact, stage: PretrainStage) -> NextToken | None:
    """The stage's targets; None if these are the masked tokens of `artifact`."""
    if stage.pretrain.objective != "next_token":
        return None
    masking = artifact.manifest.config["examples"]["masking"]
    if masking["mask_share"] or masking["random_share"]:
        raise UsageError(
            f"{artifact.directory}: tokens are replaced in these examples, but a language model "
            "needs unmodified text; set examples.masking.mask_share = 0 and random_share = 0"
        )
    return NextToken.of(stage.encoder.attention_direction)
