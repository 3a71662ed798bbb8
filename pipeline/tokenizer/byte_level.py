"""Byte-level BPE over whole blocks of text: the interface of `FastWordPiece`, by `tokenizers`.

In:  cleaned UTF-8 text, one sentence a line, and where documents end.
Out: token ids, one flat array, and how many of them lie before given places.

A token has the space before its word in it, so a sentence that follows another one is tokenised
with the space that parted them: examples hold the ids of running text. Nothing is cached, so this
is far slower than our WordPiece; encoders trained elsewhere need it.
"""

from itertools import pairwise

import numpy as np

from artifacts.arrays import Bytes, Int64s, Offsets, TokenIds
from artifacts.tables import id_type
from artifacts.tokenizer import ByteLevelTokenizer

SPACE = ord(" ")


class ByteLevel:
    """One tokenizer."""

    def __init__(self, tokenizer: ByteLevelTokenizer) -> None:
        self._backend = tokenizer.backend
        self._dtype = np.dtype(str(id_type(tokenizer.size)))  # their names are the same

    def encode(self, text: bytes, ends: Offsets) -> tuple[TokenIds, Offsets]:
        """Ids of cleaned `text`, and for each of the ascending `ends` the number of ids before it.

        Ends follow line feeds, which have no ids.
        """
        lines = [
            text[start : end - 1].decode("utf-8", "replace")
            for start, end in pairwise([0, *ends.tolist()])
        ]
        encodings = self._backend.encode_batch_fast(lines, add_special_tokens=False)
        counts = np.cumsum([len(encoding) for encoding in encodings], dtype=np.int64)
        ids = np.zeros(int(counts[-1]) if len(counts) else 0, dtype=self._dtype)
        for encoding, end in zip(encodings, counts.tolist(), strict=True):
            ids[end - len(encoding) : end] = encoding.ids
        return ids, counts


def with_spaces(text: Bytes, ends_S: Int64s, ends_D: Int64s) -> tuple[Bytes, Int64s]:
    """The text with a space before each sentence that another one of its document precedes.

    S sentences, D documents; the sentences' ends in the new text. Empty sentences stay so.
    """
    starts_S = np.concatenate(([0], ends_S))[:-1]
    spaced_S = (ends_S - starts_S > 1) & ~np.isin(starts_S, [0, *ends_D.tolist()])
    return np.insert(text, starts_S[spaced_S], SPACE), ends_S + np.cumsum(spaced_S)
