"""What a saved model needs to say what it does not know.

In:  nonconformity scores of held-out rows, vectors of training rows; new rows' probabilities and
     vectors.
Out: the file `confidence.safetensors` beside the model; for each new row, its label set or interval
     of the wanted confidence, and whether the text is unlike the training rows.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from pydantic import JsonValue
from safetensors import SafetensorError
from safetensors.numpy import load, save

from cloze.artifacts.errors import UsageError
from cloze.model.uncertainty.conformal import label_sets, label_states, limits
from cloze.model.uncertainty.familiarity import UNFAMILIAR, Vectors, p_values
from cloze.model.uncertainty.held_out import Floats

CONFIDENCE = "confidence.safetensors"

Fields = dict[str, JsonValue]


@dataclass(frozen=True)
class Confidence:
    """Scores of held-out rows, and vectors of training rows."""

    scores: Sequence[Sequence[float]]
    """[1 or L, N]."""

    vectors: Vectors
    """[K, H]."""

    @classmethod
    def from_bytes(
        cls, content: bytes, *, place: str, limits: int, width: int | None
    ) -> "Confidence":
        """From the content of its file at `place`.

        limits: 1, or L for labels each with a limit of its own; width: H, None if nothing reads the
        vectors. Another shape, or what is no number, is a `UsageError`: it would give sets and
        p-values that mean nothing.
        """
        try:
            found = load(content)
            scores, vectors = found["scores"].astype(np.float64), found["vectors"]
        except (SafetensorError, KeyError, ValueError, TypeError) as error:
            raise UsageError(
                f"{place}: not the scores and vectors of a trained model ({error!r}); copy the "
                "model again, or train it again"
            ) from None
        fits = scores.ndim == vectors.ndim == 2 and len(scores) == limits
        fits = fits and width in (None, vectors.shape[1])
        if not (fits and np.isfinite(scores).all() and np.isfinite(vectors).all()):
            raise UsageError(
                f"{place}: scores {scores.shape} and vectors {vectors.shape}, expected numbers, "
                f"[{limits}, N] and [K, {width or 'H'}]; it is of another model, or damaged: "
                "copy the model again, or train it again"
            )
        return cls(scores.tolist(), vectors.astype(np.float32))

    def to_bytes(self) -> bytes:
        """The content of its file."""
        # Limits are compared with exactly; vectors only say how near, so half of their bits
        # suffice.
        scores = np.array(self.scores, np.float64)
        return save({"scores": scores, "vectors": self.vectors.astype(np.float16)})

    def sets(
        self, labels: Sequence[str], probabilities: Floats, *, exclusive: bool, confidence: float
    ) -> list[Fields]:
        """`labels` that a row may have, and whether the model is `unsure`: not exactly one.

        If a row may have several: the `labels` that it has, and those of which it is `unsure`.
        """
        limit = limits(self.scores, confidence)
        if exclusive:
            return [
                {"labels": _named(labels, row), "unsure": int(row.sum()) != 1}
                for row in label_sets(probabilities, limit)
            ]
        # Both states possible, or neither: nothing is known of the label.
        present, absent = label_states(probabilities, limit)
        return [
            {"labels": _named(labels, may & ~lack), "unsure": _named(labels, may == lack)}
            for may, lack in zip(present, absent, strict=True)
        ]

    def intervals(self, numbers: Floats, *, confidence: float) -> list[Fields]:
        """The `interval` of each number; None if there are too few held-out rows for any."""
        # The scores are absolute errors, so the limit is how far to each side the answer may be
        # off.
        (margin,) = limits(self.scores, confidence).tolist()
        if math.isinf(margin):
            return [{"interval": None} for _ in numbers]
        return [{"interval": [number - margin, number + margin]} for number in numbers.tolist()]

    def familiar(self, vectors: Vectors) -> list[Fields]:
        """`familiarity`, a p-value, and whether the text is `unfamiliar`."""
        return [
            {"familiarity": round(value, 4), "unfamiliar": value < UNFAMILIAR}
            for value in p_values(self.vectors, vectors).tolist()
        ]


def _named(labels: Sequence[str], chosen: NDArray[np.bool_]) -> list[JsonValue]:
    return [label for label, is_chosen in zip(labels, chosen, strict=True) if is_chosen]
