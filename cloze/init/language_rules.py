"""Settings that depend on the language of a corpus, from a sample of its text.

In:  texts.
Out: lines for the tables of a configuration, each with its reason; none for English.
"""

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import tomli_w

from cloze.init.corpus_samples import language
from cloze.pipeline.text.abbreviations import NUMBERS, learn_abbreviations
from cloze.pipeline.text.scripts import (
    accented_share,
    count_words,
    unmarked_share,
    without_accents,
)
from cloze.pipeline.text.sentences import count_sentences

ACCENTS_MATTER = 0.01
"""Share of words with accents or vowel signs above which they are kept."""

MOSTLY = 0.5
"""Share of letters."""

SHOWN_ABBREVIATIONS = 60

PIECES = 1.5
"""Pieces per word with 8,192 of them: 1.4 in Russian, 1.6 in Arabic; an ideograph, half a word, is
about one."""

SENTENCES = 2.2
"""Mean sentences that an example holds at least. Of Arabic with 44 pieces in a sentence, examples
of 64 (1.5 sentences) leave 19 % of the tokens unused and have 67 % random second segments, those
of 96 leave 2 % and have 61 %."""

SHORT, STEP, LONG = 64, 32, 256
"""Shortest examples, by how much longer ones differ, and the longest. Sentences that are too long
even for these were probably not found."""


class LanguageRules(NamedTuple):
    """Lines for the tables of a configuration, each complete or empty."""

    corpus: str
    """For [corpus]."""
    tables: Mapping[str, str]
    """For the tables of the recipe, by name."""
    length: int
    """Tokens of an example that has room for two sentences, `SHORT` at least."""


def language_rules(texts: Sequence[str]) -> LanguageRules:
    """The settings that suit the language of `texts`."""
    together = " ".join(texts)
    corpus = vocabulary = examples = pretrain = ""
    # The splitter's own abbreviations are English.
    if language(together) != "English":
        abbreviations = learn_abbreviations(texts)[:SHOWN_ABBREVIATIONS]
        if abbreviations:
            ordinals = ", 0 for ordinal numbers" if NUMBERS in abbreviations else ""
            listed = ", ".join(_quoted(word) for word in abbreviations)
            corpus = f"abbreviations = [{listed}]  # learnt from a sample{ordinals}\n"
    share, example = accented_share(together)
    if share > ACCENTS_MATTER:
        vocabulary = (
            f"strip_accents = false  # would change {share:.0%} of the words, as {example} to "
            f"{without_accents(example)}\n"
        )
    if unmarked_share(together) > MOSTLY:
        examples = 'second_segment = "none"  # its script does not mark the ends of sentences\n'
        pretrain = "next_sentence_loss = false\n"
    tables = {"vocabulary": vocabulary, "examples": examples, "pretrain": pretrain}
    return LanguageRules(corpus, tables, SHORT if examples else example_length(texts))


def example_length(texts: Sequence[str]) -> int:
    """Tokens that a pair of sentences of `texts` takes, in steps of `STEP` from `SHORT`."""
    lines = [line for text in texts for line in text.splitlines() if line.strip()]
    pieces = PIECES * sum(map(count_words, lines)) / max(sum(count_sentences(lines)), 1)
    length = max(SHORT, STEP * math.ceil(SENTENCES * pieces / STEP))
    return length if length <= LONG else SHORT


def _quoted(word: str) -> str:
    # TOML's own quoting
    return tomli_w.dumps({"a": word}).removeprefix("a = ").strip()
