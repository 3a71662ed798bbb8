"""BM25 over the passages of a collection: words in common, rare ones first.

In:  the passages' texts, and the language whose stemmer and stopwords apply.
Out: a folder of arrays, one row per passage in the order of the vectors; the score of every passage
     for a question.

The library bm25s computes the scores that terms give to passages once (Lucene's formula, k1 1.5,
b 0.75), so that a question only adds up a few columns; the arrays are memory-mapped. Terms are
those of `search_terms`: in scripts without spaces between words, pairs of adjacent characters,
which no stemmer changes.
"""

import json
from array import array
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from cloze.artifacts.errors import UsageError
from cloze.pipeline.text.scripts import search_terms

if TYPE_CHECKING:
    from bm25s import BM25

Scores = npt.NDArray[np.float32]

DATA, INDICES, INDPTR = (f"{name}.csc.index.npy" for name in ("data", "indices", "indptr"))
VOCABULARY, PARAMETERS = "vocab.index.json", "params.index.json"
FILES = (DATA, INDICES, INDPTR, VOCABULARY, PARAMETERS)
"""Under the names by which `bm25s.BM25.load` finds them, too."""

NO_LANGUAGE = "none"

STOPWORDS: Mapping[str, str] = {
    "danish": "DANISH",
    "dutch": "DUTCH",
    "english": "EN_PLUS",
    "french": "FRENCH",
    "german": "GERMAN",
    "italian": "ITALIAN",
    "norwegian": "NORWEGIAN",
    "portuguese": "PORTUGUESE",
    "russian": "RUSSIAN",
    "spanish": "SPANISH",
    "swedish": "SWEDISH",
    "turkish": "TURKISH",
}
"""The list of bm25s for each language of Snowball's stemmers that it has one for."""

# N passages, T occurrences of a term


Analyzer = Callable[[str], list[str]]
"""From a text to its terms."""


@cache
def analyzer(language: str) -> Analyzer:
    """From texts in `language` to stems without stopwords; `none` leaves words as they are."""
    import Stemmer
    from bm25s import stopwords

    if language == NO_LANGUAGE:
        return search_terms
    if language not in Stemmer.algorithms():
        known = ", ".join([*Stemmer.algorithms(), NO_LANGUAGE])
        raise UsageError(f"language {language!r}: no stemmer for it; expected one of {known}")
    stem = Stemmer.Stemmer(language).stemWords
    listed = getattr(stopwords, f"STOPWORDS_{STOPWORDS.get(language)}", ())
    # the lists have whole words, some with an apostrophe, at which terms end
    stopped = frozenset(term for word in listed for term in search_terms(word))

    def terms(text: str) -> list[str]:
        # Stopwords go before stemming, as their lists have whole words: a stem may be that of a
        # stopword and of a word that matters.
        found: list[str] = stem([term for term in search_terms(text) if term not in stopped])
        return found

    return terms


def write_lexical_index(folder: Path, texts: Iterable[str], *, language: str) -> int:
    """Write `FILES` into `folder`; return the number of passages."""
    index, _, passages = _built(texts, language=language)
    index.save(folder, show_progress=False)
    return passages


def _built(texts: Iterable[str], *, language: str) -> tuple["BM25", dict[str, int], int]:
    """The index in memory, the numbers of its terms, and that of the passages."""
    import bm25s

    terms, vocabulary = analyzer(language), dict[str, int]()
    # As numbers, four bytes for each term: texts of a large collection would not fit into memory.
    passages = [
        array("i", [vocabulary.setdefault(term, len(vocabulary)) for term in terms(text)])
        for text in texts
    ]
    vocabulary.setdefault("", len(vocabulary))  # the library's sign of a text without terms
    index = bm25s.BM25(backend="numpy")
    with np.errstate(invalid="ignore"):  # it divides by the mean length, 0 without any term
        index.index((passages, vocabulary), show_progress=False)
    return index, vocabulary, len(passages)


class LexicalIndex:
    """The index in a folder, its arrays memory-mapped."""

    def __init__(self, paths: Mapping[str, str], *, language: str) -> None:
        import bm25s

        self._terms = analyzer(language)
        data, indices, indptr = (
            np.lib.format.open_memmap(paths[name], mode="r") for name in (DATA, INDICES, INDPTR)
        )
        parameters = json.loads(Path(paths[PARAMETERS]).read_text("utf-8"))
        self.passages = int(parameters["num_docs"])
        self._index = bm25s.BM25(backend="numpy")
        self._index.nonoccurrence_array = None  # of other formulas than Lucene's
        self._index.scores = {
            "data": data,
            "indices": indices,
            "indptr": indptr,
            "num_docs": self.passages,
        }
        self._vocabulary: dict[str, int] = json.loads(Path(paths[VOCABULARY]).read_text("utf-8"))

    @classmethod
    def of(cls, texts: Iterable[str], *, language: str) -> "LexicalIndex":
        """The same in memory."""
        found = cls.__new__(cls)
        found._index, found._vocabulary, found.passages = _built(texts, language=language)
        found._terms = analyzer(language)
        return found

    def scores(self, question: str) -> Scores:
        """[N] the score of every passage, 0 without a common term."""
        terms = self._terms(question)
        # A term that no passage has can rank nothing, and has no number.
        known = [self._vocabulary[term] for term in terms if term in self._vocabulary]
        if not known:
            return np.zeros(self.passages, np.float32)
        scores: Scores = self._index.get_scores_from_ids(known)
        return scores
