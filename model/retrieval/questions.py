"""Questions whose right answers are known, and which passages of a collection they are.

In:  a table (CSV, JSON lines, SQuAD's JSON, …) with a column `question` and at least one of `file`,
     `passage` and `answer`; or a folder in BEIR's layout: corpus.jsonl, queries.jsonl, qrels/*.tsv.
     And the passages of the collection, in order.
Out: `Gold`: what is ranked for each question (passages, or documents), and what of it is relevant,
     with grades.

A passage is right if all that a row says agrees: it is in the file; it contains the answer, as a
run of words; it has half of its runs of five words in common with the given passage, or the other
way round, wherever either was cut. For a question whose rows name files alone, whole files are
ranked, each by its best passage; documents of BEIR's corpus likewise.
"""

import json
import math
import os
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import numpy.typing as npt
from pydantic import JsonValue

from cloze.artifacts import filesystem
from cloze.artifacts.errors import UsageError
from cloze.model.retrieval.passage_index import Passage
from cloze.model.tasks.files.table_files import read_table
from cloze.model.tasks.files.task_table import TaskTable, Wanted, is_missing
from cloze.pipeline.text.scripts import comparable, words

CORPUS, QUERIES, QRELS = "corpus.jsonl", "queries.jsonl", "qrels"

LARGEST = 256 << 20
"""Bytes of a file of questions, which is read as a whole."""

RUN = 5
"""Words of the runs by which passages are recognised."""
IN_COMMON = 0.5
"""Share of the runs of the shorter of two passages, from which they count as the same."""

SHOWN = 3
"""Rows that an error names."""


@dataclass(frozen=True)
class Right:
    """One thing that is right for a question."""

    place: str
    """Where it says so, for messages."""
    file: str = ""
    line: int | None = None
    """Record of a BEIR corpus."""
    passage: tuple[str, ...] = ()
    """Words."""
    answers: tuple[tuple[str, ...], ...] = ()
    """Words of each answer, any of which is right."""
    grade: float = 1.0


@dataclass
class Question:
    """A question, and what is right for it."""

    text: str
    right: list[Right] = field(default_factory=list)


@dataclass(frozen=True)
class Gold:
    """What is ranked for each question, and what of it is right."""

    questions: tuple[str, ...]
    whole: tuple[bool, ...]
    """By question: whether whole documents are ranked, else passages."""
    firsts_D: npt.NDArray[np.int64]
    """The first passage of each document: a file, or a record of BEIR's corpus."""
    firsts_P: npt.NDArray[np.int64]
    """The same for passages: their own numbers."""
    relevant: tuple[dict[int, float], ...]
    """By question: grades of what is right, by number of the document or passage; -1, -2, … are
    right and not indexed."""
    remarks: tuple[str, ...] = ()

    def firsts(self, question: int) -> npt.NDArray[np.int64]:
        """The first passage of each unit that is ranked for a question; its others follow."""
        return self.firsts_D if self.whole[question] else self.firsts_P

    @property
    def unit(self) -> str:
        """What is ranked, in words."""
        kinds = {True: "whole documents", False: "passages"}
        return " or ".join(kinds[one] for one in sorted(set(self.whole)))


def is_beir(path: str) -> bool:
    """Whether `path` is a folder in BEIR's layout."""
    return (Path(path) / CORPUS).is_file() and (Path(path) / QUERIES).is_file()


def read_questions(path: str) -> list[Question]:
    """The questions of a table or of a folder in BEIR's layout, with at least one right answer."""
    if Path(path).is_dir():
        if not is_beir(path):
            raise UsageError(
                f"{path}: a folder without {CORPUS} and {QUERIES}; expected questions as CSV or "
                "JSON lines, or a folder in BEIR's layout"
            )
        return _read_beir(Path(path))
    if (size := filesystem.size_of(path) or 0) > LARGEST:
        raise UsageError(
            f"{path}: {size:,} bytes, expected at most {LARGEST:,}; evaluate on a sample of the "
            "questions: a few hundred suffice"
        )
    optional = ("id", "file", "passage", "context", "answer")
    remedy = "rename the column of the questions"
    table = read_table(path, Wanted(required=("question",), optional=optional, remedy=remedy))
    # A question may have several rows, one for each right passage; they are one question.
    found: dict[str, Question] = {}
    ids: dict[JsonValue, str] = {}
    for row, text in enumerate(table.texts("question")):
        place, cells = table.place(row), {name: _cell(table, name, row) for name in optional}
        if not text.strip():
            raise UsageError(f"{place}: an empty question; fill it in, or remove the row")
        # Equal ids with other questions: a join gone wrong, which would mix up what is right.
        if cells["id"] is not None and ids.setdefault(str(cells["id"]), text) != text:
            raise UsageError(
                f"{place}: id {cells['id']!r} belongs to another question above, "
                f"{ids[str(cells['id'])]!r}; ids must be distinct"
            )
        # By text: a file of SQuAD's kind repeats the question for each of its answers.
        found.setdefault(text, Question(text)).right.append(_right(place, cells))
    return list(found.values())


def _cell(table: TaskTable, name: str, row: int) -> JsonValue:
    value = table.columns[name][row] if table.has(name) else None
    return None if is_missing(value) else value


def _right(place: str, cells: dict[str, JsonValue]) -> Right:
    given = cells["answer"]
    answers = given if isinstance(given, list) else [] if given is None else [given]
    # `context` is what SQuAD calls it.
    passage = cells["passage"] if cells["passage"] is not None else cells["context"]
    right = Right(
        place,
        file=str(cells["file"] or ""),
        passage=_words(str(passage or "")),
        answers=tuple(filter(None, (_words(str(one)) for one in answers))),
    )
    if not (right.file or right.passage or right.answers):
        raise UsageError(
            f"{place}: says nothing about what is right; expected a file, passage or answer, in a "
            "column of this name"
        )
    return right


def _words(text: str) -> tuple[str, ...]:
    return tuple(words(comparable(text).casefold()))


def _json_lines(path: Path) -> Iterator[tuple[int, str, str]]:
    """Line, `_id` and `text` of every object."""
    seen: dict[str, int] = {}
    with path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            if not line.strip():
                continue
            try:
                row = json.loads(line)
                name, text = str(row["_id"]), row["text"]
                if not isinstance(text, str):  # null is not the text "None"
                    raise TypeError
            except (ValueError, KeyError, TypeError, RecursionError):
                raise UsageError(
                    f"{path}:{number}: expected a JSON object with `_id` and `text`"
                ) from None
            if name in seen:
                raise UsageError(
                    f"{path}:{number}: _id {name!r} is already that of line {seen[name]}; ids must "
                    "be distinct"
                )
            seen[name] = number
            yield number, name, text


def _read_beir(folder: Path) -> list[Question]:
    files = sorted((folder / QRELS).glob("*.tsv"))
    # BEIR's folders have train, dev and test; a folder of one's own may have a single file.
    test = folder / QRELS / "test.tsv"
    if test not in files and len(files) != 1:
        raise UsageError(
            f"{folder / QRELS}: {len(files)} .tsv files; expected test.tsv, or one with grades"
        )
    # A search knows a record of the corpus by its file and line, not by BEIR's `_id`.
    lines = {name: number for number, name, _ in _json_lines(folder / CORPUS)}
    questions = {name: Question(text) for _, name, text in _json_lines(folder / QUERIES)}
    corpus = str((folder / CORPUS).resolve())
    for place, query, document, grade in _grades(test if test in files else files[0]):
        for name, known, file in ((query, questions, QUERIES), (document, lines, CORPUS)):
            if name not in known:
                raise UsageError(
                    f"{place}: {name!r} is not in {file}; remove the line, or complete {file}"
                )
        if grade > 0:
            questions[query].right.append(
                Right(place, file=corpus, line=lines[document], grade=grade)
            )
    for name, question in questions.items():
        if not question.text.strip():
            raise UsageError(f"{folder / QUERIES}: query {name!r} is empty; fill it in")
    graded = [question for question in questions.values() if question.right]
    if not graded:
        raise UsageError(f"{folder / QRELS}: no grade above 0; expected relevant documents")
    return graded


def _grades(path: Path) -> Iterator[tuple[str, str, str, float]]:
    """Place, query, document and grade of every line; the header is optional."""
    seen = set[tuple[str, str]]()
    with path.open(encoding="utf-8-sig") as file:
        for number, line in enumerate(file, start=1):
            cells = line.rstrip("\r\n").split("\t")
            # BEIR's columns are query, document, grade; TREC's have an unused one between the first
            # two. Counting the last two from the end reads both.
            if not line.strip() or (number == 1 and cells[-1].strip() == "score"):
                continue
            place = f"{path}:{number}"
            try:
                query, document, grade = cells[0], cells[-2], float(cells[-1])
                if not math.isfinite(grade):
                    raise ValueError
            except (IndexError, ValueError):
                raise UsageError(
                    f"{place}: {line.rstrip()!r}, expected query, document and grade, separated by "
                    "tabs"
                ) from None
            if (query, document) in seen:
                raise UsageError(
                    f"{place}: query {query!r} and document {document!r} have a grade above already"
                )
            seen.add((query, document))
            yield place, query, document, grade


def find_gold(questions: Sequence[Question], passages: Iterable[Passage]) -> Gold:
    """Which passages are right; an error names the rows for which there are none."""
    # One pass over the passages, which may be millions: for each, the matcher names the rows it is
    # right for. `rows` is parallel to `every`.
    every = [right for question in questions for right in question.right]
    by_line = any(right.line is not None for right in every)
    matcher = _Matcher(every)
    files = set[str]()
    firsts: list[int] = []
    rows: list[set[int]] = [set() for _ in every]
    last: object = None
    count = 0
    for count, passage in enumerate(passages, start=1):
        # The passages of a document follow each other. A document is a file, or a line of BEIR's
        # corpus.
        key = (passage.file, passage.line if by_line else None)
        if key != last:
            firsts.append(count - 1)
            files.add(passage.file)
            last = key
        for number in matcher.right(passage):
            rows[number].add(count - 1)
    firsts_D = np.array(firsts, np.int64)
    missing = [right for right, found in zip(every, rows, strict=True) if not found]
    if by_line and len(missing) == len(every):
        raise UsageError(
            f"{missing[0].place}: none of the {len(every):,} relevant documents is in the folder; "
            "search the corpus.jsonl beside the questions"
        )
    remarks = _about_missing(missing, files, by_line=by_line)
    whole, relevant, of_right = [], [], iter(rows)
    for question in questions:
        # Who names only files asks for the right document, wherever in it the passage is.
        whole.append(not any(right.passage or right.answers for right in question.right))
        grades: dict[int, float] = {}
        for at, right in enumerate(question.right, start=1):
            units = np.array(sorted(next(of_right)), np.int64)
            if whole[-1]:
                # From passages to the documents that they belong to.
                units = np.unique(np.searchsorted(firsts_D, units, side="right") - 1)
            # What is not in the collection keeps a number that no unit has, so that it counts as
            # not found rather than not at all.
            for unit in units.tolist() or [-at]:
                grades[unit] = max(right.grade, grades.get(unit, 0.0))
        relevant.append(grades)
    return Gold(
        tuple(question.text for question in questions),
        tuple(whole),
        firsts_D,
        np.arange(count),
        tuple(relevant),
        remarks,
    )


def _about_missing(
    missing: Sequence[Right], files: Collection[str], *, by_line: bool
) -> tuple[str, ...]:
    """What to say of right answers that are not in the collection."""
    if not missing:
        return ()
    if by_line:  # the corpus has them: they have no text
        return (
            f"{len(missing)} relevant documents have no text and count as not found, such as that "
            f"of {missing[0].place}",
        )
    shown = ", ".join(
        right.place
        if not right.file or any(_is_file(path, right.file) for path in files)
        else f"{right.place} (there is no file {right.file})"
        for right in missing[:SHOWN]
    )
    more = f" and {len(missing) - SHOWN} more" if len(missing) > SHOWN else ""
    raise UsageError(
        f"{shown}{more}: no passage of the folder is what the row says is right; correct file, "
        "passage or answer, or remove the row"
    )


class _Matcher:
    """Finds what a passage is right for, without comparing it with every question."""

    def __init__(self, every: Sequence[Right]) -> None:
        self._every = every
        self._runs: dict[tuple[str, ...], set[int]] = defaultdict(set)
        """By runs of words of given passages: who gives them."""
        self._longest: dict[str, set[int]] = defaultdict(set)
        """By the longest word of an answer, hardly a frequent one."""
        self._files: dict[str, set[int]] = defaultdict(set)
        """By the last part of a path, who names a file alone."""
        for number, right in enumerate(every):
            for run in _runs(right.passage):
                self._runs[run].add(number)
            if not right.passage:
                for answer in right.answers:
                    self._longest[max(answer, key=len)].add(number)
                if not right.answers:
                    self._files[os.path.basename(right.file)].add(number)

    def right(self, passage: Passage) -> Iterator[int]:
        """The numbers of what the passage is right for."""
        for number in self._files.get(os.path.basename(passage.file), ()):
            if self._agrees(number, passage, ()):
                yield number
        if not (self._runs or self._longest):
            return
        # Only here, since splitting costs more than all look-ups by file.
        found = _words(passage.text)
        # An answer can only be in a passage that has its longest word: one look-up for each of the
        # passage's words, however many the answers.
        for number in {n for word in set(found) for n in self._longest.get(word, ())}:
            if self._agrees(number, passage, found):
                yield number
        runs = _runs(found)
        common: dict[int, int] = defaultdict(int)
        for run in runs:
            for number in self._runs.get(run, ()):
                common[number] += 1
        for number, count in common.items():
            # Passages are cut elsewhere than where the user copied from, so parts in common
            # suffice, measured by the shorter of both.
            shorter = min(len(runs), len(_runs(self._every[number].passage)))
            if count >= IN_COMMON * shorter and self._agrees(number, passage, found):
                yield number

    def _agrees(self, number: int, passage: Passage, found: tuple[str, ...]) -> bool:
        """Whether file, line and answers agree."""
        right = self._every[number]
        if right.file and not _is_file(passage.file, right.file):
            return False
        if right.line is not None and right.line != passage.line:
            return False
        if not right.answers:
            return True
        # With spaces around both, an answer matches whole words only.
        text = f" {' '.join(found)} "
        return any(f" {' '.join(answer)} " in text for answer in right.answers)


def _runs(found: tuple[str, ...]) -> set[tuple[str, ...]]:
    """Its distinct runs of words; all of them, if they are fewer."""
    if len(found) <= RUN:
        return {found} if found else set()
    return {found[start : start + RUN] for start in range(len(found) - RUN + 1)}


def _is_file(path: str, given: str) -> bool:
    """Whether `given` names the file, by its last parts or as a path from here."""
    parts = os.path.normpath(given).split(os.sep)
    return path.split("/")[-len(parts) :] == parts or path == os.path.abspath(given)
