"""Answers as spans of a text: SQuAD 1.1 and 2.0 (reference: run_squad.py).

In:  columns id, question, context, answers; is_impossible for 2.0.
Out: a `Problem` whose head gives every token a start and an end score, without dropout before it.

Long texts become overlapping chunks. A chunk without the answer is trained on [CLS], as the
reference does; so is a question that has none. The answer is cut out of the text by the tokenizer's
own offsets. Softmax is over a sequence's own tokens, not over padding, of which there is none.
"""

from collections.abc import Sequence
from typing import ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from model.config import TaskConfig
from model.tasks.base import Logits, Prediction, Problem, Texts
from model.tasks.features import Places
from model.tasks.metrics.squad_metrics import (
    best_null_threshold,
    f1_v2,
    kept_golds,
    score_v1,
    score_v2,
)
from model.tasks.segments import by_group
from model.tasks.span_features import SpanSplit


class Spans(Problem):
    """Where the answer stands."""

    required: ClassVar[tuple[str, ...]] = ("question", "context")
    optional: ClassVar[tuple[str, ...]] = ("id", "title", "answers", "is_impossible")
    default_metrics: ClassVar[tuple[str, ...]] = ("f1", "exact_match")
    reads: ClassVar = "tokens"
    head_dropout: ClassVar[bool] = False
    outputs = 2

    def __init__(self, texts: Texts) -> None:
        self.config = texts.config
        self._tables = texts.tables
        self._splits = {name: SpanSplit(texts, table) for name, table in texts.tables.items()}
        self.sequences = {name: split.sequences for name, split in self._splits.items()}
        self.impossible = texts.config.span.null_threshold is not None or any(
            any(split.impossible) for split in self._splits.values()
        )
        train = self._splits.get("train")
        self._trained = train.trainable() if train else np.empty(0, np.int64)
        self.notes = tuple(train.notes()) if train else ()

    def units(self, split: str) -> int:
        """Chunks that can be trained on."""
        return len(self._trained) if split == "train" else len(self.sequences[split])

    def unit_tokens(self, split: str) -> Places:
        """Tokens of each chunk."""
        return self.sequences[split].lengths[self.rows(split, np.arange(self.units(split)))]

    def rows(self, split: str, units: Places) -> Places:
        """A unit is a chunk, as in the reference."""
        return self._trained[units] if split == "train" else units

    def positions(self, split: str, rows: Places) -> Places:
        """Every token."""
        return np.arange(int(self.sequences[split].lengths[rows].sum()))

    def reads_of(self, split: str) -> Places:
        """Every token."""
        return self.sequences[split].lengths

    def examples(self, split: str) -> int:
        """Questions."""
        return len(self._tables[split])

    def labelled(self, split: str) -> bool:
        """Whether the file has answers."""
        return self._tables[split].has("answers")

    def answers(self, split: str) -> list[Prediction]:
        """Tuples of right answers; ("",) where there is none."""
        return [tuple(texts) or ("",) for texts in self._splits[split].gold]

    def shown(self, split: str, example: int) -> str:
        """The question."""
        return str(self._tables[split].columns["question"][example])

    def ids(self, split: str) -> list[str]:
        """Question ids."""
        table = self._tables[split]
        return table.texts("id") if table.has("id") else super().ids(split)

    def given(self, prediction: Prediction) -> Prediction:
        """The answer's text."""
        return prediction["text"]

    def targets(self, split: str, units: Places) -> NDArray[np.generic]:
        """[chunks, 3] int64: start, end, tokens of the sequence."""
        rows = self.rows(split, units)
        bounds = self._splits[split].targets[rows]
        return np.concatenate([bounds, self.sequences[split].lengths[rows, None]], axis=1)

    def loss(self, logits: Tensor, targets: Tensor) -> Tensor:
        """(cross-entropy of the start + of the end) / 2."""
        losses = [
            functional.cross_entropy(
                by_group(logits[:, side], targets[:, 2]), targets[:, side], reduction="sum"
            )
            for side in (0, 1)
        ]
        return torch.stack(losses).mean()

    def predictions(self, split: str, logits: Logits) -> list[Prediction]:
        """Text of the best span, and the margin of the null answer."""
        return self._splits[split].decode(logits)

    def settled(
        self, dev: Sequence[Prediction] | None, predictions: Sequence[Prediction]
    ) -> list[Prediction]:
        """SQuAD 2.0: "" where the null answer wins by more than the threshold found on dev."""
        if not self.impossible:
            return list(predictions)
        threshold = self._threshold(dev)
        return [
            {**guess, "text": "" if guess["margin"] > threshold else guess["best"]}
            for guess in predictions
        ]

    def learnt(self, dev: Sequence[Prediction] | None) -> TaskConfig:
        """The configuration with the null threshold that dev gave."""
        if not self.impossible:
            return self.config
        span = self.config.span.model_copy(update={"null_threshold": self._threshold(dev)})
        return self.config.model_copy(update={"span": span})

    def score(self, split: str, predictions: Sequence[Prediction]) -> dict[str, float]:
        """Exact match and F1 as the official script of the data's version has them."""
        golds = self._splits[split].gold
        guesses = [guess["text"] for guess in predictions]
        if self.impossible:
            return score_v2(golds, guesses).means()
        return score_v1([gold or [""] for gold in golds], guesses).means()

    def _threshold(self, dev: Sequence[Prediction] | None) -> float:
        fixed = self.config.span.null_threshold
        if fixed is not None or dev is None or not self.labelled("dev"):
            return fixed or 0.0
        golds = self._splits["dev"].gold
        scores = [
            max(f1_v2(guess["best"], text) for text in kept_golds(gold))
            for guess, gold in zip(dev, golds, strict=True)
        ]
        return best_null_threshold(
            scores,
            [guess["margin"] for guess in dev],
            [bool(gold) for gold in golds],
            [bool(guess["best"]) for guess in dev],
        )[1]
