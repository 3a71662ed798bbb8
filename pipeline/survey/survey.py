"""A survey of a corpus: how much, how long, how damaged, how repetitive, and what cleaning does.

In:  a finished `tokens` artifact; the settings with which it was made; its drop list, if any.
Out: a `Survey`.

The corpus is read once more, in one process, a block at a time. Of all documents are counted how
many and how long they are. All else is asked of a sample of about `SAMPLE_BYTES`, drawn by digest
with a fixed seed, so that it is the same every time, and of equal texts all are in it or none.
Memory holds 25 bytes of each kept document, and tables of fixed size (counting.py, copies.py).
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from cloze.artifacts.arrays import Int64s, Mask, UInt64s
from cloze.artifacts.errors import IntegrityError, UsageError
from cloze.artifacts.progress import Progress
from cloze.artifacts.rng import document_streams, stream_seed
from cloze.artifacts.runtime.temporary import temporary_directory
from cloze.artifacts.store import Artifact
from cloze.artifacts.tables import DROPPED_NAME
from cloze.pipeline.config.presets import PRESETS
from cloze.pipeline.config.rules import RulesConfig
from cloze.pipeline.config.settings import TokensStage
from cloze.pipeline.kept_documents import KeptDigests, digest_scalars
from cloze.pipeline.readers.documents import DocumentBlock
from cloze.pipeline.readers.input_shards import find_corpus, input_shards
from cloze.pipeline.survey.comparing import compared
from cloze.pipeline.survey.copies import Copies
from cloze.pipeline.survey.counting import FrequentKeys, Lengths, Smallest
from cloze.pipeline.survey.damaged import DamageSurvey
from cloze.pipeline.survey.limits import RuleSurvey
from cloze.pipeline.survey.phrases import SIZES, Phrases
from cloze.pipeline.survey.remedies import remedies
from cloze.pipeline.survey.results import (
    QUANTILES,
    Amount,
    Change,
    Counted,
    CountedList,
    Distribution,
    SourceAmount,
    Survey,
)
from cloze.pipeline.survey.selecting import beginning, characters, selected
from cloze.pipeline.text.filters import Reason
from cloze.pipeline.text.languages import told_languages
from cloze.pipeline.text.personal import KINDS, mask_personal
from cloze.pipeline.text.texts import DocumentStates, count_lines, read_states, rules_of

SEED = 1
"""Of the sample, whatever the run's seed."""

SAMPLE_BYTES, SEARCHED_BYTES = 64_000_000, 256_000_000
"""Bytes of files of which everything is asked, and among which copies are searched for; of a larger
corpus, samples of about these sizes."""

CHANGES, CHANGE_BYTES = 6, 12_000
"""Documents shown before and after cleaning, of each kind, and how much of them."""

SHOWN_LINES, SHOWN_PHRASES, CANDIDATES = 30, 30, 400
"""How many of the most frequent are shown, and among how many that do not overlap are chosen."""

SHOWN_LANGUAGES = 20
UNKNOWN_LANGUAGE = "unknown"

ALL_SOURCES = "[cleaning]"
"""The table with the rules of sources without their own."""

# D documents of a block


@dataclass
class _Text:
    """How much text some documents have."""

    documents: int = 0
    characters: int = 0
    lengths: Lengths = field(default_factory=Lengths)
    read: int = 0

    def add(self, characters_D: Int64s, tokens_D: Int64s) -> None:
        self.documents += len(tokens_D)
        self.characters += int(characters_D.sum())
        self.lengths.add(tokens_D)

    def amount(self, name: str) -> dict[str, object]:
        edges, counts = self.lengths.histogram()
        return {
            "name": name,
            "documents": self.documents,
            "characters": self.characters,
            "tokens": self.lengths.total,
            "lengths": Distribution(
                quantiles=tuple(self.lengths.quantiles(QUANTILES)),
                largest=self.lengths.largest,
                edges=tuple(edges),
                counts=tuple(counts),
            ),
        }


def survey(
    artifact: Artifact, stage: TokensStage, *, run: str, drop_list: Artifact | None = None
) -> Survey:
    """Survey the corpus of which `artifact` has the tokens.

    drop_list: that of the run, if it has searched for near-duplicates.
    Raises `IntegrityError` if the corpus has changed since.
    """
    files = find_corpus(stage.corpus)
    shards = input_shards(stage.corpus, files)
    total = sum(shard.size for shard in shards)
    progress = Progress("survey", total=sum(shard.megabytes for shard in shards), unit="MB")
    with temporary_directory() as scratch:
        made = _Surveyor(
            artifact,
            stage,
            Copies(artifact, drop_list, scratch=scratch),
            _Shares(*(min(1.0, size / max(total, 1)) for size in (SAMPLE_BYTES, SEARCHED_BYTES))),
            paths=[[file.path for file in of_source] for of_source in files],
        )
        for shard in shards:
            for states in read_states(shard, corpus=stage.corpus, cleaning=stage.cleaning):
                made.add(states)
            progress.advance(shard.megabytes)
        return made.result(run)


class _Shares(NamedTuple):
    """Which share of a corpus is looked at more closely."""

    sampled: float
    """For rules, languages, damage, phrases and lines."""
    searched: float
    """For copies."""


class _Surveyor:
    """What is counted while the corpus is read."""

    def __init__(
        self,
        artifact: Artifact,
        stage: TokensStage,
        copies: Copies,
        shares: _Shares,
        *,
        paths: Sequence[Sequence[str]],
    ) -> None:
        self._artifact, self._stage, self._copies = artifact, stage, copies
        self._share, self._paths = shares.sampled, paths
        self._limit, self._search_limit = map(_limit, shares)
        self._kept = KeptDigests.of(artifact, stage.corpus, with_tokens=True)
        self._sources = {number: _Text() for number in range(len(stage.corpus.sources))}
        # None as soon as languages cannot be told, and no block is tried again.
        self._languages: dict[str, _Text] | None = {}
        self._sampled_read = self._sampled_kept = 0
        self._damage = DamageSurvey()
        self._rules = {ALL_SOURCES: RuleSurvey(stage.cleaning, ALL_SOURCES)}
        self._phrases = [FrequentKeys() for _ in SIZES]
        self._lines = {number: FrequentKeys() for number in range(len(stage.corpus.sources))}
        self._personal: dict[str, Counter[str]] = {}
        self._changes: dict[str, Smallest[Change]] = {
            name: Smallest(CHANGES) for name in ("at random", "changed")
        }

    def add(self, states: DocumentStates) -> None:
        """Count the documents of a block."""
        texts = states.texts
        documents = len(texts.ends_D)
        tokens_D = np.zeros(documents, dtype=np.int64)
        is_kept_D = np.zeros(documents, dtype=np.bool_)
        # Whether a document was kept is not decided again but read in the artifact: copies and
        # overlap depend on all other documents.
        rows, places = self._kept.find(texts, self._stage)
        is_kept_D[rows], tokens_D[rows] = True, self._kept.tokens(places)
        characters_D = characters(states.paragraphs)
        of_source = self._sources[texts.source]
        # The unreadable part of a file stands as a document that was never one.
        of_source.read += int(np.count_nonzero(texts.reasons_D != Reason.BAD_FILE))
        of_source.add(characters_D[is_kept_D], tokens_D[is_kept_D])

        # A document is in a sample if its key is small. Both samples have the same keys, so the
        # smaller is part of the larger one.
        keys_D = document_streams(texts.digests_D2, stream_seed(SEED, "survey"))
        is_sampled_D = keys_D <= self._limit
        is_searched_D = is_kept_D & (keys_D <= self._search_limit)
        self._copies.add(states.paragraphs, digest_scalars(texts.digests), is_searched_D, keys_D)
        if is_sampled_D.any():
            self._add_read(states, is_sampled_D, is_kept_D, keys_D)
        if (is_sampled_D & is_kept_D).any():
            self._add_kept(states, is_sampled_D & is_kept_D, characters_D, tokens_D)

    def _add_read(
        self, states: DocumentStates, wanted_D: Mask, is_kept_D: Mask, keys_D: UInt64s
    ) -> None:
        """What is asked of all documents of the sample, dropped ones too."""
        self._sampled_read += int(wanted_D.sum())
        source, keys = states.texts.source, keys_D[wanted_D]
        raw, whole = selected(states.raw, wanted_D), selected(states.whole, wanted_D)
        self._damage.add(raw, whole, keys, source=source)
        # Rules have nothing to say about documents without text.
        has_text_D = wanted_D & (np.diff(states.paragraphs.ends, prepend=0) > 0)
        sentences_D = count_lines(states.texts.text, states.texts.ends_D)
        # Sources with rules of their own are surveyed apart: a limit is only meaningful beside the
        # documents that it is asked of.
        if has_text_D.any():
            rules = rules_of(self._stage.corpus.sources[source], self._stage.cleaning)
            place = self._place(source)
            self._rules.setdefault(place, RuleSurvey(rules, place)).add(
                selected(states.whole, has_text_D),
                selected(states.paragraphs, has_text_D),
                sentences_D[has_text_D],
                keys_D[has_text_D],
                source=source,
            )
        self._add_changes(states, wanted_D, is_kept_D)

    def _add_changes(self, states: DocumentStates, wanted_D: Mask, is_kept_D: Mask) -> None:
        texts = states.texts
        # Other documents than those whose damage is shown.
        keys_D = document_streams(texts.digests_D2, stream_seed(SEED, "changes"))
        sizes_D = [characters(block) for block in (states.raw, states.paragraphs)]
        inked = (_inked(block) for block in (states.raw, states.paragraphs))
        before_D, after_D = inked
        # White space alone is no change worth a page.
        changed_D = wanted_D & (before_D != after_D) & (after_D > 0)

        def change_at(row: int, chosen: str) -> Change:
            before, after = (
                beginning(block, row, most=CHANGE_BYTES)
                for block in (states.raw, states.paragraphs)
            )
            reason = Reason(int(texts.reasons_D[row]))
            # Copies, and what is on a drop list, are known by their digests, after reading.
            later = "kept" if is_kept_D[row] else "dropped as a copy, or by a drop list"
            return Change.model_validate(
                {
                    "path": self._paths[texts.source][int(texts.files_D[row])],
                    "position": int(texts.positions_D[row]),
                    "source": texts.source,
                    "fate": later if reason == Reason.KEPT else reason.name.lower(),
                    "chosen": chosen,
                    "characters_before": int(sizes_D[0][row]),
                    "characters_after": int(sizes_D[1][row]),
                    "pieces": compared(before, after),
                }
            )

        for chosen, which_D in (("at random", wanted_D & (before_D > 0)), ("changed", changed_D)):
            # All alike, so that keys decide: a draw that does not depend on the order of files.
            scores_D = np.where(which_D, 0.0, np.inf)
            self._changes[chosen].offer(scores_D, keys_D, partial(change_at, chosen=chosen))

    def _add_kept(
        self, states: DocumentStates, wanted_D: Mask, characters_D: Int64s, tokens_D: Int64s
    ) -> None:
        """What is asked of the documents of the sample that were kept."""
        self._sampled_kept += int(wanted_D.sum())
        block = selected(states.paragraphs, wanted_D)
        phrases = Phrases(block)
        for counted, (keys_N, text_at) in zip(self._phrases, phrases.n_grams(), strict=True):
            counted.add(keys_N, text_at)
        self._lines[states.texts.source].add(*phrases.lines(), every=True)
        source = states.texts.source
        # What the rules mask is gone from the text; the others are counted as if they were masked.
        masked = rules_of(self._stage.corpus.sources[source], self._stage.cleaning).mask
        unmasked = tuple(name for name in KINDS if name not in masked)
        _, found = mask_personal(block, RulesConfig.model_validate({"mask": unmasked}))
        counts = {name: int(counts_D.sum()) for name, counts_D in found.items()}
        self._personal.setdefault(self._place(source), Counter()).update(counts)
        self._add_languages(block, characters_D[wanted_D], tokens_D[wanted_D])

    def _add_languages(self, block: DocumentBlock, characters_D: Int64s, tokens_D: Int64s) -> None:
        if self._languages is None:
            return
        try:
            told = told_languages(block)
        except UsageError:  # without the extra `language` the survey does without
            self._languages = None
            return
        # The first language only: of a text in two, the one with more of it.
        names = np.array([of[0][0] if of else UNKNOWN_LANGUAGE for of in told])
        for name in np.unique(names).tolist():
            rows = names == name
            self._languages.setdefault(name, _Text()).add(characters_D[rows], tokens_D[rows])

    def result(self, run: str) -> Survey:
        """The survey, once the whole corpus was read."""
        # Otherwise the page would describe other text than the artifact.
        self._kept.require_all_seen()
        statistics = self._artifact.manifest.statistics
        read = sum(text.read for text in self._sources.values())
        if read != statistics["documents_read"]:
            raise IntegrityError(
                f"{self._artifact.directory}: made of {statistics['documents_read']:,} documents, "
                f"but the corpus has {read:,}: files have changed since; run `cloze tokens CONFIG` "
                "again first"
            )
        reasons = self._reasons()
        sources = [
            SourceAmount.model_validate(
                {
                    **self._sources[number].amount(one.path or ", ".join(one.packages)),
                    "number": number,
                    "reader": one.reader,
                    "read": self._sources[number].read,
                    "dropped": dict(reasons.get(number, Counter()).most_common()),
                }
            )
            for number, one in enumerate(self._stage.corpus.sources)
        ]
        found = Survey(
            run=run,
            digest=self._artifact.digest,
            documents_read=read,
            documents_kept=sum(one.documents for one in sources),
            characters=sum(one.characters for one in sources),
            tokens=sum(one.tokens for one in sources),
            sampled_share=self._share,
            sampled_read=self._sampled_read,
            sampled_kept=self._sampled_kept,
            reasons=statistics["dropped"],
            edits=statistics.get("edits", {}),
            sources=tuple(sources),
            languages=self._by_language(),
            damage=self._damage.found(),
            frequent=(self._frequent_lines(), *self._frequent_phrases()),
            copies=self._copies.groups(),
            rules=tuple(effect for of in self._rules.values() for effect in of.effects()),
            presets={
                name: sum(of.presets[name] for of in self._rules.values()) for name in PRESETS
            },
            personal={place: dict(found) for place, found in self._personal.items()},
            changes=tuple(change for of in self._changes.values() for change in of.payloads()),
            remedies=(),
        )
        return found.model_copy(update={"remedies": remedies(found, self._stage)})

    def _place(self, source: int) -> str:
        """The table with the rules of a source."""
        own = self._stage.corpus.sources[source].cleaning is not None
        return f"[corpus.sources.cleaning], of source {source}" if own else ALL_SOURCES

    def _reasons(self) -> Mapping[int, Counter[str]]:
        """How many documents of each source were dropped for each reason."""
        found: dict[int, Counter[str]] = {}
        with pa.memory_map(self._artifact.path(DROPPED_NAME)) as source:
            file = pa.ipc.open_file(source)
            for index in range(file.num_record_batches):
                batch = file.get_batch(index)
                pairs = zip(batch["source"].to_pylist(), batch["reason"].to_pylist(), strict=True)
                for number, reason in pairs:
                    found.setdefault(number, Counter())[reason] += 1
        return found

    def _by_language(self) -> tuple[Amount, ...] | None:
        if self._languages is None:
            return None
        found = (Amount.model_validate(of.amount(name)) for name, of in self._languages.items())
        return tuple(sorted(found, key=lambda one: (-one.characters, one.name))[:SHOWN_LANGUAGES])

    def _frequent_lines(self) -> CountedList:
        every = [
            Counted(text=one.text, count=one.times, source=number)
            for number, lines in self._lines.items()
            for one in lines.most(SHOWN_LINES)
        ]
        every.sort(key=lambda one: (-one.count, one.text))
        return CountedList(
            of="lines",
            total=sum(lines.total for lines in self._lines.values()),
            error=max((lines.error for lines in self._lines.values()), default=0),
            most=tuple(every[:SHOWN_LINES]),
        )

    def _frequent_phrases(self) -> list[CountedList]:
        found = []
        for words, counted in zip(SIZES, self._phrases, strict=True):
            most = [Counted(text=one.text, count=one.times) for one in counted.most(CANDIDATES)]
            found.append(
                CountedList(
                    of="words" if words == 1 else f"{words}-grams",
                    total=counted.total,
                    error=counted.error,
                    most=tuple(_apart(most, words)[:SHOWN_PHRASES]),
                )
            )
        return found


def _limit(share: float) -> np.uint64:
    """The largest key in a sample of this share of the documents."""
    return np.uint64(min(int(share * 2.0**64), 2**64 - 1))


def _inked(block: DocumentBlock) -> Int64s:
    """Bytes of each document that are no white space, as wide as it may be: (D,)."""
    text = block.text
    is_ink = text > ord(" ")
    after, second = np.roll(text, -1), np.roll(text, -2)
    hard = (text == 0xC2) & (after == 0xA0)
    wide = (text == 0xE2) & (after == 0x80) & ((second <= 0x8A) | (second == 0xAF))
    wide |= (text == 0xE3) & (after == 0x80) & (second == 0x80)
    for shift, found in ((0, hard | wide), (1, hard | wide), (2, wide)):
        is_ink &= ~np.roll(found, shift)
    return np.diff(np.searchsorted(np.flatnonzero(is_ink), block.ends), prepend=0)


def _apart(most: list[Counted], words: int) -> list[Counted]:
    """Without those of which half or more is in a more frequent one: the same passage, shifted."""
    if words < 4:
        return most
    seen: set[str] = set()
    found = []
    for one in most:
        cut = one.text.split()
        half = max(len(cut) // 2, 1)
        parts = {" ".join(cut[at : at + half]) for at in range(len(cut) - half + 1)}
        if not parts & seen:
            found.append(one)
        seen |= parts
    return found
