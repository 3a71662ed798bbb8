"""The ways to score documents, as all workers of the stage `scores` share them.

In:  `[quality]`; the file in which the launcher has left what it made of labelled or good text.
Out: a `Scorer`.
"""

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Protocol

import numpy as np
import pyarrow as pa

from cloze.artifacts import filesystem
from cloze.artifacts.arrays import Int64s
from cloze.pipeline.config.settings import QualityConfig
from cloze.pipeline.quality.features import Floats
from cloze.pipeline.quality.linear import LinearModel
from cloze.pipeline.quality.ngrams import NgramRatio
from cloze.pipeline.readers.documents import DocumentBlock

FINE_TUNED = "cloze.model.inference.quality:open_scorer"
"""Opens a fine-tuned model, by the name of its function: it alone needs torch."""

LEAST_KNOWN = {"labelled": 0.4, "good": 0.4, "model": 0.6}
"""The share of a source's words below which a scorer was made for other text. Of the language that
it was made for it knows most words; of another one names, numbers and what the two share."""


class Scorer(Protocol):
    """Scores documents, each by itself: a score does not depend on the rest of the block."""

    def score(self, block: DocumentBlock) -> tuple[Floats, Int64s, Int64s]:
        """The score of each document; its words, and how many of these it knows."""


@dataclass(frozen=True)
class _FineTuned:
    score_text: Callable[[str], tuple[float, int, int]]

    def score(self, block: DocumentBlock) -> tuple[Floats, Int64s, Int64s]:
        """The score of each document; its first words, and how many of these it knows."""
        found = [self.score_text(text.decode()) for _, text in block.documents()]
        scores, words, known = zip(*found, strict=True)
        return np.array(scores), np.array(words), np.array(known)


def way_of(config: QualityConfig) -> str:
    """Which of the ways is configured: `labelled`, `good` or `model`."""
    return "labelled" if config.labelled else "good" if config.good else "model"


@lru_cache(maxsize=1)
def open_scorer(config: QualityConfig, path: str) -> Scorer:
    """The scorer; `path` is the file of one that was made here."""
    way = way_of(config)
    if way == "model":
        # Imported by name, and only here: no other way needs torch, which takes seconds to import
        # in every worker.
        module, _, name = FINE_TUNED.partition(":")
        opener = getattr(importlib.import_module(module), name)
        return _FineTuned(opener(config.model, config.task, config.label))
    table = pa.ipc.open_file(filesystem.read_bytes(path)).read_all()
    return LinearModel.of_table(table) if way == "labelled" else NgramRatio.of_table(table)
