"""Real text as Google's script reads it: one sentence per line, a blank line between documents.

    python benchmarks/corpus.py --wikiextractor FOLDER --megabytes 75 --output corpus.txt

In:  a folder of WikiExtractor files.
Out: a file of whole documents of about the given size, the input of the preparation benchmarks.
"""

import sys
from collections.abc import Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.measuring import Arguments
from cloze.pipeline.config.settings import CleaningConfig, CorpusConfig, ReaderName, SourceConfig
from cloze.pipeline.readers.input_shards import input_shards
from cloze.pipeline.text.texts import TextBlock, read_texts


def corpus_of(path: str, *, reader: ReaderName) -> CorpusConfig:
    """A corpus of one source."""
    return CorpusConfig(sources=(SourceConfig(reader=reader, path=path),))


def blocks(corpus: CorpusConfig) -> Iterator[TextBlock]:
    """The cleaned text in blocks of about 1 MB, as the pipeline tokenises it."""
    for shard in input_shards(corpus):
        yield from read_texts(shard, corpus=corpus, cleaning=CleaningConfig())


def documents(block: TextBlock) -> Iterator[bytes]:
    """The documents of a block, one sentence per line."""
    text, start = block.text.tobytes(), 0
    for end in block.ends_D.tolist():
        yield text[start:end]
        start = end


def write_corpus(corpus: CorpusConfig, *, megabytes: float, output: str) -> int:
    """Write documents until the size is reached; returns the number of bytes."""
    written = 0
    with open(output, "wb") as file:
        for document in (one for block in blocks(corpus) for one in documents(block)):
            if written >= megabytes * 1e6:
                break
            if document.strip():
                written += file.write(document + b"\n")
    return written


def main() -> None:
    """Read the arguments, write the file."""
    parser = Arguments(__doc__, wikiextractor=str, megabytes=float)
    parser.add_options(output=str)
    arguments = parser.parse_args()
    corpus = corpus_of(arguments.wikiextractor, reader="wikiextractor")
    written = write_corpus(corpus, megabytes=arguments.megabytes, output=arguments.output)
    print(f"{arguments.output}: {written / 1e6:.1f} MB")
    if written < arguments.megabytes * 1e6:
        sys.exit(f"{arguments.wikiextractor} contains no more text than that")


if __name__ == "__main__":
    main()
