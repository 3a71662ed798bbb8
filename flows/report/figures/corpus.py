"""The figures of the corpus: what was read, how long, how often, how hidden.

In:  `Corpus` and `ExampleSet`.
Out: markup, as in `figures`.
"""

from markupsafe import Markup

from artifacts.summary import Corpus, ExampleSet, Histogram
from flows.report.charts.columns import Columns, columns
from flows.report.charts.curves import log_log
from flows.report.charts.rows import Row, bars
from flows.report.figures.quality import twice
from flows.report.units import integer, percent, short

FREQUENT = 20


def histogram(drawn: Histogram, *, noun: str) -> Markup:
    """Columns; borders written short."""
    edges = [short(edge) for edge in drawn.edges]
    chart = Columns(drawn.counts, edges, noun)
    return Markup('<div class="half">{}</div>').format(
        columns(chart, width=336, height=170, label=f"lengths of {noun}")
    )


def frequent_pieces(corpus: Corpus, *, whole: int) -> Markup:
    """The commonest word-pieces and their share of all."""
    rows = [
        Row(
            piece.text,
            piece.count,
            percent(piece.count / whole),
            tip=f"{piece.text}: {integer(piece.count)} times",
        )
        for piece in corpus.frequent[:FREQUENT]
    ]
    chart = bars(rows, width=336, labels=64, label="most frequent word-pieces", pitch=19)
    return Markup('<div class="half">{}</div>').format(chart)


def rank_frequency(corpus: Corpus) -> Markup:
    """How fast frequency falls with rank."""
    places = [(float(rank), float(count)) for rank, count in corpus.rank_frequency if count]
    chart = log_log(places, width=336, height=230, label="frequency of word-pieces by rank")
    return Markup('<div class="half">{}</div>').format(chart)


def fate(corpus: Corpus) -> Markup:
    """How many documents were kept, and why the rest was dropped."""
    kept = sum(split.documents for split in corpus.splits)
    read = corpus.documents_read or kept + sum(corpus.dropped.values())
    dropped = sorted(corpus.dropped.items(), key=lambda item: -item[1])
    rows = [_share("kept", kept, read, kind="main")]
    rows += [_share(reason.replace("_", " "), count, read) for reason, count in dropped if count]
    return _rows(rows, label="documents kept and dropped")


def masks(examples: ExampleSet) -> Markup:
    """What stands in the place of the hidden words."""
    parts = {
        "[MASK]": examples.as_mask,
        "another word": examples.as_random,
        "the word itself": examples.kept,
    }
    rows = [_share(name, count or 0, examples.masked, digits=2) for name, count in parts.items()]
    return _rows(rows, label="what hides a word")


def _rows(rows: list[Row], *, label: str) -> Markup:
    return twice(lambda width: bars(rows, width=width, labels=112, label=label, pitch=24))


def _share(name: str, count: int, whole: int, *, kind: str = "other", digits: int = 1) -> Row:
    shown = f"{integer(count)}, {percent(count / whole, digits=digits)}"
    return Row(name, count, shown, kind=kind)
