"""Documents ready for tokenisation: cleaned, split into sentences, identified by a digest.

In:  an input shard.
Out: `TextBlock`s: one sentence per line, with each document's digest and the reason if it is
     dropped. Of a whole corpus also its documents as sentences, or as passages to embed.

The digest covers the text in this form, so whichever of two duplicates is kept yields the same
tokens.
"""

import hashlib
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from cloze.artifacts.arrays import Bytes, Int64s, Mask, Offsets, UInt64s, digest_halves
from cloze.artifacts.errors import IntegrityError, NotText, UsageError
from cloze.artifacts.tables import TOKEN_DIGEST_BYTES
from cloze.pipeline.config.rules import RulesConfig
from cloze.pipeline.config.settings import CleaningConfig, CorpusConfig, LineBreak, SourceConfig
from cloze.pipeline.readers.compression import converted_from
from cloze.pipeline.readers.documents import (
    MAX_DOCUMENT_BYTES,
    DocumentBlock,
    cut,
    grouped,
    pack,
    place_of,
)
from cloze.pipeline.readers.input_shards import InputShard, find_corpus, input_shards, reader_named
from cloze.pipeline.readers.score_table import read_scores
from cloze.pipeline.readers.web import without_tags
from cloze.pipeline.text.account import Account, source_account
from cloze.pipeline.text.cleaning import LINE_FEED, clean
from cloze.pipeline.text.filters import Reason, Reasons, filter_documents
from cloze.pipeline.text.line_rules import CITATIONS, LINE_RULES, apply_line_rules
from cloze.pipeline.text.personal import KINDS, mask_personal
from cloze.pipeline.text.recurring import read_boilerplate, without_boilerplate
from cloze.pipeline.text.scripts import count_words, join_sentences
from cloze.pipeline.text.sentences import split_sentences

STRIDE_BYTES = 1 << 20
"""Bytes of text processed at a time: small enough to stay in the CPU caches between steps."""

JUDGED_DOCUMENTS = 10_000
"""Documents of a source that show which rule drops all of them."""

UInt32s = npt.NDArray[np.uint32]

EDITS = (*(rule.name for rule in LINE_RULES), CITATIONS, *KINDS)
"""What is counted of the changes to a document: lines removed by rule, citations removed, personal
data masked by kind."""

# D documents, E kinds of edits, G places without a space between two sentences


@dataclass(frozen=True)
class TextBlock:
    """Documents as lines of text.

    text:      one sentence per line; each non-empty document ends in a line feed.
    ends_D:    offset of each document's end in `text`.
    digests:   (D, 16), digests of the text, also of dropped documents.
    reasons_D: why each document is dropped, or `KEPT`.
    files_D, positions_D: number of its file within the source, and its position in the file.
    damaged_D: whether it had bytes that were not UTF-8.
    converted_D: whether its file was converted from another encoding.
    source:    index of the source in the configuration.
    glued:     offsets of the line feeds in `text` that were inserted between two sentences without
               a space, ascending.
    edits_DE:  lines that rules have removed from each document, and data masked in it, by `EDITS`.
    """

    text: Bytes
    ends_D: Offsets
    digests: Bytes
    reasons_D: Reasons
    files_D: npt.NDArray[np.uint32]
    positions_D: Offsets
    damaged_D: Mask
    converted_D: Mask
    source: int
    glued: Offsets
    edits_DE: UInt32s

    @property
    def digests_D2(self) -> UInt64s:
        """The digests as pairs of integers, in the same order."""
        return digest_halves(self.digests)

    def select(self, wanted_D: Mask) -> "TextBlock":
        """Some of the documents."""
        lengths_D = np.diff(self.ends_D, prepend=0)
        ends_D = np.cumsum(lengths_D[wanted_D])
        # Glued places move back by what is removed before their document.
        document_G = np.searchsorted(self.ends_D, self.glued, side="right")
        moved_D = np.cumsum(np.where(wanted_D, 0, lengths_D))
        return TextBlock(
            text=self.text[np.repeat(wanted_D, lengths_D)],
            ends_D=ends_D,
            digests=self.digests[wanted_D],
            reasons_D=self.reasons_D[wanted_D],
            files_D=self.files_D[wanted_D],
            positions_D=self.positions_D[wanted_D],
            damaged_D=self.damaged_D[wanted_D],
            converted_D=self.converted_D[wanted_D],
            source=self.source,
            glued=(self.glued - moved_D[document_G])[wanted_D[document_G]],
            edits_DE=self.edits_DE[wanted_D],
        )


def read_texts(
    shard: InputShard,
    *,
    corpus: CorpusConfig,
    cleaning: CleaningConfig,
    account: Account | None = None,
) -> Iterator[TextBlock]:
    """The documents of an input shard; `account` notes what cannot be read."""
    for states in read_states(shard, corpus=corpus, cleaning=cleaning, account=account):
        yield states.texts


class DocumentStates(NamedTuple):
    """The same documents in each state from file to sentences."""

    raw: DocumentBlock
    """As their reader found them."""
    whole: DocumentBlock
    """Cleaned, one paragraph per line."""
    paragraphs: DocumentBlock
    """Without boilerplate and the lines that rules remove, personal data masked."""
    texts: TextBlock
    """One sentence per line, with the reason to drop each."""


def read_states(
    shard: InputShard,
    *,
    corpus: CorpusConfig,
    cleaning: CleaningConfig,
    account: Account | None = None,
) -> Iterator[DocumentStates]:
    """The same documents, with the states before; `account` notes what cannot be read."""
    source = corpus.sources[shard.source]
    if source.boilerplate and not cleaning.boilerplate:
        raise UsageError(
            f"corpus.sources.{shard.source}: boilerplate is to be removed, but no list of lines is "
            "given; set cleaning.boilerplate to the artifact that `cloze boilerplate` makes"
        )
    rules = rules_of(source, cleaning)
    raw = _RawBlocks(shard, corpus, account)
    for read, block, files_D, whole, replaced in _cleaned(raw):
        cleaned = whole
        if source.boilerplate:
            listed = read_boilerplate(
                *(cleaning.boilerplate, shard.source, source.boilerplate),
                abbreviations_of(shard.source, corpus),
            )
            cleaned = without_boilerplate(whole, listed)
        had_text_D, left_D = _has_text(whole), _has_text(cleaned)
        cleaned, removed = apply_line_rules(cleaned, rules)
        # Before the digest is taken: texts that differ only in what is masked are duplicates.
        cleaned, masked = mask_personal(cleaned, rules)
        text, ends_D, glued = cleaned.text, cleaned.ends, np.zeros(0, dtype=np.int64)
        if _line_break(source) != "sentence":
            text, ends_D, glued = split_sentences(text, ends_D, corpus.abbreviations)
        # Filters see paragraphs as lines, before sentences are split.
        sentences_D = count_lines(text, ends_D) if rules.min_sentences else None
        reasons_D = filter_documents(cleaned, replaced, rules, sentences_D)
        # A document that is empty only now is listed under what has emptied it.
        emptied_D = reasons_D == Reason.EMPTY
        reasons_D[emptied_D & left_D] = Reason.REMOVED_LINES
        reasons_D[emptied_D & had_text_D & ~left_D] = Reason.BOILERPLATE
        reasons_D[list(block.broken)] = Reason.BAD_RECORD
        digests = _digests(text, ends_D)
        if cleaning.keep and not source.heldout:
            kept = np.flatnonzero(reasons_D == Reason.KEPT)
            scores = read_scores(cleaning.scores)
            low = scores.drops(digests[kept], source=shard.source, keep=cleaning.keep)
            reasons_D[kept[low]] = Reason.LOW_SCORE
        made = TextBlock(
            text=text,
            ends_D=ends_D,
            digests=digests,
            reasons_D=reasons_D,
            files_D=files_D,
            positions_D=block.positions,
            damaged_D=replaced > 0,
            converted_D=np.isin(files_D, list(raw.converted)),
            source=shard.source,
            glued=glued,
            edits_DE=_edits(removed | masked, len(ends_D)),
        )
        yield DocumentStates(read, whole, cleaned, made)
    if raw.skipped:
        skipped = _placeholders(raw.skipped, source=shard.source)
        empty = DocumentBlock(skipped.text, skipped.ends_D, skipped.positions_D)
        yield DocumentStates(empty, empty, empty, skipped)


def read_paragraphs(shard: InputShard, *, corpus: CorpusConfig) -> Iterator[DocumentBlock]:
    """The cleaned documents of an input shard, one paragraph per line, before any is removed."""
    for _, _, _, cleaned, _ in _cleaned(_RawBlocks(shard, corpus, None)):
        yield cleaned


class _RawBlocks:
    """The raw blocks of a shard's pieces, each with the number of its file."""

    def __init__(self, shard: InputShard, corpus: CorpusConfig, account: Account | None) -> None:
        self.shard, self.corpus, self.account = shard, corpus, account
        self.converted: set[int] = set()
        """Files read so far that were in another encoding."""
        self.skipped: list[tuple[int, Reason]] = []
        """Files that could not be read, at least in part."""

    def __iter__(self) -> Iterator[tuple[int, DocumentBlock]]:
        source = self.corpus.sources[self.shard.source]
        reader = reader_named(source.reader)
        # An unreadable file is skipped from where it fails; blocks that were read before it count.
        for piece in self.shard.pieces:
            try:
                if (
                    reader.is_encoded
                    and not piece.start
                    and converted_from(piece.path, is_json=reader.is_json)
                ):
                    self.converted.add(piece.file)
                for block in reader.read(piece, source):
                    for at, why in sorted(block.broken.items()):
                        place = place_of(piece.path, int(block.positions[at]), reader)
                        self._broken(f"{place}: {why}")
                    yield piece.file, block
            except (IntegrityError, UsageError) as error:
                # Files that are no text at all are always dropped; damaged text only if the user
                # has said so.
                is_text = not isinstance(error, NotText)
                if is_text and self.corpus.on_bad_file != "skip":
                    raise
                reason = Reason.BAD_FILE if is_text else Reason.BINARY_FILE
                self.skipped.append((piece.file, reason))
                if self.account:
                    self.account.note(str(error))

    def _broken(self, record: str) -> None:
        """Note a broken record, or end the stage with it."""
        if self.corpus.on_bad_file != "skip":
            raise UsageError(f'{record}; corpus.on_bad_file = "skip" drops such records')
        if self.account:
            self.account.note(record)


_CleanedBlock = tuple[DocumentBlock, DocumentBlock, npt.NDArray[np.uint32], DocumentBlock, Offsets]
"""A raw block, the same without tags, the file of each document, the cleaned block, and U+FFFD in
each document."""


def _cleaned(raw: _RawBlocks) -> Iterator[_CleanedBlock]:
    """The documents of a shard, about a megabyte at a time through all steps."""
    source = raw.corpus.sources[raw.shard.source]
    from_html = reader_named(source.reader).from_html if source.html is None else source.html
    # Neither too large for the caches nor so small that the calls cost more than the work: long
    # documents are cut into blocks, short ones joined.
    for group in grouped(_bounded(raw), lambda one: len(one[1].text), limit=STRIDE_BYTES):
        read, files_D = _joined(group)
        # Only where the source says so: for Wikipedia `html` is None and just entities are decoded.
        block = without_tags(read) if source.html else read
        cleaned, replaced = clean(block, line_break=_line_break(source), from_html=from_html)
        yield read, block, files_D, cleaned, replaced


def abbreviations_of(source: int, corpus: CorpusConfig) -> tuple[str, ...] | None:
    """Those by which a source's sentences are told; None if its lines are sentences."""
    is_split = _line_break(corpus.sources[source]) == "sentence"
    return None if is_split else corpus.abbreviations


def rules_of(source: SourceConfig, cleaning: CleaningConfig) -> RulesConfig:
    """The rules for the documents of a source: its own, or those of all."""
    return cleaning if source.cleaning is None else source.cleaning


def _has_text(block: DocumentBlock) -> Mask:
    lengths_D: Mask = np.diff(block.ends, prepend=0) > 0
    return lengths_D


def count_lines(text: Bytes, ends_D: Offsets) -> Offsets:
    """The lines of each document."""
    feeds = np.flatnonzero(text == LINE_FEED)
    return np.diff(np.searchsorted(feeds, ends_D), prepend=0)


def _edits(counts: dict[str, Int64s], documents: int) -> UInt32s:
    """The counts of each document as columns in the order of `EDITS`."""
    edits_DE = np.zeros((documents, len(EDITS)), dtype=np.uint32)
    for name, counts_D in counts.items():
        edits_DE[:, EDITS.index(name)] = counts_D
    return edits_DE


def _line_break(source: SourceConfig) -> LineBreak:
    return source.line_break or reader_named(source.reader).line_break


def _digests(text: Bytes, ends_D: Offsets) -> Bytes:
    """The digest of each document, one row each."""
    view = memoryview(text)  # type: ignore[arg-type]  # NumPy arrays are buffers
    digests = bytearray()
    start = 0
    for end in ends_D.tolist():
        digests += hashlib.blake2b(view[start:end], digest_size=TOKEN_DIGEST_BYTES).digest()
        start = end
    return np.frombuffer(digests, dtype=np.uint8).reshape(-1, TOKEN_DIGEST_BYTES)


def _placeholders(skipped: Sequence[tuple[int, Reason]], *, source: int) -> TextBlock:
    """An empty document for each file that could not be read, so that it is listed as dropped."""
    numbers, reasons = zip(*skipped, strict=True)
    zeros_D = np.zeros(len(skipped), dtype=np.int64)
    text = np.zeros(0, dtype=np.uint8)
    return TextBlock(
        text=text,
        ends_D=zeros_D,
        digests=_digests(text, zeros_D),
        reasons_D=np.array(reasons, dtype=np.uint8),
        files_D=np.array(numbers, dtype=np.uint32),
        positions_D=zeros_D,
        damaged_D=zeros_D > 0,
        converted_D=zeros_D > 0,
        source=source,
        glued=zeros_D[:0],
        edits_DE=_edits({}, len(skipped)),
    )


def _bounded(blocks: Iterable[tuple[int, DocumentBlock]]) -> Iterator[tuple[int, DocumentBlock]]:
    """The same documents in blocks of up to `STRIDE_BYTES`, or one document each."""
    for file, block in blocks:
        starts = np.concatenate(([0], block.ends[:-1]))
        first = 0
        while first < len(starts):
            # At least one document, whatever its size.
            last = int(np.searchsorted(block.ends, starts[first] + STRIDE_BYTES, side="right"))
            last = max(last, first + 1)
            begin, end = int(starts[first]), int(block.ends[last - 1])
            part = DocumentBlock(
                text=block.text[begin:end],
                ends=block.ends[first:last] - begin,
                positions=block.positions[first:last],
                broken={at - first: why for at, why in block.broken.items() if first <= at < last},
            )
            # A reader that does not cut documents may hand over a very long one.
            for bounded in (part,) if end - begin <= MAX_DOCUMENT_BYTES + 1 else _cut(part):
                yield file, bounded
            first = last


def _cut(block: DocumentBlock) -> Iterator[DocumentBlock]:
    """Cut a document that is too long, as the plain text readers do."""
    rest, position = block.text.tobytes(), int(block.positions[0])
    while rest:
        end = cut(rest) if len(rest) > MAX_DOCUMENT_BYTES + 1 else len(rest)
        yield from pack([(position, rest[:end])])
        rest = rest[end:]


def _joined(
    waiting: list[tuple[int, DocumentBlock]],
) -> tuple[DocumentBlock, npt.NDArray[np.uint32]]:
    files, blocks = zip(*waiting, strict=True)
    counts = [len(block.ends) for block in blocks]
    files_D = np.repeat(np.array(files, dtype=np.uint32), counts)
    if len(blocks) == 1:
        return blocks[0], files_D
    begins = np.cumsum([0, *(len(block.text) for block in blocks[:-1])])
    # Numbers of documents go on over the joined blocks.
    numbers = np.cumsum([0, *counts[:-1]]).tolist()
    ends = [block.ends + begin for block, begin in zip(blocks, begins, strict=True)]
    joined = DocumentBlock(
        text=np.concatenate([block.text for block in blocks]),
        ends=np.concatenate(ends),
        positions=np.concatenate([block.positions for block in blocks]),
        broken={
            number + at: why
            for number, block in zip(numbers, blocks, strict=True)
            for at, why in block.broken.items()
        },
    )
    return joined, files_D


def why_none_is_left(corpus: CorpusConfig, cleaning: CleaningConfig) -> str:
    """Which rules drop all documents of each source, judged by its first `JUDGED_DOCUMENTS`.

    Nothing if some are left, or none was there.
    """
    files, read = find_corpus(corpus), Counter[int]()
    dropped: dict[int, Counter[str]] = {}
    for shard in input_shards(corpus, files):
        # A large corpus is not read again only to explain an error.
        if read[shard.source] >= JUDGED_DOCUMENTS:
            continue
        for block in read_texts(shard, corpus=corpus, cleaning=cleaning):
            # Judged one by one, so that what only a comparison with other documents drops is
            # counted as kept.
            names = (Reason(reason).name.lower() for reason in block.reasons_D.tolist())
            dropped.setdefault(block.source, Counter()).update(names)
            read[block.source] += len(block.reasons_D)
    if any("kept" in counts for counts in dropped.values()):
        return ""
    accounts = (
        source_account(source, corpus.sources[source], documents=read[source], dropped=counts)
        for source, counts in sorted(dropped.items())
    )
    return "; ".join(filter(None, accounts))


class Document(NamedTuple):
    """A document that passed the filters."""

    file: str
    position: int
    """Position in the file."""
    digest: bytes
    """Digest of its sentences."""
    sentences: list[str]
    source: int
    """Index of the source in the configuration."""


def read_documents(
    corpus: CorpusConfig, cleaning: CleaningConfig, account: Account | None = None
) -> Iterator[Document]:
    """The documents of the corpus, in file order; `account` counts all and why some are dropped."""
    files = find_corpus(corpus)
    read = partial(read_texts, corpus=corpus, cleaning=cleaning, account=account)
    readers = [reader_named(source.reader) for source in corpus.sources]
    for block in chain.from_iterable(map(read, input_shards(corpus, files))):
        start = 0
        for end, file, position, digest, reason in zip(
            block.ends_D.tolist(),
            block.files_D.tolist(),
            block.positions_D.tolist(),
            block.digests,
            block.reasons_D.tolist(),
            strict=True,
        ):
            path = files[block.source][file].path
            if account:
                reader = readers[block.source]
                account.add(Reason(reason), path=path, position=position, reader=reader)
            if reason == Reason.KEPT:
                sentences = block.text[start:end].tobytes().decode().splitlines()
                yield Document(path, position, digest.tobytes(), sentences, block.source)
            start = end


def cut_passages(sentences: list[str], *, words: int) -> Iterator[str]:
    """Runs of whole sentences of at most `words` words; a longer sentence is a passage alone."""
    for group in grouped(sentences, count_words, limit=words):
        yield join_sentences(group)


def cut_overlapping(sentences: list[str], *, words: int, overlap: int) -> Iterator[str]:
    """The same passages, each after the last sentences of the one before.

    These have at most `overlap` words, on top of `words`, and never are a whole passage.
    """
    before: list[str] = []
    for group in grouped(sentences, count_words, limit=words):
        yield join_sentences([*before, *group])
        # From the end of this passage backwards, as many whole sentences as fit; never its first,
        # or the next would repeat all of it.
        before, size = [], 0
        for sentence in reversed(group[1:]):
            size += count_words(sentence)
            if size > overlap:
                break
            before.insert(0, sentence)
