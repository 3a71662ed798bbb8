"""The page about a corpus: a self-contained HTML file in the report's style.

In:  a `Survey`.
Out: HTML of a few hundred kilobytes, and never more than `MOST_BYTES`: of texts there are
     beginnings, and of everything that a corpus can have more and more of, the largest.

Jinja2 escapes all text of the corpus; what cannot be seen, or would turn the page around, is shown
by its number.
"""

import re
from collections.abc import Sequence

from markupsafe import Markup

from cloze.flows.report.charts import column_chart
from cloze.flows.report.page import fill
from cloze.flows.report.plots import HALF, half
from cloze.flows.report.units import integer, percent, plural, short
from cloze.pipeline.survey.remedies import rule_line
from cloze.pipeline.survey.results import QUANTILES, Piece, SourceAmount, Survey

MOST_BYTES = 5_000_000

MOST_SOURCES, MOST_CHARTS, MOST_REMEDIES = 40, 8, 60
"""Sources in the tables, and with a chart; remedies."""

MOST_COLUMNS = 16
"""Columns of a histogram."""

SECTIONS = (
    ("remedies", "What to change"),
    ("amounts", "How much, and how long"),
    ("damage", "Damage"),
    ("frequent", "Most frequent"),
    ("copies", "Copies"),
    ("rules", "What rules drop"),
    ("changes", "Before and after"),
)

_UNSEEN = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\xad\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ue000-\uf8ff"
    "\ufdd0-\ufdef\ufeff\ufff9-\ufffc\ufffe\uffff]|[\U000e0000-\U000e0fff]"
    "|[\U0001fffe\U0001ffff]"
)
"""Controls, marks of direction, characters of no meaning or none that a font has."""


def visible(text: str) -> Markup:
    """`text`, escaped; characters that cannot be seen, by number."""
    parts = _UNSEEN.split(text)
    shown = [Markup("{}").format(parts[0])]
    for found, part in zip(_UNSEEN.findall(text), parts[1:], strict=True):
        shown.append(Markup('<span class="out">[{}]</span>{}').format(f"{ord(found):04X}", part))
    return Markup("").join(shown)


def pieces(parts: Sequence[Piece]) -> Markup:
    """Compared texts as one, with what is gone and what is new marked."""
    tags = {"same": Markup("{}"), "gone": Markup("<del>{}</del>"), "new": Markup("<ins>{}</ins>")}
    shown = []
    for kind, text in parts:
        if kind == "left_out":
            left_out = Markup('<span class="out"> … {} characters … </span>')
            shown.append(left_out.format(integer(int(text))))
            continue
        words = text.rstrip()  # white space behind is not marked
        shown.append(tags[kind].format(visible(words)) + Markup("{}").format(text[len(words) :]))
    return Markup("").join(shown)


def survey_page(survey: Survey) -> str:
    """The complete page."""
    sources = sorted(survey.sources, key=lambda one: (-one.characters, one.number))
    return fill(
        "survey.html.j2",
        package="cloze.inspection",
        survey=survey,
        sources=sources[:MOST_SOURCES],
        sections=SECTIONS,
        lede=_lede(survey),
        copies=_copies(survey),
        quantiles=QUANTILES,
        most_charts=MOST_CHARTS,
        most_remedies=MOST_REMEDIES,
        visible=visible,
        short=short,
        histogram=histogram,
        line_of=rule_line,
        pieces=pieces,
    )


def histogram(source: SourceAmount) -> Markup:
    """A source's documents by length, in powers of two."""
    lengths = source.lengths
    # The few that are longest share the last column.
    counts, edges = list(lengths.counts), list(lengths.edges)
    if len(counts) > MOST_COLUMNS:
        counts = [*counts[: MOST_COLUMNS - 1], sum(counts[MOST_COLUMNS - 1 :])]
        edges = [*edges[:MOST_COLUMNS], edges[-1]]
    names = [short(edge) for edge in edges]
    label = (
        f"documents of source {source.number} by length in tokens, median {lengths.quantiles[2]:,}"
    )
    return half(column_chart(counts, names, width=HALF, height=170, label=label))


def _lede(survey: Survey) -> list[str]:
    read, kept = survey.documents_read, survey.documents_kept
    sentences = [
        f"Of {plural(read, 'document')} in {plural(len(survey.sources), 'source')}, "
        f"{kept:,} were kept ({percent(kept / max(read, 1))})."
    ]
    near = survey.copies.near
    if survey.copies.searched == "sample" and near:
        share = percent(near / survey.copies.documents)
        sentences.append(f"{share} of them nearly equal another one.")
    if survey.damage:
        worst = max(survey.damage, key=lambda one: one.documents)
        share = percent(worst.documents / survey.sampled_read)
        sentences.append(f"The most widespread damage is {worst.name}, in {share} of those read.")
    return sentences


def _copies(survey: Survey) -> str:
    copies = survey.copies
    equal = f"{plural(copies.equal, 'document')} dropped because the same text came earlier"
    if copies.searched == "run":
        return f"{equal}, and {copies.near:,} because they nearly equal another one."
    whole = "all kept documents" if copies.documents == survey.documents_kept else "a sample"
    return (
        f"{equal}. The run has not searched for near-duplicates; among {whole} "
        f"({copies.documents:,}) {copies.near:,} have four fifths of their 5-word shingles in "
        "common with another one, so that they would be dropped."
    )
