"""The default corpus has enough text, and its held-out package does not leak into training."""

import re
from collections.abc import Iterator

import pytest

from cloze.artifacts.config import parse, read_toml
from cloze.demo.docstrings import documents
from cloze.flows.config import RunConfig
from tests.conftest import PROJECT

DEMO = PROJECT / "configs" / "demo.toml"
LONG = 8
"""Minimum length in words at which two equal sentences are no coincidence."""

_SENTENCE_END = re.compile(r"(?<=[.!?]) ")


def texts(*, heldout: bool) -> Iterator[str]:
    config = parse(RunConfig, read_toml(DEMO), source=DEMO)
    for source in config.corpus.sources:
        if bool(source.heldout) == heldout:
            for package in source.packages:
                yield from (text for _, _, text in documents(package))


def long_sentences(text: str) -> Iterator[str]:
    for line in text.lower().splitlines():
        for sentence in _SENTENCE_END.split(line):
            if sentence.count(" ") >= LONG - 1:
                yield sentence


@pytest.mark.slow
def test_the_default_corpus_is_large_and_does_not_hold_the_package_held_out() -> None:
    size, known = 0, set()
    for text in texts(heldout=False):
        size += len(text.encode())
        known.update(long_sentences(text))
    assert size >= 25_000_000
    unseen = [one for text in texts(heldout=True) for one in long_sentences(text)]
    leaked = sum(sentence in known for sentence in unseen) / len(unseen)
    print(f"{size / 1e6:.1f} MB; {leaked:.2%} of {len(unseen):,} held-out sentences are known")
    assert len(unseen) > 5_000
    assert leaked < 0.005
