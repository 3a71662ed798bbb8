"""Sentences with a [MASK], for readers to judge a model by: configured, or from the corpus.

In:  configured sentences, else the tokens artifact; the encoder before and after training, the
     n-gram baseline.
Out: the most probable tokens of every model for each sentence.

A run without configured sentences takes some from its held-out text, regardless of how well a model
fills them: the first sentences of suitable length in each held-out document, in the order of their
digests, each with a word masked by a counter-based random number.
"""

import re
from collections.abc import Iterator, Sequence
from itertools import islice, zip_longest

import numpy as np
import torch
from numpy.typing import NDArray

from artifacts.errors import UsageError
from artifacts.results import GENERAL, Guesses, MaskedSentence
from artifacts.rng import address
from artifacts.store import Artifact
from artifacts.tokenizer import MASK, SubwordTokenizer
from model.data.batch import Example, pack
from model.encoder.models import PretrainingModel
from model.evaluation.language_model import LanguageModels
from model.evaluation.ngram import NOTHING, TOKENS_FILE, TRAIN_SPLIT, token_batches

SENTENCES = 8
DOCUMENTS = 64
"""Held-out documents to take sentences from."""
FEWEST_WORDS, MOST_WORDS = 6, 24
"""Including punctuation marks."""
MOST_TOKENS = 48
"""The smallest encoders have 64 positions."""
SHORTEST_WORD = 4
"""In letters. Shorter words are mostly articles and prepositions, which any baseline predicts."""

_NO_SPACE = re.compile(r" ([.,;:!?)\]%’])")
"""No space is written before these characters; the tokenizer splits them off again."""

Int64 = NDArray[np.int64]
Ids = NDArray[np.integer]


def heldout_sentences(
    tokens: Artifact, tokenizer: SubwordTokenizer, *, seed: int
) -> tuple[MaskedSentence, ...]:
    """Up to `SENTENCES` sentences of the first held-out split, without predictions yet.

    Empty if nothing is held out.
    """
    by_document = [
        list(islice(_sentences(digest, sentences, tokenizer, seed=seed), SENTENCES))
        for digest, sentences in islice(_documents(tokens), DOCUMENTS)
    ]
    in_turn = (found for of_each in zip_longest(*by_document) for found in of_each if found)
    return tuple(islice(in_turn, SENTENCES))


def _documents(tokens: Artifact) -> Iterator[tuple[str, list[Ids]]]:
    """Digest and sentences of documents in the first held-out split, in the order of buckets."""
    named = [(TOKENS_FILE.fullmatch(entry.name), entry) for entry in tokens.manifest.files]
    held = [(match["split"], entry) for match, entry in named if match]
    others = (TRAIN_SPLIT, GENERAL)
    splits = sorted({split for split, entry in held if split not in others and entry.rows})
    for entry in (entry for split, entry in held if splits and split == splits[0]):
        for batch in token_batches(tokens, entry.name):
            for row in batch.slice(0, DOCUMENTS).to_pylist():
                ends = np.cumsum(row["sentence_lengths"])[:-1]
                yield row["document_digest"].hex(), np.split(np.array(row["token_ids"]), ends)


def _sentences(
    digest: str, sentences: list[Ids], tokenizer: SubwordTokenizer, *, seed: int
) -> Iterator[MaskedSentence]:
    """A document's sentences of suitable length, each with a word masked."""
    for number, ids in enumerate(sentences):
        pieces = [tokenizer.vocabulary[index] for index in ids.tolist()]
        begins = [not piece.startswith("##") for piece in [*pieces, ""]]
        fits = FEWEST_WORDS < sum(begins) <= MOST_WORDS + 1 and len(pieces) <= MOST_TOKENS
        if not fits or tokenizer.unk_id in ids:
            continue
        words = [
            place
            for place, piece in enumerate(pieces)
            if begins[place] and begins[place + 1] and len(piece) >= SHORTEST_WORD
            if piece.isalpha()
        ]
        if not words:
            continue
        place = words[address(seed, digest, number, "gap") % len(words)]
        masked = " ".join([*pieces[:place], MASK, *pieces[place + 1 :]]).replace(" ##", "")
        text = _NO_SPACE.sub(r"\1", masked)
        yield MaskedSentence(sentence=text, guesses=(), answer=pieces[place])


def fill_sentences(
    sentences: Sequence[MaskedSentence],
    models: LanguageModels,
    tokenizer: SubwordTokenizer,
    *,
    count: int,
) -> tuple[MaskedSentence, ...]:
    """The sentences with the `count` most probable tokens of every model."""
    if not sentences:
        return ()
    texts = [sentence.sentence for sentence in sentences]
    rows_by_system = {
        "random": _encoder_rows(texts, models.random, tokenizer),
        "count": models.ngram.probabilities(*sentence_neighbours(texts, tokenizer)),
        "pretrained": _encoder_rows(texts, models.pretrained, tokenizer),
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
        filled.append(sentence.model_copy(update={"guesses": tuple(guesses)}))
    return tuple(filled)


def sentence_neighbours(
    sentences: Sequence[str], tokenizer: SubwordTokenizer
) -> tuple[Int64, Int64]:
    """[N] ids to the left and right of each sentence's [MASK]; `NOTHING` for a special token."""
    pairs = []
    for ids, place in (_masked_ids(sentence, tokenizer) for sentence in sentences):
        seen = (ids[place - 1], ids[place + 1])
        pairs.append([NOTHING if one in tokenizer.special_ids else one for one in seen])
    left, right = np.array(pairs, np.int64).reshape(-1, 2).T
    return left, right


def _masked_ids(sentence: str, tokenizer: SubwordTokenizer) -> tuple[list[int], int]:
    """[CLS] sentence [SEP], and the position of its [MASK]."""
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
    """[N, V] probabilities of an encoder at each [MASK]."""
    model.eval()
    masked = [_masked_ids(sentence, tokenizer) for sentence in sentences]
    batch = pack([Example(input_ids=ids, masked_lm_positions=[place]) for ids, place in masked])
    batch = batch.to(next(model.parameters()).device)
    logits = model.masked_lm_logits(model.encoder(batch), batch.masked_lm_positions)
    rows: NDArray[np.float32] = logits.float().softmax(-1).cpu().numpy()
    return rows
