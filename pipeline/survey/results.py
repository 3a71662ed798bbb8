"""What is found out about a corpus, for the page and for programs.

In:  nothing; this module only defines types.
Out: `Survey`.

Lengths and counts are integers, shares fractions. Texts are beginnings or passages, never whole
documents of any length.
"""

from typing import Literal

from pydantic import Field

from cloze.artifacts.results import Result

Piece = tuple[Literal["same", "gone", "new", "left_out"], str]
"""A part of a text that was compared: in both, only before, only after; or, where both are equal,
how many characters are left out."""


class Distribution(Result):
    """How long documents are."""

    quantiles: tuple[int, ...]
    """At `QUANTILES`."""
    largest: int
    edges: tuple[int, ...]
    """Of the histogram, powers of two; one more than counts."""
    counts: tuple[int, ...]


QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)


class Amount(Result):
    """How much text some kept documents have."""

    name: str
    documents: int
    characters: int
    tokens: int
    lengths: Distribution
    """Of the documents, in tokens."""


class SourceAmount(Amount):
    """How much of a source was read and kept."""

    number: int
    """Its index in the configuration."""
    reader: str
    read: int
    """Documents read; the others were kept."""
    dropped: dict[str, int]
    """Documents by reason."""


class Passage(Result):
    """What was found in a document, with the text around it."""

    before: str
    found: str
    after: str
    meant: str = ""
    """Mojibake as it was meant."""
    source: int


class Damage(Result):
    """One kind of damage to the text."""

    name: str
    cause: str
    documents: int
    """Documents of the sample that have it."""
    times: int
    layers: dict[int, int] = Field(default_factory=dict)
    """Of mojibake: how often it was converted, and passages of which that is true."""
    by_source: dict[int, int]
    """Documents of each source."""
    passages: tuple[Passage, ...]


class Counted(Result):
    """A word, an n-gram or a line, and how often it was found."""

    text: str
    count: int
    source: int | None = None


class CountedList(Result):
    """The most frequent of one kind."""

    of: str
    """`lines`, `words`, `2-grams`, …"""
    total: int
    """All that were counted."""
    error: int
    """A count is too small by this much at most, and never too large."""
    most: tuple[Counted, ...]


class Sample(Result):
    """The beginning of a document, or a line, beside a rule's limit."""

    text: str
    value: float | None = None
    """What the rule measures, if it has a limit."""
    source: int


class RuleEffect(Result):
    """What one rule drops or removes, or would with its published limit."""

    reason: str
    """As documents are listed with it, in words."""
    setting: str
    source: str
    """Where the rule comes from."""
    place: str
    """The table in which it is set: that of all sources, or of one with its own rules."""
    preset: str
    """The preset that has this limit; empty if the run has set its own."""
    on: bool
    limit: float | bool | int | str
    unit: Literal["documents", "lines"]
    count: int
    """Of the sample: documents, or lines, that the rule finds, whatever other rules do."""
    of: int
    out: tuple[Sample, ...]
    """Those beyond the limit, the nearest first."""
    kept: tuple[Sample, ...]
    """Those within it, the nearest first."""

    @property
    def share(self) -> float:
        """What it finds of what it looked at."""
        return self.count / self.of if self.of else 0.0


class Group(Result):
    """Documents that are equal or nearly so."""

    size: int
    kind: Literal["equal", "near"]
    similarity: float
    """The smallest share of shingles that the first has in common with another one shown."""
    texts: tuple[tuple[Piece, ...], ...]
    """The kept one; then others, with what differs from it."""


class Groups(Result):
    """Copies, the largest groups first."""

    searched: Literal["run", "sample", "none"]
    """Whether near-duplicates were dropped by the run, or looked for here, in the sample."""
    documents: int
    """Among which they were looked for."""
    near: int
    """Near-duplicates of a kept document."""
    equal: int
    """Documents dropped because the same text came earlier."""
    groups: tuple[Group, ...]


class Change(Result):
    """A document before and after cleaning."""

    path: str
    position: int
    source: int
    fate: str
    """`kept`, or why it was dropped."""
    chosen: Literal["at random", "changed"]
    characters_before: int
    characters_after: int
    pieces: tuple[Piece, ...]


class Remedy(Result):
    """A line of configuration, and why."""

    finding: str
    place: str
    """The table to which the line belongs."""
    line: str


class Survey(Result):
    """What a corpus is like."""

    run: str
    digest: str
    """Of the artifact with its tokens."""
    documents_read: int
    documents_kept: int
    characters: int
    tokens: int
    sampled_share: float
    """Of the documents, by digest; 1 if everything was looked at."""
    sampled_read: int
    sampled_kept: int
    """Documents in the sample."""
    reasons: dict[str, int]
    """Dropped documents of the whole corpus."""
    edits: dict[str, int]
    """Lines removed and data masked in the whole corpus."""
    sources: tuple[SourceAmount, ...]
    languages: tuple[Amount, ...] | None
    """Of the sample; None without pycld2."""
    damage: tuple[Damage, ...]
    frequent: tuple[CountedList, ...]
    copies: Groups
    rules: tuple[RuleEffect, ...]
    presets: dict[str, int]
    """Documents of the sample that at least one of a preset's rules would drop."""
    personal: dict[str, dict[str, int]]
    """Personal data of the sample that are not masked: by the table in which to mask them, and by
    kind."""
    changes: tuple[Change, ...]
    remedies: tuple[Remedy, ...]
