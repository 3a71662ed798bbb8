"""Words of a corpus that a given WordPiece vocabulary lacks, chosen by what they save.

In:  the texts of documents, one by one; the tokenizer.
Out: `NewWords`: the words that save most pieces (pieces saved by an occurrence × occurrences) among
     those that occur in enough documents, and how many tokens the texts have before and after.

A word is what the tokenizer itself looks up: lower-cased and without accents where it does that,
without punctuation. Scripts that are written without spaces give their units
(pipeline/text/scripts.py) instead, as the beginning of a word and as a continuation of one.
"""

from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field

from pydantic import JsonValue

from cloze.artifacts.config import JsonObject
from cloze.artifacts.tokenizer import (
    CONTINUATION,
    MAX_CHARACTERS_PER_WORD,
    UNK,
    WordPieceTokenizer,
)
from cloze.pipeline.text.scripts import has_no_spaces, words
from cloze.pipeline.tokenizer.wordpiece import count_pre_tokens

FEWEST_DOCUMENTS = 3
"""Documents in which a word has to occur: a name of one file, however frequent, is no word of the
folder. Of fewer than six documents, half of them."""


@dataclass(frozen=True)
class NewWord:
    """A word that is added, and what it replaces."""

    word: str
    """As in the vocabulary: a continuation begins with `##`."""
    pieces: tuple[str, ...]
    """Tokens that stood for it before."""
    count: int
    """Occurrences as a word."""
    documents: int

    @property
    def saved(self) -> int:
        """Tokens that it saves."""
        return self.count * (len(self.pieces) - 1)


@dataclass(frozen=True)
class NewWords:
    """The chosen words, best first."""

    words: tuple[NewWord, ...]
    documents: int
    """Documents read."""
    fewest_documents: int
    """Documents in which a word had to occur."""
    tokens_before: int
    tokens_after: int
    """Tokens of all texts, with the vocabulary as it was, and with the words added."""

    def statistics(self, *, wanted: int) -> dict[str, JsonValue]:
        """Numbers for the manifest."""
        return {
            "words_wanted": wanted,
            "words_added": len(self.words),
            "documents": self.documents,
            "fewest_documents": self.fewest_documents,
            "tokens_before": self.tokens_before,
            "tokens_after": self.tokens_after,
        }

    def table(self) -> JsonObject:
        """The words as JSON."""
        return {"words": [{**asdict(one), "saved": one.saved} for one in self.words]}


@dataclass
class WordCounts:
    """Words of texts, as a tokenizer splits them."""

    tokenizer: WordPieceTokenizer
    counts: Counter[str] = field(default_factory=Counter)
    """Occurrences of each word."""
    in_documents: Counter[str] = field(default_factory=Counter)
    """Documents with each candidate."""
    documents: int = 0
    _known: dict[bytes, tuple[str, ...]] = field(default_factory=dict)

    def add(self, text: bytes) -> None:
        """Count the words of one document: cleaned UTF-8."""
        self.documents += 1
        present = set[str]()
        for pre_token, count in count_pre_tokens(text, lowercase=self.tokenizer.lowercase).items():
            for word in self._words(pre_token):
                self.counts[word] += count
                present.add(word)
        self.in_documents.update({part for word in present for part in candidates(word)})

    def _words(self, pre_token: bytes) -> tuple[str, ...]:
        """The tokenizer's words in a pre-token, whose ASCII letters are lower-cased already."""
        known = self._known.get(pre_token)
        if known is None:
            text = pre_token.decode("utf-8", "replace")
            if text.isascii():
                known = (text,)
            else:
                pipeline = self.tokenizer.backend
                normalised = pipeline.normalizer.normalize_str(text)
                found = pipeline.pre_tokenizer.pre_tokenize_str(normalised)
                known = tuple(word for word, _ in found)
            self._known[pre_token] = known
        return known


def candidates(word: str) -> tuple[str, ...]:
    """The entries of a vocabulary that a word could be made of: itself, or units of its script."""
    if not has_no_spaces(word):
        return (word,)
    parts = words(word)
    # Signs that are in no unit would have to be pieces, too.
    if "".join(parts) != word:
        return ()
    return (parts[0], *(CONTINUATION + part for part in parts[1:]))


def choose_words(found: WordCounts, *, wanted: int) -> NewWords:
    """Up to `wanted` words that save most; of equal ones the first in code-point order."""
    tokenizer = found.tokenizer
    fewest = max(1, min(FEWEST_DOCUMENTS, found.documents // 2))
    occurrences: Counter[str] = Counter()
    for word, count in found.counts.items():
        for part in candidates(word):
            occurrences[part] += count
    offered = []
    for part, count in occurrences.items():
        text = part.removeprefix(CONTINUATION)
        # Of numbers hardly any comes back in another text.
        is_word = len(text) <= MAX_CHARACTERS_PER_WORD and any(map(str.isalpha, text))
        if found.in_documents[part] < fewest or not is_word:
            continue
        pieces = tokenizer.pieces(part)
        # A word with an unknown character has no pieces of which it could be made.
        if len(pieces) > 1 and UNK not in pieces:
            offered.append(NewWord(part, tuple(pieces), count, found.in_documents[part]))
    chosen = sorted(offered, key=lambda one: (-one.saved, one.word))[:wanted]
    extended = tokenizer.with_words([one.word for one in chosen])
    return NewWords(
        words=tuple(chosen),
        documents=found.documents,
        fewest_documents=fewest,
        tokens_before=_tokens(found.counts, tokenizer),
        tokens_after=_tokens(found.counts, extended),
    )


def counted(texts: Iterable[bytes], tokenizer: WordPieceTokenizer) -> WordCounts:
    """The words of `texts`, each of which is a document."""
    found = WordCounts(tokenizer)
    for text in texts:
        found.add(text)
    return found


def _tokens(counts: Counter[str], tokenizer: WordPieceTokenizer) -> int:
    # Counted again rather than derived from the savings: a new word is also the longest match at
    # the beginning of others.
    return sum(count * len(tokenizer.pieces(word)) for word, count in counts.items())
