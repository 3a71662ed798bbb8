"""What preparing a corpus takes: work, gigabytes through the shuffle, sizes on disk.

In:  bytes of text and the examples wanted.
Out: `CorpusForecast`.

All ratios were measured on 138 MB of clean English Wikipedia (30,522 word-pieces, one core of the
machine in docs/benchmarks.md). Longer documents fill examples better, other languages and
vocabularies have other lengths: `cloze prepare` on a sample says more than any table.
"""

from dataclasses import dataclass

from pipeline.config import ExamplesConfig

WORD_PIECES_PER_BYTE = 0.217
"""Of text."""

TOKENS_RATIO = 0.497
"""Bytes of the tokens artifact for each byte of text."""

BYTES_PER_TOKEN = 2.72
"""Of an examples file, masks and offsets included, for each token of its examples."""

TOKENS_RATE = 18e6
"""Bytes of text that one core turns into tokens in a second, start-up included."""

EXAMPLES_RATE = 70e6
"""Bytes of text for which one core writes one copy of one length in a second."""


@dataclass(frozen=True)
class Yield:
    """Examples of one length, as they were measured."""

    mean_length: float
    """Tokens, special ones included."""
    per_word_piece: float
    """Examples in one copy for each word-piece of the corpus."""


MEASURED = {128: Yield(95.99, 0.01356), 512: Yield(192.6, 0.007353)}
"""Half of Wikipedia's articles are shorter than one example of 128, so few reach 512."""


@dataclass(frozen=True)
class CorpusForecast:
    """What is to be expected of vocabulary, tokens and examples."""

    text_bytes: float
    """Of text."""
    word_pieces: float
    """Of the whole corpus, once."""
    examples: dict[int, float]
    """Examples of each length in one copy."""
    core_seconds: float
    """Work."""
    shuffle_bytes: float
    """What a runner's own shuffle moves: the documents as ids, once."""
    tokens_bytes: float
    """The tokens artifact on disk."""
    examples_bytes: float
    """The examples artifact on disk."""


def forecast_corpus(text_bytes: float, config: ExamplesConfig) -> CorpusForecast:
    """What preparing so much text takes."""
    word_pieces = text_bytes * WORD_PIECES_PER_BYTE
    yields = {length: expected_yield(length) for length in config.max_seq_lengths}
    examples = {length: word_pieces * found.per_word_piece for length, found in yields.items()}
    a_copy = sum(count * yields[length].mean_length for length, count in examples.items())
    written = config.copies * len(config.max_seq_lengths)
    return CorpusForecast(
        text_bytes=text_bytes,
        word_pieces=word_pieces,
        examples=examples,
        core_seconds=text_bytes * (1 / TOKENS_RATE + written / EXAMPLES_RATE),
        shuffle_bytes=text_bytes * TOKENS_RATIO,
        tokens_bytes=text_bytes * TOKENS_RATIO,
        examples_bytes=config.copies * a_copy * BYTES_PER_TOKEN,
    )


def expected_yield(max_seq_length: int) -> Yield:
    """Of the measured length that is nearest, in proportion."""
    nearest = min(MEASURED, key=lambda length: abs(length - max_seq_length))
    found, ratio = MEASURED[nearest], max_seq_length / nearest
    return Yield(found.mean_length * ratio, found.per_word_piece / ratio)
