"""What fine-tuning and evaluation found: the records of `fits.json`, `scores.json` and others.

In:  nothing; this module holds types, and loads neither torch nor NumPy.
Out: `Trials` (`fits.json`), `Scores` (`scores.json`) and `MaskedSentences`, written by the stages
     finetune and evaluate, read by the report, the forecast, the ablation and the model cards.

Metrics are fractions (0.87, not 87), losses and entropies nats per masked token. A figure over
several seeds keeps all its values: five seeds are too few for a mean alone.
"""

import math
import statistics
from collections.abc import Sequence
from typing import ClassVar, Literal

from pydantic import ConfigDict, Field, JsonValue

from artifacts.config import Config, GrownConfig

Role = Literal["baseline", "random", "pretrained"]
Outcome = Literal["win", "gain", "none", "loss", "undecided"]
Split = Literal["dev", "test"]

UNTOUCHED = "untouched_encoder"
"""The baseline that is the encoder as it was given, where its vectors are compared."""

GENERAL = "general"
"""The split of text that is not the corpus's: what an adapted encoder scores on it beside what it
scored before is what it has forgotten. It never leads, and no other split gives way to it."""

WIN_DIFFERENCE = 0.03
"""A system wins by at least 3 points …"""

WIN_STANDARD_ERRORS = 3.0
"""… and by at least three standard errors of the difference."""

MIN_SEEDS = 3
"""Fewer seeds decide nothing: of two values, the standard error is hardly known."""


class Result(Config):
    """A table of figures; those of a training that diverged need not be finite."""

    model_config = ConfigDict(allow_inf_nan=True)


class SeedScores(Result):
    """One metric of one system on one split, over the seeds."""

    values: tuple[float, ...]
    """In the order of the seeds; a single value for a system without random numbers."""

    mean: float
    standard_error: float
    """Of the mean, over seeds (sample deviation / sqrt(n)); 0 for a single value."""

    median: float
    minimum: float
    maximum: float

    @classmethod
    def of(cls, values: Sequence[float]) -> "SeedScores":
        """The summary of at least one value."""
        return cls(
            values=tuple(values),
            mean=statistics.fmean(values),
            standard_error=standard_error(values),
            median=statistics.median(values),
            minimum=min(values),
            maximum=max(values),
        )


def standard_error(values: Sequence[float]) -> float:
    """Of the mean: sample standard deviation / sqrt(n); 0 for fewer than two values."""
    return statistics.stdev(values) / math.sqrt(len(values)) if len(values) > 1 else 0.0


class LabelScore(Result):
    """One label of one trial, or of several on average."""

    label: str
    rows: int | None = None
    """With this label in the gold data, where they were counted."""

    precision: float
    """Of those predicted so, the share that is; 0 where none was."""

    recall: float
    """Of those that are so, the share predicted; 0 where none is."""

    f1: float
    """Harmonic mean of both."""


def no_verdict(
    difference: float, standard_error: float, *, seeds: int
) -> Literal["undecided", "none"] | None:
    """Why a difference of two means bears no verdict; None if it bears one."""
    if seeds < MIN_SEEDS:
        return "undecided"
    if abs(difference) < WIN_STANDARD_ERRORS * standard_error or not difference:
        return "none"
    return None


class Confusion(Result):
    """How often each label was predicted for each, in one trial."""

    labels: tuple[str, ...]
    """Names of the rows and of the columns."""

    counts: tuple[tuple[int, ...], ...]
    """`counts[gold][predicted]`."""

    def by_label(self) -> tuple[LabelScore, ...]:
        """Precision, recall and F1 of every label."""
        found = []
        for number, label in enumerate(self.labels):
            hits = self.counts[number][number]
            rows, guesses = sum(self.counts[number]), sum(row[number] for row in self.counts)
            found.append(
                LabelScore(
                    label=label,
                    rows=rows,
                    precision=hits / guesses if guesses else 0.0,
                    recall=hits / rows if rows else 0.0,
                    f1=2 * hits / (rows + guesses) if rows + guesses else 0.0,
                )
            )
        return tuple(found)


class ErrorExample(Result):
    """One wrong prediction. Holds text of the corpus: see `report.show_text`."""

    text: str
    """The input, shortened for display."""

    gold: str
    predicted: str


class EpochRecord(Result):
    """One epoch of a trial after which dev was scored."""

    epoch: int
    """From 1."""

    train_loss: float
    """Mean over the epoch."""

    dev: dict[str, float] = Field(default_factory=dict)
    """By metric."""


class Trial(Result):
    """One fine-tuning run: everything about it that does not depend on the clock."""

    task: str
    kind: str
    """The task's family: classification, tagging, …"""

    metric: str
    """The task's headline metric."""

    system: str
    """`pretrained`, `random`, or either with a feature-based variant's name behind it."""

    seed: int
    """Of the data's order, of the head and of dropout."""

    point: str = ""
    """The point of the hyper-parameter grid; empty for a trial whose score counts."""

    batch_size: int
    """Examples per step."""

    learning_rate: float
    """At the end of the warm-up."""

    steps: int
    """Optimizer steps."""

    epochs: tuple[EpochRecord, ...]
    chosen_epoch: int
    """The epoch whose predictions and scores follow."""

    dev: dict[str, float]
    """By metric; empty where dev has no labels."""

    test: dict[str, float]
    """By metric; empty where test has no labels."""

    more: dict[str, dict[str, float]] = Field(default_factory=dict)
    """By additional split (MNLI's mismatched sets) and metric."""

    restarts: int = 0
    """Early failures that were started again with another seed (paper, 4.1)."""

    confusion: Confusion | None = None
    """On the last split with labels, where the task has few of them."""

    errors: tuple[ErrorExample, ...] = ()
    """The first errors on that split."""

    predictions: dict[str, list[JsonValue]] = Field(default_factory=dict)
    """By split, one per example in the file's order."""

    @property
    def merit(self) -> float:
        """The headline metric on dev, or on test without dev: what trials are chosen by."""
        return (self.dev or self.test).get(self.metric, 0.0)


class Baseline(Result):
    """What a task comes to without an encoder."""

    name: str
    """`majority`, `lookup`, `bag_of_words`, …"""

    dev: dict[str, float] = Field(default_factory=dict)
    test: dict[str, float] = Field(default_factory=dict)


class TaskRecord(Result):
    """A task's data, and its baselines."""

    name: str
    glue: str = ""
    """The GLUE task that it is, if any."""

    kind: str
    metrics: tuple[str, ...]
    """The headline metric first."""

    labels: tuple[str, ...] = ()
    """In the order of the head's outputs."""

    examples: dict[str, int]
    """By split."""

    truncated: int
    """Inputs that were cut to `max_seq_length`."""

    notes: tuple[str, ...] = ()
    """What a person must know of the data, such as rows left out."""

    baselines: tuple[Baseline, ...]
    """The simplest first."""


class Trials(Result):
    """`fits.json`: every trial without its predictions."""

    tasks: tuple[TaskRecord, ...]
    """In the configured order; of held-out text where none is configured."""

    fits: tuple[Trial, ...]
    """In the order of tasks, systems, seeds."""


class SystemScore(Result):
    """One system on one task: a baseline, the random encoder, or the pre-trained one."""

    name: str
    """`majority`, `lookup`, `word_overlap`, `random`, `pretrained`, or a variant's own name."""

    role: Role
    dev: dict[str, SeedScores] = Field(default_factory=dict)
    """By metric."""

    test: dict[str, SeedScores] = Field(default_factory=dict)
    """By metric; empty where the test file has no labels."""

    more: dict[str, dict[str, SeedScores]] = Field(default_factory=dict)
    """By additional split and metric."""

    fits: int = 0
    """Trials behind the figures; 0 for a baseline."""


class Comparison(Result):
    """Whether one system beats another on the same split."""

    system: str
    against: str
    metric: str
    """The task's headline metric."""

    split: Split
    """Test where it has labels, else dev."""

    difference: float
    """Mean of `system` minus mean of `against`."""

    standard_error: float
    """Of the difference over seeds; paired by seed where both have the same seeds."""

    paired: bool
    seeds: int = 0
    """Behind each mean, the fewer of the two; a baseline without random numbers does not count."""

    wins: bool
    """Whether the outcome is a win."""

    statement: str
    """The verdict in one sentence."""

    @property
    def outcome(self) -> Outcome:
        """`undecided` with too few seeds, `none` within chance, `gain` below the margin."""
        unclear = no_verdict(self.difference, self.standard_error, seeds=self.seeds)
        if unclear:
            return unclear
        if self.difference < 0:
            return "loss"
        return "win" if self.difference >= WIN_DIFFERENCE else "gain"


class CurvePoint(Result):
    """One epoch of a learning curve."""

    epoch: int
    """From 1."""

    train_loss: float
    """Mean over the epoch."""

    dev: float
    """The headline metric."""


class LearningCurve(Result):
    """One trial's epochs."""

    system: str
    seed: int
    points: tuple[CurvePoint, ...]


class ReferenceScore(Result):
    """What a paper reports for an encoder of this shape on this task."""

    system: str
    """For example `BERT-base`."""

    metric: str
    value: float
    """As a fraction."""

    split: Split
    """Of the official data."""

    source: str
    """Paper and table."""


class TaskScore(Result):
    """One task: every system's scores and the comparisons between them."""

    name: str
    kind: str
    """The task's family: classification, tagging, …"""

    metric: str
    """The headline metric."""

    metrics: tuple[str, ...]
    """All that were computed."""

    examples: dict[str, int]
    """By split."""

    seeds: tuple[int, ...]
    systems: tuple[SystemScore, ...]
    """Baselines first, then random, then pre-trained."""

    comparisons: tuple[Comparison, ...]
    """Pre-trained against random and against each baseline."""

    curves: tuple[LearningCurve, ...] = ()
    confusion: Confusion | None = None
    """Of the best pre-trained trial, where the task has few labels."""

    errors: tuple[ErrorExample, ...] = ()
    """Some errors of the best pre-trained trial."""

    published: tuple[ReferenceScore, ...] = ()


class LanguageModelScore(GrownConfig, Result):
    """Masked-token and next-sentence quality on one held-out split, and its baselines."""

    later_fields: ClassVar[frozenset[str]] = frozenset({"initial_mlm_loss", "initial_mlm_accuracy"})

    split: str
    """`heldout` (documents drawn by digest) or the name of a held-out source, such as `package`."""

    headline: bool = False
    """The split that the report leads with: a whole held-out source, where there is one."""

    max_seq_length: int
    """The length of the examples evaluated."""

    examples: int
    masked_tokens: int
    """Every loss and accuracy below is a mean over exactly these."""

    mlm_loss: float
    """Of the pre-trained encoder."""

    mlm_accuracy: float
    """Top-1 accuracy over the masked tokens."""

    mlm_perplexity: float
    """exp(mlm_loss), as in the paper's Table 6."""

    initial_mlm_loss: float | None = None
    """Of the encoder that pre-training began from, before it; None where it began from random
    weights, or that encoder cannot fill masks."""

    initial_mlm_accuracy: float | None = None
    """Top-1 accuracy of that encoder."""

    random_mlm_loss: float
    """The same architecture before training."""

    unigram_entropy: float
    """Entropy of the training split's word-piece frequencies."""

    unigram_loss: float
    """Cross-entropy of those frequencies (add-one smoothed) on the masked tokens."""

    unigram_accuracy: float
    """Always predicting the most frequent word-piece."""

    count_model_loss: float
    """The n-gram baseline: P(word | left and right neighbour) with back-off."""

    count_model_accuracy: float
    """Top-1 accuracy of the n-gram baseline."""

    next_sentence_examples: int = 0
    """Examples with a next-sentence label; 0 where none has one."""

    next_sentence_accuracy: float | None = None
    next_sentence_majority: float | None = None
    """Share of the more frequent label. Above 0.5, see docs/paper.md."""


class Scores(Result):
    """`scores.json`."""

    parameters: int
    """Of the encoder with both pre-training heads."""

    language_model: tuple[LanguageModelScore, ...] = ()
    """One for each held-out split and length."""

    tasks: tuple[TaskScore, ...] = ()
    glue_average: float | None = None
    """Mean headline metric over the GLUE tasks present without WNLI (paper, Table 1)."""


class Guesses(Result):
    """What one model predicts for a [MASK]."""

    system: Literal["random", "count", "pretrained"]
    """The encoder before training, the n-gram baseline, the encoder."""

    words: tuple[str, ...]
    """Word-pieces, the most probable first."""

    probabilities: tuple[float, ...]


class MaskedSentence(Result):
    """A sentence with one [MASK] and every model's predictions."""

    sentence: str
    guesses: tuple[Guesses, ...]

    answer: str = ""
    """The word that stood there, in a sentence of the held-out text; empty: a configured one."""


class MaskedSentences(Result):
    """`masked_sentences.json`."""

    sentences: tuple[MaskedSentence, ...]
    """In the configured order; of held-out text where none is configured."""
