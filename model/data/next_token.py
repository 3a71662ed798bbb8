"""Next-token prediction: the targets of a left-to-right or right-to-left language model.

In:  examples as stored; the direction in which they are read.
Out: the same examples with other targets: `masked_lm_positions` are the positions whose vectors
     predict, `masked_lm_ids` the ids they should predict.

Left to right, the vector at position i predicts the token at position i + 1: every token but [CLS]
once, including the last [SEP], which ends a text (Radford et al. 2018, 3.1). Right to left it is
the reverse.
"""

from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from artifacts.errors import UsageError
from artifacts.store import Artifact
from model.config import PretrainStage
from model.data.batch import NO_NEXT_SENTENCE
from model.data.shards import Examples, Sizes


@dataclass(frozen=True)
class NextToken:
    """The targets of a language model."""

    step: Literal[1, -1]
    """Offset from the position that predicts to the one predicted."""

    @staticmethod
    def of(direction: str) -> "NextToken":
        """The targets of an encoder with this `attention_direction`."""
        return NextToken(-1 if direction == "right_to_left" else 1)

    def sizes(self, sizes: Sizes) -> Sizes:
        """The sizes of each example with these targets."""
        return Sizes(
            lengths=sizes.lengths,
            masked_counts=sizes.lengths - sizes.document_counts,
            next_sentence_labels=np.full_like(sizes.next_sentence_labels, NO_NEXT_SENTENCE),
            document_counts=sizes.document_counts,
            document_lengths=sizes.document_lengths,
        )

    def __call__(self, examples: Examples) -> Examples:
        """Every token is a target, except the one that is read first."""
        ends = np.cumsum(examples.lengths)
        places = np.arange(len(examples.input_ids)) - np.repeat(
            ends - examples.lengths, examples.lengths
        )
        of_documents = np.cumsum(examples.document_lengths)
        asked = np.ones(len(places), dtype=np.bool_)
        asked[of_documents - (examples.document_lengths if self.step == 1 else 1)] = False
        return replace(
            examples,
            **vars(self.sizes(examples)),
            masked_lm_positions=places[asked] - self.step,
            masked_lm_ids=examples.input_ids[asked],
        )

    def at_masked(self, examples: Examples) -> Examples:
        """Only the masked tokens as targets, each predicted from the original text on one side."""
        input_ids = examples.input_ids.copy()
        input_ids[examples.masked_places] = examples.masked_lm_ids
        return replace(
            examples,
            next_sentence_labels=np.full_like(examples.next_sentence_labels, NO_NEXT_SENTENCE),
            input_ids=input_ids,
            masked_lm_positions=examples.masked_lm_positions - self.step,
        )


def next_token(artifact: Artifact, stage: PretrainStage) -> NextToken | None:
    """The stage's targets; None where they are the masked tokens of `artifact`."""
    if stage.pretrain.objective != "next_token":
        return None
    masking = artifact.manifest.config["examples"]["masking"]
    if masking["mask_share"] or masking["random_share"]:
        raise UsageError(
            f"{artifact.directory}: tokens are replaced in these examples, and a language model "
            "reads text as it is; set examples.masking.mask_share = 0 and random_share = 0"
        )
    return NextToken.of(stage.encoder.attention_direction)
