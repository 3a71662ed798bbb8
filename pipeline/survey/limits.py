"""What each rule drops, and which documents and lines are nearest to its limit on both sides.

In:  documents of the sample, as cleaned; the run's rules, and the published presets.
Out: for each rule how much it finds, with samples.

Rules that are off are tried with the limit of the first preset that has them. Where a document
stands to a limit is found by trying: `Rule.breaks` is asked again and again with another limit for
each document, until it is known at which one the decision changes. So there is one definition of
each rule, and what is shown here is what it does.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from cloze.artifacts.arrays import Int64s, Mask, UInt64s
from cloze.pipeline.config.presets import PRESETS, Setting
from cloze.pipeline.config.rules import RulesConfig
from cloze.pipeline.readers.documents import DocumentBlock
from cloze.pipeline.survey.counting import Smallest
from cloze.pipeline.survey.results import RuleEffect, Sample
from cloze.pipeline.survey.selecting import beginning
from cloze.pipeline.text.duplicates import range_hashes
from cloze.pipeline.text.filters import RULES, Rule, TextMeasures
from cloze.pipeline.text.line_rules import LINE_RULES, LineRule, LineTexts

SAMPLES, SAMPLE_BYTES = 2, 600
"""Documents shown on each side of a limit, and how much of each."""
LINE_SAMPLES, LINE_BYTES = 4, 240

LARGEST_LIMIT, HALVINGS = float(1 << 22), 44
"""Limits are looked for up to this one: words of a document; and as often halved, to 3e-7."""

Floats = npt.NDArray[np.float64]

# D documents, L lines of the block


class Limit(NamedTuple):
    """The limit of a rule: the run's, or a preset's."""

    value: Setting
    preset: str
    """Empty if the run has it."""


def limit_of(rule: Rule | LineRule, rules: RulesConfig) -> Limit | None:
    """The limit with which a rule is tried; None if it is off and no preset has it."""
    if value := getattr(rules, rule.setting):
        return Limit(value, "")
    for preset, settings in PRESETS.items():
        if rule.setting in settings:
            return Limit(settings[rule.setting], preset)
    return None


def values(rule: Rule, measures: TextMeasures, documents: int) -> Floats:
    """At which limit the rule's decision on each document changes: (D,)."""
    low_D, high_D = np.zeros(documents), np.full(documents, LARGEST_LIMIT)
    # Whether a document is broken by the smallest limits (a maximum) or by the largest.
    is_most = bool(rule.breaks(measures, low_D).sum() >= rule.breaks(measures, high_D).sum())
    for _ in range(HALVINGS):
        middle_D = (low_D + high_D) / 2
        # Of a maximum, a document breaks the limits below its value; of a minimum, those above it.
        above_D = rule.breaks(measures, middle_D) == is_most
        low_D, high_D = np.where(above_D, middle_D, low_D), np.where(above_D, high_D, middle_D)
    found_D: Floats = (low_D + high_D) / 2
    return found_D


class _Sides:
    """Samples of both sides of a limit, and counts."""

    def __init__(self, limit: Limit, samples: int) -> None:
        self.limit = limit
        self.count = self.of = 0
        self.out: Smallest[Sample] = Smallest(samples)
        self.kept: Smallest[Sample] = Smallest(samples)


class RuleSurvey:
    """The effects of all rules on the documents of a sample that have these rules."""

    def __init__(self, rules: RulesConfig, place: str) -> None:
        """`place` is the table in which the rules are set."""
        self._place = place
        on = {name: value for one in PRESETS.values() for name, value in one.items()}
        # n-grams are counted only if a setting asks for them
        # Measures of rules that are off are needed too, since their effect is estimated.
        self._measured = rules.model_copy(
            update={name: value for name, value in on.items() if not getattr(rules, name)}
        )
        limits = ((rule.setting, limit_of(rule, rules)) for rule in RULES)
        self._documents = {name: _Sides(limit, SAMPLES) for name, limit in limits if limit}
        limits = ((rule.setting, limit_of(rule, rules)) for rule in LINE_RULES)
        self._lines = {name: _Sides(limit, LINE_SAMPLES) for name, limit in limits if limit}
        self.presets = dict.fromkeys(PRESETS, 0)
        """Documents that a preset's rules would drop, by preset."""

    def add(
        self,
        whole: DocumentBlock,
        paragraphs: DocumentBlock,
        sentences_D: Int64s,
        keys_D: UInt64s,
        *,
        source: int,
    ) -> None:
        """Count documents that have some text; those beyond a limit, and those near it."""
        self._add_lines(whole, source=source)
        documents = len(paragraphs.ends)
        measures = TextMeasures(paragraphs, self._measured, sentences_D)
        by_preset = {name: np.zeros(documents, dtype=np.bool_) for name in PRESETS}

        for rule in RULES:
            sides = self._documents.get(rule.setting)
            if sides is None:
                continue
            limit = sides.limit.value
            number = float(limit) if isinstance(limit, int | float) else 0.0
            broken_D: Mask = rule.breaks(measures, number)
            for preset, settings in PRESETS.items():
                if rule.setting in settings:
                    broken = broken_D
                    # A preset may have another limit than the run, and is judged by its own.
                    if (published := settings[rule.setting]) != limit:
                        assert isinstance(published, int | float)  # those of words have no preset
                        broken = rule.breaks(measures, published)
                    by_preset[preset] |= broken
            sides.count += int(broken_D.sum())
            sides.of += documents
            # Rules without a number (lists of words, yes or no) have no nearness: samples are drawn
            # by keys.
            distances_D, values_D = np.zeros(documents), None
            if isinstance(limit, int | float) and not isinstance(limit, bool):
                values_D = values(rule, measures, documents)
                distances_D = np.abs(values_D - limit)

            def sample(
                row: int, values_D: Floats | None = values_D, limit: Setting = limit
            ) -> Sample:
                value = None if values_D is None else _shown(float(values_D[row]), limit)
                text = beginning(paragraphs, row, most=SAMPLE_BYTES)
                return Sample(text=text, value=value, source=source)

            _offer(sides, broken_D, distances_D, keys_D, sample)
        for preset, any_D in by_preset.items():
            self.presets[preset] += int(any_D.sum())

    def _add_lines(self, whole: DocumentBlock, *, source: int) -> None:
        lines = LineTexts(whole)
        count = len(lines.ends_L)
        starts_L = np.concatenate(([0], lines.ends_L[:-1]))[:count].astype(np.int64)
        # Which lines are shown is drawn by what they are: equal ones once.
        keys_L = range_hashes(whole.text, starts_L, lines.ends_L)

        def sample(row: int) -> Sample:
            stop = min(int(lines.ends_L[row]) - 1, int(starts_L[row]) + LINE_BYTES)
            text = whole.text[int(starts_L[row]) : stop].tobytes().decode("utf-8", "ignore")
            return Sample(text=text, source=source)

        for rule in LINE_RULES:
            sides = self._lines.get(rule.setting)
            if sides is None:
                continue
            limit = sides.limit.value
            assert isinstance(limit, int | float)
            broken_L = rule.removes(lines, float(limit))
            sides.count += int(broken_L.sum())
            sides.of += count
            _offer(sides, broken_L, np.zeros(count), keys_L, sample)

    def effects(self) -> Iterator[RuleEffect]:
        """What each rule finds: those of the run first, then by how much they find."""
        found = [
            self._effect(rule.reason.name.lower(), rule, self._documents, "documents")
            for rule in RULES
            if rule.setting in self._documents
        ]
        found += [
            self._effect(rule.name, rule, self._lines, "lines")
            for rule in LINE_RULES
            if rule.setting in self._lines
        ]
        yield from sorted(found, key=lambda one: (not one.on, one.unit, -one.share))

    def _effect(
        self, reason: str, rule: Rule | LineRule, by_setting: Mapping[str, _Sides], unit: str
    ) -> RuleEffect:
        sides = by_setting[rule.setting]
        limit = sides.limit.value
        return RuleEffect.model_validate(
            {
                "reason": reason.replace("_n_gram", " n-gram").replace("_", " "),
                "setting": rule.setting,
                "source": rule.source,
                "place": self._place,
                "preset": sides.limit.preset,
                "on": not sides.limit.preset,
                "limit": ", ".join(limit) if isinstance(limit, tuple) else limit,
                "unit": unit,
                "count": sides.count,
                "of": sides.of,
                "out": tuple(sides.out.payloads()),
                "kept": tuple(sides.kept.payloads()),
            }
        )


def _offer(
    sides: _Sides,
    broken_N: Mask,
    distances_N: Floats,
    keys_N: UInt64s,
    sample_at: Callable[[int], Sample],
) -> None:
    for side, wanted_N in ((sides.out, broken_N), (sides.kept, ~broken_N)):
        # what is on the other side is infinitely far
        side.offer(np.where(wanted_N, distances_N, np.inf), keys_N, sample_at)


def _shown(value: float, limit: Setting) -> float:
    """A value with the digits that matter; counts as they are."""
    if isinstance(limit, int):
        return float(round(value))
    return float(f"{value:.4g}")
