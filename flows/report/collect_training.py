"""How pre-training went, from the artifact `pretrain`, or the finished encoder in its place.

In:  its manifest, `curve.jsonl` (losses by step) and `metrics.jsonl` (rates by step).
Out: `Encoder` and `Pretraining`. The names inside these files are known here alone.

A long run has more points than a screen has pixels: losses are averaged over some `POINTS`
stretches of equal length; held-out evaluations are all kept.
"""

import json
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypedDict, TypeVar, cast

from artifacts.store import Artifact
from artifacts.summary import Encoder, HeldoutPoint, Pretraining, TrainingPoint
from flows.external_inputs import read_model_config
from model.config import MODERN_PRESETS, PRESETS, SIZE_NAMES

POINTS = 160
HELDOUT = "heldout"
CURVE = "curve.jsonl"
METRICS = "metrics.jsonl"


class CurveRow(TypedDict, total=False):
    """A line of `curve.jsonl`: training losses, or an evaluation on held-out examples."""

    step: int
    masked_lm_loss: float
    next_sentence_loss: float
    heldout: dict[str, float]


class MetricsRow(TypedDict):
    """A line of `metrics.jsonl`: means over the steps since the previous one."""

    step: int
    step_seconds: float
    tokens_per_s: float
    learning_rate: float


RowT = TypeVar("RowT", CurveRow, MetricsRow)


@dataclass(frozen=True)
class Clock:
    """The logged windows, summed up from the start of training."""

    rows: Sequence[MetricsRow]
    seconds: Sequence[float]
    """Of training up to each row's step."""
    tokens: Sequence[float]
    """Seen up to each row's step."""

    def at(self, step: int) -> dict[str, float]:
        """What is known of `step`, for a `TrainingPoint`; nothing if nothing was logged."""
        if not self.rows:
            return {}
        steps = [row["step"] for row in self.rows]
        place = min(bisect_left(steps, step), len(steps) - 1)
        first = steps[place - 1] if place else 0
        share = min(max((step - first) / (steps[place] - first), 0.0), 1.0)

        def between(sums: Sequence[float]) -> float:
            before = sums[place - 1] if place else 0.0
            return before + share * (sums[place] - before)

        return {
            "seconds": between(self.seconds),
            "tokens": round(between(self.tokens)),
            "learning_rate": self.rows[place]["learning_rate"],
            "tokens_per_second": self.rows[place]["tokens_per_s"],
        }


def read_clock(rows: Sequence[MetricsRow]) -> Clock:
    """Seconds and tokens summed over the logged windows, each a mean over its steps."""
    step, seconds, tokens = 0, [0.0], [0.0]
    for row in rows:
        window = (row["step"] - step) * row["step_seconds"]
        seconds.append(seconds[-1] + window)
        tokens.append(tokens[-1] + window * row["tokens_per_s"])
        step = row["step"]
    return Clock(rows, seconds[1:], tokens[1:])


def collect_encoder(pretrain: Artifact) -> Encoder:
    """The shape of the encoder that was trained."""
    facts, config = pretrain.manifest.statistics, pretrain.manifest.config
    return _encoder(
        config["encoder"],
        vocabulary_size=facts["vocabulary_size"],
        parameters=facts.get("parameters"),
        precision=config["pretrain"]["precision"],
    )


def collect_finished_encoder(directory: str, *, parameters: int | None) -> Encoder:
    """The shape of an encoder that came finished."""
    config = json.loads(read_model_config(directory))
    return _encoder(config, vocabulary_size=config["vocab_size"], parameters=parameters)


def collect_pretraining(pretrain: Artifact) -> Pretraining:
    """The recipe and the curve."""
    recipe, execution = pretrain.manifest.config["pretrain"], pretrain.manifest.execution
    clock = read_clock(_json_lines(pretrain, METRICS, MetricsRow))
    phases = tuple((phase["max_seq_length"], phase["share"]) for phase in recipe["phases"])
    points = _points(
        _json_lines(pretrain, CURVE, CurveRow), with_next_sentence=recipe["next_sentence_loss"]
    )
    curve = tuple(
        point.model_copy(
            update={
                **clock.at(point.step),
                "max_seq_length": length_at(point.step, phases=phases, steps=recipe["steps"]),
            }
        )
        for point in points
    )
    return Pretraining(
        steps=recipe["steps"],
        batch_size=recipe["batch_size"],
        tokens=round(clock.tokens[-1]) if clock.tokens else None,
        seconds=clock.seconds[-1] if clock.seconds else None,
        device=execution.get("device", ""),
        ranks=execution.get("ranks"),
        phases=phases,
        curve=curve,
        objective=recipe.get("objective", "masked_lm"),
    )


def length_at(step: int, *, phases: Sequence[tuple[int, float]], steps: int) -> int:
    """The sequence length of step `step` (from 1)."""
    reached = 0.0
    for length, share in phases:
        reached += share
        if step <= round(reached * steps):
            return length
    return phases[-1][0]


def _points(rows: Sequence[CurveRow], *, with_next_sentence: bool) -> list[TrainingPoint]:
    """Mean losses of stretches, and every held-out evaluation, in the order of steps.

    An encoder that is not trained to tell next sentences has no figures about them.
    """
    losses = [row for row in rows if "heldout" not in row]
    size = -(-len(losses) // POINTS) or 1
    points: dict[int, TrainingPoint] = {}
    for start in range(0, len(losses), size):
        stretch = losses[start : start + size]
        mlm = sum(row["masked_lm_loss"] for row in stretch) / len(stretch)
        nsp = sum(row["next_sentence_loss"] for row in stretch) / len(stretch)
        step = stretch[-1]["step"]
        points[step] = TrainingPoint(
            step=step, train_mlm_loss=mlm, train_nsp_loss=nsp if with_next_sentence else None
        )
    for row in rows:
        if "heldout" in row:
            found = row["heldout"]
            nsp_accuracy = found["next_sentence_accuracy"] if with_next_sentence else None
            evaluated = HeldoutPoint(
                mlm_loss=found["masked_lm_loss"],
                mlm_accuracy=found["masked_lm_accuracy"],
                nsp_accuracy=nsp_accuracy,
            )
            point = points.get(row["step"], TrainingPoint(step=row["step"]))
            points[row["step"]] = point.model_copy(update={"heldout": {HELDOUT: evaluated}})
    return [points[step] for step in sorted(points)]


def _encoder(
    config: Mapping[str, int], *, vocabulary_size: int, parameters: int | None, precision: str = ""
) -> Encoder:
    """Sizes as our configuration and Hugging Face's both call them, and the preset they match."""
    sizes = tuple(config[name] for name in SIZE_NAMES)
    published = PRESETS
    if "family" in config or "local_attention" in config:  # written of the modern family alone
        published = {f"ModernBERT-{name}": known for name, known in MODERN_PRESETS.items()}
    return Encoder(
        layers=config["num_hidden_layers"],
        hidden_size=config["hidden_size"],
        heads=config["num_attention_heads"],
        vocabulary_size=vocabulary_size,
        parameters=parameters,
        preset=next((name for name, known in published.items() if known == sizes), ""),
        precision=precision,
    )


def _json_lines(artifact: Artifact, name: str, row: type[RowT]) -> list[RowT]:
    """The lines of a content file or record as `row`s; none if there is no such file."""
    entries = (*artifact.manifest.files, *artifact.manifest.records)
    if name not in {entry.name for entry in entries}:
        return []
    return [cast(RowT, json.loads(line)) for line in artifact.read_bytes(name).splitlines()]
