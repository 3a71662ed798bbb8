"""Abbreviations of a corpus, learnt from a sample of its text.

In:  running text in any language that ends sentences with a full stop.
Out: its abbreviations without their last full stop, as in `corpus.abbreviations`; among them
     `NUMBERS` if numbers with a full stop are ordinals there (`am 3. Juni`).

The statistic is that of Kiss and Strunk 2006 (Unsupervised Multilingual Sentence Boundary
Detection, 3.1 to 3.3), as implemented by punkt: a word is an abbreviation if a full stop follows it
nearly always, the more likely the shorter it is and the more full stops it contains. Their second
stage, which looks at what follows, is reduced to one condition: a longer word must have gone on
with a small letter, a digit or punctuation at least once. Only words of scripts with two cases are
considered.
"""

import re
from collections import Counter
from collections.abc import Sequence
from math import exp, log

NUMBERS = "0"
"""Stands for all numbers of up to two digits."""

THRESHOLD = 0.3
"""Least score of an abbreviation (Kiss and Strunk; punkt's ABBREV)."""

FEWEST = 3
"""Least number of occurrences."""

FEWEST_ORDINALS, ORDINALS_RATE = 5, 3.0
"""Numbers after a word and before a full stop: their least number; and their share of such numbers
relative to the share of words, which a full stop follows only at the end of a sentence."""

MOST_AT_ENDS = 0.25
"""Above this share, numbers are ordinals however many words have a full stop."""

MOST = 500
"""Abbreviations to return, those with the best scores."""

_GOES_ON = frozenset(",;:)")
"""Besides small letters and digits, what follows a full stop inside a sentence."""

_TOKEN = re.compile(r"[^\W\d_](?:[\w\u0300-\u036f]|\.(?=\w))*")
_WORDS = re.compile(rf"({_TOKEN.pattern})(\.?)(?=([\"'»”)]*\s*)(\S?))")
_NUMBERS = re.compile(r"(?<=[^\W\d_] )\d{1,2}(?![\w,:/%-])(\. (?=[^\W\d_]))?")


def learn_abbreviations(texts: Sequence[str]) -> list[str]:
    """The abbreviations of a sample, the most certain first."""
    total, stopped, goes_on = Counter[str](), Counter[str](), Counter[str]()
    for text in texts:
        for token, stop, _, following in _WORDS.findall(text):
            word = token.lower()
            total[word] += 1
            if stop:
                stopped[word] += 1
                goes_on[word] += following.islower() or following.isdigit() or following in _GOES_ON
    share = sum(stopped.values()) / max(sum(total.values()), 1)
    scores = {}
    for word, count in stopped.items():
        # Without its inner full stops. A single letter needs no further evidence.
        length = len(word.replace(".", ""))
        certain = goes_on[word] or length == 1
        if count < FEWEST or not certain or word == word.upper():
            continue
        # Kiss and Strunk's score: log likelihood ratio, penalised for length and rewarded for inner
        # full stops; occurrences without a full stop weigh the more the longer the word is.
        scores[word] = (
            _score(count, total[word] - count, share)
            * exp(-length)
            * (word.count(".") + 1)
            / float(length) ** min(total[word] - count, 100)
        )
    found = [word for word, score in scores.items() if score >= THRESHOLD]
    found.sort(key=lambda word: (-scores[word], word))
    return found[:MOST] + [NUMBERS] * _has_ordinals(texts, share)


def _score(stopped: int, bare: int, share: float) -> float:
    """Twice the log likelihood ratio: nearly always with a full stop, or as often as all words."""
    # A share of 1 leaves no occurrence without a full stop, and no logarithm of 0.
    usual = stopped * log(share) + bare * log(1 - share) if share < 1 else 0.0
    abbreviated = stopped * log(0.99) + bare * log(0.01)
    return 2 * (abbreviated - usual)


def _has_ordinals(texts: Sequence[str], share: float) -> bool:
    """Whether full stops follow numbers far more often than words, of which `share` have one."""
    followed = [bool(stop) for text in texts for stop in _NUMBERS.findall(text)]
    least = min(ORDINALS_RATE * share, MOST_AT_ENDS)
    return sum(followed) >= max(FEWEST_ORDINALS, least * len(followed))
