"""What was read and how it was hidden, from the artifacts `tokens` and `examples`.

In:  their manifests, `token_counts.json` and `vocab.txt`.
Out: `Corpus` and `ExampleSet`. The names of these statistics are known here alone.
"""

import math
from collections.abc import Iterator, Sequence

from artifacts.manifest import Manifest
from artifacts.store import Artifact
from artifacts.tokenizer import SPECIAL_TOKENS
from flows.report.form.corpus import Corpus, ExampleSet, Histogram, Piece, Source, Split
from flows.report.gather.facts import Facts

TRAIN = "train"
FREQUENT = 20
RANKS = 60
MOST_PACKAGES = 4


def gather_corpus(tokens: Artifact, *, show_text: bool) -> Corpus:
    """What the tokens artifact says about itself."""
    facts = tokens.manifest.statistics
    splits = facts["splits"]
    train = splits.get(TRAIN, {})
    counts = tokens.read_json("token_counts.json")
    return Corpus(
        sources=tuple(_sources(tokens.manifest.config)),
        documents_read=facts["documents_read"],
        dropped=facts["dropped"],
        splits=tuple(_split(name, splits[name]) for name in sorted(splits, key=_order)),
        unigram_entropy=entropy(counts),
        unknown_share=train.get("unknown_share"),
        document_lengths=powers_of_two(train.get("document_lengths", [])),
        sentence_lengths=powers_of_two(train.get("sentence_lengths", [])),
        frequent=tuple(_frequent(counts, tokens)) if show_text else (),
        rank_frequency=tuple(rank_frequency(counts)),
    )


def gather_examples(manifest: Manifest) -> tuple[ExampleSet, ...]:
    """The training examples of every length, shortest first."""
    by_length = manifest.statistics["splits"].get(TRAIN, {})
    return tuple(
        _example_set(int(length), by_length[length], copies=_copies(manifest, int(length)))
        for length in sorted(by_length, key=int)
    )


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


def rank_frequency(counts: Sequence[int]) -> Iterator[tuple[int, int]]:
    """(rank, count) at ranks evenly spaced in their logarithm."""
    ranked = sorted((count for count in counts if count), reverse=True)
    steps = {round(len(ranked) ** (step / RANKS)) for step in range(RANKS + 1)} if ranked else set()
    for rank in sorted(steps):
        yield rank, ranked[rank - 1]


def _order(split: str) -> tuple[int, str]:
    return ((TRAIN, "heldout").index(split) if split in (TRAIN, "heldout") else 2, split)


def _split(name: str, facts: Facts) -> Split:
    return Split(
        name=name,
        documents=facts["documents"],
        sentences=facts["sentences"],
        tokens=facts["tokens"],
        bytes=facts["text_bytes"],
    )


def _sources(config: Facts) -> Iterator[Source]:
    for source in config["corpus"]["sources"]:
        yield Source(
            reader=source["reader"],
            what=_named(source.get("packages", ())),
            split=source.get("heldout") or TRAIN,
            weight=source.get("weight", 1),
        )


def _named(packages: Sequence[str]) -> str:
    if len(packages) <= MOST_PACKAGES:
        return ", ".join(packages)
    return f"{', '.join(packages[:MOST_PACKAGES])} and {len(packages) - MOST_PACKAGES} more"


def _frequent(counts: Sequence[int], tokens: Artifact) -> Iterator[Piece]:
    pieces = tokens.read_bytes("vocab.txt").decode().split("\n")
    ranked = sorted(range(len(counts)), key=lambda place: -counts[place])
    words = [place for place in ranked if pieces[place] not in SPECIAL_TOKENS and counts[place]]
    for place in words[:FREQUENT]:
        yield Piece(text=pieces[place], count=counts[place])


def _example_set(length: int, facts: Facts, *, copies: int) -> ExampleSet:
    kinds = (facts["lengths_next"], facts["lengths_random"], facts["lengths_single"])
    asked = facts["rows"] > facts["not_asked"]
    return ExampleSet(
        max_seq_length=length,
        copies=copies,
        examples=facts["rows"],
        tokens=facts["tokens"],
        masked=facts["masked"],
        as_mask=facts["replaced_by_mask"],
        as_random=facts["replaced_by_random"],
        kept=facts["kept"],
        truncated=facts["truncated"],
        random_next_share=facts["next_random_share"] if asked else None,
        length_only_accuracy=facts["length_only_share"] if asked else None,
        lengths=_lengths([sum(bins) for bins in zip(*kinds, strict=True)], length),
    )


def _lengths(counts: Sequence[int], longest: int) -> Histogram:
    """Ten equal bins below the longest length, and one that holds exactly that."""
    below = len(counts) - 1
    edges = [1 + place * longest / below for place in range(below)]
    return Histogram(edges=(*edges, float(longest), longest + 1.0), counts=tuple(counts))


def _copies(manifest: Manifest, length: int) -> int:
    found = [
        len(entry.statistics["copies"])
        for entry in manifest.files
        if entry.statistics.get("split") == TRAIN
        and entry.statistics.get("max_seq_length") == length
    ]
    return max(found, default=0)
