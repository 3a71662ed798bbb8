"""Sentences with a [MASK] that anyone can judge.

In:  sentences; a random encoder, the count model, ours.
Out: everyone's first words for each.
"""

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from artifacts.errors import UsageError
from artifacts.results import Guesses, MaskedSentence
from artifacts.tokenizer import MASK, WordPieceTokenizer
from model.encoder.batch import Example, pack
from model.encoder.pretraining import PretrainingModel
from model.evaluation.ngram import NOTHING, CountModel


def masked_ids(sentence: str, tokenizer: WordPieceTokenizer) -> tuple[list[int], int]:
    """[CLS] sentence [SEP] and the place of its [MASK]."""
    before, mask, after = sentence.partition(MASK)
    if not mask or MASK in after:
        raise UsageError(
            f"evaluate.masked_sentences: {sentence!r} has {sentence.count(MASK)} [MASK], "
            "expected exactly one"
        )
    left, right = tokenizer.encode(before), tokenizer.encode(after)
    ids = [tokenizer.cls_id, *left, tokenizer.mask_id, *right, tokenizer.sep_id]
    return ids, 1 + len(left)


def neighbours(ids: Sequence[int], place: int, tokenizer: WordPieceTokenizer) -> tuple[int, int]:
    """What the count model sees of a masked place."""
    left, right = (
        NOTHING if ids[at] in tokenizer.special_ids else ids[at] for at in (place - 1, place + 1)
    )
    return left, right


def guess_with_counts(
    sentences: Sequence[str], model: CountModel, tokenizer: WordPieceTokenizer, *, count: int
) -> list[Guesses]:
    """The count model's first words."""
    pairs = [neighbours(*masked_ids(sentence, tokenizer), tokenizer) for sentence in sentences]
    left, right = np.array(pairs, np.int64).T
    probabilities = model.probabilities(left, right)
    return [_top("count", row, tokenizer, count=count) for row in probabilities]


@torch.inference_mode()
def guess_with_encoder(
    sentences: Sequence[str], model: PretrainingModel, tokenizer: WordPieceTokenizer, *, count: int
) -> list[Guesses]:
    """An encoder's first words, under the name `pretrained`."""
    model.eval()
    asked = [masked_ids(sentence, tokenizer) for sentence in sentences]
    batch = pack([Example(input_ids=ids, masked_lm_positions=[place]) for ids, place in asked])
    batch = batch.to(next(model.parameters()).device)
    logits = model.masked_lm_logits(model.encoder(batch), batch.masked_lm_positions)
    rows = logits.float().softmax(-1).cpu().numpy()
    return [_top("pretrained", row, tokenizer, count=count) for row in rows]


def side_by_side(
    sentences: Sequence[str], guesses: Sequence[Sequence[Guesses]]
) -> tuple[MaskedSentence, ...]:
    """`guesses[system][sentence]` by sentence."""
    return tuple(
        MaskedSentence(sentence=sentence, guesses=tuple(of_one))
        for sentence, of_one in zip(sentences, zip(*guesses, strict=True), strict=True)
    )


def _top(
    system: str, row: NDArray[np.floating], tokenizer: WordPieceTokenizer, *, count: int
) -> Guesses:
    order = np.argsort(-row, kind="stable")[:count]
    return Guesses(
        system=system,
        words=tuple(tokenizer.vocabulary[index] for index in order.tolist()),
        probabilities=tuple(float(row[index]) for index in order),
    )
