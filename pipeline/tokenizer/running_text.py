"""Token ids of running text with `tokenizers` itself: byte-level BPE, Unigram and others.

In:  cleaned UTF-8 text, one sentence per line, where documents end, and where no space separated
     two sentences.
Out: a flat array of token ids, and the number of ids before the end of each sentence.

In these tokenizers a token may include the space before its word, so a sentence is tokenised as in
running text: with a space before it if there was one. Sentences without a space between them are
tokenised as one text, and each token belongs to the sentence in which it begins. Nothing is cached,
so this is far slower than our WordPiece; it serves encoders that were trained elsewhere.
"""

from itertools import pairwise

import numpy as np

from cloze.artifacts.arrays import Bytes, Int64s, Offsets, TokenIds
from cloze.artifacts.tables import id_type
from cloze.artifacts.tokenizer import SubwordTokenizer

# S sentences, D documents, G places without a space, T texts: sentences, or several glued ones


class RunningText:
    """One tokenizer of `tokenizers`, applied to whole blocks."""

    def __init__(self, tokenizer: SubwordTokenizer) -> None:
        self._backend = tokenizer.backend
        self._dtype = np.dtype(str(id_type(tokenizer.size)))  # the names are the same

    def encode(
        self, text: Bytes, ends_S: Int64s, ends_D: Int64s, glued_G: Offsets
    ) -> tuple[TokenIds, Offsets]:
        """Ids of cleaned `text`, and the number of ids before the end of each sentence.

        Ends follow line feeds, which have no ids; `glued_G` are the line feeds without a space.
        """
        starts_S = np.concatenate(([0], ends_S))[:-1]
        # A sentence is glued to the one before it if it begins behind such a place, unless it
        # begins a document.
        first_S = np.isin(starts_S, [0, *ends_D.tolist()])
        glued_S = np.isin(starts_S - 1, glued_G) & ~first_S
        raw = text.tobytes()
        lines = [
            raw[start : end - 1].decode("utf-8", "replace")
            for start, end in pairwise([0, *ends_S.tolist()])
        ]
        texts: list[str] = []
        joints: list[list[int]] = []  # characters before the end of each sentence of a text
        for line, is_glued, is_first in zip(lines, glued_S.tolist(), first_S.tolist(), strict=True):
            if is_glued:
                texts[-1] += line
                joints[-1].append(len(texts[-1]))
            else:
                # A space stands before every sentence but a document's first, as in running text.
                texts.append(line if is_first or not line else f" {line}")
                joints.append([len(texts[-1])])
        # Only with glued sentences are the tokens' offsets needed, which cost time.
        plain = max(map(len, joints), default=1) == 1
        encode = self._backend.encode_batch_fast if plain else self._backend.encode_batch
        encodings = encode(texts, add_special_tokens=False)
        ids: list[int] = []
        counts: list[int] = []
        for encoding, places in zip(encodings, joints, strict=True):
            if len(places) > 1:
                # Offsets can go back where a token has no characters of its own; bisection needs
                # them ascending.
                starts = np.maximum.accumulate([start for start, _ in encoding.offsets] or [0])
                inner = np.searchsorted(starts, places[:-1])
                counts += (len(ids) + inner).tolist()
            ids += encoding.ids
            counts.append(len(ids))
        return np.array(ids, dtype=self._dtype), np.array(counts, dtype=np.int64)
