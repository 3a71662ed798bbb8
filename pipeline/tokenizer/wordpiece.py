"""WordPiece over whole blocks of text, with the ids of the `tokenizers` BERT pipeline.

In:  cleaned UTF-8 text (pipeline/text/cleaning.py: no control characters but the line feed).
Out: token ids, one flat array, and how many of them lie before given places.

BERT's normaliser and pre-tokenizer never look across white space or ASCII punctuation, so the ids
of a text are those of its pre-tokens, one after another, and each distinct pre-token is tokenised
once and remembered. What is remembered is bounded, belongs to one worker and cannot change an id.

There are two forms with one interface. `CompiledWordPiece` loops over the text in C (wordpiece.c)
and asks for what that cannot know: the meaning of a character that it meets for the first time, and
the ids of a pre-token with a character whose neighbours matter. Both answers come from
`tokenizers`, so no table of Unicode properties has to agree with it. `FastWordPiece`, where there
is no compiler, does the same in NumPy, at a fraction of the speed: pre-tokens of up to 16 bytes are
looked up as integers in a table (hash_table.py), longer ones in a dict; what is in neither is
tokenised by longest_match.py, or by `tokenizers` where it is long or not ASCII.
"""

import ctypes
import weakref
from abc import ABC, abstractmethod
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import numpy as np

from artifacts.arrays import Offsets, TokenIds, UInt64s, offsets
from artifacts.errors import UsageError
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
from pipeline.tokenizer.hash_table import ABSENT, WordTable
from pipeline.tokenizer.longest_match import LongestMatch
from pipeline.tokenizer.pre_tokens import (
    KEY_BYTES,
    LONGEST_KEY,
    PUNCTUATION,
    Characters,
    PreTokens,
    folding,
    keys_of,
    keys_of_words,
    split_pre_tokens,
)

STRIDE_BYTES = 1 << 20
"""Text tokenised at a time: small enough for the arrays to stay in the second-level cache."""

TABLE_SLOTS = 1 << 20
MAX_ENTRIES = 1 << 19
"""Pre-tokens kept before starting afresh; 200 MB of Wikipedia has 554,000 distinct ones."""
MAX_POOL = 1 << 23
"""Ids kept before starting afresh."""
LONGEST_KEPT = 1 << 12
"""Bytes; longer pre-tokens hardly ever occur twice."""
_FEW = 64
"""At most so many pre-tokens are copied one by one."""

# A pre-token's value: where its ids stand in the pool, how many they are, and the first of them.
_ID_BITS, _COUNT_BITS = np.uint64(18), np.uint64(22)
_OFFSET_SHIFT = _ID_BITS + _COUNT_BITS
_ID_MASK = (np.uint64(1) << _ID_BITS) - np.uint64(1)
_COUNT_MASK = (np.uint64(1) << _COUNT_BITS) - np.uint64(1)
_NOT_ASCII = np.uint64(0x8080808080808080)

_CONTROLS = bytes(byte for byte in (*range(0x20), 0x7F) if chr(byte) not in "\t\n\r")
"""Bytes that BERT's normaliser deletes, where it makes spaces of \\t, \\n and \\r."""


class WordPieceForm(ABC):
    """One tokenizer with its memory of pre-tokens. Not thread-safe: one for each worker."""

    @abstractmethod
    def encode(self, text: bytes, ends: Offsets) -> tuple[TokenIds, Offsets]:
        """Ids of cleaned `text`, and for each of the ascending `ends` the number of ids before it.

        No pre-token may reach across an end: ends follow white space or are the text's end.
        """

    def encode_text(self, text: str) -> list[int]:
        """Ids of any one text, cleaned or not; half surrogate pairs become question marks."""
        raw = text.encode("utf-8", "replace").translate(None, _CONTROLS)
        return [int(index) for index in self.encode(raw, np.array([len(raw)]))[0]]


class FastWordPiece(WordPieceForm):
    """The NumPy form, a million bytes at a time."""

    def __init__(self, tokenizer: WordPieceTokenizer) -> None:
        self._tokenizer = tokenizer
        self._fold = folding(lowercase=tokenizer.lowercase)
        self._dtype = np.dtype(str(id_type(tokenizer.size)))  # their names are the same
        self._model = tokenizer.backend.model
        self._characters = Characters(tokenizer)
        self._isolated = self._characters.isolated()
        self._long: dict[bytes, int] = {}
        self._pool: TokenIds = np.zeros(1, dtype=self._dtype)
        self._used = 0
        self._anchor = ABSENT
        self._longest_match = LongestMatch(tokenizer)
        self._short = WordTable(width=1, slots=TABLE_SLOTS)
        self._medium = WordTable(width=2, slots=TABLE_SLOTS)
        self._start_afresh()

    def encode(self, text: bytes, ends: Offsets) -> tuple[TokenIds, Offsets]:
        """Ids of cleaned `text`, and for each of `ends` the number of ids before it."""
        ids: list[TokenIds] = []
        counts = np.zeros(len(ends), dtype=np.int64)
        done = 0
        for start, stop in _strides(text):
            first, last = np.searchsorted(ends, [start, stop], side="right")
            entries = self._short.count + self._medium.count + len(self._long)
            if entries > MAX_ENTRIES or self._used > MAX_POOL:
                self._start_afresh()
            pre_tokens = split_pre_tokens(text[start:stop], self._fold, self._isolated)
            values = self._look_up(pre_tokens)
            token_counts = ((values >> _ID_BITS) & _COUNT_MASK).view(np.int64)
            token_ends = offsets(token_counts)
            ids.append(self._gather(values, token_counts, token_ends[1:]))
            reached = np.searchsorted(pre_tokens.starts, ends[first:last] - start)
            counts[first:last] = token_ends[reached] + done
            done += len(ids[-1])
        return (np.concatenate(ids) if ids else np.zeros(0, dtype=self._dtype)), counts

    def _gather(self, values: UInt64s, counts: Offsets, token_ends: Offsets) -> TokenIds:
        """The ids of all pre-tokens: most have one, which stands in the value."""
        ids = np.empty(int(token_ends[-1]) if len(token_ends) else 0, dtype=self._dtype)
        filled = np.flatnonzero(counts) if not counts.all() else slice(None)
        starts = token_ends - counts
        ids[starts[filled]] = (values[filled] & _ID_MASK).astype(self._dtype)
        several = np.flatnonzero(counts > 1)
        counts, starts = counts[several], starts[several]
        places = (values[several] >> _OFFSET_SHIFT).view(np.int64)
        piece = 1
        while len(counts) > _FEW:
            ids[starts + piece] = self._pool.take(places + piece)
            piece += 1
            longer = np.flatnonzero(counts > piece)
            counts, starts, places = counts[longer], starts[longer], places[longer]
        for count, start, place in zip(
            counts.tolist(), starts.tolist(), places.tolist(), strict=True
        ):
            ids[start : start + count] = self._pool[place : place + count]
        return ids

    def _look_up(self, pre_tokens: PreTokens) -> UInt64s:
        """Each pre-token's value; those that are new are tokenised and remembered."""
        keys = keys_of(pre_tokens)
        medium = [keys.first[keys.medium], keys.second]
        first = keys.first.copy()
        first[keys.medium] = first[keys.long] = self._anchor  # found at its first slot
        values = self._short.find([first])
        values[keys.medium] = self._medium.find(medium)
        values[keys.long] = np.array(
            [self._long.get(word, 0) for word in pre_tokens.words(keys.long)], dtype=np.uint64
        )
        missing = np.flatnonzero(values == ABSENT)
        if not len(missing):
            return values
        second = np.zeros(len(values), dtype=np.uint64)
        second[keys.medium] = keys.second
        lengths = (pre_tokens.ends - pre_tokens.starts)[missing]
        first, second = keys.first[missing], second[missing]
        simple = ((first | second) & _NOT_ASCII == 0) & (lengths <= LONGEST_KEY)
        which = np.flatnonzero(simple)
        if len(which):
            columns = [first[which], second[which]]
            values[missing[which]] = self._learn_short(columns, lengths[which])
        others = missing[~simple]
        if len(others):
            values[others] = self._learn_words(pre_tokens.words(others))
        return values

    def _learn_short(self, keys: list[UInt64s], lengths: Offsets) -> UInt64s:
        """Values of ASCII pre-tokens of at most 16 bytes, which may repeat."""
        order = np.lexsort(keys)
        new = np.ones(len(order), dtype=np.bool_)
        new[1:] = (keys[0][order[1:]] != keys[0][order[:-1]]) | (
            keys[1][order[1:]] != keys[1][order[:-1]]
        )
        distinct = order[new]
        keys, lengths = [key[distinct] for key in keys], lengths[distinct]
        values = self._append(*self._longest_match.split(keys, lengths))
        self._remember(keys, lengths, values)
        result = np.empty(len(order), dtype=np.uint64)
        result[order] = values[np.cumsum(new) - 1]
        return result

    def _learn_words(self, words: list[bytes]) -> UInt64s:
        """Values of any pre-tokens, which may repeat."""
        distinct = {word: number for number, word in enumerate(dict.fromkeys(words))}
        pieces: list[list[int]] = []
        for word in distinct:
            text = word.decode("utf-8", "replace")
            parts = [text] if text.isascii() else self._characters.words(text)
            pieces.append(
                self._tokenizer.encode(text)
                if parts is None
                else [piece.id for part in parts for piece in self._model.tokenize(part)]
            )
        counts = np.array([len(ids) for ids in pieces], dtype=np.int64)
        ids = np.array([index for ids in pieces for index in ids], dtype=np.int64)
        values = self._append(ids, counts)
        lengths = np.fromiter(map(len, distinct), dtype=np.int64, count=len(distinct))
        short = np.flatnonzero(lengths <= LONGEST_KEY)
        if len(short):
            fitting = list(distinct)
            keys = keys_of_words([fitting[index] for index in short.tolist()], 2)
            self._remember(keys, lengths[short], values[short])
        for word, value in zip(distinct, values.tolist(), strict=True):
            if LONGEST_KEY < len(word) <= LONGEST_KEPT:
                self._long[word] = value
        return values[[distinct[word] for word in words]]

    def _append(self, ids: Offsets, counts: Offsets) -> UInt64s:
        """Put the pre-tokens' ids into the pool; returns the pre-tokens' values."""
        needed = self._used + len(ids)
        if needed > len(self._pool):
            grown = np.zeros(max(needed, 2 * len(self._pool)), dtype=self._dtype)
            grown[: self._used] = self._pool[: self._used]
            self._pool = grown
        self._pool[self._used : needed] = ids
        ends = self._used + np.cumsum(counts)
        places = ends - counts
        self._used = needed
        if needed >> 24 or (len(counts) and int(counts.max()) >> int(_COUNT_BITS)):
            raise UsageError(
                f"a text without white space has {int(counts.max()):,} word-pieces; "
                "put white space into it, no language needs so long a word"
            )
        firsts = self._pool.take(places, mode="clip").astype(np.uint64)
        values = (places.astype(np.uint64) << _OFFSET_SHIFT) | firsts
        return values | (counts.astype(np.uint64) << _ID_BITS)

    def _remember(self, keys: list[UInt64s], lengths: Offsets, values: UInt64s) -> None:
        """Put pre-tokens of at most 16 bytes into the tables."""
        short = np.flatnonzero(lengths <= KEY_BYTES)
        medium = np.flatnonzero(lengths > KEY_BYTES)
        self._short.insert([keys[0][short]], values[short])
        self._medium.insert([key[medium] for key in keys], values[medium])

    def _start_afresh(self) -> None:
        """Forget all pre-tokens but the ASCII punctuation."""
        self._short.clear()
        self._medium.clear()
        self._long.clear()
        self._used = 1  # so that no value is 0, which would mean absent
        self._learn_words(list(PUNCTUATION))
        self._anchor = keys_of_words([PUNCTUATION[0]], 1)[0][0]


def _strides(text: bytes) -> Iterator[tuple[int, int]]:
    """Stretches of `text` that end at white space, or at the end."""
    start = 0
    while start < len(text):
        stop = start + STRIDE_BYTES
        if stop >= len(text):
            stop = len(text)
        else:
            found = max(text.rfind(b"\n", start, stop), text.rfind(b" ", stop - 4096, stop))
            if found < 0:
                nexts = (text.find(b"\n", stop), text.find(b" ", stop))
                found = min((place for place in nexts if place >= 0), default=len(text) - 1)
            stop = found + 1
        yield start, stop
        start = stop


_DONE, _NEED_CHARACTER, _NEED_PRE_TOKEN, _NEED_ROOM, _NO_MEMORY = range(5)
"""What `wordpiece_encode` returns."""

_SPARE = 1024
"""Room for ids beyond one for every three bytes; it grows as soon as more is needed."""


@cache
def library() -> ctypes.CDLL | None:
    """The functions of wordpiece.c; None where there is no compiler."""
    signatures = {
        "wordpiece_open": "pppppnnnnnii",
        "wordpiece_close": "-p",
        "wordpiece_character": "ipnbni",
        "wordpiece_encode": "ipbnpnppnp",
    }
    return load(Path(__file__).with_name("wordpiece.c"), signatures)


class CompiledWordPiece(WordPieceForm):
    """The compiled form."""

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
        """Ids of cleaned `text`, and for each of `ends` the number of ids before it."""
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


Form = WordPieceForm | ByteLevel


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
