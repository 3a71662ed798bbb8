"""The account of a corpus: what was read, what was left out, and why.

In:  counts of documents, with an example for each reason to drop one.
Out: a few lines for people, the same for preparation, search and vectors.
"""

from collections.abc import Mapping
from typing import NamedTuple

from cloze.pipeline.config.settings import SourceConfig
from cloze.pipeline.readers.documents import MAX_DOCUMENT_BYTES, Reader, place_of
from cloze.pipeline.text.filters import RULES, Reason
from cloze.pipeline.text.line_rules import CITATIONS, LINE_RULES
from cloze.pipeline.text.personal import KINDS

TABLE = "cleaning"
"""The table of the rules for all sources without their own."""

REMEDIES = {
    Reason.EMPTY: "nothing is left after cleaning",
    Reason.NOT_TEXT: "too many bytes are not UTF-8: convert them (iconv -f latin1 -t utf-8), or "
    "raise {cleaning}.max_replacement_share",
    Reason.BINARY_FILE: "the file is not text: convert it",
    Reason.BAD_FILE: 'unreadable parts of a file, as set by corpus.on_bad_file; with "fail" the '
    "stage stops and reports the error",
    Reason.BAD_RECORD: 'records that could not be read, as set by corpus.on_bad_file; with "fail" '
    "the stage stops at the first and reports what is wrong with it",
    Reason.BOILERPLATE: "all their lines recur in other documents: see cloze inspect "
    "RUN/boilerplate, or raise boilerplate.min_documents of the source",
    Reason.REMOVED_LINES: "line rules remove all of their lines; turn off "
    "{cleaning}.remove_unterminated_lines, or lower {cleaning}.min_line_words",
    Reason.LOW_SCORE: "their score of quality is below cleaning.keep: lower that, or see the "
    "scores of each source with cloze inspect RUN/scores",
    Reason.NO_TOKENS: "the vocabulary has none of their characters: learn one from this corpus",
    Reason.DROP_LIST: "they are on the drop list (cleaning.drop_list, or stage dedup)",
    Reason.DUPLICATE: "the same text came earlier",
    Reason.HELD_OUT: "the same text is held out",
}
"""Cause and remedy by reason, with the table of the rules to fill in; the other reasons have
settings (`filters.RULES`)."""


UNREAD = (Reason.BINARY_FILE, Reason.BAD_FILE, Reason.BAD_RECORD)
"""Reasons that stand for a file or record that could not be read."""

WARNED_SHARE = 0.5
"""Share of a source's documents above which what rules drop is a warning."""

PARTS_SHARE = 0.8
"""Share of the size at which documents are cut that their mean size has only if most are cut."""

LONGEST_COUNT = 1 << 28
"""Bytes; lines before a place beyond are not counted."""


class Dropped(NamedTuple):
    """The documents dropped for one reason."""

    documents: int
    example: str
    """The first of them: its file, and where it begins."""


SHOWN = 20
"""Files and records that could not be read, listed with what is wrong; more are counted."""


class Account:
    """Documents counted as they are read, and what could not be read."""

    def __init__(self) -> None:
        self._read = self._kept = 0
        self._dropped: dict[str, Dropped] = {}
        self._unread: list[str] = []

    def note(self, what: str) -> None:
        """A file or record that could not be read, with the reason."""
        self._unread.append(what)

    def add(self, reason: Reason, *, path: str, position: int, reader: Reader) -> None:
        """A document, or what stands for one."""
        # listed with `note` already
        if reason in UNREAD:
            return
        self._read += 1
        if reason == Reason.KEPT:
            self._kept += 1
            return
        name = reason.name.lower()
        # only the first example is looked up, since finding its line reads the file up to there
        count, example = self._dropped.get(name) or (0, example_of(path, position, reader))
        self._dropped[name] = Dropped(count + 1, example)

    def lines(self) -> list[str]:
        """How many documents were read; then what was left out, and why."""
        more = len(self._unread) - SHOWN
        return [
            f"{self._read:,} documents read, {self._kept:,} kept",
            *(f"left out: {what}" for what in self._unread[:SHOWN]),
            *([f"left out: {more:,} more"] if more > 0 else []),
            *reasons_account(self._dropped),
        ]


def example_of(path: str, position: int, reader: Reader) -> str:
    """Where a dropped document is, for people."""
    if reader.unit == "byte" and position == 0:
        return path
    if reader.unit == "byte" and position > LONGEST_COUNT:
        return f"{path}, byte {position:,}"
    return place_of(path, position, reader)


def reasons_account(dropped: Mapping[str, Dropped]) -> list[str]:
    """A line for each reason, the most frequent first: how many, why, and an example."""
    lines = []
    for name, (count, example) in sorted(dropped.items(), key=lambda item: -item[1].documents):
        reason = Reason[name.upper()]
        why = REMEDIES.get(reason, f"by {rule_settings(reason)}").format(cleaning=TABLE)
        lines.append(f"{count:,} dropped as {name}, {why}; for example {example}")
    return lines


def rule_settings(reason: Reason, table: str = TABLE) -> str:
    """The settings of a table that turn on the rules with this reason."""
    settings = [f"{table}.{rule.setting}" for rule in RULES if rule.reason == reason]
    return " or ".join(settings) if len(settings) < 4 else f"{settings[0]} to {settings[-1]}"


def source_account(
    source: int, config: SourceConfig, *, documents: int, dropped: Mapping[str, int]
) -> str:
    """A warning if rules drop more than `WARNED_SHARE` of a source's documents; else nothing.

    dropped: its dropped documents by reason.
    """
    others = (Reason.REMOVED_LINES, Reason.LOW_SCORE)
    names = {reason.name.lower() for reason in (*(rule.reason for rule in RULES), *others)}
    # Copies and unreadable files are not a matter of rules, so no setting would keep them.
    by_rule = {name: count for name, count in dropped.items() if name in names}
    lost = sum(by_rule.values())
    if lost <= WARNED_SHARE * documents:
        return ""
    # By name where counts are equal, so that the warning is the same every time.
    most = max(by_rule, key=lambda name: (by_rule[name], name))
    table = TABLE if config.cleaning is None else f"corpus.sources.{source}.cleaning"
    return (
        f"corpus.sources.{source} ({config.path or ', '.join(config.packages)}): rules drop "
        f"{lost:,} of its {documents:,} documents ({lost / documents:.0%}), most of them "
        f"({by_rule[most]:,}) as {most}; {_remedy(Reason[most.upper()], table)}"
    )


def parts_account(source: int, config: SourceConfig, *, documents: int, size: int) -> str:
    """A warning if a source's documents are so large that they are parts of others; else nothing.

    size: its bytes.
    """
    if size < PARTS_SHARE * MAX_DOCUMENT_BYTES * documents or size <= MAX_DOCUMENT_BYTES:
        return ""
    return (
        f"corpus.sources.{source} ({config.path}): its {size / 1e6:,.0f} MB are {documents:,} "
        f"documents, parts of larger ones, which are cut at {MAX_DOCUMENT_BYTES >> 20} MiB; if it "
        "consists of smaller documents, choose the reader that tells them apart, such as "
        "blank_line_text or jsonl"
    )


def _remedy(reason: Reason, table: str) -> str:
    if reason in REMEDIES:
        return REMEDIES[reason].format(cleaning=table)
    return (
        f"loosen or turn off {rule_settings(reason, table)} (a value beside {table}.presets "
        "overrides it), or check the reader of the source"
    )


def edits_account(edits: Mapping[str, int]) -> list[str]:
    """What was removed from documents, and masked in them; of `EDITS`, by name."""
    lines = [
        f"{edits[rule.name]:,} lines removed as {rule.name}, by cleaning.{rule.setting}"
        for rule in LINE_RULES
        if edits.get(rule.name)
    ]
    if edits.get(CITATIONS):
        lines.append(f"{edits[CITATIONS]:,} citations removed, by cleaning.remove_citations")
    masked = [f"{edits[name]:,} {name}" for name in KINDS if edits.get(name)]
    return lines + ([f"masked, by cleaning.mask: {', '.join(masked)}"] if masked else [])
