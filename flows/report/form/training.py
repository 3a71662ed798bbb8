"""What was trained and how it went: the forms of the summary's training part.

In:  nothing; this module holds types.
Out: `Encoder` and `Pretraining`.
"""

from pydantic import Field

from artifacts.config import Config


class Encoder(Config):
    """What was trained, or given."""

    layers: int
    """L."""
    hidden_size: int
    """H."""
    heads: int
    """A."""
    vocabulary_size: int
    """Word-pieces, special tokens included."""
    parameters: int | None = None
    """Of the encoder with both pre-training heads."""
    preset: str = ""
    """Published size of the same shape; empty if none."""
    precision: str = ""
    """Arithmetic of pre-training; empty where it came finished."""


class HeldoutPoint(Config):
    """A look at held-out examples during training."""

    mlm_loss: float
    """Nats."""
    mlm_accuracy: float | None = None
    """First guesses that are right."""
    nsp_accuracy: float | None = None
    """Next-sentence answers that are right."""


class CurvePoint(Config):
    """The state of pre-training at one step; what was not measured there is None."""

    step: int
    """Optimizer steps done."""
    max_seq_length: int | None = None
    """Length of the examples at this step."""
    seconds: float | None = None
    """Since training began, interruptions left out."""
    tokens: int | None = None
    """Seen so far."""
    train_mlm_loss: float | None = None
    """Mean since the previous point."""
    train_nsp_loss: float | None = None
    """Mean since the previous point."""
    learning_rate: float | None = None
    """At this step."""
    tokens_per_second: float | None = None
    """Since the previous point."""
    heldout: dict[str, HeldoutPoint] = Field(default_factory=dict)
    """By split."""


class Pretraining(Config):
    """How pre-training went."""

    steps: int
    """Optimizer steps."""
    batch_size: int
    """Sequences per step."""
    tokens: int | None = None
    """Seen in all."""
    seconds: float | None = None
    """Training alone, start-up and evaluations left out."""
    device: str = ""
    """For example `cpu` or a GPU's name."""
    ranks: int | None = None
    """Processes."""
    phases: tuple[tuple[int, float], ...] = ()
    """(sequence length, share of the steps)."""
    curve: tuple[CurvePoint, ...] = ()
    """In order of steps."""
