"""The schema of `summary.json`: every figure of a run's report, for programs.

In:  nothing; this module only defines types.
Out: `Summary`, which the report collects from the artifacts; the page, the terminal, the ablations
     and `cloze compare` only present it. Scores have the schema of artifacts/results.py.

Shares and accuracies are fractions, losses and entropies nats, times seconds, sizes bytes. Missing
parts are None or empty. With `show_text` false, it contains no text of the corpus.
"""

from typing import Literal

from pydantic import Field, JsonValue

from cloze.artifacts.results import Guesses, LanguageModelScore, Result, TaskScore

SUMMARY_VERSION = 2


class SourceFacts(Result):
    """One source of documents, as configured."""

    reader: str
    what: str
    """Packages, or the recorded part of the path."""
    split: str
    """`train`, or the name of the held-out split."""
    weight: int = 1
    """Copies of each document."""


class CorpusSplit(Result):
    """The contents of one split of the corpus."""

    name: str
    """`train`, `heldout`, or a held-out source's name."""
    documents: int
    """After cleaning and deduplication."""
    sentences: int
    tokens: int
    """Word-pieces."""
    bytes: int | None = None
    """Bytes of text."""


class Histogram(Result):
    """Counts by bin."""

    edges: tuple[float, ...]
    """One more than counts; bin i covers edges[i] ≤ x < edges[i + 1]."""
    counts: tuple[int, ...]


class PieceFrequency(Result):
    """A word-piece and its frequency in the training split."""

    text: str
    count: int


class Corpus(Result):
    """The documents read, dropped and kept."""

    sources: tuple[SourceFacts, ...] = ()
    """In order of precedence."""
    documents_read: int | None = None
    """Documents before any were dropped."""
    dropped: dict[str, int] = Field(default_factory=dict)
    """Dropped documents by reason, such as `duplicate`."""
    splits: tuple[CorpusSplit, ...] = ()
    """Training first."""
    unigram_entropy: float | None = None
    """Entropy of the word-pieces of the training split, in nats."""
    unknown_share: float | None = None
    """Share of [UNK] among the tokens of the training split."""
    document_lengths: Histogram | None = None
    """Tokens per document."""
    sentence_lengths: Histogram | None = None
    """Tokens per sentence."""
    frequent: tuple[PieceFrequency, ...] = ()
    """Most frequent first; empty without `show_text`."""
    rank_frequency: tuple[tuple[int, int], ...] = ()
    """(rank, count) at up to 61 ranks, evenly spaced in log rank."""


class AddedWord(Result):
    """A word that was added to the vocabulary."""

    word: str
    pieces: tuple[str, ...]
    """Word-pieces that stood for it before."""
    count: int
    """Occurrences in the training text."""
    saved: int
    """Word-pieces that it saves there."""


class AddedWords(Result):
    """The words of the corpus that were added to a given vocabulary."""

    wanted: int
    added: int
    documents: int
    """Training documents read."""
    fewest_documents: int
    """Documents in which a word had to occur."""
    tokens_before: int
    """Word-pieces of the training text with the vocabulary as it was."""
    tokens_after: int
    """The same with the words."""
    best: tuple[AddedWord, ...] = ()
    """Those that save most; empty without `show_text`."""


class ExampleSet(Result):
    """The masked training examples of one sequence length."""

    max_seq_length: int
    copies: int
    """How many times the corpus was paired and masked."""
    examples: int
    """Rows over all copies."""
    tokens: int
    """Tokens of all rows, without padding."""
    masked: int
    """Predicted positions."""
    as_mask: int | None = None
    """Of these, replaced by [MASK]."""
    as_random: int | None = None
    """Of these, replaced by a random word-piece."""
    kept: int | None = None
    """Of these, left unchanged."""
    truncated: int | None = None
    """Truncated pairs."""
    random_next_share: float | None = None
    """Share of pairs whose second segment is from another document (or swapped)."""
    length_only_accuracy: float | None = None
    """Next-sentence accuracy of a classifier that only sees the example's length."""
    lengths: Histogram | None = None
    """Tokens per example."""


class EncoderFacts(Result):
    """The trained encoder, or the given finished one."""

    layers: int
    hidden_size: int
    heads: int
    vocabulary_size: int
    """Word-pieces, special tokens included."""
    parameters: int | None = None
    """Parameters of the encoder with both pre-training heads."""
    preset: str = ""
    """The published encoder of the same shape; empty if there is none."""
    precision: str = ""
    """Precision of pre-training; empty for a given encoder."""


class HeldoutPoint(Result):
    """An evaluation on held-out examples during training."""

    mlm_loss: float
    mlm_accuracy: float | None = None
    """Top-1 accuracy over the masked tokens."""
    nsp_accuracy: float | None = None
    """Next-sentence accuracy."""


class TrainingPoint(Result):
    """Pre-training at one step; figures not measured there are None."""

    step: int
    """Completed optimizer steps."""
    max_seq_length: int | None = None
    seconds: float | None = None
    """Training time so far, excluding interruptions."""
    tokens: int | None = None
    """Tokens seen so far."""
    train_mlm_loss: float | None = None
    """Mean since the previous point."""
    train_nsp_loss: float | None = None
    """Mean since the previous point."""
    learning_rate: float | None = None
    tokens_per_second: float | None = None
    """Since the previous point."""
    heldout: dict[str, HeldoutPoint] = Field(default_factory=dict)
    """By split."""


class MixedSource(Result):
    """What was read of the sources of one name, and how well it was learnt."""

    name: str
    shares: tuple[float, ...]
    """Their share of the tokens that were read in each phase."""
    tokens: int
    """Tokens read of them in all phases."""
    epochs: float | None = None
    """How often each of their tokens was read."""
    heldout: tuple[tuple[int, float], ...] = ()
    """(step, masked-LM loss) on their held-out documents."""


class Pretraining(Result):
    """How pre-training went."""

    steps: int
    batch_size: int
    """Sequences per step."""
    tokens: int | None = None
    """Tokens seen in total."""
    seconds: float | None = None
    """Training time, excluding start-up and evaluations."""
    device: str = ""
    """`cpu` or the GPU's name."""
    ranks: int | None = None
    phases: tuple[tuple[int, float], ...] = ()
    """(sequence length, share of the steps) of each phase."""
    curve: tuple[TrainingPoint, ...] = ()
    """In the order of steps."""
    objective: Literal["masked_lm", "next_token"] = "masked_lm"
    """The training objective, and the loss in `curve`."""
    mixture: tuple[MixedSource, ...] = ()
    """The sources, if they have names."""


class Predictions(Guesses):
    """One model's predictions for a [MASK]; without `show_text` only `correct`."""

    words: tuple[str, ...] = ()
    probabilities: tuple[float, ...] = ()
    correct: int | None = None
    """Index of the first correct word; None if there is none or no answers are given."""


class FilledSentence(Result):
    """A sentence with one [MASK] and every model's predictions."""

    sentence: str = ""
    """As configured; empty without `show_text`."""
    answers: tuple[str, ...] = ()
    """Correct words; empty without `show_text`."""
    judged: bool = False
    """Whether `report.answers` lists the correct words."""
    guesses: tuple[Predictions, ...]
    """In the order of the untrained encoder, the n-gram baseline, the trained encoder."""


class DistilledSystem(Result):
    """Teacher or student, or the student in int8."""

    name: str
    layers: int
    hidden_size: int
    vocabulary_size: int
    parameters: int
    megabytes: float
    """Of its weights: of all in fp32, in int8 of the layers' matrices in that."""
    score: float | None = None
    """`Distillation.metric` on held-out texts; None without labels."""
    milliseconds: dict[str, float] = Field(default_factory=dict)
    """By batch."""


class Distillation(Result):
    """A student beside its teacher."""

    systems: tuple[DistilledSystem, ...]
    """The teacher, the student and, where it was measured, the student in int8."""
    task: str = ""
    """The task that was learnt; empty: vectors."""
    metric: str = ""
    """Of the scores."""
    texts: int
    """Held-out texts that both were asked for."""
    kept: float
    """Vectors: share of the teacher's score. Labels: share of equal predictions. Numbers: one minus
    the squared error in units of the teacher's variance."""
    low: float | None = None
    high: float | None = None
    """Bounds of the interval of the scores' difference, 95 %, of vectors."""
    times_faster: dict[str, float] = Field(default_factory=dict)
    """By batch."""


class KeptEncoder(Result):
    """What `cloze adapt` decided: which encoder the run's name stands for."""

    share: float
    """Of the way from the original weights to the trained ones, of the best candidate."""
    kept_share: float
    """Of the encoder that is kept."""
    before: float
    """nDCG@10 of the original, on the queries that report."""
    difference: float
    """That of the candidate minus that of the original, on the same queries."""
    low: float
    high: float
    """Bounds of its interval, 99 %, over queries."""
    margin: float
    """What the difference must exceed for certain."""
    candidates: tuple[tuple[float, float], ...]
    """(share, nDCG@10) of the original and all candidates, on the queries that chose."""
    chosen_by: str
    """How many queries chose, and which: `998 made-up queries (dev)`."""
    reported_by: str
    """The same of those that report."""
    passages: int
    """Passages that are ranked for each query that reports."""
    words: int = 0
    """Words added to the vocabulary."""
    terms: float = 0.0
    """Weight of the best candidate's term vectors; if `share` is 0, too, the original is best."""
    kept_terms: float = 0.0
    """Of the encoder that is kept. With `kept_share` 0, too, it is the original, as the candidate
    is not better for certain."""
    term_candidates: tuple[tuple[float, float], ...] = ()
    """(weight, nDCG@10) of the best share with term vectors, on the queries that chose."""
    later_candidates: tuple[tuple[float, float], ...] = ()
    """The same with terms that were fitted without the passages that a query is about."""
    later: tuple[float, float, float] | None = None
    """`difference`, `low` and `high` with terms fitted so; None without terms."""

    @property
    def replaces(self) -> bool:
        """Whether another encoder than the original is kept."""
        return bool(self.kept_share or self.kept_terms)


class StageFacts(Result):
    """One stage's artifact."""

    stage: str
    digest: str
    """Digest of the content."""
    key: str
    """Name in the store."""
    inputs: dict[str, str] = Field(default_factory=dict)
    """Digests by role."""
    files: int
    bytes: int
    """Total size of all files."""
    rows: int | None = None
    """Rows, if the files are tables."""
    finished_at: str = ""
    """UTC."""
    seconds: float | None = None
    """Wall-clock."""
    peak_memory: int | None = None
    """Bytes over all processes of the stage."""
    argv: tuple[str, ...] = ()
    """The command that made the artifact."""
    versions: dict[str, str] = Field(default_factory=dict)
    """Versions of Python, the platform and the packages."""


class GridPoint(Result):
    """One cell of the hyper-parameter grid, tried with the first seed."""

    task: str
    system: str
    batch_size: int
    learning_rate: float
    epochs: int
    dev: float
    """The task's headline metric."""
    chosen: bool
    """Whether the seeds were trained at it."""


class Summary(Result):
    """All figures of a run."""

    summary_version: int = SUMMARY_VERSION
    name: str
    title: str
    note: str = ""
    """Caveats to read before the figures."""
    show_text: bool = True
    """Whether text of the corpus may be shown."""
    encoder: EncoderFacts | None = None
    corpus: Corpus | None = None
    added_words: AddedWords | None = None
    examples: tuple[ExampleSet, ...] = ()
    """One per sequence length."""
    pretraining: Pretraining | None = None
    language_model: tuple[LanguageModelScore, ...] = ()
    """Headline split first."""
    sentences: tuple[FilledSentence, ...] = ()
    tasks: tuple[TaskScore, ...] = ()
    grid: tuple[GridPoint, ...] = ()
    """Every cell of `finetune.grid` by task and system; empty without a grid."""
    trial_seconds: dict[str, dict[str, float]] = Field(default_factory=dict)
    """Median time of a fine-tuning run, by task and system."""
    choice_seconds: dict[str, dict[str, float]] = Field(default_factory=dict)
    """Time spent on comparing each approach, by task and approach."""
    glue_average: float | None = None
    """None if no GLUE tasks were run."""
    kept: KeptEncoder | None = None
    """None unless `cloze adapt` trained a sentence encoder."""
    distillation: Distillation | None = None
    """None unless the run made a smaller encoder of another one."""
    steps: tuple[StageFacts, ...] = ()
    """Every artifact, in order."""
    configuration: dict[str, JsonValue] = Field(default_factory=dict)
    """The run's configuration, without default values."""

    @property
    def headline(self) -> LanguageModelScore | None:
        """The scores on the main held-out split."""
        return self.language_model[0] if self.language_model else None
