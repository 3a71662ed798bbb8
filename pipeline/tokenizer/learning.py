"""Learning a WordPiece vocabulary from word counts, always the same one from the same counts.

In:  how often each word occurs, normalised and split as BERT's tokenizer does it.
Out: the word-pieces, special tokens first.

The trainer is the one in `tokenizers`, which is not deterministic as it stands: it numbers the
continuing characters (`##a`) in the order of a hash map, and equal counts are decided by number.
So every continuing character is handed to it in order, as if it were a special token, and the
alphabet is chosen here.
"""

from collections import Counter
from collections.abc import Iterator, Mapping

from tokenizers import Tokenizer, models, pre_tokenizers, trainers

from artifacts.tokenizer import (
    CONTINUATION,
    MAX_CHARACTERS_PER_WORD,
    SPECIAL_TOKENS,
    UNK,
    bert_pipeline,
)

MAX_ALPHABET = 1000
"""Characters that get word-pieces of their own; words with rarer ones are left out. Fewer in a
small vocabulary: at most half of it is characters."""

MIN_PAIR_COUNT = 2
"""A pair seen once is no word-piece."""


def count_words(chunks: Mapping[bytes, int], *, lowercase: bool) -> Counter[str]:
    """Words of the BERT tokenizer, from how often each white-space or punctuation chunk occurs."""
    pipeline = bert_pipeline(models.WordPiece(unk_token=UNK), lowercase=lowercase)
    words: Counter[str] = Counter()
    for chunk, count in chunks.items():
        text = chunk.decode("utf-8", "replace")
        if text.isascii():
            words[text] += count
            continue
        normalised = pipeline.normalizer.normalize_str(text)
        for word, _ in pipeline.pre_tokenizer.pre_tokenize_str(normalised):
            words[word] += count
    return words


def learn_pieces(words: Mapping[str, int], *, size: int) -> list[str]:
    """`size` word-pieces or fewer: special tokens, characters, then the most useful merges."""
    # a character may need a piece at a word's start and one inside, and most room is for words
    alphabet = _alphabet(words, most=min(MAX_ALPHABET, (size - len(SPECIAL_TOKENS)) // 4))
    known = {
        word: count
        for word, count in words.items()
        if len(word) <= MAX_CHARACTERS_PER_WORD and alphabet.issuperset(word)
    }
    continuing = sorted({f"{CONTINUATION}{c}" for word in known for c in word[1:]})
    trainer = trainers.WordPieceTrainer(
        vocab_size=size,
        min_frequency=MIN_PAIR_COUNT,
        special_tokens=[*SPECIAL_TOKENS, *continuing],
        continuing_subword_prefix=CONTINUATION,
        show_progress=False,
    )
    tokenizer = Tokenizer(models.WordPiece(unk_token=UNK))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.train_from_iterator(_repeated(known), trainer)
    ids = tokenizer.get_vocab()
    return sorted(ids, key=ids.__getitem__)


def _alphabet(words: Mapping[str, int], *, most: int) -> set[str]:
    """The most frequent characters; of equally frequent ones those with the lower code point."""
    counts: Counter[str] = Counter()
    for word, count in words.items():
        for character in word:
            counts[character] += count
    ranked = sorted(counts, key=lambda character: (-counts[character], character))
    return set(ranked[:most])


def _repeated(words: Mapping[str, int]) -> Iterator[str]:
    """Every word as often as it was counted: the trainer takes text, not counts."""
    for word in sorted(words):
        yield f"{word} " * words[word]
