"""WordPiece over whole blocks of text, with the ids of the `tokenizers` BERT pipeline.

In:  cleaned UTF-8 text (pipeline/text/cleaning.py: no control characters but the line feed).
Out: token ids, one flat array, and how many of them lie before given places.

BERT's normaliser and pre-tokenizer never look across white space or ASCII punctuation, so the ids
of a text are those of its chunks, one after another, and each distinct chunk is tokenised once.
Chunks of up to 16 bytes are looked up as integers in a table (hash_table.py), longer ones
in a dict. What is in neither is tokenised (longest_match.py; `tokenizers` itself where a chunk is
long or not ASCII) and remembered. The tables are bounded and belong to one worker; they cannot
change an id.
"""

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from artifacts.errors import UsageError
from artifacts.tables import id_type
from artifacts.tokenizer import WordPieceTokenizer
from pipeline.tokenizer.characters import Characters
from pipeline.tokenizer.hash_table import ABSENT, Keys, WordTable
from pipeline.tokenizer.longest_match import GreedyWordPiece
from pipeline.tokenizer.pre_tokens import (
    KEY_BYTES,
    LONGEST_KEY,
    PUNCTUATION,
    ChunkKeys,
    Chunks,
    Offsets,
    folding,
    keys_of,
    keys_of_words,
    split_chunks,
)

STRIDE_BYTES = 1 << 20
"""Text tokenised at a time: small enough for the arrays to stay in the second-level cache."""

TABLE_SLOTS = 1 << 20
MAX_ENTRIES = 1 << 19
"""Chunks kept before starting afresh; 200 MB of Wikipedia has 554,000 distinct ones."""
MAX_POOL = 1 << 23
"""Ids kept before starting afresh."""
LONGEST_KEPT = 1 << 12
"""Bytes; what is longer is hardly met twice."""
_FEW = 64
"""So few chunks are copied one by one."""

# A chunk's value: where its ids stand in the pool, how many they are, and the first of them.
_ID_BITS, _COUNT_BITS = np.uint64(18), np.uint64(22)
_OFFSET_SHIFT = _ID_BITS + _COUNT_BITS
_ID_MASK = (np.uint64(1) << _ID_BITS) - np.uint64(1)
_COUNT_MASK = (np.uint64(1) << _COUNT_BITS) - np.uint64(1)
_NOT_ASCII = np.uint64(0x8080808080808080)

CONTROLS = bytes(byte for byte in (*range(0x20), 0x7F) if chr(byte) not in "\t\n\r")
"""Bytes that BERT's normaliser deletes, where it makes spaces of \\t, \\n and \\r."""

Ids = npt.NDArray[np.unsignedinteger]


class FastWordPiece:
    """One tokenizer with its memory of chunks. Not thread-safe: one for each worker."""

    def __init__(self, tokenizer: WordPieceTokenizer) -> None:
        self._tokenizer = tokenizer
        self._fold = folding(lowercase=tokenizer.lowercase)
        self._dtype = np.dtype(str(id_type(tokenizer.size)))  # their names are the same
        self._model = tokenizer.backend.model
        self._characters = Characters(tokenizer)
        self._isolated = self._characters.isolated()
        self._long: dict[bytes, int] = {}
        self._pool: Ids = np.zeros(1, dtype=self._dtype)
        self._used = 0
        self._anchor = ABSENT
        self._greedy = GreedyWordPiece(tokenizer)
        self._short = WordTable(width=1, slots=TABLE_SLOTS)
        self._medium = WordTable(width=2, slots=TABLE_SLOTS)
        self._start_afresh()

    def encode(self, text: bytes, ends: Offsets) -> tuple[Ids, Offsets]:
        """Ids of cleaned `text`, and for each of the ascending `ends` the number of ids before it.

        No chunk may reach across an end: ends follow white space or are the text's end.
        """
        ids: list[Ids] = []
        counts = np.zeros(len(ends), dtype=np.int64)
        done = 0
        for start, stop in _strides(text):
            first, last = np.searchsorted(ends, [start, stop], side="right")
            part, before = self._encode_stride(text[start:stop], ends[first:last] - start)
            counts[first:last] = before + done
            ids.append(part)
            done += len(part)
        return (np.concatenate(ids) if ids else np.zeros(0, dtype=self._dtype)), counts

    def encode_text(self, text: str) -> list[int]:
        """Ids of any one text, cleaned or not; half surrogate pairs become question marks."""
        raw = text.encode("utf-8", "replace").translate(None, CONTROLS)
        return [int(index) for index in self.encode(raw, np.array([len(raw)]))[0]]

    def _encode_stride(self, text: bytes, ends: Offsets) -> tuple[Ids, Offsets]:
        entries = self._short.count + self._medium.count + len(self._long)
        if entries > MAX_ENTRIES or self._used > MAX_POOL:
            self._start_afresh()
        chunks = split_chunks(text, self._fold, self._isolated)
        values = self._look_up(chunks)
        counts = ((values >> _ID_BITS) & _COUNT_MASK).view(np.int64)
        token_ends = np.cumsum(counts)
        ids = self._gather(values, counts, token_ends)
        before = np.concatenate(([0], token_ends))[np.searchsorted(chunks.starts, ends)]
        return ids, before

    def _gather(self, values: Keys, counts: Offsets, token_ends: Offsets) -> Ids:
        """The ids of all chunks. Most have one, which stands in the value; the rest are copied."""
        ids = np.empty(int(token_ends[-1]) if len(token_ends) else 0, dtype=self._dtype)
        told = np.flatnonzero(counts) if not counts.all() else slice(None)
        starts = token_ends - counts
        ids[starts[told]] = (values[told] & _ID_MASK).astype(self._dtype)
        several = np.flatnonzero(counts > 1)
        counts, starts = counts[several], starts[several]
        offsets = (values[several] >> _OFFSET_SHIFT).view(np.int64)
        piece = 1
        while len(counts) > _FEW:
            ids[starts + piece] = self._pool.take(offsets + piece)
            piece += 1
            longer = np.flatnonzero(counts > piece)
            counts, starts, offsets = counts[longer], starts[longer], offsets[longer]
        for count, start, offset in zip(
            counts.tolist(), starts.tolist(), offsets.tolist(), strict=True
        ):
            ids[start : start + count] = self._pool[offset : offset + count]
        return ids

    def _look_up(self, chunks: Chunks) -> Keys:
        """Each chunk's value."""
        keys = keys_of(chunks)
        medium = [keys.first[keys.medium], keys.second]
        first = keys.first.copy()
        first[keys.medium] = first[keys.long] = self._anchor  # found at its first slot
        values = self._short.find([first])
        values[keys.medium] = self._medium.find(medium)
        values[keys.long] = np.array(
            [self._long.get(word, 0) for word in chunks.words(keys.long)], dtype=np.uint64
        )
        missing = np.flatnonzero(values == ABSENT)
        if len(missing):
            self._learn(chunks, keys, missing, values)
        return values

    def _learn(self, chunks: Chunks, keys: ChunkKeys, missing: Offsets, values: Keys) -> None:
        """Tokenise and remember the `missing` chunks, and put in their values."""
        second = np.zeros(len(values), dtype=np.uint64)
        second[keys.medium] = keys.second
        lengths = (chunks.ends - chunks.starts)[missing]
        first, second = keys.first[missing], second[missing]
        simple = ((first | second) & _NOT_ASCII == 0) & (lengths <= LONGEST_KEY)
        which = np.flatnonzero(simple)
        if len(which):
            columns = [first[which], second[which]]
            values[missing[which]] = self._learn_short(columns, lengths[which])
        others = missing[~simple]
        if len(others):
            values[others] = self._learn_words(chunks.words(others))

    def _learn_short(self, keys: list[Keys], lengths: Offsets) -> Keys:
        """Values of ASCII chunks of at most 16 bytes, which may repeat."""
        order = np.lexsort(keys)
        new = np.ones(len(order), dtype=np.bool_)
        new[1:] = (keys[0][order[1:]] != keys[0][order[:-1]]) | (
            keys[1][order[1:]] != keys[1][order[:-1]]
        )
        distinct = order[new]
        keys, lengths = [key[distinct] for key in keys], lengths[distinct]
        values = self._append(*self._greedy.split(keys, lengths))
        self._remember(keys, lengths, values)
        result = np.empty(len(order), dtype=np.uint64)
        result[order] = values[np.cumsum(new) - 1]
        return result

    def _learn_words(self, words: list[bytes]) -> Keys:
        """Values of any chunks, which may repeat."""
        distinct = {word: number for number, word in enumerate(dict.fromkeys(words))}
        pieces = [self._tokenise(word) for word in distinct]
        counts = np.fromiter(map(len, pieces), dtype=np.int64, count=len(pieces))
        ids = np.array([index for piece in pieces for index in piece], dtype=np.int64)
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

    def _tokenise(self, chunk: bytes) -> list[int]:
        """Ids of one chunk."""
        text = chunk.decode("utf-8", "replace")
        words = [text] if text.isascii() else self._characters.words(text)
        if words is None:
            return self._tokenizer.encode(text)
        return [token.id for word in words for token in self._model.tokenize(word)]

    def _append(self, ids: Offsets, counts: Offsets) -> Keys:
        """Put the chunks' ids into the pool; returns the chunks' values."""
        needed = self._used + len(ids)
        if needed > len(self._pool):
            grown = np.zeros(max(needed, 2 * len(self._pool)), dtype=self._dtype)
            grown[: self._used] = self._pool[: self._used]
            self._pool = grown
        self._pool[self._used : needed] = ids
        ends = self._used + np.cumsum(counts)
        offsets = ends - counts
        self._used = needed
        if needed >> 24 or (len(counts) and int(counts.max()) >> int(_COUNT_BITS)):
            raise UsageError(
                f"a text without white space has {int(counts.max()):,} word-pieces; "
                "put white space into it, no language needs so long a word"
            )
        firsts = self._pool.take(offsets, mode="clip").astype(np.uint64)
        values = (offsets.astype(np.uint64) << _OFFSET_SHIFT) | firsts
        return values | (counts.astype(np.uint64) << _ID_BITS)

    def _remember(self, keys: list[Keys], lengths: Offsets, values: Keys) -> None:
        """Put chunks of at most 16 bytes into the tables."""
        short = np.flatnonzero(lengths <= KEY_BYTES)
        medium = np.flatnonzero(lengths > KEY_BYTES)
        self._short.insert([keys[0][short]], values[short])
        self._medium.insert([key[medium] for key in keys], values[medium])

    def _start_afresh(self) -> None:
        """Forget all chunks but the ASCII punctuation."""
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
                found = _next_white_space(text, stop)
            stop = found + 1
        yield start, stop
        start = stop


def _next_white_space(text: bytes, start: int) -> int:
    """The first space or line feed from `start` on, or the last byte."""
    found = [place for place in (text.find(b"\n", start), text.find(b" ", start)) if place >= 0]
    return min(found, default=len(text) - 1)
