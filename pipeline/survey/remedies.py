"""What a survey suggests to change, each as one line of configuration.

In:  a `Survey` without remedies; the settings of the run.
Out: the remedies. They are suggestions: whether a rule is worth its losses, its samples tell.
"""

import json
from collections.abc import Iterator

from cloze.pipeline.config.presets import Setting
from cloze.pipeline.config.settings import BoilerplateConfig, TokensStage
from cloze.pipeline.readers.input_shards import reader_named
from cloze.pipeline.survey.damage import ENTITIES, kinds
from cloze.pipeline.survey.results import Remedy, RuleEffect, Survey

WORTH = 0.005
"""The least share of documents or text that is worth a remedy."""

MUCH = 0.25
"""Above this share of documents a rule takes more than flaws: it is no remedy."""

FOREIGN_SHARE, FEW_FOREIGN = 0.05, 0.001
"""A second language with a larger share is wanted; all others together with a smaller one are no
matter."""


def remedies(found: Survey, stage: TokensStage) -> tuple[Remedy, ...]:
    """The remedies for what was found, those for the copies first."""
    return (
        *_copies(found),
        *_lines(found, stage),
        *_damage(found, stage),
        *_languages(found, stage),
        *_rules(found),
        *_personal(found, stage),
    )


def toml_value(value: Setting) -> str:
    """A setting as TOML has it."""
    return json.dumps(list(value) if isinstance(value, tuple) else value)


def _share(part: int, whole: int) -> str:
    share = 100 * part / max(whole, 1)
    return f"{share:.1f}\u202f%" if share >= 0.1 else f"{share:.2f}\u202f%"


def _copies(found: Survey) -> Iterator[Remedy]:
    copies = found.copies
    # A run that searches has dropped them already. A fifth of the usual share is worth it, as
    # copies are learnt by heart.
    if copies.searched == "sample" and copies.near > WORTH * copies.documents / 5:
        yield Remedy(
            finding=f"{copies.near:,} of {copies.documents:,} documents "
            f"({_share(copies.near, copies.documents)}) nearly equal another one",
            place="[dedup]",
            line="near_duplicates = {}",
        )


def _lines(found: Survey, stage: TokensStage) -> Iterator[Remedy]:
    least = BoilerplateConfig()
    for source in found.sources:
        if stage.corpus.sources[source.number].boilerplate or not source.characters:
            continue
        # As the stage would count them: only words with letters, and as often as it asks for.
        recurring = [
            line
            for line in found.frequent[0].most
            if line.source == source.number
            and line.count >= least.min_documents
            and sum(any(map(str.isalpha, word)) for word in line.text.split()) >= least.min_words
        ]
        if recurring:
            yield Remedy(
                finding=f"Whole lines of {least.min_words} words or more recur in "
                f"{least.min_documents} documents or more of {_name(found, source.number)}, the "
                f"most frequent in {recurring[0].count:,}",
                place=_table(source.number),
                line="boilerplate = {}",
            )


def _damage(found: Survey, stage: TokensStage) -> Iterator[Remedy]:
    lines = {kind.name: kind.line for kind in kinds()}
    suggested = set()
    for damage in found.damage:
        for number, documents in damage.by_source.items():
            line, source = lines[damage.name], stage.corpus.sources[number]
            if not line or source.html or (number, line) in suggested:
                continue
            # What the source decodes already, it does not decode a second time.
            if damage.name == ENTITIES and reader_named(source.reader).from_html:
                continue
            # Counted in the sample, compared with all documents of the source.
            if documents * max(1, 1 / found.sampled_share) < WORTH * found.sources[number].read / 5:
                continue
            suggested.add((number, line))
            yield Remedy(
                finding=f"{damage.name} in {documents:,} documents of {_name(found, number)}",
                place=_table(number),
                line=line,
            )


def _languages(found: Survey, stage: TokensStage) -> Iterator[Remedy]:
    if not found.languages or stage.cleaning.languages:
        return
    known = [one for one in found.languages if one.name != "unknown"]
    total = sum(one.characters for one in known)
    wanted = [one for one in known if one.characters >= FOREIGN_SHARE * total]
    others = total - sum(one.characters for one in wanted)
    if wanted and others > FEW_FOREIGN * total:
        codes = tuple(sorted(one.name for one in wanted))
        yield Remedy(
            finding=f"{_share(others, total)} of the text is in other languages than "
            f"{' and '.join(codes)}",
            place="[cleaning]",
            line=f"languages = {toml_value(codes)}",
        )


def _rules(found: Survey) -> Iterator[Remedy]:
    for rule in found.rules:
        if rule.on:
            if rule.share > 2 * MUCH:
                yield Remedy(
                    finding=f"{rule.setting} finds {_share(rule.count, rule.of)} of the "
                    f"{rule.unit}: more than half",
                    place=rule.place,
                    line=f"{rule.setting} = {'false' if rule.limit is True else 0}",
                )
        elif WORTH < rule.share <= MUCH:
            yield Remedy(finding=_effect(rule), place=rule.place, line=rule_line(rule))


def _effect(rule: RuleEffect) -> str:
    share = f"{rule.count:,} of {rule.of:,} {rule.unit} ({_share(rule.count, rule.of)})"
    verb = "drop" if rule.unit == "documents" else "remove"
    return f"{rule.source} would {verb} {share} as {rule.reason}"


def rule_line(rule: RuleEffect) -> str:
    """The line that sets a rule as it was tried."""
    limit = tuple(rule.limit.split(", ")) if isinstance(rule.limit, str) else rule.limit
    return f"{rule.setting} = {toml_value(limit)}"


def _personal(found: Survey, stage: TokensStage) -> Iterator[Remedy]:
    for place, by_kind in found.personal.items():
        kinds_found = {name: count for name, count in by_kind.items() if count}
        if not kinds_found:
            continue
        # What is masked already was not counted.
        every = tuple(dict.fromkeys((*_masked(stage, place), *kinds_found)))
        counts = ", ".join(f"{count:,} × {name}" for name, count in kinds_found.items())
        yield Remedy(
            finding=f"Personal data in the sample: {counts}",
            place=place,
            line=f"mask = {toml_value(every)}",
        )


def _masked(stage: TokensStage, place: str) -> tuple[str, ...]:
    """What the rules of a table mask."""
    *_, number = place.split()
    own = stage.corpus.sources[int(number)].cleaning if number.isdecimal() else stage.cleaning
    return own.mask if own else ()


def _table(source: int) -> str:
    return f"[[corpus.sources]], number {source}"


def _name(found: Survey, source: int) -> str:
    return f"source {source} ({found.sources[source].name})"
