"""Counts over tokens and over examples, for the manifest, the report and the fidelity tests.

In:  a tokens table; a record batch of examples, and its masks.
Out: counts that add up over batches, buckets and splits, and can be read back from a manifest.

Histograms of tokens have one bin per power of two: bin k counts lengths from 2**k to
2**(k + 1) - 1.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from typing import Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pydantic import JsonValue

from cloze.artifacts.arrays import Int64s, list_lengths, list_values
from cloze.artifacts.manifest import FileEntry
from cloze.artifacts.results import TRAIN
from cloze.pipeline.config.settings import ExamplesConfig
from cloze.pipeline.mlm.masking import Masks
from cloze.pipeline.mlm.pairing import IS_NEXT, NOT_ASKED, RANDOM_NEXT

HISTOGRAM_BINS = 32

LENGTH_BINS = 11
"""Bins of examples: ten equal ones below the maximum length, and one for the maximum itself."""


@dataclass(frozen=True)
class Summable:
    """Counts and histograms that can be added up."""

    def __add__(self, other: Self) -> Self:
        return type(self)(
            **{
                name: [sum(bins) for bins in zip(mine, getattr(other, name), strict=True)]
                if isinstance(mine, list)
                else mine + getattr(other, name)
                for name, mine in vars(self).items()
            }
        )

    @classmethod
    def read(cls, entry: FileEntry) -> Self:
        """The counts of one file."""
        return cls(**{item.name: entry.statistics[item.name] for item in fields(cls)})


@dataclass(frozen=True)
class TokenStatistics(Summable):
    """Sums over documents, each counted once whatever its source's weight."""

    documents: int = 0
    sentences: int = 0
    tokens: int = 0
    unknown_tokens: int = 0
    text_bytes: int = 0
    """Bytes of cleaned text."""
    weighted_tokens: int = 0
    """Tokens, with each document weighted by its source."""
    document_lengths: list[int] = field(default_factory=lambda: [0] * HISTOGRAM_BINS)
    """Documents by their number of tokens."""
    sentence_lengths: list[int] = field(default_factory=lambda: [0] * HISTOGRAM_BINS)
    """Sentences by their number of tokens."""


def count_tokens(table: pa.Table, *, text_bytes: int, unknown_tokens: int) -> TokenStatistics:
    """The counts over one tokens table."""
    lengths_D = list_lengths(table["token_ids"])
    lengths_S = list_values(table["sentence_lengths"])
    copies_D = table["copies"].to_numpy().astype(np.int64)
    return TokenStatistics(
        documents=len(table),
        sentences=len(lengths_S),
        tokens=int(lengths_D.sum()),
        unknown_tokens=unknown_tokens,
        text_bytes=text_bytes,
        weighted_tokens=int((lengths_D * copies_D).sum()),
        document_lengths=_histogram(lengths_D),
        sentence_lengths=_histogram(lengths_S),
    )


def tokens_summary(entries: Iterable[FileEntry]) -> dict[str, JsonValue]:
    """The counts of several tokens files, added up, and the share of [UNK]."""
    total = sum(map(TokenStatistics.read, entries), TokenStatistics())
    return {**asdict(total), "unknown_share": total.unknown_tokens / max(total.tokens, 1)}


def _histogram(lengths: npt.NDArray[np.integer]) -> list[int]:
    # frexp gives x = m 2^e with m in [0.5, 1), so e - 1 is the power of two below.
    bins = np.frexp(np.maximum(lengths, 1).astype(np.float64))[1] - 1
    return [int(count) for count in np.bincount(bins, minlength=HISTOGRAM_BINS)]


@dataclass(frozen=True)
class ExampleStatistics(Summable):
    """Counts over examples of one split and length."""

    rows: int = 0
    """Examples."""
    tokens: int = 0
    """Tokens, including special ones."""
    masked: int = 0
    """Predicted tokens."""
    replaced_by_mask: int = 0
    """Of these, replaced by [MASK]."""
    replaced_by_random: int = 0
    """Of these, replaced by a random word-piece; the rest were kept."""
    next_random: int = 0
    """Examples whose second segment is random (or swapped)."""
    not_asked: int = 0
    """Examples without second segment."""
    truncated: int = 0
    """Examples, or documents packed in them, that were truncated."""
    cut_tokens: int = 0
    """Tokens lost to truncation."""
    lengths_next: list[int] = field(default_factory=lambda: [0] * LENGTH_BINS)
    """Length histogram of examples whose second segment is the next one."""
    lengths_random: list[int] = field(default_factory=lambda: [0] * LENGTH_BINS)
    """Length histogram of examples whose second segment is random (or swapped)."""
    lengths_single: list[int] = field(default_factory=lambda: [0] * LENGTH_BINS)
    """Length histogram of examples without second segment."""


def count_examples(
    batch: pa.RecordBatch, cut_N: Int64s, masks: list[Masks], *, max_seq_length: int
) -> ExampleStatistics:
    """The counts over one batch of N examples; `cut_N` are tokens lost to truncation."""
    lengths_N = np.diff(batch.column("input_ids").offsets.to_numpy()).astype(np.int64)
    label_N = batch.column("next_sentence_label").to_numpy()
    # Ten bins below the maximum length, and the last one for exactly that.
    bins_N = np.where(
        lengths_N == max_seq_length, LENGTH_BINS - 1, (lengths_N - 1) * 10 // max_seq_length
    )
    by_label = [
        np.bincount(bins_N[label_N == label], minlength=LENGTH_BINS).tolist()
        for label in (IS_NEXT, RANDOM_NEXT, NOT_ASKED)
    ]
    return ExampleStatistics(
        rows=batch.num_rows,
        tokens=int(lengths_N.sum()),
        masked=sum(len(part.positions_M) for part in masks),
        replaced_by_mask=sum(part.masked for part in masks),
        replaced_by_random=sum(part.random for part in masks),
        next_random=sum(by_label[1]),
        not_asked=sum(by_label[2]),
        truncated=int(np.count_nonzero(cut_N)),
        cut_tokens=int(cut_N.sum()),
        lengths_next=by_label[0],
        lengths_random=by_label[1],
        lengths_single=by_label[2],
    )


def examples_summary(entries: Iterable[FileEntry]) -> dict[str, JsonValue]:
    """The counts of several examples files, added up by split and length."""
    found: dict[str, dict[str, ExampleStatistics]] = {}
    for entry in entries:
        lengths = found.setdefault(entry.statistics["split"], {})
        length = str(entry.statistics["max_seq_length"])
        lengths[length] = lengths.get(length, ExampleStatistics()) + ExampleStatistics.read(entry)
    return {
        split: {length: _with_shares(counts) for length, counts in lengths.items()}
        for split, lengths in found.items()
    }


def _with_shares(counts: ExampleStatistics) -> dict[str, JsonValue]:
    """The counts, and shares derived from them."""
    asked = max(counts.rows - counts.not_asked, 1)
    random_share = counts.next_random / asked
    # A classifier that knows only the length of an example is right this often: more than the
    # majority's share shows that lengths give the label away.
    by_length = (max(pair) for pair in zip(counts.lengths_next, counts.lengths_random, strict=True))
    return {
        **asdict(counts),
        "kept": counts.masked - counts.replaced_by_mask - counts.replaced_by_random,
        "mean_length": round(counts.tokens / max(counts.rows, 1), 6),
        "next_random_share": round(random_share, 6),
        "majority_share": round(max(random_share, 1 - random_share), 6),
        "length_only_share": round(sum(by_length) / asked, 6),
    }


FEWEST_DOCUMENTS = 10
"""Documents of a source below which its pairs and its held-out share mean little."""


def source_alarms(
    names: Sequence[str], entries: Iterable[FileEntry], config: ExamplesConfig
) -> Iterator[str]:
    """What is wrong with the documents of single sources, with the remedy.

    entries: the examples files, which count the documents of each of the `names`.
    """
    # The documents of a bucket are the same for all lengths.
    length = config.max_seq_lengths[0]
    facts = [e.statistics for e in entries if e.statistics["max_seq_length"] == length]
    trained, heldout = (
        [found["source_documents"] for found in facts if (found["split"] == TRAIN) is training]
        for training in (True, False)
    )
    others = ""
    if config.second_segment == "next_sentence":
        others = ", and its random next sentences may come from other sources"
    for place, name in enumerate(names):
        count, held = (sum(counts[place] for counts in part) for part in (trained, heldout))
        if 0 < count < FEWEST_DOCUMENTS:
            yield (
                f"source {name} has {count} document{'s' if count > 1 else ''} for training: its "
                f"examples lie in few files{others}; split the text into documents of a page or a "
                "chapter"
            )
        if count and heldout and not held:
            yield (
                f"source {name} has no held-out document, so its held-out loss is not known; raise "
                "corpus.heldout_share, or split its text into more documents"
            )


MAX_RANDOM_SHARE, MIN_USED_SHARE = 0.65, 0.5
"""Shares of random second segments and of used tokens beyond which examples teach little."""

FEW_PAIRS = 20
"""With fewer, that none is random may be chance."""

FEW_SENTENCES = 2.0
"""Mean number of sentences per document: of fewer, no true second segment can be made."""


def alarms(
    counts: ExampleStatistics, text: Mapping[str, JsonValue], *, passes: int, room: int
) -> Iterator[str]:
    """What is wrong with examples made from `text` in so many passes, with the likely cause.

    text: the summary of the split's tokens (`tokens_summary`). room: tokens of an example.
    """
    asked = counts.rows - counts.not_asked
    random_share = counts.next_random / max(asked, 1)
    # [CLS] and [SEP] of each example, and B's [SEP]
    special = 2 * counts.rows + asked
    weighted, tokens, sentences, documents = (
        float(str(text[name])) for name in ("weighted_tokens", "tokens", "sentences", "documents")
    )
    used_share = (counts.tokens - special) / max(weighted * passes, 1.0)
    # Symptoms first, each with what would be expected; then one cause for all of them, since they
    # have one: without sentences there is no true second segment, and most of a document is cut
    # off.
    found = []
    if asked >= FEW_PAIRS and not counts.next_random:
        yield (
            "no second segment is random (about half expected), as there is no other document that "
            "it could come from: next-sentence prediction learns nothing; split the text into "
            'documents, or set examples.second_segment = "none"'
        )
    if asked and random_share > MAX_RANDOM_SHARE:
        found.append(f"{random_share:.0%} of the second segments are random (about half expected)")
    if counts.rows and used_share < MIN_USED_SHARE:
        found.append(f"only {used_share:.0%} of the tokens are used")
    if counts.rows and counts.truncated == counts.rows:
        found.append("every example is truncated")
    if not found:
        return
    length = tokens / max(sentences, 1.0)
    # Two ways in which sentences are not found: a document is one, or each is as long as a
    # paragraph.
    if sentences < FEW_SENTENCES * documents:
        cause = (
            "probably sentences are not found: most documents have one "
            f"({sentences / max(documents, 1.0):.1f} on average, of {length:,.0f} tokens)"
        )
    elif length > room / 2:
        cause = (
            f"a sentence has {length:,.0f} tokens on average and an example {room}: sentences are "
            "not found, or too long for it; raise examples.max_seq_lengths"
        )
    else:
        cause = f"probably sentences are not found: one has {length:,.0f} tokens on average"
    yield (
        f"{'; '.join(found)}; {cause}; look at them with cloze inspect, check the sources' reader "
        'and line_break, and set examples.second_segment = "none" if the text has no marks'
    )
