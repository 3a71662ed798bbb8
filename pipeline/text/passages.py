"""Passages: documents cut at sentences into parts that one vector can stand for.

In:  a corpus and a number of words.
Out: `Passage`s in the order of files, each with the file and the document it comes from; whole
     documents as sentences.
"""

from collections.abc import Iterator
from functools import partial
from itertools import chain
from typing import NamedTuple

from pipeline.config.settings import CleaningConfig, CorpusConfig
from pipeline.readers.input_shards import input_shards
from pipeline.readers.registry import READERS
from pipeline.text.filters import Reason
from pipeline.text.texts import read_texts


class Passage(NamedTuple):
    """A few sentences of a document."""

    file: str
    position: int
    """Where its document begins in the file: a byte, a row or an ordinal, as the format has it."""
    text: str


class Document(NamedTuple):
    """A document that is not dropped."""

    file: str
    position: int
    """Where it begins in the file."""
    digest: bytes
    """Of its sentences."""
    sentences: list[str]


def read_passages(corpus: CorpusConfig, *, words: int) -> Iterator[Passage]:
    """All passages of the corpus, of about `words` words."""
    for document in read_documents(corpus, CleaningConfig()):
        for text in cut_passages(document.sentences, words=words):
            yield Passage(document.file, document.position, text)


def read_documents(corpus: CorpusConfig, cleaning: CleaningConfig) -> Iterator[Document]:
    """The documents of the corpus in the order of its files, one after another."""
    files = [[file.path for file in READERS[s.reader].find(s)] for s in corpus.sources]
    read = partial(read_texts, corpus=corpus, cleaning=cleaning)
    for block in chain.from_iterable(map(read, input_shards(corpus))):
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
                name = files[block.source][file]
                yield Document(name, position, digest.tobytes(), sentences)
            start = end


def cut_passages(sentences: list[str], *, words: int) -> Iterator[str]:
    """Consecutive whole sentences of at most `words` words together; a longer one stands alone."""
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
