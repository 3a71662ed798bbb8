"""Tokenising alone: ours against `encode_batch_fast`, same text, same core, same ids.

    python benchmarks/preparing/tokenizer_speed.py --corpus corpus.txt --vocabulary vocab.txt \
        --output benchmarks/results/tokenization.json

In:  a file in Google's format (benchmarks/corpus.py makes one), a vocabulary.
Out: MB/s and tokens/s of processor time. Ours with everything: fresh tables at the beginning
     (`cold`, the whole file) and from half of the file on (`steady`); the peer, whose speed does
     not depend on what it has read before, on slices between ours. The ids must be equal.
"""

import argparse
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

os.environ["TOKENIZERS_PARALLELISM"] = "false"  # one core each

import numpy as np
import numpy.typing as npt

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from artifacts.tokenizer import WordPieceTokenizer, read_vocab_txt
from benchmarks.measuring import machine, write_result
from pipeline.config.settings import CleaningConfig, CorpusConfig, SourceConfig
from pipeline.readers.input_shards import input_shards
from pipeline.text.cleaning import LINE_FEED
from pipeline.text.texts import TextBlock, read_texts
from pipeline.tokenizer.wordpiece import Form, form_for

Ids = npt.NDArray[np.integer]

PEER_SLICES = 5
"""Blocks of about 1 MB, spread over the file, that the peer tokenises."""


@dataclass(frozen=True)
class Rate:
    """Speeds per second of processor time."""

    mb_per_second: float
    tokens_per_second: float

    @classmethod
    def of(cls, size: int, tokens: int, seconds: float) -> "Rate":
        """Of so many bytes and tokens in so many seconds."""
        return cls(size / seconds / 1e6, tokens / seconds)


@dataclass(frozen=True)
class Speeds:
    """What is measured of one text."""

    megabytes: float
    cold: Rate
    steady: Rate
    encode_batch_fast: Rate
    times_faster_cold: float
    times_faster_steady: float
    ids_equal_on_megabytes: float
    spread_of_steady: list[float]
    """Quartiles of the blocks' MB/s."""


def blocks(corpus: str) -> list[TextBlock]:
    """The cleaned text in blocks of about 1 MB, as the pipeline tokenises it."""
    source = SourceConfig(reader="sentence_lines", path=corpus)
    config = CorpusConfig(sources=(source,))
    return [
        block
        for shard in input_shards(config)
        for block in read_texts(shard, corpus=config, cleaning=CleaningConfig())
    ]


def timed(work: Callable[[], Ids]) -> tuple[float, Ids]:
    """Seconds of processor time, and what the work gave."""
    started = time.process_time()
    result = work()
    return time.process_time() - started, result


def ours(wordpiece: Form, block: TextBlock) -> Ids:
    """All ids of a block."""
    ends = np.flatnonzero(block.text == LINE_FEED) + 1
    return wordpiece.encode(block.text.tobytes(), ends)[0]


def documents(block: TextBlock) -> Iterator[str]:
    """The block's documents as the peer takes them; it is fastest on whole documents."""
    raw, start = block.text.tobytes(), 0
    for end in block.ends_D.tolist():
        yield raw[start:end].decode()
        start = end


def peer(tokenizer: WordPieceTokenizer, texts: list[str]) -> Ids:
    """All ids of the documents, from `encode_batch_fast`."""
    encodings = tokenizer.backend.encode_batch_fast(texts, add_special_tokens=False)
    return np.array([index for encoding in encodings for index in encoding.ids])


def measure(text: list[TextBlock], tokenizer: WordPieceTokenizer) -> Speeds:
    """Ours over the whole text, and between its blocks now and then the peer."""
    wordpiece = form_for(tokenizer)
    wanted = {round((n + 0.5) * len(text) / PEER_SLICES) for n in range(PEER_SLICES)}
    seconds, tokens, theirs = [], [], []
    for number, block in enumerate(text):
        spent, ids = timed(partial(ours, wordpiece, block))
        seconds.append(spent)
        tokens.append(len(ids))
        if number in wanted:
            texts = list(documents(block))
            spent, expected = timed(partial(peer, tokenizer, texts))
            if not np.array_equal(ids, expected):
                raise SystemExit(f"block {number}: other ids than encode_batch_fast")
            theirs.append((len(block.text), len(ids), spent))
    sizes = [len(block.text) for block in text]
    half = len(text) // 2
    peer_speed = Rate.of(*map(sum, zip(*theirs, strict=True)))
    speeds = [size / spent / 1e6 for size, spent in zip(sizes[half:], seconds[half:], strict=True)]
    cold, steady = (Rate.of(sum(sizes[a:]), sum(tokens[a:]), sum(seconds[a:])) for a in (0, half))
    return Speeds(
        megabytes=sum(sizes) / 1e6,
        cold=cold,
        steady=steady,
        encode_batch_fast=peer_speed,
        times_faster_cold=cold.mb_per_second / peer_speed.mb_per_second,
        times_faster_steady=steady.mb_per_second / peer_speed.mb_per_second,
        ids_equal_on_megabytes=sum(size for size, _, _ in theirs) / 1e6,
        # A block alone has no quartiles.
        spread_of_steady=statistics.quantiles(speeds, n=4) if len(speeds) > 1 else speeds * 3,
    )


def main() -> None:
    """Read the command line, measure, print, keep."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--corpus", required=True)
    parser.add_argument("--vocabulary", required=True)
    parser.add_argument("--output", default="")
    arguments = parser.parse_args()
    where = machine()
    tokenizer = read_vocab_txt(arguments.vocabulary, lowercase=True)
    found = measure(blocks(arguments.corpus), tokenizer)
    rates = {
        "encode_batch_fast": found.encode_batch_fast,
        "cold": found.cold,
        "steady": found.steady,
    }
    for name, speed in rates.items():
        print(
            f"{name:20} {speed.mb_per_second:7.2f} MB/s"
            f" {speed.tokens_per_second / 1e6:7.2f} M tokens/s"
        )
    print(
        f"times faster: {found.times_faster_cold:.1f} cold, {found.times_faster_steady:.1f} steady"
    )
    if arguments.output:
        text = Path(arguments.corpus).name
        write_result(arguments.output, {"machine": where, "corpus": text, **asdict(found)})


if __name__ == "__main__":
    main()
