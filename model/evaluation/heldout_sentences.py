"""Sentences of the corpus's own held-out text, a word of each masked.

In:  the tokens artifact.
Out: sentences as text with one [MASK], and the word that stood there.

What a run without configured sentences shows a person instead. They are drawn before anything is
known of how well a model fills them: of each held-out document the first sentences of some length,
in the order of digests, and in each a word drawn by the document's address.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice, zip_longest

import numpy as np
from numpy.typing import NDArray

from artifacts.results import GENERAL
from artifacts.rng import address
from artifacts.store import Artifact
from artifacts.tokenizer import MASK, SubwordTokenizer
from model.evaluation.ngram import TOKENS_FILE, TRAIN_SPLIT, token_batches

SENTENCES = 8
DOCUMENTS = 64
"""Looked at."""
FEWEST_WORDS, MOST_WORDS = 6, 24
"""Marks included."""
MOST_TOKENS = 48
"""The smallest encoders have 64 positions."""
SHORTEST_WORD = 4
"""Letters: shorter words are mostly articles and prepositions, which any count of words knows."""

_NO_SPACE = re.compile(r" ([.,;:!?)\]%’])")
"""Before these marks no space is written; the tokenizer parts them again."""

Ids = NDArray[np.integer]


@dataclass(frozen=True)
class HeldOutSentence:
    """A sentence with one [MASK], and the word behind it."""

    text: str
    answer: str


def heldout_sentences(
    tokens: Artifact, tokenizer: SubwordTokenizer, *, seed: int
) -> tuple[HeldOutSentence, ...]:
    """Up to `SENTENCES` sentences of the first held-out split; none if nothing is held out."""
    by_document = [
        list(islice(_sentences(document, tokenizer, seed=seed), SENTENCES))
        for document in islice(_documents(tokens), DOCUMENTS)
    ]
    in_turn = (found for of_each in zip_longest(*by_document) for found in of_each if found)
    return tuple(islice(in_turn, SENTENCES))


@dataclass(frozen=True)
class _Document:
    digest: str
    sentences: list[Ids]


def _documents(tokens: Artifact) -> Iterator[_Document]:
    """The documents of the first held-out split, in the order of its buckets."""
    named = [(TOKENS_FILE.fullmatch(entry.name), entry) for entry in tokens.manifest.files]
    held = [(match["split"], entry) for match, entry in named if match]
    others = (TRAIN_SPLIT, GENERAL)
    splits = sorted({split for split, entry in held if split not in others and entry.rows})
    for entry in (entry for split, entry in held if splits and split == splits[0]):
        for batch in token_batches(tokens, entry.name):
            for row in batch.slice(0, DOCUMENTS).to_pylist():
                ends = np.cumsum(row["sentence_lengths"])[:-1]
                yield _Document(
                    row["document_digest"].hex(), np.split(np.array(row["token_ids"]), ends)
                )


def _sentences(
    document: _Document, tokenizer: SubwordTokenizer, *, seed: int
) -> Iterator[HeldOutSentence]:
    """The document's sentences that are neither short nor long and have a word to be masked."""
    for number, ids in enumerate(document.sentences):
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
        place = words[address(seed, document.digest, number, "gap") % len(words)]
        masked = " ".join([*pieces[:place], MASK, *pieces[place + 1 :]]).replace(" ##", "")
        yield HeldOutSentence(_NO_SPACE.sub(r"\1", masked), pieces[place])
