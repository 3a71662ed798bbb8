"""The schema of `summary.json`: every figure of a run's report, for programs.

In:  nothing; this module holds types.
Out: `Summary`, which the report collects from the artifacts; the page, the terminal, the ablations
     and `cloze compare` only present it. Scores keep the schema of artifacts/results.py.

Shares and accuracies are fractions, losses and entropies nats, times seconds, sizes bytes. Parts
that a run does not have are None or empty. With `show_text` false no text of the corpus is in it.
"""

from typing import ClassVar, Literal

from pydantic import Field, JsonValue

from artifacts.config import GrownConfig
from artifacts.results import LanguageModelScore, Result, TaskScore

SUMMARY_VERSION = 2


class Source(Result):
    """One source of documents, as configured."""

    reader: str
    what: str
    """Packages, or the path as far as it is recorded."""
    split: str
    """`train`, or the name of the held-out split it forms."""
    weight: int = 1
    """Copies of each document."""


class CorpusSplit(Result):
    """What one split of the corpus holds."""

    name: str
    """`train`, `heldout`, or a held-out source's name."""
    documents: int
    """After cleaning and deduplication."""
    sentences: int
    tokens: int
    """Word-pieces."""
    bytes: int | None = None
    """Of text."""


class Histogram(Result):
    """Counts by bin."""

    edges: tuple[float, ...]
    """One more than counts; bin i holds edges[i] ≤ x < edges[i + 1]."""
    counts: tuple[int, ...]


class Piece(Result):
    """A word-piece and how often it occurs in the training split."""

    text: str
    count: int


class Corpus(Result):
    """What was read and what became of it."""

    sources: tuple[Source, ...] = ()
    """In order of precedence."""
    documents_read: int | None = None
    """Before anything was dropped."""
    dropped: dict[str, int] = Field(default_factory=dict)
    """Documents dropped, by reason; `duplicate` is one of them."""
    splits: tuple[CorpusSplit, ...] = ()
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
    """(rank, count) at up to 61 ranks, evenly spaced in log rank."""


class ExampleSet(Result):
    """The masked training examples of one sequence length."""

    max_seq_length: int
    copies: int
    """Maskings and pairings of the corpus."""
    examples: int
    """Rows over all copies."""
    tokens: int
    """Of all rows, without padding."""
    masked: int
    """Predicted positions."""
    as_mask: int | None = None
    """Of them, replaced by [MASK]."""
    as_random: int | None = None
    """Of them, replaced by a random word-piece."""
    kept: int | None = None
    """Of them, left unchanged."""
    truncated: int | None = None
    """Pairs that were cut to fit."""
    random_next_share: float | None = None
    """Share of the pairs whose second segment is from another document (or swapped)."""
    length_only_accuracy: float | None = None
    """Next-sentence accuracy of a rule that sees the example's length alone."""
    lengths: Histogram | None = None
    """Tokens per example."""


class Encoder(Result):
    """The encoder that was trained, or the finished one that was given."""

    layers: int
    hidden_size: int
    heads: int
    vocabulary_size: int
    """Word-pieces, special tokens included."""
    parameters: int | None = None
    """Of the encoder with both pre-training heads."""
    preset: str = ""
    """Published size of the same shape; empty if none."""
    precision: str = ""
    """Arithmetic of pre-training; empty for a finished encoder."""


class HeldoutPoint(Result):
    """An evaluation on held-out examples during training."""

    mlm_loss: float
    mlm_accuracy: float | None = None
    """Top-1 accuracy over the masked tokens."""
    nsp_accuracy: float | None = None
    """Next-sentence accuracy."""


class TrainingPoint(Result):
    """Pre-training at one step; what was not measured there is None."""

    step: int
    """Optimizer steps done."""
    max_seq_length: int | None = None
    seconds: float | None = None
    """Of training so far, interruptions left out."""
    tokens: int | None = None
    """Seen so far."""
    train_mlm_loss: float | None = None
    """Mean since the previous point."""
    train_nsp_loss: float | None = None
    """Mean since the previous point."""
    learning_rate: float | None = None
    tokens_per_second: float | None = None
    """Since the previous point."""
    heldout: dict[str, HeldoutPoint] = Field(default_factory=dict)
    """By split."""


class Pretraining(GrownConfig, Result):
    """How pre-training went."""

    later_fields: ClassVar[frozenset[str]] = frozenset({"objective"})

    steps: int
    batch_size: int
    """Sequences per step."""
    tokens: int | None = None
    """Seen in all."""
    seconds: float | None = None
    """Of training alone, without start-up and evaluations."""
    device: str = ""
    """`cpu`, or a GPU's name."""
    ranks: int | None = None
    phases: tuple[tuple[int, float], ...] = ()
    """(sequence length, share of the steps)."""
    curve: tuple[TrainingPoint, ...] = ()
    """In order of steps."""
    objective: Literal["masked_lm", "next_token"] = "masked_lm"
    """What was predicted, and what the losses of `curve` are of."""


class Predictions(Result):
    """What one model predicts for a [MASK]; without `show_text` only `correct`."""

    system: Literal["random", "count", "pretrained"]
    """The untrained encoder, the n-gram baseline, the encoder."""
    words: tuple[str, ...] = ()
    """The most probable first."""
    probabilities: tuple[float, ...] = ()
    correct: int | None = None
    """Index of the first correct word; None if none is, or if no answers are given."""


class FilledSentence(Result):
    """A sentence with one [MASK] and every model's predictions."""

    sentence: str = ""
    """As configured; empty without `show_text`."""
    answers: tuple[str, ...] = ()
    """Words that count as correct; empty without `show_text`."""
    judged: bool = False
    """Whether `report.answers` says which words are correct."""
    guesses: tuple[Predictions, ...]
    """Of the untrained encoder, the n-gram baseline, the encoder."""


class Step(Result):
    """One stage's artifact."""

    stage: str
    digest: str
    """Of its content."""
    key: str
    """Its name in the store."""
    inputs: dict[str, str] = Field(default_factory=dict)
    """Digests by role."""
    files: int
    bytes: int
    """Of all files."""
    rows: int | None = None
    """Where its files are tables."""
    finished_at: str = ""
    """UTC."""
    seconds: float | None = None
    """Wall-clock."""
    peak_memory: int | None = None
    """Bytes, all processes of the stage."""
    argv: tuple[str, ...] = ()
    """The command that made it."""
    versions: dict[str, str] = Field(default_factory=dict)
    """Of Python, the machine and the packages."""


class Summary(Result):
    """A run in figures."""

    summary_version: int = SUMMARY_VERSION
    name: str
    title: str
    note: str = ""
    """What a reader must know before believing a number."""
    show_text: bool = True
    """Whether text of the corpus may appear."""
    encoder: Encoder | None = None
    corpus: Corpus | None = None
    examples: tuple[ExampleSet, ...] = ()
    """One for each sequence length."""
    pretraining: Pretraining | None = None
    language_model: tuple[LanguageModelScore, ...] = ()
    """The headline split first."""
    sentences: tuple[FilledSentence, ...] = ()
    tasks: tuple[TaskScore, ...] = ()
    trial_seconds: dict[str, dict[str, float]] = Field(default_factory=dict)
    """Median time of a fine-tuning run, by task and system."""
    glue_average: float | None = None
    """Where GLUE tasks were run."""
    steps: tuple[Step, ...] = ()
    """Every artifact, in order."""
    configuration: dict[str, JsonValue] = Field(default_factory=dict)
    """The run's tables without what has its default value."""
