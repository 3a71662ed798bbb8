"""Near-duplicates: how many are found, how many of those found are some, and how fast.

    python benchmarks/preparing/near_duplicate_recall.py --corpus corpus.txt --megabytes 10 \
        --output benchmarks/results/near_duplicates.json

In:  a file in Google's format (benchmarks/corpus.py makes one).
Out: of the stage `dedup` with its defaults, run as a program on one core over these documents and
     edited copies of some: precision (dropped documents whose Jaccard similarity to the document
     kept for them reaches the threshold), recall (pairs that reach it of which not both are kept;
     planted, and all others), MB of text per second of processor time, start-up included.

The truth is found without the stage's code: sets of words in plain Python, and a join that misses
no pair. Two sets whose Jaccard similarity reaches t have an element in common among the first
n - ceil(t n) + 1 of each, in any order that is the same for both (Chaudhuri et al. 2006).
"""

import argparse
import json
import math
import random
import re
import sys
import tempfile
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import pyarrow as pa

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from artifacts.stage import StageTable, write_stage_table
from artifacts.store import open_artifact
from benchmarks.measuring import machine, measure, write_result
from pipeline.config.settings import CleaningConfig, CorpusConfig, NearDuplicatesConfig
from pipeline.readers.input_shards import input_shards
from pipeline.text.texts import read_texts

Pair = tuple[int, int]
"""Two documents' numbers, the smaller first."""

PLANTED = 20
"""One document in so many gets an edited copy."""
MOST_EDITED = 0.03
"""Words of a copy that are replaced: up to this share of them, so that similarities spread from 1
to about 0.7, half of them on either side of the threshold."""


CAPITALS = re.compile("[A-Z]+")
WORD = re.compile("[0-9a-z\x80-\u1fff\u2070-\U0010ffff]+")
"""ASCII letters, digits and all other characters but U+2000 to U+206F."""


@dataclass(frozen=True)
class Found:
    """What is measured."""

    documents: int
    megabytes: float
    threshold: float
    dropped: int
    precision: float
    lowest_similarity: float
    """Of a dropped document to the one kept for it."""
    planted_pairs: int
    planted_recall: float
    other_pairs: int
    other_recall: float
    cpu_seconds: float
    mb_per_second: float


def with_copies(path: str, megabytes: float) -> tuple[list[str], list[Pair]]:
    """The documents at the beginning of a file, then edited copies; who is whose copy."""
    rng = random.Random(1)
    with open(path, encoding="utf-8", errors="replace") as file:
        text = file.read(int(megabytes * 1e6))
    documents = [" ".join(document.split()) for document in text.split("\n\n")]
    documents = [document for document in documents if document]
    words = text[:1_000_000].split()
    planted: list[Pair] = []
    for number in rng.sample(range(len(documents)), len(documents) // PLANTED):
        copy = documents[number].split()
        share = rng.uniform(0.0, MOST_EDITED)
        for place in rng.sample(range(len(copy)), math.ceil(share * len(copy))):
            copy[place] = rng.choice(words)
        planted.append((number, len(documents)))
        documents.append(" ".join(copy))
    return documents, planted


def shingle_sets(corpus: CorpusConfig, words: int) -> tuple[list[bytes], list[frozenset[int]]]:
    """Digest and shingles of each document, in the order of the file."""
    digests: list[bytes] = []
    sets: list[frozenset[int]] = []
    for shard in input_shards(corpus):
        for block in read_texts(shard, corpus=corpus, cleaning=CleaningConfig()):
            digests += [digest.tobytes() for digest in block.digests]
            raw, start = block.text.tobytes(), 0
            for end in block.ends_D.tolist():
                lower = CAPITALS.sub(lambda match: match[0].lower(), raw[start:end].decode())
                found = WORD.findall(lower)
                runs = zip(*(found[offset:] for offset in range(words)), strict=False)
                sets.append(frozenset(map(hash, runs)))
                start = end
    return digests, sets


def similarity(one: frozenset[int], other: frozenset[int]) -> float:
    """Jaccard: the share of all their shingles that both have."""
    return len(one & other) / max(len(one | other), 1)


def pairs_above(sets: list[frozenset[int]], threshold: float) -> Iterator[Pair]:
    """All pairs whose similarity reaches the threshold."""
    frequency = Counter(value for values in sets for value in values)
    holders: defaultdict[int, list[int]] = defaultdict(list)
    for number, values in enumerate(sets):
        rare_first = sorted(values, key=lambda value: (frequency[value], value))
        prefix = rare_first[: len(values) - math.ceil(threshold * len(values)) + 1]
        for other in sorted({other for value in prefix for other in holders[value]}):
            if similarity(values, sets[other]) >= threshold:
                yield other, number
        for value in prefix:
            holders[value].append(number)


def measured(documents: list[str], planted: list[Pair], folder: Path) -> Found:
    """Run the stage over the documents and compare its drop list with the truth."""
    near = NearDuplicatesConfig()
    path = folder / "documents.jsonl"
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in documents))
    corpus = CorpusConfig.model_validate(
        {"heldout_share": 0.0, "sources": [{"reader": "jsonl", "path": str(path)}]}
    )
    config = {"seed": 1, "corpus": corpus.model_dump(mode="json"), "cleaning": {}}
    table = StageTable(
        stage="dedup",
        format_version=1,
        config={**config, "dedup": {"near_duplicates": {}}},
        output=str(folder / "dedup"),
        machine={"workers": 1},
    )
    write_stage_table(table, folder / "dedup.json")
    program = [sys.executable, "-m", "pipeline.dedup", "--config", str(folder / "dedup.json")]
    took = measure(program, cores="0")
    with pa.memory_map(open_artifact(str(folder / "dedup")).path("drop.arrow")) as file:
        rows = pa.ipc.open_file(file).read_all()
    digests, sets = shingle_sets(corpus, near.words)
    dropped = set(rows["document_digest"].to_pylist())
    numbers = {digest: number for number, digest in enumerate(digests)}
    similarities = [
        similarity(sets[numbers[row["document_digest"]]], sets[numbers[row["kept_digest"]]])
        for row in rows.to_pylist()
    ]
    caught = {
        pair: not dropped.isdisjoint(digests[number] for number in pair)
        for pair in pairs_above(sets, near.threshold)
        if digests[pair[0]] != digests[pair[1]]  # equal texts are the tokens stage's
    }
    ours = [caught[pair] for pair in planted if pair in caught]
    others = [found for pair, found in caught.items() if pair not in set(planted)]
    megabytes = sum(len(text.encode()) for text in documents) / 1e6
    return Found(
        documents=len(documents),
        megabytes=megabytes,
        threshold=near.threshold,
        dropped=len(dropped),
        precision=sum(found >= near.threshold for found in similarities) / max(len(dropped), 1),
        lowest_similarity=min(similarities, default=1.0),
        planted_pairs=len(ours),
        planted_recall=sum(ours) / max(len(ours), 1),
        other_pairs=len(others),
        other_recall=sum(others) / max(len(others), 1),
        cpu_seconds=took.cpu,
        mb_per_second=megabytes / took.cpu,
    )


def main() -> None:
    """Read the command line, measure, print, keep."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--corpus", required=True)
    parser.add_argument("--megabytes", type=float, default=10.0)
    parser.add_argument("--output", default="")
    arguments = parser.parse_args()
    before = machine()
    with tempfile.TemporaryDirectory() as folder:
        documents, planted = with_copies(arguments.corpus, arguments.megabytes)
        found = measured(documents, planted, Path(folder))
    for name, value in asdict(found).items():
        print(f"{name:20} {value:,.4g}")
    if arguments.output:
        write_result(arguments.output, {"machine": before, **asdict(found)})


if __name__ == "__main__":
    main()
