"""Near-duplicate detection: precision, recall and speed of the stage `dedup`.

    python benchmarks/preparing/near_duplicate_recall.py --corpus corpus.txt --megabytes 10 \
        --datatrove PYTHON --rensa PYTHON --output benchmarks/results/near_duplicates.json

In:  a file in Google's format (benchmarks/corpus.py makes one); the interpreters of environments
     with other tools (benchmarks/peers/near_duplicates.py).
Out: figures of the stage with its defaults, run as a program on one core over these documents and
     edited copies of some. Precision: the share of dropped documents whose Jaccard similarity to
     the document kept instead reaches the threshold. Recall: the share of pairs above the threshold
     of which at most one is kept, for the planted copies and for all other pairs. Speed: MB of text
     per second of processor time, including start-up. The same of other tools on the same
     documents in the same run, with their precision against any document that they keep; their
     speed also without imports, as ours is then. All times are medians of some turns, in each of
     which every tool runs once.

The ground truth does not use the stage's code: shingles are built in plain Python, and the join is
exhaustive. Two sets of n and m elements whose Jaccard similarity reaches t share an element among
their first n - ceil(t n) + 1 and m - ceil(t m) + 1, in any common order (Chaudhuri et al. 2006).
"""

import json
import math
import random
import re
import shutil
import sys
import tempfile
from collections import Counter, defaultdict
from collections.abc import Iterator, Set
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import pyarrow as pa

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks.corpus import blocks
from benchmarks.corpus import documents as documents_of
from benchmarks.measuring import Arguments, Figures, machine, measure, write_result, write_table
from cloze.artifacts.store import open_artifact
from cloze.pipeline.config.settings import CorpusConfig, NearDuplicatesConfig

Pair = tuple[int, int]
"""The numbers of two documents, the smaller first."""

PLANTED = 20
"""One document in so many gets an edited copy."""
MOST_EDITED = 0.03
"""Maximum share of a copy's words that are replaced: similarities range from 1 to about 0.7, and
half of the copies lie on either side of the threshold."""

CAPITALS = re.compile("[A-Z]+")
WORD = re.compile("[0-9a-z\x80-\u1fff\u2070-\U0010ffff]+")
"""ASCII letters, digits and all non-ASCII characters except U+2000 to U+206F."""


PEERS = ("datatrove", "rensa", "text_dedup", "data_juicer")
PEER = Path(__file__).resolve().parents[1] / "peers" / "near_duplicates.py"


IMPORTS = [sys.executable, "-c", "import cloze.pipeline.dedup, cloze.pipeline.readers.records"]


def with_copies(path: str, megabytes: float) -> tuple[list[str], list[Pair]]:
    """The first documents of a file, followed by edited copies; and the pairs of both."""
    rng = random.Random(1)
    with open(path, encoding="utf-8", errors="replace") as file:
        text = file.read(int(megabytes * 1e6))
    documents = [" ".join(document.split()) for document in text.split("\n\n")]
    documents = list(dict.fromkeys(document for document in documents if document))
    words = text[:1_000_000].split()
    planted: list[Pair] = []
    for number in rng.sample(range(len(documents)), len(documents) // PLANTED):
        copy = documents[number].split()
        share = rng.uniform(0.0, MOST_EDITED)
        for place in rng.sample(range(len(copy)), math.ceil(share * len(copy))):
            # Words of the corpus, in proportion to their frequency: a copy's new shingles are as
            # common as any.
            copy[place] = rng.choice(words)
        edited = " ".join(copy)
        # exact copies are not what is asked
        if edited != documents[number]:
            planted.append((number, len(documents)))
            documents.append(edited)
    return documents, planted


def shingle_sets(corpus: CorpusConfig, words: int) -> tuple[list[bytes], list[frozenset[int]]]:
    """Digest and shingles of each document, in the order of the file."""
    digests: list[bytes] = []
    sets: list[frozenset[int]] = []
    for block in blocks(corpus):
        digests += [digest.tobytes() for digest in block.digests]
        for text in documents_of(block):
            found = WORD.findall(CAPITALS.sub(lambda match: match[0].lower(), text.decode()))
            shingles = zip(*(found[offset:] for offset in range(words)), strict=False)
            sets.append(frozenset(map(hash, shingles)))
    return digests, sets


def similarity(one: frozenset[int], other: frozenset[int]) -> float:
    """Jaccard similarity: shared shingles over all shingles of both."""
    return len(one & other) / max(len(one | other), 1)


def pairs_above(sets: list[frozenset[int]], threshold: float) -> Iterator[Pair]:
    """All pairs whose similarity reaches the threshold."""
    frequency = Counter(value for values in sets for value in values)
    holders: defaultdict[int, list[int]] = defaultdict(list)
    for number, values in enumerate(sets):
        # Rare shingles first, so that few other documents have one of the prefix.
        rare_first = sorted(values, key=lambda value: (frequency[value], value))
        prefix = rare_first[: len(values) - math.ceil(threshold * len(values)) + 1]
        for other in sorted({other for value in prefix for other in holders[value]}):
            if similarity(values, sets[other]) >= threshold:
                yield other, number
        for value in prefix:
            holders[value].append(number)


@dataclass(frozen=True)
class Truth:
    """What is to be found: the pairs of different documents above the threshold."""

    pairs: frozenset[Pair]
    planted: frozenset[Pair]
    """Those of a document and its edited copy."""

    def recalls(self, dropped: Set[int]) -> Figures:
        """The shares of pairs of which at most one document is kept."""
        found: Figures = {}
        of_planted = self.pairs & self.planted
        for name, pairs in (("planted", of_planted), ("other", self.pairs - of_planted)):
            caught = sum(not dropped.isdisjoint(pair) for pair in pairs)
            found[f"{name}_pairs"] = len(pairs)
            found[f"{name}_recall"] = caught / max(len(pairs), 1)
        return found

    def precision(self, dropped: Set[int]) -> float:
        """The share of dropped documents that reach the threshold with one that is kept."""
        like_kept = {one for pair in self.pairs for one in pair if not dropped >= set(pair)}
        return len(dropped & like_kept) / max(len(dropped), 1)


@dataclass(frozen=True)
class Turn:
    """One run of a tool.

    kept:    the numbers of the documents that it keeps.
    cpu:     seconds of processor time.
    own:     without imports.
    version: of the tool; "" for ours.
    """

    kept: frozenset[int]
    cpu: float
    own: float
    version: str = ""


class Ours:
    """The stage over documents in a folder."""

    def __init__(self, documents: list[str], folder: Path) -> None:
        self._folder = folder
        path = folder / "documents.jsonl"
        rows = ({"id": str(number), "text": text} for number, text in enumerate(documents))
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        self._corpus = CorpusConfig.model_validate(
            {"heldout_share": 0.0, "sources": [{"reader": "jsonl", "path": str(path)}]}
        )
        self.near = NearDuplicatesConfig()
        self.digests, self.sets = shingle_sets(self._corpus, self.near.words)
        self._numbers = {digest: number for number, digest in enumerate(self.digests)}

    def turn(self) -> Turn:
        """Run it."""
        shutil.rmtree(self._folder / "dedup", ignore_errors=True)
        config = {"seed": 1, "corpus": self._corpus.model_dump(mode="json"), "cleaning": {}}
        config["dedup"] = {"near_duplicates": {}}
        machine = {"workers": 1}
        table = write_table(self._folder, "dedup", format_version=1, config=config, machine=machine)
        # First, so that both find the files of the installation in memory.
        imports = measure(IMPORTS, cores="0").cpu
        took = measure([sys.executable, "-m", "cloze.pipeline.dedup", *table], cores="0")
        dropped = {number for number, _ in self.dropped()}
        return Turn(frozenset(self._numbers.values()) - dropped, took.cpu, took.cpu - imports)

    def dropped(self) -> list[Pair]:
        """The documents dropped in the last turn, each with the one that is kept instead."""
        with pa.memory_map(open_artifact(str(self._folder / "dedup")).path("drop.arrow")) as file:
            listed = pa.ipc.open_file(file).read_all()
        columns = (listed[name].to_pylist() for name in ("document_digest", "kept_digest"))
        return [
            (self._numbers[one], self._numbers[kept]) for one, kept in zip(*columns, strict=True)
        ]


def peer_turn(tool: str, python: str, folder: Path) -> Turn:
    """Run another tool."""
    own = folder / tool
    shutil.rmtree(own, ignore_errors=True)
    own.mkdir()
    given = [python, str(PEER), tool, str(folder / "documents.jsonl"), str(own)]
    took = measure(given, cores="0")
    said = took.said
    return Turn(frozenset(said["kept"]), took.cpu, said["seconds"], said["version"])


def times(turns: list[Turn]) -> Figures:
    """Medians of the turns."""
    return {
        "cpu_seconds": median(turn.cpu for turn in turns),
        "cpu_seconds_without_imports": median(turn.own for turn in turns),
    }


def main() -> None:
    """Read the arguments, measure, print, write."""
    parser = Arguments(__doc__, output="", corpus=str, megabytes=10.0, turns=3)
    parser.add_options(**dict.fromkeys(PEERS, ""))
    arguments = parser.parse_args()
    before = machine()
    peers = {tool: python for tool in PEERS if (python := getattr(arguments, tool))}
    turns: defaultdict[str, list[Turn]] = defaultdict(list)
    with tempfile.TemporaryDirectory() as name:
        documents, planted = with_copies(arguments.corpus, arguments.megabytes)
        ours = Ours(documents, Path(name))
        for _ in range(arguments.turns):
            turns["cloze"].append(ours.turn())
            for tool, python in peers.items():
                turns[tool].append(peer_turn(tool, python, Path(name)))
        threshold, dropped = ours.near.threshold, ours.dropped()
    pairs = pairs_above(ours.sets, threshold)
    # the stage `tokens` drops exact duplicates
    unequal = (pair for pair in pairs if ours.digests[pair[0]] != ours.digests[pair[1]])
    truth = Truth(frozenset(unequal), frozenset(planted))
    similarities = [similarity(ours.sets[one], ours.sets[kept]) for one, kept in dropped]
    megabytes = sum(len(text.encode()) for text in documents) / 1e6
    numbers = {one for one, _ in dropped}
    found: Figures = {
        "documents": len(documents),
        "megabytes": megabytes,
        "threshold": threshold,
        "turns": arguments.turns,
        "dropped": len(numbers),
        "precision": sum(found >= threshold for found in similarities) / max(len(dropped), 1),
        "lowest_similarity": min(similarities, default=1.0),  # to the document kept instead
        **truth.recalls(numbers),
        **times(turns["cloze"]),
        "mb_per_second": megabytes / times(turns["cloze"])["cpu_seconds"],
    }
    others: dict[str, Figures] = {}
    for tool in peers:
        gone, took = set(range(len(documents))) - turns[tool][-1].kept, times(turns[tool])
        others[tool] = {
            "version": turns[tool][-1].version,
            "dropped": len(gone),
            "precision": truth.precision(gone),
            **truth.recalls(gone),
            **took,
            "times": took["cpu_seconds"] / found["cpu_seconds"],
            "times_without_imports": took["cpu_seconds_without_imports"]
            / found["cpu_seconds_without_imports"],
        }
    for tool, figures in {"cloze": found, **others}.items():
        for name, value in figures.items():
            print(f"{tool:12} {name:28} {value if isinstance(value, str) else f'{value:,.4g}'}")
    write_result(arguments.output, {"machine": before, **found, "peers": others})


if __name__ == "__main__":
    main()
