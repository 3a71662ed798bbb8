"""Byte-level BPE over whole blocks of text, by `tokenizers`, with the interface of our WordPiece.

In:  cleaned UTF-8 text, one sentence per line, and where documents end.
Out: a flat array of token ids, and the number of ids before given offsets.

Tokens include the space before a word, so a sentence that follows another one is tokenised with the
space between them: examples contain the ids of running text. Nothing is cached, so this is far
slower than our WordPiece; it serves encoders that were trained elsewhere.
"""

from itertools import pairwise

import numpy as np

from cloze.artifacts.arrays import Bytes, Int64s, Offsets, TokenIds
from cloze.artifacts.tables import id_type
from cloze.artifacts.tokenizer import ByteLevelTokenizer

SPACE = ord(" ")


class ByteLevel:
    """Byte-level BPE with one tokenizer."""

    def __init__(self, tokenizer: ByteLevelTokenizer) -> None:
        self._backend = tokenizer.backend
        self._dtype = np.dtype(str(id_type(tokenizer.size)))  # the names are the same

    def encode(self, text: bytes, ends: Offsets) -> tuple[TokenIds, Offsets]:
        """Ids of cleaned `text`, and the number of ids before each of the ascending `ends`.

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
    """Insert a space before every sentence of a document but its first.

    S sentences, D documents. Returns the text and its sentence ends; empty sentences stay empty.
    """
    starts_S = np.concatenate(([0], ends_S))[:-1]
    spaced_S = (ends_S - starts_S > 1) & ~np.isin(starts_S, [0, *ends_D.tolist()])
    return np.insert(text, starts_S[spaced_S], SPACE), ends_S + np.cumsum(spaced_S)
