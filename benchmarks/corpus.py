"""Real text in the form Google's script reads: one sentence a line, a blank line between documents.

    python benchmarks/corpus.py --wikiextractor FOLDER --megabytes 75 --output corpus.txt

In:  a folder of WikiExtractor files.
Out: a file of the wanted size, of whole documents; every preparation benchmark reads such a file.
"""

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from pipeline.config.settings import CleaningConfig, CorpusConfig, SourceConfig
from pipeline.readers.input_shards import input_shards
from pipeline.text.texts import read_texts


def wikiextractor(folder: str) -> CorpusConfig:
    """A folder of WikiExtractor files."""
    return CorpusConfig(sources=(SourceConfig(reader="wikiextractor", path=folder),))


def documents(corpus: CorpusConfig) -> Iterator[bytes]:
    """Each document of the corpus, one sentence a line."""
    for shard in input_shards(corpus):
        for block in read_texts(shard, corpus=corpus, cleaning=CleaningConfig()):
            text, begin = block.text.tobytes(), 0
            for end in block.ends_D.tolist():
                if text[begin:end].strip():
                    yield text[begin:end]
                begin = end


def write_corpus(corpus: CorpusConfig, *, megabytes: float, output: str) -> int:
    """Write documents until the size is reached; returns the number of bytes."""
    written = 0
    with open(output, "wb") as file:
        for document in documents(corpus):
            if written >= megabytes * 1e6:
                break
            written += file.write(document + b"\n")
    return written


def main() -> None:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--wikiextractor", required=True)
    parser.add_argument("--megabytes", type=float, required=True)
    parser.add_argument("--output", required=True)
    arguments = parser.parse_args()
    written = write_corpus(
        wikiextractor(arguments.wikiextractor),
        megabytes=arguments.megabytes,
        output=arguments.output,
    )
    print(f"{arguments.output}: {written / 1e6:.1f} MB")
    if written < arguments.megabytes * 1e6:
        sys.exit(f"{arguments.wikiextractor} holds no more text than that")


if __name__ == "__main__":
    main()
