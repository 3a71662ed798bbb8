"""The configuration of each stage that prepares examples. No framework is imported here.

In:  settings.
Out: one frozen `StageConfig` for each stage, its program and format version; and the machine.
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
    """corpus files → a list of documents to be dropped."""

    stage: ClassVar[str] = "dedup"
    program: ClassVar[str] = "pipeline.dedup"
    format_version: ClassVar[int] = 3

    seed: int
    """The run's seed: it says which documents are held out, and those stay."""
    corpus: CorpusConfig
    """The documents searched; of two alike that of the first source stays."""
    cleaning: CleaningConfig
    """Which documents are dropped anyway."""
    dedup: DedupConfig
    """The searches; at least one must be on."""


class VocabularyStage(StageConfig):
    """corpus files → a WordPiece tokenizer."""

    stage: ClassVar[str] = "vocabulary"
    program: ClassVar[str] = "pipeline.vocabulary"
    format_version: ClassVar[int] = 6

    seed: int
    """The run's seed: it draws the sample, and what is held out and not in it."""
    corpus: CorpusConfig
    """The documents that the sample is drawn from."""
    cleaning: CleaningConfig
    """Filters: nothing is learnt from what the tokens stage will drop."""
    vocabulary: VocabularyConfig
    """Size and case, or an existing vocabulary to take instead."""


class TokensStage(StageConfig):
    """corpus files → cleaned, deduplicated, bucketed documents as token ids."""

    stage: ClassVar[str] = "tokens"
    program: ClassVar[str] = "pipeline.tokens"
    format_version: ClassVar[int] = 6

    seed: int
    """The run's seed: it draws what is held out."""
    corpus: CorpusConfig
    """The documents, in order of precedence: of two equal ones that of the first source stays."""
    cleaning: CleaningConfig
    """Filters: which documents are dropped, each counted by its reason."""


class ExamplesStage(StageConfig):
    """tokens → masked MLM/NSP examples."""

    stage: ClassVar[str] = "examples"
    program: ClassVar[str] = "pipeline.examples"

    seed: int
    """The run's seed: pairs, masks and order are addressed by it, the document and the copy."""
    examples: ExamplesConfig
    """Lengths, copies, second segments and masking."""


class LabelsStage(StageConfig):
    """installed packages → labelled tasks."""

    stage: ClassVar[str] = "labels"
    program: ClassVar[str] = "pipeline.demo.labels"
    format_version: ClassVar[int] = 2

    seed: int
    """The run's seed: it draws what is labelled, and which modules are for development."""
    labels: LabelsConfig
    """The packages, and how many examples of them."""


class PairsStage(StageConfig):
    """corpus files → pairs of texts that belong together."""

    stage: ClassVar[str] = "pairs"
    program: ClassVar[str] = "pipeline.pairs"

    seed: int
    """The run's seed: it draws the pairs, and what is held out."""
    corpus: CorpusConfig
    """The documents."""
    cleaning: CleaningConfig
    """Which documents are dropped."""
    pairs: PairsConfig
    """What a pair is, and how many there are."""


class PipelineMachine(Config):
    """Where the pipeline runs; nothing here can change a byte."""

    runner: str = "local"
    """`local` (Beam's FnApiRunner), `DataflowRunner`, `FlinkRunner`, `DaskRunner`."""

    options: dict[str, bool | int | float | str | tuple[str, ...]] = Field(default_factory=dict)
    """Beam's own options, without their dashes: `project = "…"`, `experiments = ["a", "b"]`; `true`
    is a flag. All stages of the pipeline get them; those after `--` follow and win."""

    workers: int = Field(default=2, ge=1)
    """Local workers, each with a tokenizer of its own; one per core is best."""

    worker_mode: Literal["auto", "processes", "threads", "inline"] = "auto"
    """How local workers run: forked `processes`; `threads` of one; or `inline`, one task after
    another in this very process, for debuggers and small inputs. `auto` is `inline` for one worker,
    and where there is so little to do that starting several would take longer, else `processes`."""

    start_timeout: float = Field(default=900.0, gt=0.0)
    """Seconds after which an engine's job is cancelled if none of its workers has begun."""

    stall_timeout: float = Field(default=900.0, gt=0.0)
    """Seconds without a finished unit of work after which a local job is stopped."""
