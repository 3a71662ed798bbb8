"""WordPiece for many short ASCII words at once: longest piece first.

In:  words of at most 16 bytes as two integers each.
Out: their word-pieces, one word after another.

The same loop as the reference's (tokenization.py:300-359) with the words in lock-step: all prefixes
of what is left of all words are looked up, the longest one found is taken, and the rest moves up.
When only a few words are left, `tokenizers` does them.
"""

import numpy as np

from artifacts.arrays import Int64s, UInt64s
from artifacts.tokenizer import CONTINUATION, WordPieceTokenizer
from pipeline.tokenizer.hash_table import ABSENT, WordTable
from pipeline.tokenizer.pre_tokens import (
    KEY_BYTES,
    LENGTH_MASKS,
    LONGEST_KEY,
    keys_of_words,
    words_of_keys,
)

# W words, P pieces

_FEW = 32
"""At most so many words are left to `tokenizers`: a round costs as much for one as for many."""

_SLOTS_PER_PIECE = 8
"""Most look-ups miss, and a miss is known at once if its slot is free."""
_BITS = np.uint64(8)
_WORD_BITS = np.uint64(64)


class LongestMatch:
    """The pieces of a vocabulary that can be part of a short ASCII word."""

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
        """All pieces (P,), and how many each word has (W,)."""
        whole = keys
        found_ids: list[Int64s] = []
        found_words: list[Int64s] = []
        words = np.arange(len(lengths))
        unknown = np.zeros(len(lengths), dtype=np.bool_)
        table = self._first
        while len(words) > _FEW:
            ids, taken = _longest(table, keys, lengths)
            unknown[words[taken == 0]] = True
            found_ids.append(ids)
            found_words.append(words)
            more = np.flatnonzero((taken > 0) & (taken < lengths))
            taken = taken[more]
            first, second = (key[more] for key in keys)
            # the words without what was taken, at least a byte
            bits = taken.astype(np.uint64) * _BITS
            near = (first >> bits) | (second << (_WORD_BITS - bits))  # shifts of 64 give 0
            far = second >> (bits - _WORD_BITS)
            keys = [
                np.where(taken <= KEY_BYTES, near, far),
                np.where(taken < KEY_BYTES, second >> bits, ABSENT),
            ]
            words, lengths, table = words[more], lengths[more] - taken, self._inner
        spoilt = np.flatnonzero(unknown)
        unknown[words] = True  # what has been found of the last few is found again
        found_ids = [part[~unknown[own]] for part, own in zip(found_ids, found_words, strict=True)]
        found_words = [own[~unknown[own]] for own in found_words]
        for word, text in zip(
            words.tolist(), words_of_keys([key[words] for key in whole]), strict=True
        ):
            pieces = self._model.tokenize(text.decode())
            found_ids.append(np.array([piece.id for piece in pieces], dtype=np.int64))
            found_words.append(np.full(len(pieces), word))
        ids = np.concatenate([*found_ids, np.full(len(spoilt), self._unk_id)])
        owners = np.concatenate([*found_words, spoilt])
        order = np.argsort(owners, kind="stable")  # pieces of one word are in order already
        return ids[order], np.bincount(owners, minlength=len(unknown))


def _piece_table(pieces: dict[str, int]) -> WordTable:
    words = [word.encode() for word in pieces if 0 < len(word) <= LONGEST_KEY]
    slots = 1 << (_SLOTS_PER_PIECE * max(len(words), 1)).bit_length()
    table = WordTable(width=2, slots=slots)
    if words:
        ids = np.array([pieces[word.decode()] for word in words], dtype=np.uint64)
        table.insert(keys_of_words(words, 2), ids + np.uint64(1))  # 0 would mean absent
    return table


def _longest(table: WordTable, keys: list[UInt64s], lengths: Int64s) -> tuple[Int64s, Int64s]:
    """The longest prefix of each word that is in the table: its id and its length, or 0."""
    starts = np.cumsum(lengths) - lengths
    prefix = np.arange(int(lengths.sum())) - np.repeat(starts, lengths) + 1
    first = np.repeat(keys[0], lengths) & LENGTH_MASKS[np.minimum(prefix, KEY_BYTES)]
    second = np.repeat(keys[1], lengths) & LENGTH_MASKS[np.maximum(prefix - KEY_BYTES, 0)]
    values = table.find([first, second]).astype(np.int64)
    taken = np.maximum.reduceat(np.where(values > 0, prefix, 0), starts)
    return values[starts + np.maximum(taken - 1, 0)] - 1, taken
