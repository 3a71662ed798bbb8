"""Results of fine-tuning and evaluation: the schema of `trials.json`, `scores.json` and others.

In:  nothing; this module only defines types, and imports neither torch nor NumPy.
Out: `Trials` (`trials.json`), `Scores` (`scores.json`) and `MaskedSentences`, written by the stages
     finetune and evaluate, read by the report, the forecast, the ablations and the model cards.

Metrics are fractions (0.87, not 87); losses and entropies are in nats per masked token. Figures
over several seeds keep all values, since five seeds are too few for a mean alone.
"""

import math
import statistics
from collections.abc import Sequence
from typing import Literal

from pydantic import ConfigDict, Field, JsonValue

from cloze.artifacts.config import Config

Role = Literal["baseline", "random", "pretrained"]
Outcome = Literal["win", "gain", "none", "loss", "undecided"]
Split = Literal["dev", "test"]

UNTOUCHED = "untouched_encoder"
"""Name of the baseline for sentence vectors: the encoder before fine-tuning."""

TRAIN, HELDOUT = "train", "heldout"
"""Splits of a corpus: most documents, and those drawn from them; sources may name others."""

TASK_SPLITS = ("train", "dev", "test")
"""Splits of a task."""

GENERAL = "general"
"""The split of general text from outside the corpus: the change of an adapted encoder's score on it
measures forgetting. It is never the headline split, nor does it displace another one."""

WIN_DIFFERENCE = 0.03
"""A win is a real difference (artifacts/significance.py) of at least 3 points."""


class Result(Config):
    """A table of figures, which may be infinite or NaN if training diverged."""

    model_config = ConfigDict(allow_inf_nan=True)


NO_ERROR = 1e-9
"""In points; below this an error is one of rounding."""


class SeedScores(Result):
    """One metric of one system on one split, over seeds."""

    values: tuple[float, ...]
    """In the order of the seeds; a single value for a deterministic system."""

    mean: float
    standard_error: float
    """Standard error of the mean over seeds (sample deviation / sqrt(n)); 0 for a single value."""

    median: float
    minimum: float
    maximum: float

    @classmethod
    def of(cls, values: Sequence[float]) -> "SeedScores":
        """Summarise one or more values."""
        return cls(
            values=tuple(values),
            mean=statistics.fmean(values),
            standard_error=standard_error(values),
            median=statistics.median(values),
            minimum=min(values),
            maximum=max(values),
        )


def standard_error(values: Sequence[float]) -> float:
    """Standard error of the mean: sample deviation / sqrt(n); 0 for fewer than two values."""
    return statistics.stdev(values) / math.sqrt(len(values)) if len(values) > 1 else 0.0


def plus_minus(error: float) -> str:
    """The standard error of a share in points, to follow it: 0.0042 → ` ± 0.4`, 0.0003 → ` ± 0.03`.

    One that has no digit at tenths has its first one, so that it is not read as none. Nothing for
    0, as of a single value or of equal ones, whose rounding errors are none either.
    """
    points = 100 * error
    if points < NO_ERROR:
        return ""
    return f" ± {points:.{max(1, -math.floor(math.log10(points)))}f}"


class LabelScore(Result):
    """Scores of one label, in one trial or averaged over several."""

    label: str
    rows: int | None = None
    """Examples with this gold label, if counted."""

    precision: float
    """0 if the label was never predicted."""

    recall: float
    """0 if no example has the label."""

    f1: float
    """Harmonic mean of precision and recall."""


class Confusion(Result):
    """The confusion matrix of one trial."""

    labels: tuple[str, ...]
    """Names of the rows and columns."""

    counts: tuple[tuple[int, ...], ...]
    """`counts[gold][predicted]`."""

    def by_label(self) -> tuple[LabelScore, ...]:
        """Precision, recall and F1 of every label."""
        found = []
        for number, label in enumerate(self.labels):
            # Rows are gold labels, columns predictions: hits are on the diagonal.
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
    """One wrong prediction. Contains text of the corpus: see `report.show_text`."""

    text: str
    """The input, shortened for display."""

    gold: str
    predicted: str


Suspicion = Literal["unlikely", "contradiction", "doubtful"]
"""`unlikely`: the label is more improbable than chance explains, so that `--weights` leaves it out;
`contradiction`: the same text has another label elsewhere; `doubtful`: the models would say
otherwise, but as often of right labels."""


class LabelError(Result):
    """A row whose label is probably wrong. Contains text of the corpus: see `report.show_text`."""

    row: int
    """In the order of the file, from 1."""

    text: str
    """The input."""

    given: str
    proposed: str
    """The likeliest label."""

    probability: float
    """Of the given label, by a model that was not trained on the row."""

    why: Suspicion


class LabelErrorCounts(Result):
    """How many rows of a split are listed as probably mislabelled, and why."""

    split: str
    rows: int
    """That were examined."""

    unlikely: int
    by_chance: float
    """Rows with labels as improbable as those, if all were right."""

    contradictions: int
    doubtful: int


class EpochRecord(Result):
    """One epoch of a trial, scored on dev."""

    epoch: int
    """From 1."""

    train_loss: float
    """Mean over the epoch."""

    dev: dict[str, float] = Field(default_factory=dict)
    """By metric."""


class Measured(Result):
    """A figure, and its 95 % bootstrap interval over rows."""

    value: float
    low: float
    high: float


class ReliabilityBin(Result):
    """Events of about the same probability."""

    probability: float
    """Their mean probability."""

    frequency: float
    """The share of them that has happened."""

    events: int


class ProbabilityQuality(Result):
    """How far probabilities can be believed, on rows that the model was not trained on."""

    rows: int
    log_loss: Measured
    """In nats per row, or per label of a row if a text may have several."""

    brier: Measured
    """Squared distance from the truth, summed over labels; if a text may have several, the mean."""

    calibration_error: Measured
    """Mean distance between probability and frequency, over bins of equal mass."""

    expected_error: float
    """The calibration error of perfect probabilities on so few rows."""

    reliability: tuple[ReliabilityBin, ...]
    """From the least to the most probable events."""


class Calibration(Result):
    """The temperatures of a saved model, and the quality of its probabilities."""

    temperatures: tuple[float, ...]
    """Logits are divided by one of them, or by that of their label."""

    rows: int
    """Held-out rows that they were fitted to."""

    split: Split
    """The rows of the figures below; temperatures for rows of dev are fitted to its other rows."""

    before: ProbabilityQuality
    after: ProbabilityQuality


class Coverage(Result):
    """Label sets of one confidence, on rows that the model was not trained on."""

    confidence: float
    """The probability with which a set is to hold the truth."""

    coverage: float
    """The share of sets that do; if a text may have several labels, of the states of labels."""

    size: float
    """Mean number of labels in a set, or of states of a label."""

    empty: float
    """Share of sets without any: no label is likely enough."""

    single: float
    """Share of sets that are an answer."""


class RiskPoint(Result):
    """Errors if only the surest rows are answered."""

    answered: float
    """Share of the rows."""

    errors: float
    """Share of wrong answers among them."""


class Reliance(Result):
    """What a model's confidence is worth."""

    split: Split
    """The rows of these figures."""

    coverage: tuple[Coverage, ...]
    """The lowest confidence first."""

    risk: tuple[RiskPoint, ...]


class Candidate(Result):
    """One approach, or one size of training data, in a cross-validation."""

    approach: str
    rows: int
    """Training rows of each fold, about."""

    folds: tuple[float, ...]
    """The headline metric on the held-out part of each fold."""

    mean: float
    standard_error: float
    interval: tuple[float, float]
    """95 %, by Student's t over folds."""


class Choice(Result):
    """How the approach of a task was chosen."""

    chosen: str
    """The approach that is trained: the favoured one unless clearly worse, otherwise the cheapest
    within one standard error of the best (model/finetune/choice.py)."""

    best: str
    """The approach with the best mean."""

    candidates: tuple[Candidate, ...]
    """The cheapest first."""

    curve: tuple[Candidate, ...] = ()
    """The chosen approach on fewer rows; the last is on all rows of the training parts."""

    label_names: bool = False
    """Whether contrastive tuning, if chosen, trains on the names of the labels, too."""


def trial_label(task: str, system: str, seed: int, point: str = "") -> str:
    """The name of a trial among those of its run: of its files, and in `finetune.shortened`."""
    return "-".join(filter(None, (task, system, str(seed), point)))


class Trial(Result):
    """One fine-tuning run, without anything that depends on the clock, unless that ended it."""

    task: str
    kind: str
    """The task's family: classification, tagging, …"""

    metric: str
    """The task's headline metric."""

    system: str
    """`pretrained` or `random`, followed by the variant's name if feature-based."""

    seed: int
    """Seed of data order, head initialisation and dropout."""

    point: str = ""
    """The point of the hyper-parameter grid; empty for a final trial."""

    batch_size: int
    """Examples per optimizer step."""

    learning_rate: float
    """Peak value, at the end of the warm-up."""

    steps: int
    """Optimizer steps."""

    shortened: tuple[tuple[int, int], ...] = ()
    """How `finetune.minutes` has shortened it, as in `pretrain.shortened`; this alone depends on
    the clock."""

    epochs: tuple[EpochRecord, ...]
    chosen_epoch: int
    """The epoch whose scores and predictions are reported."""

    dev: dict[str, float]
    """By metric; empty if dev has no labels."""

    test: dict[str, float]
    """By metric; empty if test has no labels."""

    more: dict[str, dict[str, float]] = Field(default_factory=dict)
    """By additional split (MNLI's mismatched sets) and metric."""

    restarts: int = 0
    """Early failures that were restarted with another seed (paper, 4.1)."""

    confusion: Confusion | None = None
    """On the last labelled split, if the task has few labels."""

    errors: tuple[ErrorExample, ...] = ()
    """The first errors on that split."""

    choice: Choice | None = None
    """How its approach was chosen; None: fine-tuning, as configured."""

    calibration: Calibration | None = None
    """Of the probabilities, if it is a classification with held-out labels."""

    thresholds: tuple[float, ...] = ()
    """By label, if an example may have several and they were tuned on dev."""

    reliance: Reliance | None = None
    """On the label sets of its confidence, if it is calibrated."""

    label_errors: tuple[LabelError, ...] = ()
    """Training rows that are probably mislabelled, else dev rows; the most suspicious first."""

    label_error_counts: LabelErrorCounts | None = None
    """Of `label_errors`; None if none was looked for."""

    nonconformity: tuple[tuple[float, ...], ...] = ()
    """How far it was off on dev, after calibration, in increasing order: the scores of
    model/uncertainty/conformal.py, for each label if an example may have several."""

    predictions: dict[str, list[JsonValue]] = Field(default_factory=dict)
    """By split, one per example, in the order of the file."""

    @property
    def label(self) -> str:
        """As `trial_label`."""
        return trial_label(self.task, self.system, self.seed, self.point)

    @property
    def merit(self) -> float:
        """The headline metric on dev (on test if there is no dev), by which trials are selected."""
        return (self.dev or self.test).get(self.metric, 0.0)


class Baseline(Result):
    """Scores of a task without an encoder."""

    name: str
    """`majority`, `lookup`, `bag_of_words`, …"""

    dev: dict[str, float] = Field(default_factory=dict)
    test: dict[str, float] = Field(default_factory=dict)


class TaskRecord(Result):
    """A task's data and baselines."""

    name: str
    glue: str = ""
    """Name of the GLUE task, if it is one."""

    kind: str
    metrics: tuple[str, ...]
    """The headline metric first."""

    labels: tuple[str, ...] = ()
    """In the order of the head's outputs."""

    examples: dict[str, int]
    """By split."""

    truncated: int
    """Inputs truncated to `max_seq_length`."""

    notes: tuple[str, ...] = ()
    """Caveats about the data, such as rows left out."""

    baselines: tuple[Baseline, ...]
    """Simplest first."""


class Trials(Result):
    """`trials.json`: every trial without its predictions."""

    tasks: tuple[TaskRecord, ...]
    """In the configured order."""

    trials: tuple[Trial, ...]
    """Ordered by task, system, seed."""


class SystemScore(Result):
    """One system on one task: a baseline, the random or the pre-trained encoder."""

    name: str
    """`majority`, `lookup`, `word_overlap`, `random`, `pretrained`, or a variant's own name."""

    role: Role
    dev: dict[str, SeedScores] = Field(default_factory=dict)
    """By metric."""

    test: dict[str, SeedScores] = Field(default_factory=dict)
    """By metric; empty if the test file has no labels."""

    more: dict[str, dict[str, SeedScores]] = Field(default_factory=dict)
    """By additional split and metric."""

    trials: int = 0
    """Number of trials; 0 for a baseline."""


class Comparison(Result):
    """Whether one system beats another on the same split."""

    system: str
    against: str
    metric: str
    """The task's headline metric."""

    split: Split
    """Test if it has labels, else dev."""

    difference: float
    """Mean of `system` minus mean of `against`."""

    standard_error: float
    """Of the difference over seeds; paired by seed if both have the same seeds."""

    paired: bool
    seeds: int = 0
    """Seeds behind each mean, the smaller of the two; deterministic baselines do not count."""

    interval: tuple[float, float] | None = None
    """The 95 % interval of the difference, uncorrected; None if the seeds do not determine it."""

    p_value: float | None = None
    """Of a two-sided t-test over seeds; None if the seeds do not determine it."""

    corrected: float | None = None
    """The p-value after Holm's correction for the tasks that are compared in the same way."""

    outcome: Outcome = "undecided"
    """`undecided`: too few seeds, or equal ones; `none`: not significant at 5 % after the
    correction; `gain`: below `WIN_DIFFERENCE`."""

    statement: str = ""
    """The verdict in one sentence."""


class CurvePoint(Result):
    """One epoch of a learning curve."""

    epoch: int
    """From 1."""

    train_loss: float
    """Mean over the epoch."""

    dev: float
    """The headline metric."""


class LearningCurve(Result):
    """The epochs of one trial."""

    system: str
    seed: int
    points: tuple[CurvePoint, ...]


class ReferenceScore(Result):
    """A published score for an encoder of this shape on this task."""

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
    """All computed metrics."""

    examples: dict[str, int]
    """By split."""

    seeds: tuple[int, ...]
    systems: tuple[SystemScore, ...]
    """Baselines first, then random, then pre-trained."""

    comparisons: tuple[Comparison, ...]
    """Pre-trained against random and against each baseline."""

    curves: tuple[LearningCurve, ...] = ()
    confusion: Confusion | None = None
    """Of the best pre-trained trial, if the task has few labels."""

    errors: tuple[ErrorExample, ...] = ()
    """Some errors of the best pre-trained trial."""

    choice: Choice | None = None
    """How the approach of the pre-trained trials was chosen, if it was."""

    calibration: Calibration | None = None
    """Of the model that is saved, the best pre-trained trial."""

    reliance: Reliance | None = None
    """On the label sets of that model."""

    label_errors: tuple[LabelError, ...] = ()
    """The first rows that are probably mislabelled; all are in label_errors/TASK.csv."""

    label_error_counts: LabelErrorCounts | None = None
    """Of all of them."""

    published: tuple[ReferenceScore, ...] = ()


class LanguageModelScore(Result):
    """Masked-token and next-sentence quality on one held-out split, and its baselines."""

    split: str
    """`heldout` (documents drawn by digest) or the name of a held-out source, such as `package`."""

    headline: bool = False
    """Whether the report leads with this split: a held-out source, if there is one."""

    max_seq_length: int
    """The length of the examples evaluated."""

    examples: int
    masked_tokens: int
    """The tokens over which every loss and accuracy below is averaged."""

    mlm_loss: float
    """Of the pre-trained encoder."""

    mlm_accuracy: float
    """Top-1 accuracy over the masked tokens."""

    mlm_perplexity: float
    """exp(mlm_loss), as in the paper's Table 6."""

    initial_mlm_loss: float | None = None
    """Of the initial checkpoint; None if pre-training started from random weights, or from an
    encoder without an MLM head."""

    initial_mlm_accuracy: float | None = None
    """Top-1 accuracy of the initial checkpoint."""

    random_mlm_loss: float
    """Of the same architecture with random weights."""

    unigram_entropy: float
    """Entropy of the word-piece frequencies in the training split."""

    unigram_loss: float
    """Cross-entropy of those frequencies (add-one smoothed) on the masked tokens."""

    unigram_accuracy: float
    """Accuracy of always predicting the most frequent word-piece."""

    count_model_loss: float
    """The n-gram baseline: P(word | left and right neighbour) with back-off."""

    count_model_accuracy: float
    """Top-1 accuracy of the n-gram baseline."""

    next_sentence_examples: int = 0
    """Examples with a next-sentence label."""

    next_sentence_accuracy: float | None = None
    next_sentence_majority: float | None = None
    """Share of the more frequent label. Above 0.5, see docs/paper.md."""


class Scores(Result):
    """`scores.json`."""

    parameters: int
    """Parameters of the encoder with both pre-training heads."""

    language_model: tuple[LanguageModelScore, ...] = ()
    """One for each held-out split and length."""

    tasks: tuple[TaskScore, ...] = ()
    glue_average: float | None = None
    """Mean headline metric over the GLUE tasks present, except WNLI (paper, Table 1)."""


class Guesses(Result):
    """One model's predictions for a [MASK]."""

    system: Literal["random", "count", "pretrained"]
    """The untrained encoder, the n-gram baseline, the trained encoder."""

    words: tuple[str, ...]
    """Word-pieces, most probable first."""

    probabilities: tuple[float, ...]


class MaskedSentence(Result):
    """A sentence with one [MASK] and every model's predictions."""

    sentence: str
    guesses: tuple[Guesses, ...]

    answer: str = ""
    """The masked word, in a sentence of held-out text; empty for a configured sentence."""


class MaskedSentences(Result):
    """`masked_sentences.json`."""

    sentences: tuple[MaskedSentence, ...]
    """In the configured order, or from held-out text if none are configured."""
