"""How much of a corpus is damaged, and how.

In:  documents of the sample, as read and as cleaned.
Out: for each kind of damage (damage.py) how many documents have it, of which source, and passages.
"""

from collections import Counter
from functools import partial
from typing import NamedTuple

import numpy as np

from cloze.artifacts.arrays import Int64s, Offsets, UInt64s
from cloze.pipeline.readers.documents import DocumentBlock
from cloze.pipeline.survey.counting import Smallest
from cloze.pipeline.survey.damage import Kind, kinds, mended, places
from cloze.pipeline.survey.results import Damage, Passage

PASSAGES, CONTEXT, LONGEST = 3, 60, 120
"""Passages shown of each kind, bytes beside what was found, and bytes of that."""

LAYERS_LOOKED_AT = 200
"""Passages of mojibake in a block that are mended, to know how often they were converted."""

# D documents, M places


class _Found:
    def __init__(self) -> None:
        self.times = 0
        self.layers: Counter[int] = Counter()
        self.by_source: Counter[int] = Counter()
        self.passages: Smallest[Passage] = Smallest(PASSAGES)


class DamageSurvey:
    """Counts of all kinds."""

    def __init__(self) -> None:
        self._found = {kind.name: _Found() for kind in kinds()}

    def add(
        self, raw: DocumentBlock, whole: DocumentBlock, keys_D: UInt64s, *, source: int
    ) -> None:
        """Look for damage in documents; `keys_D` decide which passages are shown."""
        for kind in kinds():
            block = raw if kind.state == "raw" else whole
            places_M2 = places(kind, block)
            if not len(places_M2):
                continue
            found = self._found[kind.name]
            # Places are ascending, so a document's first one is where the number of the document
            # changes.
            documents_M = np.searchsorted(block.ends, places_M2[:, 0], side="right")
            first = np.flatnonzero(np.diff(documents_M, prepend=-1))
            found.times += len(places_M2)
            found.by_source[source] += len(first)
            text = TextOfDocuments(block.text.tobytes(), block.ends)
            if "read as" in kind.name:
                spans = places_M2[:LAYERS_LOOKED_AT].tolist()
                # Mending takes long, and a few places tell as well as all how often the text was
                # converted.
                found.layers.update(mended(text.content[a:b].decode())[1] for a, b in spans)
            # Of each document the first place.
            shown = partial(_passage, kind, text, places_M2[first], source=source)
            found.passages.offer(np.zeros(len(first)), keys_D[documents_M[first]], shown)

    def found(self) -> tuple[Damage, ...]:
        """The kinds that were found, in the order of `kinds`."""
        return tuple(
            Damage(
                name=kind.name,
                cause=kind.cause,
                documents=found.by_source.total(),
                times=found.times,
                layers={n: count for n, count in sorted(found.layers.items()) if n},
                by_source=dict(sorted(found.by_source.items())),
                passages=tuple(found.passages.payloads()),
            )
            for kind in kinds()
            if (found := self._found[kind.name]).times
        )


class TextOfDocuments(NamedTuple):
    """Documents one behind the other."""

    content: bytes
    ends_D: Offsets


def _passage(
    kind: Kind, text: TextOfDocuments, places_M2: Int64s, at: int, *, source: int
) -> Passage:
    first, last = places_M2[at].tolist()
    document = int(np.searchsorted(text.ends_D, first, side="right"))
    start = max(first - CONTEXT, int(text.ends_D[document - 1]) if document else 0)
    stop = min(last + CONTEXT, int(text.ends_D[document]))
    # Bytes that are no text are shown by number; a character that is cut is left out.
    errors = "backslashreplace" if last - first <= LONGEST else "ignore"
    found = text.content[first : min(last, first + LONGEST)].decode("utf-8", errors)
    better, layers = mended(found) if "read as" in kind.name else ("", 0)
    return Passage(
        before=text.content[start:first].decode("utf-8", "ignore"),
        found=found,
        after=text.content[last:stop].decode("utf-8", "ignore"),
        meant=better if layers else "",
        source=source,
    )
