"""What the BERT pipeline of `tokenizers` makes of single characters.

In:  a tokenizer.
Out: for every character the text that normalisation and pre-tokenisation turn it into, found by
     asking `tokenizers` itself, so that no table of Unicode properties has to agree with its own.

Characters can be asked one by one because the pipeline never looks at two together, except that
decomposition sorts combining marks. Marks are then stripped; chunks with one that is not (a handful
of musical and Hangul signs) are left to `tokenizers` as a whole.
"""

import unicodedata

import numpy as np
import numpy.typing as npt

from artifacts.tokenizer import WordPieceTokenizer

_PROBE = "a"
"""A neighbour on both sides that nothing changes."""

_OFTEN_ALONE = (range(0x2010, 0x2028), range(0x3000, 0x3040), range(0xFF00, 0xFF66))
"""Blocks with punctuation that is frequent in running text: dashes and quotes, CJK, full width."""
_UNIFIED_IDEOGRAPHS = range(0x4E00, 0xA000)
"""Isolated by definition (reference: tokenization.py:266-284)."""


class Characters(dict[int, str]):
    """Code point to text, with spaces where the character separates; filled as they are met.

    `str.translate` takes it as it is.
    """

    def __init__(self, tokenizer: WordPieceTokenizer) -> None:
        super().__init__()
        self._normalizer = tokenizer.backend.normalizer
        self._pre_tokenizer = tokenizer.backend.pre_tokenizer
        self.unsafe: set[str] = set()
        """Characters met so far whose neighbours matter."""

    def __missing__(self, code: int) -> str:
        character = chr(code)
        normalised = self._normalizer.normalize_str(f"{_PROBE}{character}{_PROBE}")
        pieces = [piece for piece, _ in self._pre_tokenizer.pre_tokenize_str(normalised)]
        meaning = " ".join(pieces)[1:-1]
        if character not in meaning and any(map(unicodedata.combining, meaning)):
            self.unsafe.add(character)
        self[code] = meaning
        return meaning

    def words(self, text: str) -> list[str] | None:
        """The words of a chunk; None if `tokenizers` must be asked for it as a whole."""
        words = text.translate(self).split(" ")
        if self.unsafe and not self.unsafe.isdisjoint(text):
            return None
        return [word for word in words if word]

    def isolated(self) -> npt.NDArray[np.bool_]:
        """Which of the characters below U+10000 surely form a word by themselves."""
        alone = np.zeros(1 << 16, dtype=np.bool_)
        alone[list(_UNIFIED_IDEOGRAPHS)] = True
        for block in _OFTEN_ALONE:
            alone[[code for code in block if self[code] == f" {chr(code)} "]] = True
        return alone
