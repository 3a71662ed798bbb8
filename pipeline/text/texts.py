"""Documents ready to be tokenised: cleaned, cut into sentences, named by their digest.

In:  the pieces of files that one task reads.
Out: `TextBlock`s: one sentence a line, each document's digest, and which are dropped and why.

A document's identity is its text in this form: equal digests mean equal sentences, so whichever of
two equal documents survives, the same tokens come of it.
"""

import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from artifacts.tables import TOKEN_DIGEST_BYTES
from pipeline.config import CleaningConfig, CorpusConfig
from pipeline.readers.documents import Bytes, DocumentBlock, Offsets
from pipeline.readers.registry import READERS
from pipeline.shuffle.input_shards import Portion
from pipeline.text.cleaning import clean
from pipeline.text.filters import Reasons, filter_documents
from pipeline.text.sentences import split_sentences

STRIDE_BYTES = 1 << 20
"""Text cleaned at a time: more would fall out of the processor's caches between two steps."""

# D documents
Digests = npt.NDArray[np.uint8]


@dataclass(frozen=True)
class TextBlock:
    """Documents as lines of text.

    text:      one sentence a line; each document that is not empty ends in a line feed.
    ends_D:    where each document ends in `text`.
    digests:   (D, 16), of the text; dropped documents' too.
    reasons_D: why a document is dropped, or that it is kept.
    files_D, positions_D: its name: number of the file within the source, and place in the file.
    damaged_D: whether it had bytes that are no UTF-8.
    """

    text: Bytes
    ends_D: Offsets
    digests: Digests
    reasons_D: Reasons
    files_D: npt.NDArray[np.uint32]
    positions_D: Offsets
    damaged_D: npt.NDArray[np.bool_]


def read_texts(
    portion: Portion, *, corpus: CorpusConfig, cleaning: CleaningConfig
) -> Iterator[TextBlock]:
    """The documents of a portion of the corpus."""
    source = corpus.sources[portion.source]
    reader = READERS[source.reader]
    from_html = reader.from_html if source.html is None else source.html
    blocks = (
        (work.file, block) for work in portion.pieces for block in reader.read(work.piece, source)
    )
    for block, files_D in _evenly(blocks):
        cleaned = clean(block, line_break=reader.line_break, from_html=from_html)
        text, ends_D = cleaned.text, cleaned.ends
        if reader.line_break != "sentence":
            text, ends_D = split_sentences(text, ends_D)
        yield TextBlock(
            text=text,
            ends_D=ends_D,
            digests=_digests(text, ends_D),
            reasons_D=filter_documents(cleaned, cleaning),
            files_D=files_D,
            positions_D=block.positions,
            damaged_D=cleaned.replaced > 0,
        )


def _evenly(
    blocks: Iterable[tuple[int, DocumentBlock]],
) -> Iterator[tuple[DocumentBlock, npt.NDArray[np.uint32]]]:
    """The same documents in blocks of about one size, with each document's file."""
    waiting: list[tuple[int, DocumentBlock]] = []
    size = 0
    for file, block in blocks:
        for part in _parts(block):
            if waiting and size + len(part.text) > STRIDE_BYTES:
                yield _join(waiting)
                waiting, size = [], 0
            waiting.append((file, part))
            size += len(part.text)
    if waiting:
        yield _join(waiting)


def _parts(block: DocumentBlock) -> Iterator[DocumentBlock]:
    """The block cut between documents."""
    starts = np.concatenate(([0], block.ends[:-1]))
    first = 0
    while first < len(starts):
        last = int(np.searchsorted(block.ends, starts[first] + STRIDE_BYTES, side="right"))
        last = max(last, first + 1)
        begin, end = int(starts[first]), int(block.ends[last - 1])
        yield DocumentBlock(
            text=block.text[begin:end],
            ends=block.ends[first:last] - begin,
            positions=block.positions[first:last],
        )
        first = last


def _join(
    waiting: list[tuple[int, DocumentBlock]],
) -> tuple[DocumentBlock, npt.NDArray[np.uint32]]:
    files, blocks = zip(*waiting, strict=True)
    counts = [len(block.ends) for block in blocks]
    files_D = np.repeat(np.array(files, dtype=np.uint32), counts)
    if len(blocks) == 1:
        return blocks[0], files_D
    begins = np.cumsum([0, *(len(block.text) for block in blocks[:-1])])
    ends = [block.ends + begin for block, begin in zip(blocks, begins, strict=True)]
    joined = DocumentBlock(
        text=np.concatenate([block.text for block in blocks]),
        ends=np.concatenate(ends),
        positions=np.concatenate([block.positions for block in blocks]),
    )
    return joined, files_D


def _digests(text: Bytes, ends_D: Offsets) -> Digests:
    """blake2b of each document, (D, 16)."""
    view = memoryview(text)  # type: ignore[arg-type]  # NumPy arrays are buffers
    digests = bytearray()
    start = 0
    for end in ends_D.tolist():
        digests += hashlib.blake2b(view[start:end], digest_size=TOKEN_DIGEST_BYTES).digest()
        start = end
    return np.frombuffer(bytes(digests), dtype=np.uint8).reshape(-1, TOKEN_DIGEST_BYTES)
