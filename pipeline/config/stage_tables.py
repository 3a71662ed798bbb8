"""Configurations of the stages that prepare examples. Imports no framework.

In:  settings.
Out: one frozen `StageConfig` per stage, with its program and format version; the machine settings.
"""

from typing import ClassVar, Literal

from pydantic import Field

from artifacts.config import Config, StageConfig
from pipeline.config.settings import (
    CleaningConfig,
    CorpusConfig,
    DedupConfig,
    ExamplesConfig,
    LabelsConfig,
    PairsConfig,
    VocabularyConfig,
)


class DedupStage(StageConfig):
    """corpus files → a list of documents to drop."""

    stage: ClassVar[str] = "dedup"
    program: ClassVar[str] = "pipeline.dedup"
    format_version: ClassVar[int] = 3

    seed: int
    """The run's seed: it selects the held-out documents, which are kept in preference to others."""
    corpus: CorpusConfig
    """The documents to search; of near-duplicates the first source's is kept."""
    cleaning: CleaningConfig
    """Filters: documents that the tokens stage drops are not searched."""
    dedup: DedupConfig
    """The searches to run; at least one."""


class VocabularyStage(StageConfig):
    """corpus files → a WordPiece tokenizer."""

    stage: ClassVar[str] = "vocabulary"
    program: ClassVar[str] = "pipeline.vocabulary"
    format_version: ClassVar[int] = 6

    seed: int
    """The run's seed: it draws the sample, and the held-out documents that are excluded from it."""
    corpus: CorpusConfig
    """The documents to sample from."""
    cleaning: CleaningConfig
    """Filters: documents that the tokens stage drops are excluded here too."""
    vocabulary: VocabularyConfig
    """Size and case, or an existing vocabulary to use instead."""


class TokensStage(StageConfig):
    """corpus files → cleaned, deduplicated, bucketed documents as token ids."""

    stage: ClassVar[str] = "tokens"
    program: ClassVar[str] = "pipeline.tokens"
    format_version: ClassVar[int] = 6

    seed: int
    """The run's seed: it draws the held-out documents."""
    corpus: CorpusConfig
    """The documents, in order of precedence: of duplicates the first source's is kept."""
    cleaning: CleaningConfig
    """Filters that drop documents, each counted by reason."""


class ExamplesStage(StageConfig):
    """tokens → masked MLM/NSP examples."""

    stage: ClassVar[str] = "examples"
    program: ClassVar[str] = "pipeline.examples"

    seed: int
    """The run's seed: with document and copy, it determines pairs, masks and order."""
    examples: ExamplesConfig
    """Lengths, copies, second segments and masking."""


class LabelsStage(StageConfig):
    """installed packages → labelled tasks."""

    stage: ClassVar[str] = "labels"
    program: ClassVar[str] = "pipeline.demo.labels"
    format_version: ClassVar[int] = 2

    seed: int
    """The run's seed: it draws the examples and the development modules."""
    labels: LabelsConfig
    """The packages, and how many examples to draw."""


class PairsStage(StageConfig):
    """corpus files → query and text pairs."""

    stage: ClassVar[str] = "pairs"
    program: ClassVar[str] = "pipeline.pairs"

    seed: int
    """The run's seed: it draws the pairs and the held-out ones."""
    corpus: CorpusConfig
    """The documents."""
    cleaning: CleaningConfig
    """Filters that drop documents."""
    pairs: PairsConfig
    """Kind and number of pairs."""


class PipelineMachine(Config):
    """Where and how the pipeline runs; none of these settings changes the output."""

    runner: str = "local"
    """`local` (Beam's FnApiRunner), `DataflowRunner`, `FlinkRunner`, `DaskRunner`."""

    options: dict[str, bool | int | float | str | tuple[str, ...]] = Field(default_factory=dict)
    """Beam options without the dashes: `project = "…"`, `experiments = ["a", "b"]`; `true` sets a
    flag. Passed to every pipeline stage; options given after `--` override them."""

    workers: int = Field(default=2, ge=1)
    """Local workers, each with its own tokenizer; use one per core."""

    worker_mode: Literal["auto", "processes", "threads", "inline"] = "auto"
    """How local workers run: forked `processes`, `threads`, or `inline`: all tasks sequentially in
    the main process, for debuggers and small inputs. `auto` picks `inline` for a single worker and
    for inputs too small to repay starting several, otherwise `processes`."""

    start_timeout: float = Field(default=900.0, gt=0.0)
    """Seconds after which a job is cancelled if no worker of the engine has started."""

    stall_timeout: float = Field(default=900.0, gt=0.0)
    """Seconds without progress after which a local job is stopped."""
