"""WordPiece compiled: the interface and the ids of `FastWordPiece`, several times as fast.

In:  cleaned UTF-8 text (pipeline/text/cleaning.py: no control characters but the line feed).
Out: token ids, one flat array, and how many of them lie before given places.

The loop over the text is C (wordpiece.c). It asks for what it cannot know: the meaning of a
character that it meets for the first time, and the ids of a pre-token with a character whose
neighbours matter. Both answers come from `tokenizers`, so no table of Unicode properties has to
agree with it.
"""

import ctypes
import weakref
from functools import cache
from pathlib import Path

import numpy as np

from artifacts.arrays import Offsets, TokenIds
from artifacts.runtime.native import address, load
from artifacts.tables import id_type
from artifacts.tokenizer import (
    CONTINUATION,
    MAX_CHARACTERS_PER_WORD,
    ByteLevelTokenizer,
    SubwordTokenizer,
    WordPieceTokenizer,
)
from pipeline.tokenizer.byte_level import ByteLevel
from pipeline.tokenizer.pre_tokens import Characters
from pipeline.tokenizer.wordpiece import (
    CONTROLS,
    MAX_ENTRIES,
    MAX_POOL,
    FastWordPiece,
)

_DONE, _NEED_CHARACTER, _NEED_PRE_TOKEN, _NEED_ROOM, _NO_MEMORY = range(5)
_SOURCE = Path(__file__).with_name("wordpiece.c")
_SPARE = 1024
"""Ids of room beyond one a byte: a character may decompose into several."""

_SIGNATURES = {
    "wordpiece_open": "pppppnnnnnii",
    "wordpiece_close": "-p",
    "wordpiece_character": "ipnbni",
    "wordpiece_encode": "ipbnpnppnp",
}


@cache
def library() -> ctypes.CDLL | None:
    """The compiled functions; None where there is no compiler."""
    return load(_SOURCE, _SIGNATURES)


class CompiledWordPiece:
    """One tokenizer with its memory of pre-tokens. Not thread-safe: one for each worker."""

    def __init__(self, tokenizer: WordPieceTokenizer, functions: ctypes.CDLL) -> None:
        self._tokenizer = tokenizer
        self._functions = functions
        self._dtype = np.dtype(str(id_type(tokenizer.size)))  # their names are the same
        self._characters = Characters(tokenizer)
        spelled = [word.removeprefix(CONTINUATION).encode() for word in tokenizer.vocabulary]
        inner = [word.startswith(CONTINUATION) for word in tokenizer.vocabulary]
        tables = (
            self._characters.isolated().view(np.uint8),
            np.frombuffer(b"".join(spelled), dtype=np.uint8),
            np.cumsum([len(word) for word in spelled], dtype=np.int64),
            np.array(inner, dtype=np.uint8),
        )
        self._state = functions.wordpiece_open(
            *(address(table) for table in tables),
            *(tokenizer.size, tokenizer.unk_id, MAX_CHARACTERS_PER_WORD, MAX_ENTRIES, MAX_POOL),
            *(tokenizer.lowercase, self._dtype.itemsize == 4),
        )
        if not self._state:
            raise MemoryError("no memory for the tokenizer's tables")
        weakref.finalize(self, functions.wordpiece_close, self._state)

    def encode(self, text: bytes, ends: Offsets) -> tuple[TokenIds, Offsets]:
        """Ids of cleaned `text`, and for each of the ascending `ends` the number of ids before it.

        No pre-token may reach across an end: ends follow white space or are the text's end.
        """
        ends = np.ascontiguousarray(ends, dtype=np.int64)
        counts = np.zeros(len(ends), dtype=np.int64)
        ids = np.empty(len(text) // 3 + _SPARE, dtype=self._dtype)
        at = np.zeros(6, dtype=np.int64)
        while True:
            status = self._functions.wordpiece_encode(
                *(self._state, text, len(text), address(ends), len(ends), address(counts)),
                *(address(ids), len(ids), address(at)),
            )
            if status == _DONE:
                return ids[: at[1]], counts
            if status == _NO_MEMORY:
                raise MemoryError("no memory for the tokenizer's tables")
            if status == _NEED_ROOM:
                ids = np.concatenate((ids, np.empty_like(ids)))
            elif status == _NEED_CHARACTER:
                code = int(at[3])
                meaning = self._characters[code].encode()
                unsafe = chr(code) in self._characters.unsafe
                learn = self._functions.wordpiece_character
                if learn(self._state, code, meaning, len(meaning), unsafe):
                    raise MemoryError("no memory for the tokenizer's tables")
            else:
                start, end = at[3:5].tolist()
                found = self._tokenizer.encode(text[start:end].decode("utf-8", "replace"))
                if at[1] + len(found) > len(ids):
                    ids = np.concatenate((ids, np.empty(len(found), dtype=self._dtype)))
                ids[at[1] : at[1] + len(found)] = found
                at[:2] = end, at[1] + len(found)

    def encode_text(self, text: str) -> list[int]:
        """Ids of any one text, cleaned or not; half surrogate pairs become question marks."""
        raw = text.encode("utf-8", "replace").translate(None, CONTROLS)
        return [int(index) for index in self.encode(raw, np.array([len(raw)]))[0]]


Form = FastWordPiece | CompiledWordPiece | ByteLevel


def form_for(tokenizer: SubwordTokenizer) -> Form:
    """The fastest form of `tokenizer` that this machine can run."""
    if isinstance(tokenizer, ByteLevelTokenizer):
        return ByteLevel(tokenizer)
    if not isinstance(tokenizer, WordPieceTokenizer):
        raise TypeError(f"no form of {type(tokenizer).__name__}")
    functions = library()
    return (
        FastWordPiece(tokenizer) if functions is None else CompiledWordPiece(tokenizer, functions)
    )
