"""Sentences with a [MASK] that anyone can judge.

In:  sentences; the encoder before and after training, the n-gram baseline.
Out: every model's most probable word-pieces for each.
"""

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from artifacts.errors import UsageError
from artifacts.results import Guesses, MaskedSentence
from artifacts.tokenizer import MASK, SubwordTokenizer
from model.data.batch import Example, pack
from model.encoder.pretraining import PretrainingModel
from model.evaluation.language_model import LanguageModels
from model.evaluation.ngram import NOTHING

Int64 = NDArray[np.int64]


def fill_sentences(
    sentences: Sequence[str],
    models: LanguageModels,
    tokenizer: SubwordTokenizer,
    *,
    count: int,
) -> tuple[MaskedSentence, ...]:
    """The `count` most probable word-pieces of every model for every sentence."""
    if not sentences:
        return ()
    rows_by_system = {
        "random": _encoder_rows(sentences, models.random, tokenizer),
        "count": models.ngram.probabilities(*sentence_neighbours(sentences, tokenizer)),
        "pretrained": _encoder_rows(sentences, models.pretrained, tokenizer),
    }
    filled = []
    for number, sentence in enumerate(sentences):
        guesses = []
        for system, rows in rows_by_system.items():
            best = np.argsort(-rows[number], kind="stable")[:count]
            guesses.append(
                Guesses(
                    system=system,
                    words=tuple(tokenizer.vocabulary[index] for index in best.tolist()),
                    probabilities=tuple(float(rows[number][index]) for index in best),
                )
            )
        filled.append(MaskedSentence(sentence=sentence, guesses=tuple(guesses)))
    return tuple(filled)


def sentence_neighbours(
    sentences: Sequence[str], tokenizer: SubwordTokenizer
) -> tuple[Int64, Int64]:
    """[N] the ids left and right of each sentence's [MASK]; `NOTHING` for special tokens."""
    pairs = []
    for ids, place in (_masked_ids(sentence, tokenizer) for sentence in sentences):
        seen = (ids[place - 1], ids[place + 1])
        pairs.append([NOTHING if one in tokenizer.special_ids else one for one in seen])
    left, right = np.array(pairs, np.int64).reshape(-1, 2).T
    return left, right


def _masked_ids(sentence: str, tokenizer: SubwordTokenizer) -> tuple[list[int], int]:
    """[CLS] sentence [SEP] and the place of its [MASK]."""
    if sentence.count(MASK) != 1:
        raise UsageError(
            f"evaluate.masked_sentences: {sentence!r} has {sentence.count(MASK)} [MASK], "
            "expected exactly one"
        )
    left, right = tokenizer.encode_around_masks(sentence)
    ids = [tokenizer.cls_id, *left, tokenizer.mask_id, *right, tokenizer.sep_id]
    return ids, 1 + len(left)


@torch.inference_mode()
def _encoder_rows(
    sentences: Sequence[str], model: PretrainingModel, tokenizer: SubwordTokenizer
) -> NDArray[np.float32]:
    """[N, V] an encoder's probabilities."""
    model.eval()
    asked = [_masked_ids(sentence, tokenizer) for sentence in sentences]
    batch = pack([Example(input_ids=ids, masked_lm_positions=[place]) for ids, place in asked])
    batch = batch.to(next(model.parameters()).device)
    logits = model.masked_lm_logits(model.encoder(batch), batch.masked_lm_positions)
    rows: NDArray[np.float32] = logits.float().softmax(-1).cpu().numpy()
    return rows
