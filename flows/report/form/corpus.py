"""What was read and how it was hidden: the forms of the summary's data part.

In:  nothing; this module holds types.
Out: `Corpus` and `ExampleSet`.
"""

from pydantic import Field

from artifacts.config import Config


class Source(Config):
    """One source of documents, as configured."""

    reader: str
    """How it is read."""
    what: str
    """Packages, or the path as far as it is recorded."""
    split: str
    """`train`, or the name of the held-out split it forms."""
    weight: int = 1
    """Copies of each document."""


class Split(Config):
    """What one split of the corpus holds."""

    name: str
    """`train`, `heldout`, or a held-out source's name."""
    documents: int
    """After cleaning and deduplication."""
    sentences: int
    """As segmented."""
    tokens: int
    """Word-pieces."""
    bytes: int | None = None
    """Of text."""


class Histogram(Config):
    """Counts by bin."""

    edges: tuple[float, ...]
    """One more than counts; bin i holds edges[i] ≤ x < edges[i + 1]."""
    counts: tuple[int, ...]
    """How many."""


class Piece(Config):
    """A word-piece and how often it occurs."""

    text: str
    """As in the vocabulary."""
    count: int
    """In the training split."""


class Corpus(Config):
    """What was read and what became of it."""

    sources: tuple[Source, ...] = ()
    """As configured, in order of precedence."""
    documents_read: int | None = None
    """Before anything was dropped."""
    bytes_read: int | None = None
    """Of text, before anything was dropped."""
    dropped: dict[str, int] = Field(default_factory=dict)
    """Documents dropped, by reason; `duplicate` is one of them."""
    splits: tuple[Split, ...] = ()
    """Training first."""
    unigram_entropy: float | None = None
    """Of the word-pieces of the training split, nats."""
    unknown_share: float | None = None
    """Share of [UNK] among the tokens of the training split."""
    document_lengths: Histogram | None = None
    """Tokens per document."""
    sentence_lengths: Histogram | None = None
    """Tokens per sentence."""
    frequent: tuple[Piece, ...] = ()
    """Most frequent first; empty without `show_text`."""
    rank_frequency: tuple[tuple[int, int], ...] = ()
    """(rank, count), some forty points evenly spaced in log rank."""


class ExampleSet(Config):
    """The masked training examples of one sequence length."""

    max_seq_length: int
    """Longest input."""
    copies: int
    """Maskings and pairings of the corpus."""
    examples: int
    """Rows over all copies."""
    tokens: int
    """Of all rows, unpadded."""
    masked: int
    """Predicted positions."""
    as_mask: int | None = None
    """Of them, replaced by [MASK]."""
    as_random: int | None = None
    """Of them, replaced by a random word-piece."""
    kept: int | None = None
    """Of them, left as they were."""
    truncated: int | None = None
    """Pairs that were cut to fit."""
    random_next_share: float | None = None
    """Share of the pairs whose second segment is from another document (or swapped)."""
    length_only_accuracy: float | None = None
    """Next-sentence accuracy of a rule that sees the example's length alone."""
    lengths: Histogram | None = None
    """Tokens per example."""
