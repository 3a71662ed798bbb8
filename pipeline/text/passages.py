"""Passages: documents split at sentence boundaries into chunks to embed.

In:  a corpus and a number of words.
Out: `Passage`s in file order, each with its file and document; whole documents as sentences.
"""

from collections.abc import Iterator
from functools import partial
from itertools import chain
from typing import NamedTuple

from pipeline.config.settings import CleaningConfig, CorpusConfig
from pipeline.readers.input_shards import find_corpus, input_shards
from pipeline.text.filters import Reason
from pipeline.text.texts import read_texts


class Passage(NamedTuple):
    """A few sentences of a document."""

    file: str
    position: int
    """Position of its document in the file: a byte offset, row number or ordinal."""
    text: str


class Document(NamedTuple):
    """A document that passed the filters."""

    file: str
    position: int
    """Position in the file."""
    digest: bytes
    """Digest of its sentences."""
    sentences: list[str]


def read_passages(corpus: CorpusConfig, *, words: int) -> Iterator[Passage]:
    """All passages of the corpus, of up to about `words` words."""
    for document in read_documents(corpus, CleaningConfig()):
        for text in cut_passages(document.sentences, words=words):
            yield Passage(document.file, document.position, text)


def read_documents(corpus: CorpusConfig, cleaning: CleaningConfig) -> Iterator[Document]:
    """The documents of the corpus, in file order."""
    files = find_corpus(corpus)
    read = partial(read_texts, corpus=corpus, cleaning=cleaning)
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
            if reason == Reason.KEPT:
                sentences = block.text[start:end].tobytes().decode().splitlines()
                path = files[block.source][file].path
                yield Document(path, position, digest.tobytes(), sentences)
            start = end


def cut_passages(sentences: list[str], *, words: int) -> Iterator[str]:
    """Runs of whole sentences of at most `words` words; a longer sentence is a passage alone."""
    waiting: list[str] = []
    count = 0
    for sentence in sentences:
        size = len(sentence.split())
        if waiting and count + size > words:
            yield " ".join(waiting)
            waiting, count = [], 0
        waiting.append(sentence)
        count += size
    if count:
        yield " ".join(waiting)
