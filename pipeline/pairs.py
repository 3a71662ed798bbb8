"""Stage `pairs`: query and passage pairs for retrieval, mined from unlabelled documents.

In:  a corpus in any format.
Out: retrieval/ with train.jsonl, dev.jsonl and test.jsonl: a query and its passage on each line.

    python -P -m cloze.pipeline.pairs --config TABLE.json

Documents are cut into parts of a few pages, and all pairs of a part go to the same split, so that
no passage of dev or test, nor its neighbour, is trained on. Held-out spans of passages that other
versions of a text have among the training passages are left out. With a tenth held out for each,
the second of every ten parts goes to dev and the third to test. The number of pairs is bounded and
a hash of seed and text selects them, so memory does not grow with the corpus, except for the digest
of each document by which duplicates are skipped.
"""

import heapq
import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import chain, groupby, zip_longest
from operator import itemgetter

import numpy as np

from cloze.artifacts.arrays import concatenated
from cloze.artifacts.config import parse
from cloze.artifacts.errors import UsageError
from cloze.artifacts.progress import Progress, say
from cloze.artifacts.rng import stream_seed
from cloze.artifacts.runtime.program import run_program
from cloze.artifacts.stage import StageTable
from cloze.artifacts.store import Artifact, commit, put_bytes
from cloze.pipeline.config.made_lists import with_made_lists
from cloze.pipeline.config.settings import SPANS_OF_A_PASSAGE, SPANS_TOGETHER, PairsStage
from cloze.pipeline.readers.documents import MEGABYTE, Pair, Piece
from cloze.pipeline.readers.input_shards import find_corpus, reader_named
from cloze.pipeline.text.duplicates import Shingles, shingles
from cloze.pipeline.text.scripts import has_no_spaces, join_sentences
from cloze.pipeline.text.scripts import words as list_words
from cloze.pipeline.text.texts import cut_passages, read_documents

PAIRS_OF_A_PART = 10
"""About three pages at the default of 60 words per passage."""

MAX_OPENING_WORDS = 25
"""Maximum words in a first line that is used as a query."""

HEADING = re.compile(r"(?:#+ *)?((?=[A-ZÀ-Þ0-9])[^.!?]*[^\W_])#*")
"""A line that does not end like a sentence, without Markdown's marks."""

MAX_HEADING_WORDS = 12
"""Maximum words in a heading."""

MIN_PASSAGE_WORDS = 4
"""Minimum words in a passage."""

KEY_BITS = 64

SPAN_WORDS = (4, 20)
"""Fewest and most words between a span's ends: of a question, and of a sentence."""

FEWEST_WORDS_LEFT = 3
"""Of a span, of which words are left out."""

SHINGLE_WORDS, MOST_SHARED = 5, 0.5
"""A held-out passage is nearly a copy if training passages have more than this share of its runs of
so many words."""

FEWEST_PASSAGES_LEFT = 20
"""Of a split, of which copies are left out; with fewer, no figure means much."""


@dataclass
class PairSample:
    """A sample of bounded size: the pairs with the smallest keys of all that were offered."""

    wanted: int
    seen: int = 0
    _kept: list[tuple[int, Pair]] = field(default_factory=list)

    def offer(self, key: int, pair: Pair) -> None:
        """Keep the pair if its key is among the smallest so far."""
        self.seen += 1
        if len(self._kept) < self.wanted:
            # A heap has its smallest element on top. Of negated keys that is the largest key of the
            # sample, the one that a smaller one replaces.
            heapq.heappush(self._kept, (-key, pair))
        else:
            heapq.heappushpop(self._kept, (-key, pair))

    def pairs(self) -> list[Pair]:
        """The sample, in key order."""
        return [pair for _, pair in sorted(self._kept, reverse=True)]


def make_pairs(table: StageTable, options: list[str]) -> Artifact:
    """Run the stage."""
    stage = with_made_lists(parse(PairsStage, table.config, source="stage pairs"), table)
    config, seed = stage.pairs, stage.seed
    samples = {
        "train": PairSample(config.train_pairs),
        "dev": PairSample(config.evaluation_pairs),
        "test": PairSample(config.evaluation_pairs),
    }

    def offer(split: str, pair: Pair, *content: str, turn: int = 0) -> None:
        query, passage = pair
        if query and len(passage.split()) >= MIN_PASSAGE_WORDS and query != passage:
            # The key depends on seed and content alone, so the sample does not depend on file
            # order.
            key = int(stream_seed(seed, "pair", *content))
            samples[split].offer(turn << KEY_BITS | key, pair)

    for split, _, pairs in _parts(stage):
        if stage.pairs.kind == "spans":
            # Some of every passage before more of any. In training several together, as the passage
            # is read with the first of them, and costs as much.
            together = SPANS_TOGETHER if split == "train" else 1
            for number, pair in spans_of(pairs, seed):
                offer(split, pair, pair[1], turn=number // together)
        else:
            for pair in pairs:
                offer(split, pair, *pair)
    empty = [split for split, sample in samples.items() if not sample.seen]
    if empty:
        raise UsageError(
            f"the documents yield {sum(s.seen for s in samples.values()):,} pairs, and no "
            f"pair for {empty[0]}; give more text, fewer pairs.words (now {config.words}), or "
            "another pairs.kind"
        )
    drawn = {split: sample.pairs() for split, sample in samples.items()}
    if config.kind == "spans":  # which judge an encoder that is to be kept
        for split in ("dev", "test"):
            drawn[split] = without_copies(drawn[split], drawn["train"], split=split)
    files = []
    for split, sample in drawn.items():
        found = [{"query": query, "passage": passage} for query, passage in sample]
        lines = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in found)
        name = f"retrieval/{split}.jsonl"
        files.append(put_bytes(table.output, lines.encode(), name=name, rows=len(found)))
    statistics = {split: len(sample) for split, sample in drawn.items()}
    return commit(table, files, statistics=statistics)


def without_copies(held_out: list[Pair], train: list[Pair], *, split: str) -> list[Pair]:
    """The held-out pairs whose passages are no near-copies of what training passages have.

    All of them if too few would be left; says how many are copies.
    """
    passages = [*dict.fromkeys(passage for _, passage in held_out)]
    known, found = (_shingles(texts) for texts in ((passage for _, passage in train), passages))
    count_P = np.bincount(found.documents_P, minlength=len(passages))
    # Not passage by passage: another version is cut into passages elsewhere.
    shared = found.documents_P[np.isin(found.hashes_P, known.hashes_P)]
    is_copy_P = np.bincount(shared, minlength=len(passages)) > MOST_SHARED * count_P
    copies = {passage for passage, is_copy in zip(passages, is_copy_P, strict=True) if is_copy}
    if not copies:
        return held_out
    about = f"pairs: {len(copies):,} of {len(passages):,} passages of {split} are nearly copies"
    if len(passages) - len(copies) < FEWEST_PASSAGES_LEFT:
        say(f"{about} of passages that train, so scores on it are too good")
        return held_out
    say(f"{about} of passages that train: left out")
    return [(query, passage) for query, passage in held_out if passage not in copies]


def _shingles(passages: Iterable[str]) -> Shingles:
    encoded = [passage.encode("utf-8", "replace") for passage in dict.fromkeys(passages)]
    return shingles(*concatenated(encoded), words=SHINGLE_WORDS)


def training_texts(stage: PairsStage) -> Iterator[str]:
    """The text of each document in the parts that train, whether a pair is drawn or not."""
    training = ((document, pairs) for split, document, pairs in _parts(stage) if split == "train")
    for _, parts in groupby(training, key=itemgetter(0)):
        yield "\n".join(chain.from_iterable(chain.from_iterable(pairs for _, pairs in parts)))


def _parts(stage: PairsStage) -> Iterator[tuple[str, int, list[Pair]]]:
    """The pairs of every part: its split and the number of its document before them."""
    turns = round(1 / stage.pairs.heldout_share)
    # A reader says only where parts end, so each of its parts counts as a document.
    is_readers = stage.pairs.kind == "signature"
    parts = enumerate(_reader_parts(stage)) if is_readers else _text_parts(stage)
    for number, (document, pairs) in enumerate(parts):
        # One part of `turns` for dev, one for test.
        # Whole parts of documents, since neighbouring pairs of a text are alike: dealt one by one,
        # the training pairs would give away those that are scored.
        yield {1: "dev", 2: "test"}.get(number % turns, "train"), document, pairs


def _text_parts(stage: PairsStage) -> Iterator[tuple[int, list[Pair]]]:
    """The number of its document and the pairs of every part; duplicates are skipped."""
    size = sum(file.size for files in find_corpus(stage.corpus) for file in files)
    progress, seen = Progress("pairs", size / MEGABYTE, "MB"), set[bytes]()
    for document in read_documents(stage.corpus, stage.cleaning):
        progress.advance(sum(map(len, document.sentences)) / MEGABYTE)
        if document.digest in seen:
            continue
        seen.add(document.digest)
        if stage.pairs.kind == "opening":
            first, rest = document.sentences[0], document.sentences[1:]
            body = next(cut_passages(rest, words=stage.pairs.words), "")
            if len(first.split()) <= MAX_OPENING_WORDS:
                yield len(seen), [(first, body)]
            continue
        if stage.pairs.kind == "heading":
            couples = list(_sections(document.sentences, words=stage.pairs.words))
        else:
            passages = list(cut_passages(document.sentences, words=stage.pairs.words))
            # Disjoint pairs: no passage is both a query and an answer.
            couples = list(zip_longest(passages[::2], passages[1::2], fillvalue=""))
            # One without a neighbour is only of use for spans.
            if stage.pairs.kind != "spans" and len(passages) % 2:
                couples.pop()
        for start in range(0, len(couples), PAIRS_OF_A_PART):
            yield len(seen), couples[start : start + PAIRS_OF_A_PART]


def spans_of(pairs: Iterable[Pair], seed: int) -> Iterator[tuple[int, Pair]]:
    """Made-up queries for both passages of every pair as one: some of the words of a span of it.

    With their numbers among those of the passage.
    """
    # As long as what is searched: of halves, one would be a wrong answer to a query about both.
    for passage in (join_sentences(filter(None, pair)) for pair in pairs):
        spaced = not has_no_spaces(passage)
        words = passage.split() if spaced else list_words(passage)
        draw = np.random.default_rng(int(stream_seed(seed, "spans", passage)))
        for number in range(SPANS_OF_A_PASSAGE if len(words) >= MIN_PASSAGE_WORDS else 0):
            size = int(draw.integers(SPAN_WORDS[0], SPAN_WORDS[1] + 1))
            start = int(draw.integers(0, max(len(words) - size, 0) + 1))
            span = np.array(words[start : start + size])
            # People search by words that stand in no sentence, too: of two spans in three a share
            # is left out. Not of characters, which are no words.
            share = float(draw.random())
            kept = draw.random(len(span)) < (1.0 if share < 1 / 3 or not spaced else share)
            if np.count_nonzero(kept) < FEWEST_WORDS_LEFT:
                kept[:FEWEST_WORDS_LEFT] = True
            yield number, ((" " if spaced else "").join(span[kept].tolist()), passage)


def _sections(sentences: list[str], *, words: int) -> Iterator[Pair]:
    """Each heading with the beginning of its section, which is empty before a subheading."""
    heading, body = "", list[str]()
    for sentence in sentences:
        found = HEADING.fullmatch(sentence)
        if found and len(sentence.split()) <= MAX_HEADING_WORDS:
            yield heading, next(cut_passages(body, words=words), "")
            heading, body = found[1], []
        else:
            body.append(sentence)
    yield heading, next(cut_passages(body, words=words), "")


def _reader_parts(stage: PairsStage) -> Iterator[list[Pair]]:
    """The pairs that the sources' readers yield themselves."""
    found = find_corpus(stage.corpus)
    size = sum(file.size for files in found for file in files)
    progress = Progress("pairs", size / MEGABYTE, "MB")
    for source, files in zip(stage.corpus.sources, found, strict=True):
        pairs = reader_named(source.reader).pairs
        if pairs is None:
            raise UsageError(f"reader {source.reader}: yields no pairs; choose another pairs.kind")
        for number, file in enumerate(files):
            yield from pairs(Piece(file.path, file=number), source)
            progress.advance(file.size / MEGABYTE)


if __name__ == "__main__":
    run_program(make_pairs)
