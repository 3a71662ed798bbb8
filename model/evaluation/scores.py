"""The form of `scores.json` and `masked_sentences.json`: what the evaluation says, for the report.

In:  nothing; this module holds types and the arithmetic of their verdicts, and loads no torch.
Out: `Scores` and `MaskedSentences`, which the evaluation writes and the report draws.

Task metrics are fractions (0.87, not 87); losses and entropies are in nats per masked token.
A figure is shown with all its values: five seeds are too few to hide behind a mean.
"""

from typing import Literal

from pydantic import Field

from artifacts.config import Config
from model.tasks.metrics.statistics import Summary

Role = Literal["baseline", "random", "pretrained"]

WIN_DIFFERENCE = 0.03
"""A win is at least so much (3 points) …"""

WIN_STANDARD_ERRORS = 3.0
"""… and at least so many standard errors of the difference."""


class LanguageModelScore(Config):
    """Masked-language-model and next-sentence quality on one held-out split, beside baselines."""

    split: str
    """`heldout` (documents drawn by digest) or the name of a held-out source, such as `package`."""

    headline: bool = False
    """The split that the report leads with: a whole held-out source, where there is one."""

    max_seq_length: int
    """Which of the examples' lengths was judged."""

    examples: int
    """Examples judged."""

    masked_tokens: int
    """Predicted positions; all losses below are means over exactly these."""

    mlm_loss: float
    """Ours."""

    mlm_accuracy: float
    """Share of the positions where our first guess is right."""

    mlm_perplexity: float
    """exp(mlm_loss), as the paper's Table 6 counts it."""

    random_mlm_loss: float
    """The same architecture before training."""

    unigram_entropy: float
    """Entropy of the training split's word-piece frequencies."""

    unigram_loss: float
    """Cross-entropy of those frequencies (add-one smoothed) on the masked positions."""

    unigram_accuracy: float
    """Accuracy of always guessing the most frequent word-piece."""

    count_model_loss: float
    """P(word | left and right neighbour) with back-off, counted on the training split."""

    count_model_accuracy: float
    """Accuracy of the count model's first guess."""

    next_sentence_examples: int = 0
    """Examples that ask the next-sentence question; 0 where none does."""

    next_sentence_accuracy: float | None = None
    """Ours."""

    next_sentence_majority: float | None = None
    """Share of the more frequent answer: what a constant reaches. Above 0.5, see docs/paper.md."""


class SystemScore(Config):
    """One way to do a task: a baseline, the random encoder, or the pre-trained one."""

    name: str
    """`majority`, `lookup`, `word_overlap`, `random`, `pretrained`, or a variant's own name."""

    role: Role
    """What it is compared as."""

    dev: dict[str, Summary] = Field(default_factory=dict)
    """By metric."""

    test: dict[str, Summary] = Field(default_factory=dict)
    """By metric; empty where the test file has no labels."""

    more: dict[str, dict[str, Summary]] = Field(default_factory=dict)
    """By further file (MNLI's mismatched set) and metric."""

    fits: int = 0
    """Fine-tuning runs behind the figures; 0 for a baseline."""


class Comparison(Config):
    """Whether one system beats another on the same split, decided as the project promises."""

    system: str
    """The one that is hoped to win."""

    against: str
    """The other."""

    metric: str
    """The task's headline metric."""

    split: Literal["dev", "test"]
    """Where it is decided: test, where it has labels."""

    difference: float
    """Mean of `system` minus mean of `against`."""

    standard_error: float
    """Of the difference; over seeds, paired by seed where both have the same seeds."""

    paired: bool
    """Whether the differences were taken seed by seed."""

    wins: bool
    """At least `WIN_DIFFERENCE` and `WIN_STANDARD_ERRORS` standard errors."""

    statement: str
    """The verdict in one sentence for people."""


class CurvePoint(Config):
    """One epoch of one fit."""

    epoch: int
    """From 1."""

    train_loss: float
    """Mean over the epoch."""

    dev: float
    """Headline metric."""


class LearningCurve(Config):
    """The epochs of one fit."""

    system: str
    """The system's name."""

    seed: int
    """The fit's seed."""

    points: tuple[CurvePoint, ...]
    """In order."""


class Confusion(Config):
    """How often each label was taken for each, for one fit."""

    labels: tuple[str, ...]
    """Rows and columns."""

    counts: tuple[tuple[int, ...], ...]
    """`counts[gold][predicted]`."""


class ErrorExample(Config):
    """An example that the best pre-trained fit got wrong. Holds text: see `report.show_text`."""

    text: str
    """The input, shortened."""

    gold: str
    """The right answer."""

    predicted: str
    """The given one."""


class PublishedScore(Config):
    """What a paper reports for an encoder of this size on this task."""

    system: str
    """For example `BERT-base`."""

    metric: str
    """The paper's metric."""

    value: float
    """As a fraction."""

    split: Literal["dev", "test"]
    """Of the official data."""

    source: str
    """Paper and table."""


class TaskScore(Config):
    """Everything about one task."""

    name: str
    """The task's name in the configuration."""

    kind: str
    """Its family: classification, tagging, …"""

    metric: str
    """Headline metric."""

    metrics: tuple[str, ...]
    """All metrics that were computed."""

    examples: dict[str, int]
    """Examples by split: train, dev, test."""

    seeds: tuple[int, ...]
    """The fits' seeds."""

    systems: tuple[SystemScore, ...]
    """Baselines first, then random, then pre-trained."""

    comparisons: tuple[Comparison, ...]
    """Pre-trained against random and against each baseline."""

    curves: tuple[LearningCurve, ...] = ()
    """Every fit's."""

    confusion: Confusion | None = None
    """Of the best pre-trained fit, where the task has few labels."""

    errors: tuple[ErrorExample, ...] = ()
    """Some of its mistakes."""

    published: tuple[PublishedScore, ...] = ()
    """For comparison, where a paper has the same size and task."""


class Scores(Config):
    """`scores.json`."""

    parameters: int
    """Of the encoder with both pre-training heads."""

    language_model: tuple[LanguageModelScore, ...] = ()
    """One for each held-out split and length."""

    tasks: tuple[TaskScore, ...] = ()
    """One for each fine-tuned task."""

    glue_average: float | None = None
    """Mean headline metric over the GLUE tasks present without WNLI (paper, Table 1)."""


class Guesses(Config):
    """The first words one model puts in place of a [MASK]."""

    system: Literal["random", "count", "pretrained"]
    """Which model."""

    words: tuple[str, ...]
    """Word-pieces, best first."""

    probabilities: tuple[float, ...]
    """Theirs."""


class MaskedSentence(Config):
    """A sentence with one [MASK] and everyone's guesses."""

    sentence: str
    """As configured."""

    guesses: tuple[Guesses, ...]
    """Random encoder, count model, ours."""


class MaskedSentences(Config):
    """`masked_sentences.json`."""

    sentences: tuple[MaskedSentence, ...]
    """In the configured order."""
