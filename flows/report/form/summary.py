"""The form of `summary.json`: every figure of the report, for programs.

In:  nothing; this module holds types.
Out: `Summary`, which `gather` fills from the artifacts and everything else only draws.

Shares and accuracies are fractions, losses and entropies nats, times seconds, sizes bytes. Parts
that a run does not have are None or empty. With `show_text` false no text of the corpus is in it.
"""

from typing import Any

from pydantic import Field

from artifacts.config import Config
from flows.report.form.corpus import Corpus, ExampleSet
from flows.report.form.scores import FilledSentence, LanguageModel, Task
from flows.report.form.training import Encoder, Pretraining

SUMMARY_VERSION = 1


class Step(Config):
    """One stage's artifact."""

    stage: str
    """Its name."""
    program: str = ""
    """The module that made it."""
    digest: str
    """Of its content."""
    key: str
    """Under which the store keeps it."""
    inputs: dict[str, str] = Field(default_factory=dict)
    """Digests by role."""
    files: int
    """How many."""
    bytes: int
    """Their sizes summed."""
    rows: int | None = None
    """Where its files are tables."""
    finished_at: str = ""
    """UTC."""
    seconds: float | None = None
    """Wall-clock."""
    peak_memory: int | None = None
    """Bytes, all processes of the stage."""
    argv: tuple[str, ...] = ()
    """What was started."""
    versions: dict[str, str] = Field(default_factory=dict)
    """Of Python, the machine and the packages."""
    file_digests: dict[str, str] = Field(default_factory=dict)
    """sha256 by name, of the files that figures are drawn from."""


class Summary(Config):
    """A run, in figures."""

    summary_version: int = SUMMARY_VERSION
    """Version of this form."""
    name: str
    """The run's."""
    title: str
    """Headline."""
    note: str = ""
    """What a reader must know before believing a number."""
    show_text: bool = True
    """Whether text of the corpus may appear."""
    encoder: Encoder | None = None
    """What was trained; without `pretraining`, what came finished."""
    corpus: Corpus | None = None
    """What it was trained on."""
    examples: tuple[ExampleSet, ...] = ()
    """In which form; one for each length."""
    pretraining: Pretraining | None = None
    """How."""
    language_model: tuple[LanguageModel, ...] = ()
    """How well; the headline split first."""
    sentences: tuple[FilledSentence, ...] = ()
    """Shown."""
    tasks: tuple[Task, ...] = ()
    """What it is good for."""
    glue_average: float | None = None
    """Where GLUE tasks were run."""
    steps: tuple[Step, ...] = ()
    """Every artifact, in order."""
    configuration: dict[str, Any] = Field(default_factory=dict)
    """The run's tables, defaults left out."""
