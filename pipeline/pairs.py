"""Stage `pairs`: texts that belong together, taken from unlabelled documents.

In:  a corpus of any reader; or installed packages, whose functions are described.
Out: retrieval/, with train.jsonl, dev.jsonl and test.jsonl: a query and its passage on each line.

    python -P -m pipeline.pairs --config TABLE.json

What is held out is held out in parts: a document is cut into parts of some pages, and all pairs of
a part are in one split, so that no passage of dev or test, nor its neighbour, is trained on. With a
tenth held out for each, of every ten parts the second is dev's and the third test's. How many pairs
are taken is bounded, which ones is decided by a hash of the seed and the text; so memory does not
grow with the corpus but for a digest of each document, which tells copies apart.
"""

import heapq
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from artifacts.config import parse
from artifacts.errors import UsageError
from artifacts.progress import Progress
from artifacts.rng import stream_seed
from artifacts.runtime.program import run_program
from artifacts.stage import StageTable
from artifacts.store import Artifact, commit, put_bytes
from pipeline.config.stage_tables import PairsStage
from pipeline.demo.packages import read_modules
from pipeline.demo.pair_task import documented_functions
from pipeline.readers.documents import MEGABYTE
from pipeline.readers.registry import READERS
from pipeline.text.passages import cut_passages, read_documents

PAIRS_OF_A_PART = 10
"""Of neighbours: at the usual 60 words a passage some three pages."""

LONGEST_OPENING = 25
"""Words of a document's first line that is taken for a query."""

HEADING = re.compile(r"(?:#+ *)?((?=[A-ZÀ-Þ0-9])[^.!?]*[^\W_])#*")
"""A line that does not end like a sentence; Markdown's marks are left out."""

LONGEST_HEADING = 12
"""Words."""

SHORTEST = 4
"""Fewest words of a passage."""

Pair = tuple[str, str]
"""Query and passage."""


@dataclass
class Sample:
    """A sample of fixed size: of all items offered, those with the smallest keys."""

    wanted: int
    seen: int = 0
    _kept: list[tuple[int, Pair]] = field(default_factory=list)

    def offer(self, key: int, pair: Pair) -> None:
        """Keep the pair, if its key is one of the smallest so far."""
        self.seen += 1
        if len(self._kept) < self.wanted:
            heapq.heappush(self._kept, (-key, pair))
        else:
            heapq.heappushpop(self._kept, (-key, pair))

    def pairs(self) -> list[Pair]:
        """What was kept, in the order of the keys."""
        return [pair for _, pair in sorted(self._kept, reverse=True)]


def make_pairs(table: StageTable, options: list[str]) -> Artifact:
    """Run the stage."""
    stage = parse(PairsStage, table.config, source="stage pairs")
    config, seed = stage.pairs, stage.seed
    samples = {
        "train": Sample(config.train_pairs),
        "dev": Sample(config.evaluation_pairs),
        "test": Sample(config.evaluation_pairs),
    }
    parts = _described_functions(stage) if config.kind == "signature" else _text_parts(stage)
    turns = round(1 / config.heldout_share)
    for number, pairs in enumerate(parts):
        split = {1: "dev", 2: "test"}.get(number % turns, "train")
        for query, passage in pairs:
            if not query or len(passage.split()) < SHORTEST or query == passage:
                continue
            samples[split].offer(int(stream_seed(seed, "pair", query, passage)), (query, passage))
    empty = [split for split, sample in samples.items() if not sample.seen]
    if empty:
        raise UsageError(
            f"the documents give {sum(s.seen for s in samples.values()):,} pairs, and no "
            f"pair for {empty[0]}; give more text, fewer pairs.words (now {config.words}), or "
            "another pairs.kind"
        )
    files = []
    for split, sample in samples.items():
        found = [{"query": query, "passage": passage} for query, passage in sample.pairs()]
        lines = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in found)
        name = f"retrieval/{split}.jsonl"
        files.append(put_bytes(table.output, lines.encode(), name=name, rows=len(found)))
    statistics = {split: min(one.seen, one.wanted) for split, one in samples.items()}
    return commit(table, files, statistics=statistics)


def _text_parts(stage: PairsStage) -> Iterator[list[Pair]]:
    """The pairs of every part of the documents; copies of a document are skipped."""
    sources = stage.corpus.sources
    size = sum(file.size for source in sources for file in READERS[source.reader].find(source))
    progress, seen = Progress("pairs", size / MEGABYTE, "MB"), set[bytes]()
    for document in read_documents(stage.corpus, stage.cleaning):
        progress.advance(sum(map(len, document.sentences)) / MEGABYTE)
        if document.digest in seen:
            continue
        seen.add(document.digest)
        if stage.pairs.kind == "opening":
            first, rest = document.sentences[0], document.sentences[1:]
            body = next(cut_passages(rest, words=stage.pairs.words), "")
            if len(first.split()) <= LONGEST_OPENING:
                yield [(first, body)]
            continue
        if stage.pairs.kind == "heading":
            couples = list(_sections(document.sentences, words=stage.pairs.words))
        else:
            passages = list(cut_passages(document.sentences, words=stage.pairs.words))
            couples = list(zip(passages[::2], passages[1::2], strict=False))
        for start in range(0, len(couples), PAIRS_OF_A_PART):
            yield couples[start : start + PAIRS_OF_A_PART]


def _sections(sentences: list[str], *, words: int) -> Iterator[Pair]:
    """Each heading and the beginning of what stands under it, empty for one under another."""
    heading, body = "", list[str]()
    for sentence in sentences:
        found = HEADING.fullmatch(sentence)
        if found and len(sentence.split()) <= LONGEST_HEADING:
            yield heading, next(cut_passages(body, words=words), "")
            heading, body = found[1], []
        else:
            body.append(sentence)
    yield heading, next(cut_passages(body, words=words), "")


def _described_functions(stage: PairsStage) -> Iterator[list[Pair]]:
    """The summaries and signatures of every module's functions."""
    packages = [name for source in stage.corpus.sources for name in source.packages]
    progress = Progress("pairs", len(packages), "packages")
    for package in packages:
        for module in read_modules(package):
            found = documented_functions(module.docstrings)
            yield [(one.summary, one.signature) for one in found]
        progress.advance(1, package)


if __name__ == "__main__":
    run_program(make_pairs)
