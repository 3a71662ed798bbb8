"""Settings that depend on the language of a corpus, from a sample of its text.

In:  texts.
Out: lines for the tables of a configuration, each with its reason; none for English.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import tomli_w

from cloze.init.corpus_samples import language
from cloze.pipeline.text.abbreviations import NUMBERS, learn_abbreviations
from cloze.pipeline.text.scripts import accented_share, unmarked_share, without_accents

ACCENTS_MATTER = 0.01
"""Share of words with accents or vowel signs above which they are kept."""

MOSTLY = 0.5
"""Share of letters."""

SHOWN_ABBREVIATIONS = 60


class LanguageRules(NamedTuple):
    """Lines for the tables of a configuration, each complete or empty."""

    corpus: str
    """For [corpus]."""
    tables: Mapping[str, str]
    """For the tables of the recipe, by name."""


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
    return LanguageRules(corpus, tables)


def _quoted(word: str) -> str:
    # TOML's own quoting
    return tomli_w.dumps({"a": word}).removeprefix("a = ").strip()
