"""Column files as the CoNLL shared tasks wrote them.

In:  text with one word a line, columns separated by blanks, and an empty line after each sentence.
Out: one row a sentence: words, tags, and the number of its document (`-DOCSTART-` begins one).

The word is the first column and the tag the last, unless `columns` numbers them otherwise.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from artifacts.errors import UsageError

DOCUMENT_START = "-DOCSTART-"


def conll_rows(text: str, *, path: str, names: Mapping[str, str]) -> list[dict[str, Any]]:
    """Every sentence, in its order, under the file's own column names."""
    word_column, tag_column = int(names.get("words", "0")), int(names.get("tags", "-1"))
    rows, document = [], 0
    for first_line, sentence in _sentences(text):
        if sentence[0][0] == DOCUMENT_START:
            document += 1
            continue
        widths = {len(fields) for fields in sentence}
        if len(widths) > 1 or min(widths) < 2:
            raise UsageError(
                f"{path}:{first_line}: lines of {sorted(widths)} columns in one sentence, "
                "expected a word and its tags on every line"
            )
        rows.append(
            {
                names.get("words", "words"): [fields[word_column] for fields in sentence],
                names.get("tags", "tags"): [fields[tag_column] for fields in sentence],
                "document": document,
            }
        )
    return rows


def _sentences(text: str) -> Iterator[tuple[int, list[list[str]]]]:
    """Line number of the first word, and the fields of every word."""
    sentence: list[list[str]] = []
    for number, line in enumerate(text.split("\n"), start=1):
        fields = line.split()
        if fields:
            sentence.append(fields)
        elif sentence:
            yield number - len(sentence), sentence
            sentence = []
    if sentence:
        yield number - len(sentence) + 1, sentence
