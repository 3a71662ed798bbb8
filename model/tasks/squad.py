"""SQuAD's JSON, versions 1.1 and 2.0.

In:  the text of a file with `data` → `paragraphs` → `qas`.
Out: one row a question: id, title, question, context, answers (text, answer_start), is_impossible.
"""

import json
from collections.abc import Iterator
from typing import Any

from artifacts.errors import UsageError


def squad_rows(text: str, *, path: str) -> list[dict[str, Any]]:
    """Every question of a SQuAD file, in its order."""
    try:
        data = json.loads(text)["data"]
        return list(_rows(data))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise UsageError(
            f"{path}: not SQuAD JSON ({type(error).__name__}: {error}); expected data → "
            "paragraphs → qas; one JSON object a line belongs in a .jsonl"
        ) from None


def _rows(data: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    for article in data:
        for paragraph in article["paragraphs"]:
            for question in paragraph["qas"]:
                answers = question.get("answers", [])
                yield {
                    "id": str(question["id"]),
                    "title": article.get("title", ""),
                    "question": question["question"],
                    "context": paragraph["context"],
                    "answers": {
                        "text": [answer["text"] for answer in answers],
                        "answer_start": [answer["answer_start"] for answer in answers],
                    },
                    "is_impossible": bool(question.get("is_impossible", False)),
                }
