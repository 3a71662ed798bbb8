"""Training targets other than the stored masks: dynamic masks, or next tokens.

In:  examples as stored, including their masks. For dynamic masks: a key, and the number of each
     example in its epoch. For next tokens: the reading direction.
Out: the same examples with other `masked_lm_positions` and `masked_lm_ids`.

Dynamic masks are new in every epoch, regardless of the number of copies on disk, and as many as
before. The rule is the reference's (create_pretraining_data.py:342-405): tokens are drawn from
those that are neither [CLS] nor [SEP]; 80 % become [MASK], 10 % a random word-piece, 10 % stay.
With `masks = "static"` the stored masks are used (RoBERTa compares both: Liu et al. 2019, section
4.1). A draw is addressed by (key, example, token), so it does not depend on how a batch is split.

Next-token prediction is for left-to-right and right-to-left language models. Left to right, the
vector at position i predicts the token at position i + 1: every token except [CLS] once, including
the last [SEP], which ends a text (Radford et al. 2018, 3.1). Right to left it is the reverse.
"""

from dataclasses import dataclass, replace
from typing import Literal, TypeVar

import numpy as np

from cloze.artifacts.arrays import starts_of
from cloze.artifacts.errors import UsageError
from cloze.artifacts.rng import Replacement, address, draw
from cloze.artifacts.store import Artifact
from cloze.artifacts.tokenizer import SubwordTokenizer
from cloze.model.config import PretrainStage
from cloze.model.data.batch import NO_NEXT_SENTENCE, ragged_indices
from cloze.model.data.shards import Examples, Int64, Sizes

SomeSizes = TypeVar("SomeSizes", bound=Sizes)

_TOKENS_PER_EXAMPLE = 1 << 16  # positions are uint16


@dataclass(frozen=True)
class DynamicMasking:
    """New masks, with this replacement of predicted tokens."""

    replacement: Replacement

    @staticmethod
    def of(artifact: Artifact, tokenizer: SubwordTokenizer) -> "DynamicMasking":
        """The rule by which `artifact` was masked."""
        masking = artifact.manifest.config["examples"]["masking"]
        if masking["unit"] != "token":
            raise UsageError(
                f"pretrain.masks is dynamic, but {artifact.directory} masks by {masking['unit']}; "
                'dynamic masking supports single tokens only: use masks = "static"'
            )
        shares = masking["mask_share"], masking["random_share"]
        return DynamicMasking(Replacement(tokenizer.mask_id, tokenizer.size, *shares))

    def __call__(self, examples: Examples, numbers: Int64, *, key: int) -> Examples:
        """`examples` with new masks; `numbers[i]` addresses example i's draws."""
        lengths, counts = examples.lengths, examples.masked_counts
        # [N] first token of each example; [T] the example of each token, and its place there.
        starts = starts_of(lengths)
        example_of_token = np.repeat(np.arange(len(examples)), lengths)
        place = ragged_indices(0, lengths)
        # a number of its own for every (example, token), hence a draw of its own
        counters = numbers[example_of_token] * _TOKENS_PER_EXAMPLE + place

        # Undo the stored masks: start from the original text.
        originals = examples.input_ids.copy()
        originals[examples.masked_places] = examples.masked_lm_ids

        # The tokens with the smallest draws of each example are predicted.
        # 53 of the 64 bits, which a float64 holds exactly.
        order = (draw(_stream(key, "which"), counters) >> np.uint64(11)).astype(np.float64)
        # [CLS] of each document, [SEP] after segment A, [SEP] at the end of each document.
        ends = np.cumsum(examples.document_lengths)
        end_of_a = starts + examples.segment_a_lengths
        for special in (ends - examples.document_lengths, end_of_a - 1, ends - 1):
            order[special] = np.inf  # never drawn, since there are at least as many other tokens
        # Sorted by example, then by draw. The examples stay where they are, so `place` is now also
        # the rank of a draw within its example, and the `counts` lowest are those predicted.
        by_example = np.lexsort((order, example_of_token))
        chosen = np.sort(by_example[place < counts[example_of_token]])

        fates = draw(_stream(key, "how"), counters[chosen]) >> np.uint64(11)
        words = draw(_stream(key, "word"), counters[chosen]) % np.uint64(
            self.replacement.vocabulary_size
        )
        input_ids = originals.copy()
        input_ids[chosen], _, _ = self.replacement(originals[chosen], fates, words, bits=53)
        return replace(
            examples,
            input_ids=input_ids,
            masked_lm_positions=place[chosen],
            masked_lm_ids=originals[chosen],
        )


def _stream(key: int, purpose: str) -> np.uint64:
    return np.uint64(address(key, purpose))


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
        # [T] places within the examples; [D] the ends of their documents.
        places = ragged_indices(0, examples.lengths)
        of_documents = np.cumsum(examples.document_lengths)
        predicted = np.ones(len(places), dtype=np.bool_)
        # Not predicted: the first token of a document from left to right, the last one from right
        # to left.
        predicted[of_documents - (examples.document_lengths if self.step == 1 else 1)] = False
        return replace(
            self.sizes(examples),
            # The position that predicts lies one step before the predicted one, in reading
            # direction.
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
