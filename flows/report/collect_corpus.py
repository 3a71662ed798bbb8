"""What was read and how it was masked, from the artifacts `tokens` and `examples`.

In:  their manifests, `token_counts.json` and tokenizer.
Out: `Corpus` and `ExampleSet`. The names of these statistics are known here alone.
"""

import math
from collections.abc import Sequence
from typing import TypedDict

from artifacts.manifest import Manifest
from artifacts.store import Artifact
from artifacts.summary import Corpus, CorpusSplit, ExampleSet, Histogram, Piece, Source
from artifacts.tokenizer import SPECIAL_TOKENS, read_tokenizer_json

TRAIN = "train"
SPLITS_FIRST = (TRAIN, "heldout")
FREQUENT = 20
RANKS = 60
MOST_PACKAGES = 4


class SourceTable(TypedDict, total=False):
    """The fields of a configured source that are shown."""

    reader: str
    packages: list[str]
    heldout: str
    weight: int


class ExampleStatistics(TypedDict):
    """What the examples artifact counts of one length."""

    rows: int
    tokens: int
    masked: int
    replaced_by_mask: int
    replaced_by_random: int
    kept: int
    truncated: int
    not_asked: int
    next_random_share: float
    length_only_share: float
    lengths_next: list[int]
    lengths_random: list[int]
    lengths_single: list[int]


def collect_corpus(tokens: Artifact, *, show_text: bool) -> Corpus:
    """What the tokens artifact says about the corpus."""
    facts = tokens.manifest.statistics
    splits, counts = facts["splits"], tokens.read_json("token_counts.json")
    train = splits.get(TRAIN, {})
    others = sorted(splits.keys() - {*SPLITS_FIRST})
    configured: list[SourceTable] = tokens.manifest.config["corpus"]["sources"]
    sources = []
    for source in configured:
        packages, split = source.get("packages", []), source.get("heldout") or TRAIN
        more = len(packages) - MOST_PACKAGES
        what = ", ".join(packages[:MOST_PACKAGES]) + (f" and {more} more" if more > 0 else "")
        weight = source.get("weight", 1)
        sources.append(Source(reader=source["reader"], what=what, split=split, weight=weight))
    frequent = []
    if show_text:
        pieces = read_tokenizer_json(tokens.path("tokenizer.json")).vocabulary
        ranked = sorted(range(len(counts)), key=lambda place: -counts[place])
        words = [place for place in ranked if pieces[place] not in SPECIAL_TOKENS and counts[place]]
        frequent = [Piece(text=pieces[place], count=counts[place]) for place in words[:FREQUENT]]
    return Corpus(
        sources=tuple(sources),
        documents_read=facts["documents_read"],
        dropped=facts["dropped"],
        splits=tuple(
            CorpusSplit(
                name=name,
                documents=splits[name]["documents"],
                sentences=splits[name]["sentences"],
                tokens=splits[name]["tokens"],
                bytes=splits[name]["text_bytes"],
            )
            for name in (*(first for first in SPLITS_FIRST if first in splits), *others)
        ),
        unigram_entropy=entropy(counts),
        unknown_share=train.get("unknown_share"),
        document_lengths=powers_of_two(train.get("document_lengths", [])),
        sentence_lengths=powers_of_two(train.get("sentence_lengths", [])),
        frequent=tuple(frequent),
        rank_frequency=tuple(rank_frequency(counts)),
    )


def collect_examples(manifest: Manifest) -> tuple[ExampleSet, ...]:
    """The training examples of every length, shortest first."""
    by_length: dict[str, ExampleStatistics] = manifest.statistics["splits"].get(TRAIN, {})
    found = []
    for name in sorted(by_length, key=int):
        length, facts = int(name), by_length[name]
        kinds = (facts["lengths_next"], facts["lengths_random"], facts["lengths_single"])
        counts = [sum(bins) for bins in zip(*kinds, strict=True)]
        # ten equal bins below the longest length, and one that holds exactly that
        below = len(counts) - 1
        edges = [1 + place * length / below for place in range(below)]
        copies = [
            len(entry.statistics["copies"])
            for entry in manifest.files
            if entry.statistics.get("split") == TRAIN
            and entry.statistics.get("max_seq_length") == length
        ]
        has_pairs = facts["rows"] > facts["not_asked"]
        found.append(
            ExampleSet(
                max_seq_length=length,
                copies=max(copies, default=0),
                examples=facts["rows"],
                tokens=facts["tokens"],
                masked=facts["masked"],
                as_mask=facts["replaced_by_mask"],
                as_random=facts["replaced_by_random"],
                kept=facts["kept"],
                truncated=facts["truncated"],
                random_next_share=facts["next_random_share"] if has_pairs else None,
                length_only_accuracy=facts["length_only_share"] if has_pairs else None,
                lengths=Histogram(
                    edges=(*edges, float(length), length + 1.0), counts=tuple(counts)
                ),
            )
        )
    return tuple(found)


def entropy(counts: Sequence[int]) -> float | None:
    """Entropy in nats of the distribution that `counts` describe; None for no tokens."""
    whole = sum(counts)
    if not whole:
        return None
    return -math.fsum(n / whole * math.log(n / whole) for n in counts if n)


def powers_of_two(counts: Sequence[int]) -> Histogram | None:
    """A histogram whose bin k holds 2**k up to 2**(k + 1), empty bins at both ends cut off."""
    filled = [place for place, count in enumerate(counts) if count]
    if not filled:
        return None
    first, last = filled[0], filled[-1] + 1
    edges = tuple(float(2**power) for power in range(first, last + 1))
    return Histogram(edges=edges, counts=tuple(counts[first:last]))


def rank_frequency(counts: Sequence[int]) -> list[tuple[int, int]]:
    """(rank, count) at ranks evenly spaced in their logarithm."""
    ranked = sorted((count for count in counts if count), reverse=True)
    steps = {round(len(ranked) ** (step / RANKS)) for step in range(RANKS + 1)} if ranked else set()
    return [(rank, ranked[rank - 1]) for rank in sorted(steps)]
