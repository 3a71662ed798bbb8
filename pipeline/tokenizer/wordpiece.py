"""WordPiece over whole blocks of text, with the same ids as the `tokenizers` BERT pipeline.

In:  cleaned UTF-8 text (pipeline/text/cleaning.py: no control characters but the line feed).
Out: a flat array of token ids, and the number of ids before given offsets.

BERT's normaliser and pre-tokenizer never look across white space or ASCII punctuation, so the ids
of a text are the concatenated ids of its pre-tokens, and each distinct pre-token is tokenised once
and cached. The cache is bounded, private to a worker, and cannot change an id. Bytes of non-ASCII
characters count as word bytes: what finds the ids of a pre-token still splits it where it has to.

The loop over the text is C (wordpiece.c) and calls back for two things: the normalisation of a
character it sees for the first time, and the ids of a pre-token whose characters depend on their
neighbours. Both come from `tokenizers`, so no table of Unicode properties has to agree with it.
Without a C compiler, `ArrowWordPiece` does the same at a fraction of the speed.
"""

import ctypes
import unicodedata
import weakref
from collections import Counter
from functools import cache
from itertools import chain
from pathlib import Path

import numpy as np
import pyarrow as pa

from cloze.artifacts.arrays import Mask, Offsets, TokenIds, concatenated, offsets_of
from cloze.artifacts.runtime.native import compiled, pointer
from cloze.artifacts.tables import id_type
from cloze.artifacts.tokenizer import (
    CONTINUATION,
    MAX_CHARACTERS_PER_WORD,
    SubwordTokenizer,
    WordPieceTokenizer,
)
from cloze.pipeline.tokenizer.running_text import RunningText

MAX_ENTRIES = 1 << 19
"""Pre-tokens to cache before clearing; 200 MB of Wikipedia has 554,000 distinct ones."""
MAX_POOL = 1 << 23
"""Ids to cache before clearing, in C."""
MAX_CACHED_BYTES = 1 << 12
"""Bytes; longer pre-tokens are not cached, since they hardly ever occur twice."""

SPACE, WORD, ALONE, LEAD = range(4)
"""Classes of bytes. Those of non-ASCII characters are `WORD`, or `LEAD` if they may begin a
character that is a word by itself and has to be looked up."""

_KINDS = np.full(256, ALONE, dtype=np.uint8)
_KINDS[: ord(" ") + 1] = SPACE
_KINDS[[byte for byte in range(256) if byte >= 0x80 or chr(byte).isalnum()]] = WORD
_KINDS[[*range(0xE2, 0xEA), 0xEF]] = LEAD

_NONE_ISOLATED = np.zeros(1 << 16, dtype=np.bool_)

_PROBE = "a"
"""Surrounds a character under test; normalisation leaves it unchanged."""

_OFTEN_ALONE = (range(0x2010, 0x2028), range(0x3000, 0x3040), range(0xFF00, 0xFF66))
"""Unicode blocks with common punctuation: dashes and quotes, CJK, full width."""
_UNIFIED_IDEOGRAPHS = range(0x4E00, 0xA000)
"""Always isolated (reference: tokenization.py:266-284)."""

_IDEOGRAPHS_AND_EXTENSIONS = (
    _UNIFIED_IDEOGRAPHS,
    range(0x3400, 0x4DC0),
    range(0xF900, 0xFB00),
    range(0x20000, 0x2A6E0),
    range(0x2A700, 0x2CEB0),
    range(0x2F800, 0x2FA20),
)
"""All characters that BERT isolates as Chinese."""

_DONE, _NEED_CHARACTER, _NEED_PRE_TOKEN, _NEED_ROOM, _NO_MEMORY = range(5)
"""Return values of `wordpiece_encode`."""

_SPARE = 1024
"""Initial room for ids, in addition to one for every three bytes."""


def split_pre_tokens(
    text: bytes, *, lowercase: bool, isolated: Mask = _NONE_ISOLATED
) -> tuple[Offsets, pa.LargeBinaryArray]:
    """Where the pre-tokens of `text` begin, and their bytes with the white space after them.

    Lower-cases ASCII letters only. `isolated` are the characters below U+10000 to split off.
    """
    # One pass of `translate` gives each byte its class. A pre-token begins where a byte is no
    # space, and either it or the byte before is not part of a word.
    kinds = np.frombuffer(text.translate(_KINDS.tobytes()), dtype=np.uint8)
    begins = kinds != SPACE
    word = kinds & 1 != 0  # WORD and LEAD
    begins[1:] &= ~(word[1:] & word[:-1])
    leads = np.flatnonzero(kinds == LEAD)
    if len(leads):
        raw = np.frombuffer(text, dtype=np.uint8)
        # decode all candidates at once: 4, 6 and 6 bits of a three-byte character
        code = (raw[leads].astype(np.int64) & 0x0F) << 12  # all begin three-byte characters
        code |= (raw[leads + 1].astype(np.int64) & 0x3F) << 6
        code |= raw[leads + 2] & 0x3F
        places = leads[isolated[code]]
        begins[places] = True
        # What follows an isolated character begins a pre-token of its own.
        after = places[places + 3 < len(kinds)] + 3
        begins[after] = kinds[after] != SPACE
    starts = np.flatnonzero(begins)
    buffers = [
        None,
        pa.py_buffer(np.append(starts, len(text))),
        pa.py_buffer(text.lower() if lowercase else text),
    ]
    return starts, pa.LargeBinaryArray.from_buffers(pa.large_binary(), len(starts), buffers)


def count_pre_tokens(text: bytes, *, lowercase: bool) -> Counter[bytes]:
    """Count the pre-tokens in cleaned `text`."""
    _, pre_tokens = split_pre_tokens(text, lowercase=lowercase)
    found, times = pre_tokens.value_counts().flatten()
    counts: Counter[bytes] = Counter()
    for pre_token, count in zip(found.to_pylist(), times.to_pylist(), strict=True):
        counts[pre_token.rstrip()] += count
    return counts


def is_isolated(character: str) -> bool:
    """Whether BERT makes the character a word by itself, as punctuation or as Chinese."""
    code = ord(character)
    return unicodedata.category(character)[0] == "P" or any(
        code in block for block in _IDEOGRAPHS_AND_EXTENSIONS
    )


class Characters(dict[int, str]):
    """How the BERT pipeline of `tokenizers` normalises single characters, as a translation table.

    Maps code points to text, with spaces around characters that are words by themselves. Entries
    are obtained from `tokenizers` on first use, so that no table of Unicode properties has to agree
    with its own.

    Characters can be handled one by one because the pipeline never combines two, except that
    decomposition reorders combining marks. Marks are then stripped; pre-tokens with a mark that is
    not (a handful of musical and Hangul signs) are passed to `tokenizers` whole.
    """

    def __init__(self, tokenizer: WordPieceTokenizer) -> None:
        super().__init__()
        self._normalizer = tokenizer.backend.normalizer
        self._pre_tokenizer = tokenizer.backend.pre_tokenizer
        self.unsafe: set[str] = set()
        """Characters seen so far whose result depends on their neighbours."""

    def __missing__(self, code: int) -> str:
        character = chr(code)
        # The probes keep the pipeline from dropping spaces around the character.
        normalised = self._normalizer.normalize_str(f"{_PROBE}{character}{_PROBE}")
        pieces = [piece for piece, _ in self._pre_tokenizer.pre_tokenize_str(normalised)]
        meaning = " ".join(pieces)[1:-1]
        # A mark that decomposition yields may be reordered among its neighbours.
        if character not in meaning and any(map(unicodedata.combining, meaning)):
            self.unsafe.add(character)
        self[code] = meaning
        return meaning

    def words(self, text: str) -> list[str] | None:
        """The words of a pre-token; None if it must be passed to `tokenizers` whole."""
        words = text.translate(self).split(" ")
        if self.unsafe and not self.unsafe.isdisjoint(text):
            return None
        return [word for word in words if word]

    def isolated(self) -> Mask:
        """Which characters below U+10000 are known to be words by themselves."""
        alone = np.zeros(1 << 16, dtype=np.bool_)
        alone[list(_UNIFIED_IDEOGRAPHS)] = True
        # Others that are words by themselves stay inside a pre-token, where looking it up splits
        # them.
        for block in _OFTEN_ALONE:
            alone[[code for code in block if self[code] == f" {chr(code)} "]] = True
        return alone


@cache
def wordpiece_library() -> ctypes.CDLL | None:
    """The functions of wordpiece.c; None without a C compiler."""
    return compiled(Path(__file__).with_name("wordpiece.c"))


class CompiledWordPiece:
    """WordPiece in C, with a cache of pre-tokens. Not thread-safe: use one per worker."""

    def __init__(self, tokenizer: WordPieceTokenizer, functions: ctypes.CDLL) -> None:
        self._tokenizer = tokenizer
        self._functions = functions
        self._dtype = np.dtype(str(id_type(tokenizer.size)))  # the names are the same
        self._characters = Characters(tokenizer)
        spelled = [word.removeprefix(CONTINUATION).encode() for word in tokenizer.vocabulary]
        inner = [word.startswith(CONTINUATION) for word in tokenizer.vocabulary]
        tables = (
            self._characters.isolated().view(np.uint8),
            *concatenated(spelled),
            np.array(inner, dtype=np.uint8),
        )
        self._state = functions.wordpiece_open(
            *(pointer(table) for table in tables),
            *(tokenizer.size, tokenizer.unk_id, MAX_CHARACTERS_PER_WORD, MAX_ENTRIES, MAX_POOL),
            *(tokenizer.lowercase, self._dtype.itemsize == 4),
        )
        if not self._state:
            raise MemoryError("no memory for the tokenizer's tables")
        weakref.finalize(self, functions.wordpiece_close, self._state)

    def encode(self, text: bytes, ends: Offsets) -> tuple[TokenIds, Offsets]:
        """Ids of cleaned `text`, and the number of ids before each of the ascending `ends`."""
        ends = np.ascontiguousarray(ends, dtype=np.int64)
        counts = np.zeros(len(ends), dtype=np.int64)
        ids = np.empty(len(text) // 3 + _SPARE, dtype=self._dtype)
        # Where C has stopped, and goes on when it is called again: place in the text, ids written,
        # ends passed, two values of what it asks for, and whether it has found the pre-tokens.
        at = np.zeros(6, dtype=np.int64)
        while True:
            status = self._functions.wordpiece_encode(
                *(self._state, text, len(text), pointer(ends), len(ends), pointer(counts)),
                *(pointer(ids), len(ids), pointer(at)),
            )
            if status == _DONE:
                return ids[: at[1]], counts
            if status == _NO_MEMORY:
                raise MemoryError("no memory for the tokenizer's tables")
            if status == _NEED_ROOM:
                ids = np.concatenate((ids, np.empty_like(ids)))
            elif status == _NEED_CHARACTER:
                # A character for the first time: C learns its form and goes on from the same place.
                code = int(at[3])
                meaning = self._characters[code].encode()
                unsafe = chr(code) in self._characters.unsafe
                learn = self._functions.wordpiece_character
                if learn(self._state, code, meaning, len(meaning), unsafe):
                    raise MemoryError("no memory for the tokenizer's tables")
            else:
                # A pre-token whose characters depend on each other: its ids are put in from here.
                start, end = at[3:5].tolist()
                found = self._tokenizer.encode(text[start:end].decode("utf-8", "replace"))
                if at[1] + len(found) > len(ids):
                    ids = np.concatenate((ids, np.empty(len(found), dtype=self._dtype)))
                ids[at[1] : at[1] + len(found)] = found
                at[:2] = end, at[1] + len(found)


class ArrowWordPiece:
    """WordPiece for machines without a C compiler: Arrow finds the distinct pre-tokens of a text.

    Python looks up each of them once, in a cache. Not thread-safe: use one per worker.
    """

    def __init__(self, tokenizer: WordPieceTokenizer) -> None:
        self._tokenizer = tokenizer
        self._dtype = np.dtype(str(id_type(tokenizer.size)))  # the names are the same
        self._model = tokenizer.backend.model
        self._characters = Characters(tokenizer)
        self._isolated = self._characters.isolated()
        self._known: dict[bytes, list[int]] = {}

    def encode(self, text: bytes, ends: Offsets) -> tuple[TokenIds, Offsets]:
        """Ids of cleaned `text`, and the number of ids before each of the ascending `ends`.

        No pre-token may span an end: each follows white space or is the end of the text.
        """
        starts, pre_tokens = split_pre_tokens(
            text, lowercase=self._tokenizer.lowercase, isolated=self._isolated
        )
        encoded = pre_tokens.dictionary_encode()
        # D distinct pre-tokens, N pre-tokens
        ids_D = [self._ids(one.rstrip()) for one in encoded.dictionary.to_pylist()]
        pool = np.fromiter(chain.from_iterable(ids_D), dtype=self._dtype)
        places_D = offsets_of(np.fromiter(map(len, ids_D), dtype=np.int64))
        which_N = encoded.indices.to_numpy()
        counts_N = np.diff(places_D)[which_N]
        places_N = offsets_of(counts_N)
        # Place of a pre-token's ids in the pool, less their place in the result.
        shifts_N = places_D[which_N] - places_N[:-1]
        ids = pool[np.repeat(shifts_N, counts_N) + np.arange(places_N[-1])]
        return ids, places_N[np.searchsorted(starts, ends)]

    def _ids(self, pre_token: bytes) -> list[int]:
        found = self._known.get(pre_token)
        if found is not None:
            return found
        text = pre_token.decode("utf-8", "replace")
        words = [text] if text.isascii() else self._characters.words(text)
        if words is None:
            found = self._tokenizer.encode(text)
        else:
            found = [piece.id for word in words for piece in self._model.tokenize(word)]
        if len(self._known) >= MAX_ENTRIES:
            self._known.clear()
        if len(pre_token) <= MAX_CACHED_BYTES:
            self._known[pre_token] = found
        return found


Form = ArrowWordPiece | CompiledWordPiece | RunningText


def form_for(tokenizer: SubwordTokenizer) -> Form:
    """The fastest implementation of `tokenizer` on this machine."""
    if not isinstance(tokenizer, WordPieceTokenizer) or not tokenizer.has_fast_form:
        return RunningText(tokenizer)
    functions = wordpiece_library()
    return (
        ArrowWordPiece(tokenizer) if functions is None else CompiledWordPiece(tokenizer, functions)
    )
