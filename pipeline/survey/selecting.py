"""Some documents of a block, and their texts.

In:  a block of documents.
Out: a block of some of them; the beginning of one, as text.
"""

import numpy as np

from cloze.artifacts.arrays import Int64s, Mask
from cloze.pipeline.readers.documents import DocumentBlock


def selected(block: DocumentBlock, wanted_D: Mask) -> DocumentBlock:
    """The wanted documents of a block."""
    if wanted_D.all():
        return block
    lengths_D = np.diff(block.ends, prepend=0)
    text = block.text[np.repeat(wanted_D, lengths_D)]
    return DocumentBlock(text, np.cumsum(lengths_D[wanted_D]), block.positions[wanted_D])


def beginning(block: DocumentBlock, row: int, *, most: int) -> str:
    """The first characters of a document; at most `most` bytes of it."""
    start = int(block.ends[row - 1]) if row else 0
    stop = min(int(block.ends[row]), start + most)
    cut = stop < int(block.ends[row])
    text = block.text[start:stop].tobytes().decode("utf-8", "ignore" if cut else "replace")
    return text.removesuffix("\n")


def characters(block: DocumentBlock) -> Int64s:
    """The characters of each document, with its line feeds: (D,)."""
    begins = np.flatnonzero((block.text & 0xC0) != 0x80)
    return np.diff(np.searchsorted(begins, block.ends), prepend=0)
