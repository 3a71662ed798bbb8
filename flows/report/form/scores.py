"""What was found: the forms of the summary's part about quality and transfer.

In:  nothing; this module holds types. Their fields are those of the evaluation's `scores.json`.
Out: `LanguageModel`, `FilledSentence` and `Task`.
"""

from typing import Literal

from pydantic import ConfigDict, Field

from artifacts.config import Config


class Drawn(Config):
    """A part of the evaluation's `scores.json`: the fields that are drawn, others passed over."""

    model_config = ConfigDict(frozen=True, extra="ignore", use_attribute_docstrings=True)


class LanguageModel(Drawn):
    """Quality on one held-out split, and baselines on the same masked positions."""

    split: str
    """`heldout`, or a held-out source's name."""
    headline: bool = False
    """The split that the report leads with."""
    max_seq_length: int
    """Which examples."""
    examples: int
    """Judged."""
    masked_tokens: int
    """Predicted positions; all figures are over exactly these."""
    mlm_loss: float
    """Ours."""
    mlm_accuracy: float
    """Ours."""
    mlm_perplexity: float
    """exp(mlm_loss)."""
    random_mlm_loss: float
    """The same architecture before training."""
    unigram_entropy: float
    """Of the training split's word-pieces."""
    unigram_loss: float
    """Their cross-entropy on the masked positions."""
    unigram_accuracy: float
    """Always the most frequent word-piece."""
    count_model_loss: float
    """P(word | left and right neighbour)."""
    count_model_accuracy: float
    """Its first guess."""
    next_sentence_examples: int = 0
    """Examples that ask."""
    next_sentence_accuracy: float | None = None
    """Ours."""
    next_sentence_majority: float | None = None
    """What a constant reaches."""


class Guesses(Config):
    """The first words of one model; without `show_text` there are none, only `correct`."""

    system: Literal["random", "count", "pretrained"]
    """Which model."""
    words: tuple[str, ...] = ()
    """Best first."""
    probabilities: tuple[float, ...] = ()
    """Theirs."""
    correct: int | None = None
    """Place of the first right word among them, from 0; None: none, or the answer is not known."""


class FilledSentence(Config):
    """A sentence with one [MASK] and everyone's guesses."""

    sentence: str = ""
    """As configured; empty without `show_text`."""
    answers: tuple[str, ...] = ()
    """Words that count as right; empty if nobody said, or without `show_text`."""
    judged: bool = False
    """Whether somebody said which words are right."""
    guesses: tuple[Guesses, ...]
    """Untrained, count model, ours."""


class Spread(Drawn):
    """One metric over the seeds."""

    values: tuple[float, ...]
    """One per seed."""
    mean: float
    """Of the values."""
    standard_error: float
    """Of the mean; 0 for a single value."""


class System(Drawn):
    """One way to do a task."""

    name: str
    """For example `lookup` or `pretrained`."""
    role: Literal["baseline", "random", "pretrained"]
    """What it is compared as."""
    dev: dict[str, Spread] = Field(default_factory=dict)
    """By metric."""
    test: dict[str, Spread] = Field(default_factory=dict)
    """By metric."""
    fits: int = 0
    """Fine-tuning runs behind the figures."""
    seconds_per_fit: float | None = None
    """Median."""


class Comparison(Drawn):
    """One system against another."""

    system: str
    """The one that is hoped to win."""
    against: str
    """The other."""
    metric: str
    """Compared."""
    split: Literal["dev", "test"]
    """Where."""
    difference: float
    """Of the means."""
    standard_error: float
    """Of the difference."""
    paired: bool = False
    """Seed by seed."""
    wins: bool
    """By the evaluation's own rule."""
    statement: str = ""
    """The evaluation's verdict in words."""


class EpochPoint(Drawn):
    """One epoch of one fit."""

    epoch: int
    """From 1."""
    dev: float
    """Headline metric."""


class LearningCurve(Drawn):
    """The epochs of one fit."""

    system: str
    """The system's name."""
    seed: int
    """The fit's seed."""
    points: tuple[EpochPoint, ...]
    """In order."""


class Confusion(Drawn):
    """How often each label was taken for each."""

    labels: tuple[str, ...]
    """Rows and columns."""
    counts: tuple[tuple[int, ...], ...]
    """`counts[gold][predicted]`."""


class ErrorExample(Drawn):
    """A mistake; never there without `show_text`."""

    text: str
    """The input, shortened."""
    gold: str
    """The right answer."""
    predicted: str
    """The given one."""


class Published(Drawn):
    """What a paper reports."""

    system: str
    """For example `BERT-base`."""
    metric: str
    """The paper's."""
    value: float
    """As a fraction."""
    split: Literal["dev", "test"]
    """Of the official data."""
    source: str
    """Paper and table."""


class Task(Drawn):
    """One task, whole."""

    name: str
    """As configured."""
    kind: str
    """Its family."""
    metric: str
    """Headline."""
    examples: dict[str, int] = Field(default_factory=dict)
    """By split."""
    seeds: tuple[int, ...] = ()
    """Of the fits."""
    systems: tuple[System, ...] = ()
    """Baselines, random, pre-trained."""
    comparisons: tuple[Comparison, ...] = ()
    """Pre-trained against random and each baseline."""
    curves: tuple[LearningCurve, ...] = ()
    """Every fit's."""
    confusion: Confusion | None = None
    """Of the best pre-trained fit."""
    errors: tuple[ErrorExample, ...] = ()
    """Some of its mistakes."""
    published: tuple[Published, ...] = ()
    """Same size, same task."""
