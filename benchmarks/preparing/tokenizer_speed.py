"""Tokenisation alone: ours against `encode_batch_fast` on the same text and core, with equal ids.

    python benchmarks/preparing/tokenizer_speed.py --corpus corpus.txt --vocabulary vocab.txt \
        --output benchmarks/results/tokenization.json

In:  a file in Google's format (benchmarks/corpus.py makes one), a vocabulary.
Out: MB and tokens per second of processor time. Ours over the whole file, starting with empty
     tables (`cold`), and over its second half (`steady`); the peer, whose speed does not depend on
     earlier text, on blocks in between. The ids must be equal.
"""

import os
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

os.environ["TOKENIZERS_PARALLELISM"] = "false"  # one core each

import numpy as np
import numpy.typing as npt

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks.corpus import blocks, corpus_of, documents
from benchmarks.measuring import Arguments, Figures, machine, write_result
from cloze.artifacts.tokenizer import WordPieceTokenizer, read_vocab_txt
from cloze.pipeline.text.cleaning import LINE_FEED
from cloze.pipeline.text.texts import TextBlock
from cloze.pipeline.tokenizer.wordpiece import Form, form_for

Ids = npt.NDArray[np.integer]

PEER_SLICES = 5
"""Blocks of about 1 MB, spread over the file, that the peer tokenises."""


def rate(size: int, tokens: int, seconds: float) -> dict[str, float]:
    """Speeds per second of processor time."""
    return {"mb_per_second": size / seconds / 1e6, "tokens_per_second": tokens / seconds}


def timed(work: Callable[..., Ids], *arguments: object) -> tuple[float, Ids]:
    """Seconds of processor time, and the result."""
    started = time.process_time()
    result = work(*arguments)
    return time.process_time() - started, result


def ours(wordpiece: Form, block: TextBlock) -> Ids:
    """All ids of a block."""
    ends = np.flatnonzero(block.text == LINE_FEED) + 1
    return wordpiece.encode(block.text.tobytes(), ends)[0]


def peer(tokenizer: WordPieceTokenizer, texts: list[str]) -> Ids:
    """All ids of the documents, from `encode_batch_fast`."""
    encodings = tokenizer.backend.encode_batch_fast(texts, add_special_tokens=False)
    return np.array([index for encoding in encodings for index in encoding.ids])


def measure(text: list[TextBlock], tokenizer: WordPieceTokenizer) -> Figures:
    """Tokenise the whole text with ours, and some of its blocks with the peer in between."""
    wordpiece = form_for(tokenizer)
    # the middle of each slice
    wanted = {round((n + 0.5) * len(text) / PEER_SLICES) for n in range(PEER_SLICES)}
    seconds, tokens, theirs = [], [], []
    for number, block in enumerate(text):
        spent, ids = timed(ours, wordpiece, block)
        seconds.append(spent)
        tokens.append(len(ids))
        if number in wanted:
            texts = [one.decode() for one in documents(block)]  # the peer's fastest way
            spent, expected = timed(peer, tokenizer, texts)
            if not np.array_equal(ids, expected):
                raise SystemExit(f"block {number}: ids differ from those of encode_batch_fast")
            theirs.append((len(block.text), len(ids), spent))
    sizes = [len(block.text) for block in text]
    half = len(text) // 2
    speeds = [size / spent / 1e6 for size, spent in zip(sizes[half:], seconds[half:], strict=True)]
    cold, steady = (rate(sum(sizes[a:]), sum(tokens[a:]), sum(seconds[a:])) for a in (0, half))
    of_peer = rate(*map(sum, zip(*theirs, strict=True)))
    return {
        "megabytes": sum(sizes) / 1e6,
        "cold": cold,
        "steady": steady,
        "encode_batch_fast": of_peer,
        "times_faster_cold": cold["mb_per_second"] / of_peer["mb_per_second"],
        "times_faster_steady": steady["mb_per_second"] / of_peer["mb_per_second"],
        "ids_equal_on_megabytes": sum(size for size, _, _ in theirs) / 1e6,
        # quartiles of the blocks' MB/s; a single block has none
        "spread_of_steady": statistics.quantiles(speeds, n=4) if len(speeds) > 1 else speeds * 3,
    }


def main() -> None:
    """Read the arguments, measure, print, write."""
    arguments = Arguments(__doc__, output="", corpus=str, vocabulary=str).parse_args()
    where = machine()
    tokenizer = read_vocab_txt(arguments.vocabulary, lowercase=True)
    corpus = corpus_of(arguments.corpus, reader="sentence_lines")
    found = measure(list(blocks(corpus)), tokenizer)
    for name in ("encode_batch_fast", "cold", "steady"):
        speed, tokens = found[name]["mb_per_second"], found[name]["tokens_per_second"]
        print(f"{name:20} {speed:7.2f} MB/s {tokens / 1e6:7.2f} M tokens/s")
    cold, steady = found["times_faster_cold"], found["times_faster_steady"]
    print(f"times faster: {cold:.1f} cold, {steady:.1f} steady")
    text = Path(arguments.corpus).name
    write_result(arguments.output, {"machine": where, "corpus": text, **found})


if __name__ == "__main__":
    main()
