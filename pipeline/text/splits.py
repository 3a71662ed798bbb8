"""Splits: which documents are trained on and which are held out.

In:  the sources of a corpus; digests of documents.
Out: the names of the splits, and the split of each document.

A held-out source forms its own split. A share of the other documents, drawn by digest, forms
`heldout` or the split named by their source, however the corpus is divided into files. In corpora
of few documents the draw may hold out none or all of them; `divide` then says how they are divided
instead.
"""

import hashlib
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from cloze.artifacts.arrays import Mask, UInt64s
from cloze.artifacts.results import GENERAL, HELDOUT, TRAIN
from cloze.artifacts.rng import document_streams, high_half, stream_seed
from cloze.artifacts.tables import TOKEN_DIGEST_BYTES
from cloze.pipeline.config.settings import CorpusConfig

TRAIN_SPLIT, HELDOUT_SPLIT = 0, 1
"""Indices in the list of splits."""

FEWEST_DOCUMENTS = 3
"""With fewer documents, none can be held out whole."""

# D documents


def split_names(corpus: CorpusConfig) -> list[str]:
    """All splits; splits are numbered by their index in this list."""
    # TRAIN and HELDOUT exist in any case, and a source may name the latter.
    named = (source.heldout or source.heldout_documents for source in corpus.sources)
    return [TRAIN, HELDOUT, *(name for name in dict.fromkeys(named) if name not in ("", HELDOUT))]


@dataclass(frozen=True)
class Division:
    """How the documents are finally divided between `train` and `heldout`."""

    rule: Literal["draw", "smallest", "largest", "tails"]
    """`draw`: as drawn; `smallest`: hold out only the smallest digest, because none was drawn;
    `largest`: train only on the largest, because all were drawn; `tails`: hold out the last
    sentences of each document."""
    border: int = 0
    """For `smallest` and `largest`: the first digest half that is used for training."""


def tail_digest(document_digest: bytes) -> bytes:
    """The digest of a document's held-out end, which is a document of its own (rule `tails`)."""
    return hashlib.blake2b(document_digest + b"tail", digest_size=TOKEN_DIGEST_BYTES).digest()


def divide(trained_D: UInt64s, drawn_D: UInt64s, corpus: CorpusConfig) -> Division:
    """How to divide the documents when the draw holds out none or all of them.

    trained_D, drawn_D: first halves of the distinct digests drawn for training and for holding out,
                        ascending; if there are many, the smallest suffice.
    """
    # Sources that are held out whole are text enough to evaluate on.
    whole = {source.heldout for source in corpus.sources} - {"", GENERAL}
    is_wanted = corpus.heldout_share and not whole
    if is_wanted and 0 < len(trained_D) + len(drawn_D) < FEWEST_DOCUMENTS:
        return Division("tails")
    if is_wanted and len(trained_D) and not len(drawn_D):
        # Keys from the border on are trained on, so the smallest is held out.
        return Division("smallest", int(trained_D[0]) + 1)
    if len(drawn_D) and not len(trained_D):
        return Division("largest", int(drawn_D[-1]))
    return Division("draw")


def heldout_count(sentences: int, share: float) -> int:
    """How many of a document's `sentences` are held out from its end."""
    return max(1, round(share * sentences)) if sentences > 1 else 0


def stronger_splits(split: int, *, count: int) -> list[int]:
    """Splits that take precedence over `split` for duplicate documents, strongest first.

    Named splits precede all others, in the order in which they are named.
    """
    # named splits, from index 2 on
    return list(range(2, count if split <= HELDOUT_SPLIT else split))


def assign_splits(
    digests_D2: UInt64s, *, source: int, corpus: CorpusConfig, seed: int
) -> npt.NDArray[np.uint8]:
    """The split of each document of the corpus' `source`, (D,)."""
    config, names = corpus.sources[source], split_names(corpus)
    if config.heldout:
        return np.full(len(digests_D2), names.index(config.heldout), dtype=np.uint8)
    drawn = np.uint8(names.index(config.heldout_documents or HELDOUT))
    is_drawn_D = drawn_documents(digests_D2, share=corpus.heldout_share, seed=seed)
    return np.where(is_drawn_D, drawn, np.uint8(TRAIN_SPLIT))


def drawn_documents(digests_D2: UInt64s, *, share: float, seed: int) -> Mask:
    """Which documents are drawn to be held out, where no whole source is: (D,)."""
    # 32 bits of a random stream that nothing else uses
    bits_D = high_half(document_streams(digests_D2, stream_seed(seed, "heldout")))
    # The share as an integer of 32 bits, so that the draw is exact on any machine.
    is_drawn_D: Mask = bits_D < np.uint64(round(share * (1 << 32)))
    return is_drawn_D
