"""Tasks with byte-level tokens: positions of words in running text, and of answers."""

import json
from pathlib import Path
from typing import Any

import numpy as np

from cloze.model.config import TaskConfig
from cloze.model.tasks.base import Problem
from cloze.model.tasks.problems import load_problem, load_tables
from cloze.model.tasks.span import Spans
from tests.byte_level import byte_level

WORDS = ["The", "list", "(", "of", "東京", "names", ")", "isn't", "naïve", "🤗"]


def problem(folder: Path, kind: str, rows: list[dict[str, Any]]) -> Problem:
    path = folder / "rows.jsonl"
    path.write_text("\n".join(map(json.dumps, rows)))
    task = TaskConfig.model_validate(
        {"name": "x", "kind": kind, "train": str(path), "dev": str(path), "max_seq_length": 64}
    )
    return load_problem(task, byte_level(folder), load_tables(task))


def test_every_word_is_tagged_at_the_first_token_it_has_in_running_text(tmp_path: Path) -> None:
    found = problem(tmp_path, "tagging", [{"words": WORDS, "tags": ["O"] * 9 + ["X"]}] * 2)
    text = " ".join(WORDS)
    encoding = byte_level(tmp_path).backend.encode(text)
    assert found.sequences["train"].input_ids.row(0).tolist() == encoding.ids
    starts = np.cumsum([0, *(len(word) + 1 for word in WORDS[:-1])])
    ends = np.array([end for _, end in encoding.offsets])
    ends[[0, -1]] = -1, len(text) + 1  # of the special tokens
    expected = [
        int(np.argmax(ends >= start)) for start in starts
    ]  # a space may be a token of its own
    assert found.positions("train", np.array([0])).tolist() == expected


def test_answers_come_back_without_the_space_before_their_first_token(tmp_path: Path) -> None:
    context = "The list of names, and naïve café 東京 🤗."
    answers = ("The", "names", "naïve café", "東京", "🤗", context)
    rows = [
        {
            "id": str(number),
            "question": "what?",
            "context": context,
            "answers": {"text": [text], "answer_start": [context.index(text)]},
        }
        for number, text in enumerate(answers)
    ]
    found = problem(tmp_path, "span", rows)
    assert isinstance(found, Spans)
    split = found._splits["train"]
    assert not found.notes
    spans = split.spans.tolist()
    assert [split.text(row, *span) for row, span in enumerate(spans)] == list(answers)
