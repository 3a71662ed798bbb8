"""A file of labelled documents: texts with labels.

In:  JSON lines, or a table with a header (CSV, TSV).
Out: the distinct texts, cleaned as the corpus is, sorted by a digest of each, and their labels.
"""

import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain, islice

import numpy as np

from cloze.artifacts.arrays import concatenated
from cloze.artifacts.errors import UsageError
from cloze.pipeline.config.settings import QualityConfig
from cloze.pipeline.quality.features import Floats
from cloze.pipeline.readers.documents import BrokenRecord, DocumentBlock
from cloze.pipeline.readers.structure import dialect_of
from cloze.pipeline.readers.tables import SAMPLED_LINES, rows_below_header, text_lines
from cloze.pipeline.text.cleaning import clean

FEWEST, MOST = 20, 2000
"""Documents from which a model can be made: fewer say too little, and a linear model of more than
some hundred is hardly better, while the time grows with their cube."""

FEWEST_OF_A_CLASS = 5


@dataclass(frozen=True)
class Labelled:
    """D documents with their labels, in the order of their digests."""

    block: DocumentBlock
    labels_D: Floats

    @property
    def is_classes(self) -> bool:
        """Whether the labels are 0 and 1, so that the score is a probability."""
        return set(self.labels_D.tolist()) == {0.0, 1.0}


def read_labelled(config: QualityConfig) -> Labelled:
    """Read `quality.labelled`; raises `UsageError` for a file from which no model can be made."""
    path, labels = config.labelled, dict[bytes, float]()
    for place, text, label in _rows(config):
        # Equal texts count once: copies on both sides of a fold would make the cross-validation
        # look better than the model is.
        raw = text.encode("utf-8", "surrogateescape").strip() + b"\n"
        if raw != b"\n" and labels.setdefault(raw, label) != label:
            raise UsageError(f"{place}: the text has another label here than before; remove one")
    if not FEWEST <= len(labels) <= MOST:
        raise UsageError(
            f"quality.labelled = {path}: {len(labels):,} distinct documents, expected {FEWEST} to "
            f"{MOST:,}; for more, fine-tune an encoder on them and give it as quality.model"
        )
    # An order that has nothing to do with that of the file, of which folds can be cut.
    texts = sorted(labels, key=lambda text: hashlib.blake2b(text).digest())
    labels_D = np.array([labels[text] for text in texts])
    kinds, counts = np.unique(labels_D, return_counts=True)
    if len(kinds) < 2 or (len(kinds) == 2 and counts.min() < FEWEST_OF_A_CLASS):
        found = ", ".join(f"{n:,} × {kind:g}" for kind, n in zip(kinds, counts, strict=True))
        raise UsageError(
            f"quality.labelled = {path}: its labels are {found}; expected at least "
            f"{FEWEST_OF_A_CLASS} good documents (1) and as many bad ones (0), or numbers that "
            "differ"
        )
    if len(kinds) == 2 and set(kinds.tolist()) != {0.0, 1.0}:
        raise UsageError(
            f"quality.labelled = {path}: two labels, {kinds[0]:g} and {kinds[1]:g}; expected 0 and "
            "1 (1 is good)"
        )
    block = DocumentBlock(*concatenated(texts), np.arange(len(texts)))
    # As the corpus is cleaned, or its own traces would tell the two apart.
    cleaned, _ = clean(block, line_break="detect", from_html=False)
    return Labelled(cleaned, labels_D)


def _rows(config: QualityConfig) -> Iterator[tuple[str, str, float]]:
    """The place, text and label of each row."""
    path, names = config.labelled, (config.text_field, config.label_field)
    for number, row in _records(path):
        place = f"quality.labelled = {path}: line {number}"
        if isinstance(row, BrokenRecord):
            raise UsageError(f"{place}: {row.why}")
        missing = [name for name in names if name not in row]
        if missing:
            raise UsageError(
                f"{place}: has {', '.join(map(str, row))}, but no {missing[0]}; set "
                "quality.text_field and quality.label_field"
            )
        text, label = (row[name] for name in names)
        try:
            value = float(label) if isinstance(label, str | int | float) else float("nan")
        except ValueError:
            value = float("nan")
        if not isinstance(text, str) or not np.isfinite(value):
            raise UsageError(
                f"{place}: expected text and a number as its label (1 is good, 0 is not), found "
                f"{text!r:.60} and {label!r:.60}"
            )
        yield place, text, value


def _records(path: str) -> Iterator[tuple[int, dict[str, object] | BrokenRecord]]:
    lines = text_lines(path)
    first = list(islice(lines, SAMPLED_LINES))
    # Told by the first character, as a name may end in anything.
    if "".join(first).lstrip().startswith("{"):
        for number, line in enumerate(chain(first, lines), 1):
            if line.strip():
                try:
                    found = json.loads(line)
                except (ValueError, RecursionError) as error:
                    found = BrokenRecord(f"not JSON: {error}")
                is_row = isinstance(found, dict | BrokenRecord)
                yield number, found if is_row else BrokenRecord("not a JSON object")
        return
    dialect = dialect_of("".join(first), path)
    if dialect is None:
        raise UsageError(
            f"quality.labelled = {path}: neither JSON lines nor a table with a header; expected "
            'rows such as {"text": "…", "label": 1}'
        )
    for number, row in rows_below_header(chain(first, lines), dialect):
        if isinstance(row, BrokenRecord):
            yield number, row
        else:
            yield number, dict(zip(dialect.columns, row, strict=True))
