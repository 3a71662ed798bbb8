"""WordPiece in NumPy, for machines without a C compiler.

In:  cleaned UTF-8 text (pipeline/text/cleaning.py: no control characters but the line feed).
Out: a flat array of token ids, and the number of ids before given offsets.

Each distinct pre-token is tokenised once and cached. Pre-tokens of up to 16 bytes are one or two
zero-padded 8-byte integers (`the` is 0x656874) and looked up in a vectorised hash table; longer
ones are looked up in a dict. A Python dict for all would need one object per word; this needs a few
dozen NumPy calls per million bytes. New pre-tokens are tokenised by greedy longest-match-first, the
same loop as in the reference (tokenization.py:300-359) with all words in lock-step, or by
`tokenizers` if they are long or not ASCII.
"""

from collections.abc import Iterator

import numpy as np

from artifacts.arrays import Int64s, Mask, Offsets, TokenIds, UInt64s, offsets
from artifacts.errors import UsageError
from artifacts.rng import GOLDEN_GAMMA
from artifacts.tables import id_type
from artifacts.tokenizer import CONTINUATION, WordPieceTokenizer
from pipeline.tokenizer.pre_tokens import (
    KEY_BYTES,
    LENGTH_MASKS,
    MAX_KEY_BYTES,
    PUNCTUATION,
    Characters,
    PreTokens,
    folding,
    keys_of,
    keys_of_words,
    split_pre_tokens,
    words_of_keys,
)

STRIDE_BYTES = 1 << 20
"""Bytes of text tokenised at a time: small enough for the arrays to stay in the L2 cache."""

TABLE_SLOTS = 1 << 20
MAX_ENTRIES = 1 << 19
"""Pre-tokens to cache before clearing; 200 MB of Wikipedia has 554,000 distinct ones."""
MAX_POOL = 1 << 23
"""Ids to cache before clearing."""
MAX_CACHED_BYTES = 1 << 12
"""Bytes; longer pre-tokens are not cached, since they hardly ever occur twice."""
_FEW_TOKENS = 64
"""Number of pre-tokens to copy one by one instead of in another vectorised round."""

# The value of a pre-token packs the offset of its ids in the pool, their number, and the first id.
_ID_BITS, _COUNT_BITS = np.uint64(18), np.uint64(22)
_OFFSET_SHIFT = _ID_BITS + _COUNT_BITS
_ID_MASK = (np.uint64(1) << _ID_BITS) - np.uint64(1)
_COUNT_MASK = (np.uint64(1) << _COUNT_BITS) - np.uint64(1)
_NOT_ASCII = np.uint64(0x8080808080808080)

ABSENT = np.uint64(0)
"""The value of an absent word, and the key of a free slot, since no word is empty."""

MAX_PROBES = 16
"""Slots to try for a word; if none of them is free, the word is not stored."""

_MULTIPLIER_1 = np.uint64(GOLDEN_GAMMA)
_MULTIPLIER_2 = np.uint64(0xC2B2AE3D27D4EB4F)

_FEW_WORDS = 32
"""Number of words to leave to `tokenizers`: a round costs as much for one word as for many."""

_SLOTS_PER_PIECE = 8
"""A sparse table: most look-ups miss, and end at once if the slot is free."""
_BITS = np.uint64(8)
_WORD_BITS = np.uint64(64)

# W words, P pieces


class NumpyWordPiece:
    """WordPiece in NumPy, with a cache of pre-tokens. Not thread-safe: use one per worker."""

    def __init__(self, tokenizer: WordPieceTokenizer) -> None:
        self._tokenizer = tokenizer
        self._fold = folding(lowercase=tokenizer.lowercase)
        self._dtype = np.dtype(str(id_type(tokenizer.size)))  # the names are the same
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
        self._clear_cache()

    def encode(self, text: bytes, ends: Offsets) -> tuple[TokenIds, Offsets]:
        """Ids of cleaned `text`, and the number of ids before each of the ascending `ends`.

        No pre-token may span an end: each follows white space or is the end of the text.
        """
        ids: list[TokenIds] = []
        counts = np.zeros(len(ends), dtype=np.int64)
        done = 0
        for start, stop in _strides(text):
            first, last = np.searchsorted(ends, [start, stop], side="right")
            entries = self._short.count + self._medium.count + len(self._long)
            if entries > MAX_ENTRIES or self._used > MAX_POOL:
                self._clear_cache()
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
        """The ids of all pre-tokens: most have a single id, which is part of the value."""
        ids = np.empty(int(token_ends[-1]) if len(token_ends) else 0, dtype=self._dtype)
        filled = np.flatnonzero(counts) if not counts.all() else slice(None)
        starts = token_ends - counts
        ids[starts[filled]] = (values[filled] & _ID_MASK).astype(self._dtype)
        several = np.flatnonzero(counts > 1)
        counts, starts = counts[several], starts[several]
        places = (values[several] >> _OFFSET_SHIFT).view(np.int64)
        piece = 1
        while len(counts) > _FEW_TOKENS:
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
        """The value of each pre-token; new ones are tokenised and cached."""
        keys = keys_of(pre_tokens)
        medium = [keys.first[keys.medium], keys.second]
        first = keys.first.copy()
        first[keys.medium] = first[keys.long] = self._anchor  # found in its first slot
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
        simple = ((first | second) & _NOT_ASCII == 0) & (lengths <= MAX_KEY_BYTES)
        which = np.flatnonzero(simple)
        if len(which):
            columns = [first[which], second[which]]
            values[missing[which]] = self._learn_short(columns, lengths[which])
        others = missing[~simple]
        if len(others):
            values[others] = self._learn_words(pre_tokens.words(others))
        return values

    def _learn_short(self, keys: list[UInt64s], lengths: Offsets) -> UInt64s:
        """Tokenise and cache ASCII pre-tokens of at most 16 bytes, which may repeat."""
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
        """Tokenise and cache any pre-tokens, which may repeat."""
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
        short = np.flatnonzero(lengths <= MAX_KEY_BYTES)
        if len(short):
            fitting = list(distinct)
            keys = keys_of_words([fitting[index] for index in short.tolist()], 2)
            self._remember(keys, lengths[short], values[short])
        for word, value in zip(distinct, values.tolist(), strict=True):
            if MAX_KEY_BYTES < len(word) <= MAX_CACHED_BYTES:
                self._long[word] = value
        return values[[distinct[word] for word in words]]

    def _append(self, ids: Offsets, counts: Offsets) -> UInt64s:
        """Add the ids of pre-tokens to the pool; returns the values of the pre-tokens."""
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
                f"a text without white space has {int(counts.max()):,} word-pieces, too long "
                "for a single word; insert white space"
            )
        firsts = self._pool.take(places, mode="clip").astype(np.uint64)
        values = (places.astype(np.uint64) << _OFFSET_SHIFT) | firsts
        return values | (counts.astype(np.uint64) << _ID_BITS)

    def _remember(self, keys: list[UInt64s], lengths: Offsets, values: UInt64s) -> None:
        """Insert pre-tokens of at most 16 bytes into the tables."""
        short = np.flatnonzero(lengths <= KEY_BYTES)
        medium = np.flatnonzero(lengths > KEY_BYTES)
        self._short.insert([keys[0][short]], values[short])
        self._medium.insert([key[medium] for key in keys], values[medium])

    def _clear_cache(self) -> None:
        """Forget all pre-tokens except ASCII punctuation."""
        self._short.clear()
        self._medium.clear()
        self._long.clear()
        self._used = 1  # no value may be 0, which means absent
        self._learn_words(list(PUNCTUATION))
        self._anchor = keys_of_words([PUNCTUATION[0]], 1)[0][0]


def _strides(text: bytes) -> Iterator[tuple[int, int]]:
    """Ranges of `text` of about `STRIDE_BYTES` that end at white space."""
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


class LongestMatch:
    """The pieces of a vocabulary that can occur in a short ASCII word."""

    def __init__(self, tokenizer: WordPieceTokenizer) -> None:
        self._unk_id = tokenizer.unk_id
        self._model = tokenizer.backend.model
        pieces = {word: index for word, index in tokenizer.ids.items() if word.isascii()}
        inner = {
            word.removeprefix(CONTINUATION): index
            for word, index in pieces.items()
            if word.startswith(CONTINUATION)
        }
        self._first, self._inner = _piece_table(pieces), _piece_table(inner)

    def split(self, keys: list[UInt64s], lengths: Int64s) -> tuple[Int64s, Int64s]:
        """All pieces (P,), and the number of pieces of each word (W,)."""
        whole = keys
        found_ids: list[Int64s] = []
        found_words: list[Int64s] = []
        words = np.arange(len(lengths))
        unknown = np.zeros(len(lengths), dtype=np.bool_)
        table = self._first
        while len(words) > _FEW_WORDS:
            values, taken = table.longest_prefixes(keys, lengths)
            unknown[words[taken == 0]] = True
            found_ids.append(values - 1)
            found_words.append(words)
            more = np.flatnonzero((taken > 0) & (taken < lengths))
            taken = taken[more]
            first, second = (key[more] for key in keys)
            # shift out the matched bytes, at least one
            bits = taken.astype(np.uint64) * _BITS
            near = (first >> bits) | (second << (_WORD_BITS - bits))  # shifts of 64 give 0
            far = second >> (bits - _WORD_BITS)
            keys = [
                np.where(taken <= KEY_BYTES, near, far),
                np.where(taken < KEY_BYTES, second >> bits, ABSENT),
            ]
            words, lengths, table = words[more], lengths[more] - taken, self._inner
        unknown_words = np.flatnonzero(unknown)
        unknown[words] = True  # the last few words are tokenised again from the beginning
        found_ids = [part[~unknown[own]] for part, own in zip(found_ids, found_words, strict=True)]
        found_words = [own[~unknown[own]] for own in found_words]
        for word, text in zip(
            words.tolist(), words_of_keys([key[words] for key in whole]), strict=True
        ):
            pieces = self._model.tokenize(text.decode())
            found_ids.append(np.array([piece.id for piece in pieces], dtype=np.int64))
            found_words.append(np.full(len(pieces), word))
        ids = np.concatenate([*found_ids, np.full(len(unknown_words), self._unk_id)])
        owners = np.concatenate([*found_words, unknown_words])
        order = np.argsort(owners, kind="stable")  # the pieces of a word are already in order
        return ids[order], np.bincount(owners, minlength=len(unknown))


class WordTable:
    """A vectorised hash table from short words to integers: open addressing, linear probing.

    A word of at most 8 * width bytes is its own key, so different words never compare equal. A slot
    is a row with the word's integers and its value, so a look-up touches one cache line.
    """

    def __init__(self, *, width: int, slots: int) -> None:
        """`width` integers per word, 1 or 2; `slots` is a power of two."""
        self.width = width
        self._slots = slots
        self.clear()
        self._last = slots - 1
        self._shift = np.uint64(64 - (slots.bit_length() - 1))

    def clear(self) -> None:
        """Delete all words."""
        self._rows = np.zeros((self._slots, self.width + 1), dtype=np.uint64)
        self.count = 0

    def find(self, keys: list[UInt64s]) -> UInt64s:
        """The values of words (`width` arrays of the same length); 0 for absent words."""
        slots = self._home(keys)
        rows = self._rows.take(slots, axis=0)
        values = rows[:, -1].copy()
        unsettled = np.flatnonzero(_differ(rows, keys))
        rows, slots = rows[unsettled], slots[unsettled]
        for _ in range(MAX_PROBES):
            values[unsettled] = ABSENT
            occupied = np.flatnonzero(rows[:, 0])
            if not len(occupied):
                return values
            unsettled, slots = unsettled[occupied], (slots[occupied] + 1) & self._last
            rows = self._rows.take(slots, axis=0)
            values[unsettled] = rows[:, -1]
            differ = np.flatnonzero(_differ(rows, [key[unsettled] for key in keys]))
            unsettled, slots, rows = unsettled[differ], slots[differ], rows[differ]
        values[unsettled] = ABSENT
        return values

    def longest_prefixes(self, keys: list[UInt64s], lengths: Int64s) -> tuple[Int64s, Int64s]:
        """The value and length of the longest prefix of each word in the table; 0 if none is."""
        starts = np.cumsum(lengths) - lengths
        prefix = np.arange(int(lengths.sum())) - np.repeat(starts, lengths) + 1
        first = np.repeat(keys[0], lengths) & LENGTH_MASKS[np.minimum(prefix, KEY_BYTES)]
        second = np.repeat(keys[1], lengths) & LENGTH_MASKS[np.maximum(prefix - KEY_BYTES, 0)]
        values = self.find([first, second]).astype(np.int64)
        taken = np.maximum.reduceat(np.where(values > 0, prefix, 0), starts)
        return values[starts + np.maximum(taken - 1, 0)], taken

    def insert(self, keys: list[UInt64s], values: UInt64s) -> None:
        """Add distinct new words with non-zero values."""
        slots = self._home(keys)
        for _ in range(MAX_PROBES):
            free = self._rows[slots, 0] == ABSENT
            for column, key in enumerate((*keys, values)):
                self._rows[slots[free], column] = key[free]
            # of words that share a slot, the last one wins, in all columns alike
            left = np.flatnonzero(~free | _differ(self._rows[slots], keys))
            self.count += len(slots) - len(left)
            if not len(left):
                return
            keys, values = [key[left] for key in keys], values[left]
            slots = (slots[left] + 1) & self._last

    def _home(self, keys: list[UInt64s]) -> Int64s:
        mixed = keys[0] * _MULTIPLIER_1
        if self.width == 2:
            mixed ^= keys[1] * _MULTIPLIER_2
            mixed *= _MULTIPLIER_1
        return (mixed >> self._shift).view(np.int64)


def _differ(rows: UInt64s, keys: list[UInt64s]) -> Mask:
    differ: Mask = rows[:, 0] != keys[0]
    for column, key in enumerate(keys[1:], start=1):
        differ |= rows[:, column] != key
    return differ


def _piece_table(pieces: dict[str, int]) -> WordTable:
    words = [word.encode() for word in pieces if 0 < len(word) <= MAX_KEY_BYTES]
    slots = 1 << (_SLOTS_PER_PIECE * max(len(words), 1)).bit_length()
    table = WordTable(width=2, slots=slots)
    if words:
        ids = np.array([pieces[word.decode()] for word in words], dtype=np.uint64)
        table.insert(keys_of_words(words, 2), ids + np.uint64(1))  # 0 would mean absent
    return table
