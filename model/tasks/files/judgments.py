"""Judgments of relevance that name texts by their ids, joined with these texts.

In:  a table whose columns query and passage hold ids, with grades if it has any; the files of
     passages and queries, in BEIR's layout (corpus.jsonl, queries.jsonl).
Out: tables of texts, with a row for each relevant passage. On request they hold all other passages
     as well, so that a whole collection is ranked.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from pydantic import JsonValue

from cloze.artifacts.errors import UsageError
from cloze.artifacts.tokenizer import well_formed
from cloze.model.config import CollectionConfig
from cloze.model.tasks.files.table_files import read_table
from cloze.model.tasks.files.task_table import TaskTable, Wanted, is_missing

GRADE = "grade"
"""Column of how relevant a passage is; 1 without it."""


@dataclass(frozen=True)
class Texts:
    """The texts of a file by their ids."""

    path: str
    by_id: Mapping[str, str]
    """Blank ones included."""

    def of(self, name: JsonValue, *, place: str) -> str:
        """The text with an id; `place`: where the id is given, for messages."""
        found = self.by_id.get(str(name))
        if found is None:
            raise UsageError(
                f"{place}: {name!r} is no _id in {self.path}; remove the row, or complete the file"
            )
        return found


@dataclass(frozen=True)
class CollectionTexts:
    """A collection's passages and queries."""

    passages: Texts
    queries: Texts | None
    """None: rows contain the queries themselves."""

    def joined(self, table: TaskTable) -> TaskTable:
        """The relevant rows of `table`, with texts in place of ids.

        A relevant passage without any text cannot be found; its row is left out, with a remark.
        """
        # Rows of irrelevant passages are checked like all others, and only then left out.
        grades = _grades(table)
        columns: dict[str, list[JsonValue]] = {"query": [], "passage": []}
        kept, textless = [], 0
        for row, grade in enumerate(grades):
            place = table.place(row)
            query, passage = (table.columns[name][row] for name in ("query", "passage"))
            text = self.passages.of(passage, place=place)
            asked = self.queries.of(query, place=place) if self.queries else query
            if is_missing(asked):
                raise UsageError(f"{place}: query {query!r} is blank; fill it in, or remove it")
            if grade <= 0:
                continue
            if is_missing(text):
                textless += 1
                continue
            kept.append(row)
            columns["query"].append(asked)
            columns["passage"].append(text)
        if not kept:
            raise UsageError(
                f"{table.path}: no grade above 0, expected relevant passages that have texts"
            )
        if table.has("negatives"):
            columns["negatives"] = [
                self._texts_of(table.columns["negatives"][row], place=table.place(row))
                for row in kept
            ]
        if table.has(GRADE):
            columns[GRADE] = [grades[row] for row in kept]
        about = f"{table.path}: {textless:,} relevant passages have no text and are left out"
        found = table.take(kept).remarked(*table.remarks, *([about] if textless else []))
        return replace(found, columns={**found.columns, **columns})

    def whole(self, table: TaskTable) -> TaskTable:
        """The rows of `joined` with all other passages, dealt out among them as negatives."""
        texts = (text for text in self.passages.by_id.values() if not is_missing(text))
        # By text rather than id: of passages that are equal, one is enough, and a relevant one must
        # not also be a negative.
        others = dict.fromkeys(map(well_formed, texts))
        for passage in table.texts("passage"):
            others.pop(passage, None)
        dealt = list(others)
        given = table.columns.get("negatives", [[] for _ in range(len(table))])
        negatives: list[JsonValue] = [
            # Which row holds a passage does not matter: a collection is ranked as a whole, so each
            # must be there once.
            [*(own if isinstance(own, list) else []), *dealt[row :: len(table)]]
            for row, own in enumerate(given)
        ]
        return replace(table, columns={**table.columns, "negatives": negatives}, whole=None)

    def _texts_of(self, names: JsonValue, *, place: str) -> list[JsonValue]:
        if not isinstance(names, list):
            raise UsageError(f"{place}: negatives are {names!r}, expected a list of ids")
        return [self.passages.of(name, place=place) for name in names]


def read_collection(config: CollectionConfig) -> CollectionTexts | None:
    """The texts that `config` names; None if rows contain their texts."""
    if not config.passages:
        return None
    queries = _read(config.queries, optional=()) if config.queries else None
    return CollectionTexts(_read(config.passages, optional=("title",)), queries)


def _read(path: str, *, optional: Sequence[str]) -> Texts:
    """Texts by id, each with its title, if it has one, in front."""
    table = read_table(path, Wanted(required=("_id", "text"), optional=tuple(optional)))
    found: dict[str, str] = {}
    for row, (name, text) in enumerate(
        zip(table.columns["_id"], table.columns["text"], strict=True)
    ):
        if is_missing(name) or str(name) in found:
            raise UsageError(
                f"{table.place(row)}: _id is {name!r}, expected one that no other row has"
            )
        title = table.columns["title"][row] if table.has("title") else None
        # BEIR's convention: a passage is its title and its text.
        parts = [part for part in (title, text) if not is_missing(part)]
        if not all(isinstance(part, str) for part in parts):
            raise UsageError(f"{table.place(row)}: text is {text!r}, expected text")
        found[str(name)] = " ".join(str(part).strip() for part in parts)
    return Texts(path, found)


def _grades(table: TaskTable) -> list[float]:
    found = []
    for row, cell in enumerate(table.columns.get(GRADE, [1.0] * len(table))):
        try:
            found.append(float(str(cell)))
        except ValueError:
            found.append(math.nan)
        if not math.isfinite(found[-1]):
            raise UsageError(
                f"{table.place(row)}: {GRADE} is {cell!r}, expected a number, above 0 for a "
                "relevant passage"
            )
    return found
