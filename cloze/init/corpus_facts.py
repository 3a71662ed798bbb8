"""What samples of a corpus say about it, for a person to read before anything is started.

In:  a `Look` at the corpus; perhaps a vocabulary.
Out: lines of text: documents, languages, odd files, word-pieces a word, time and cost.
"""

import os
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from artifacts.tokenizer import SPECIAL_TOKENS, WordPieceTokenizer, read_vocabulary
from cloze.init.corpus_samples import Look
from cloze.init.languages import language
from flows.config import RatesConfig, RunConfig
from flows.forecast.corpus import forecast_corpus

SHOWN_FILES = 5


def fact_lines(found: Look, run: RunConfig, *, vocabulary: Path | None) -> Iterator[str]:
    """One line a fact."""
    size = found.text_bytes / max(found.documents, 1)
    yield (
        f"{found.files:,} files, about {found.text_bytes / 1e6:,.1f} MB of text in about "
        f"{found.documents:,.0f} documents of {size:,.0f} bytes on average"
    )
    languages = Counter(language(text) for text in found.samples)
    yield "samples: " + ", ".join(f"{count} {name}" for name, count in languages.most_common())
    if found.odd:
        more = f" and {len(found.odd) - SHOWN_FILES:,} more" if len(found.odd) > SHOWN_FILES else ""
        yield f"odd files: {', '.join(found.odd[:SHOWN_FILES])}{more}"
    yield _word_pieces(found, vocabulary)
    yield _cost(found, run)


def _word_pieces(found: Look, vocabulary: Path | None) -> str:
    if vocabulary is None:
        return (
            "word-pieces a word: --vocabulary FILE tells, with the vocab.txt or tokenizer.json "
            "of any BERT, for example Google's"
        )
    tokenizer = _tokenizer(vocabulary)
    text = " ".join(found.samples)
    share = len(tokenizer.encode(text)) / max(len(text.split()), 1)
    case = "uncased" if tokenizer.lowercase else "cased"
    return f"word-pieces a word: {share:.2f} with {vocabulary.name} ({case})"


def _tokenizer(path: Path) -> WordPieceTokenizer:
    """The tokenizer in a file; words with capitals show that a vocab.txt is cased."""
    tokenizer = read_vocabulary(path, lowercase=True)
    words = (word for word in tokenizer.vocabulary if word not in SPECIAL_TOKENS)
    cased = any(word.isascii() and word != word.lower() for word in words)
    return replace(tokenizer, lowercase=tokenizer.lowercase and not cased)


def _cost(found: Look, run: RunConfig) -> str:
    forecast, rates, cores = (
        forecast_corpus(found.text_bytes, run.examples),
        RatesConfig(),
        _cores(),
    )
    vcpu_hours = forecast.core_seconds / 3600 / rates.core_share
    dollars = vcpu_hours * rates.core_hour + forecast.shuffle_bytes / 1e9 * rates.shuffle_gigabyte
    return (
        f"preparing it takes about {forecast.core_seconds / cores / 60:,.1f} minutes on this "
        f"machine's {cores} cores and {forecast.examples_bytes / 1e9:,.2f} GB of disk, "
        f"or ${dollars:,.2f} on Dataflow; `cloze plan` says more"
    )


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
