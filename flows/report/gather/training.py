"""How pre-training went, from the artifact `pretrain`, or what was given in its place.

In:  its manifest, `curve.jsonl` (losses by step) and `metrics.jsonl` (rates by step).
Out: `Encoder` and `Pretraining`. The names inside these files are known here alone.

A long run has more points than a screen has pixels: losses are averaged over some `POINTS`
stretches of equal length; held-out evaluations are all kept.
"""

import json
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from artifacts.store import Artifact
from flows.external_inputs import read_model_config
from flows.report.form.training import CurvePoint, Encoder, HeldoutPoint, Pretraining
from flows.report.gather.facts import Facts
from model.config import PRESETS

SIZES = ("num_hidden_layers", "hidden_size", "num_attention_heads", "intermediate_size")
"""In the order of `PRESETS`."""

POINTS = 160
HELDOUT = "heldout"
CURVE = "curve.jsonl"
METRICS = "metrics.jsonl"


@dataclass(frozen=True)
class Clock:
    """What was logged, summed up from the beginning."""

    steps: Sequence[int]
    seconds: Sequence[float]
    """Spent in training steps up to each of `steps`."""
    tokens: Sequence[float]
    """Seen up to each of `steps`."""
    rows: Sequence[Facts]

    def at(self, step: int) -> dict[str, Any]:
        """Facts about `step` for a `CurvePoint`; nothing if nothing was logged."""
        if not self.steps:
            return {}
        place = min(bisect_left(self.steps, step), len(self.steps) - 1)
        before = place - 1
        start = self.steps[before] if place else 0
        share = min(max((step - start) / (self.steps[place] - start), 0.0), 1.0)
        row = self.rows[place]
        return {
            "seconds": _between(self.seconds, before, place, share),
            "tokens": round(_between(self.tokens, before, place, share)),
            "learning_rate": row["learning_rate"],
            "tokens_per_second": row["tokens_per_s"],
        }


def gather_encoder(pretrain: Artifact) -> Encoder:
    """The encoder's shape."""
    facts, config = pretrain.manifest.statistics, pretrain.manifest.config
    return Encoder(
        **_shape(config["encoder"]),
        vocabulary_size=facts["vocabulary_size"],
        parameters=facts.get("parameters"),
        precision=config["pretrain"]["precision"],
    )


def gather_given_encoder(directory: str, *, parameters: int | None) -> Encoder:
    """The shape of an encoder that came finished."""
    config = json.loads(read_model_config(directory))
    vocabulary_size = config["vocab_size"]
    return Encoder(**_shape(config), vocabulary_size=vocabulary_size, parameters=parameters)


def gather_pretraining(pretrain: Artifact) -> Pretraining:
    """The recipe and the curve."""
    recipe, execution = pretrain.manifest.config["pretrain"], pretrain.manifest.execution
    clock = read_clock(_json_lines(pretrain, METRICS))
    phases = tuple((phase["max_seq_length"], phase["share"]) for phase in recipe["phases"])
    points = _json_lines(pretrain, CURVE)
    curve = tuple(_curve(points, clock, phases=phases, steps=recipe["steps"]))
    if not recipe["next_sentence_loss"]:
        curve = tuple(_without_next_sentences(point) for point in curve)
    return Pretraining(
        steps=recipe["steps"],
        batch_size=recipe["batch_size"],
        tokens=round(clock.tokens[-1]) if clock.tokens else None,
        seconds=clock.seconds[-1] if clock.seconds else None,
        device=execution.get("device", ""),
        ranks=execution.get("ranks"),
        phases=phases,
        curve=curve,
    )


def read_clock(rows: Sequence[Facts]) -> Clock:
    """Seconds and tokens summed over the logged windows, each a mean over its steps."""
    steps: list[int] = []
    seconds: list[float] = []
    tokens: list[float] = []
    for row in rows:
        window = (row["step"] - (steps[-1] if steps else 0)) * row["step_seconds"]
        steps.append(row["step"])
        seconds.append((seconds[-1] if seconds else 0.0) + window)
        tokens.append((tokens[-1] if tokens else 0.0) + window * row["tokens_per_s"])
    return Clock(steps, seconds, tokens, rows)


def length_at(step: int, *, phases: Sequence[tuple[int, float]], steps: int) -> int:
    """The sequence length of step `step` (from 1)."""
    reached = 0.0
    for length, share in phases:
        reached += share
        if step <= round(reached * steps):
            return length
    return phases[-1][0]


def _shape(config: Facts) -> dict[str, Any]:
    """Sizes as our configuration and Hugging Face's both call them, and what they are known as."""
    sizes = tuple(config[name] for name in SIZES)
    return {
        "layers": config["num_hidden_layers"],
        "hidden_size": config["hidden_size"],
        "heads": config["num_attention_heads"],
        "preset": next((name for name, known in PRESETS.items() if known == sizes), ""),
    }


def _curve(
    points: Sequence[Facts],
    clock: Clock,
    *,
    phases: Sequence[tuple[int, float]],
    steps: int,
) -> Iterator[CurvePoint]:
    """Training losses in stretches, and every held-out evaluation, in the order of steps."""
    losses = [point for point in points if "heldout" not in point]
    looks = [point for point in points if "heldout" in point]
    facts: dict[int, dict[str, Any]] = {}
    for stretch in _stretches(losses):
        facts[stretch[-1]["step"]] = {
            "train_mlm_loss": _mean(stretch, "masked_lm_loss"),
            "train_nsp_loss": _mean(stretch, "next_sentence_loss"),
        }
    for look in looks:
        facts.setdefault(look["step"], {})["heldout"] = {HELDOUT: _look(look["heldout"])}
    for step in sorted(facts):
        length = length_at(step, phases=phases, steps=steps)
        yield CurvePoint(step=step, max_seq_length=length, **facts[step], **clock.at(step))


def _stretches(losses: Sequence[Facts]) -> Iterator[Sequence[Facts]]:
    size = -(-len(losses) // POINTS) or 1
    yield from (losses[start : start + size] for start in range(0, len(losses), size))


def _look(values: Mapping[str, float]) -> HeldoutPoint:
    return HeldoutPoint(
        mlm_loss=values["masked_lm_loss"],
        mlm_accuracy=values["masked_lm_accuracy"],
        nsp_accuracy=values["next_sentence_accuracy"],
    )


def _without_next_sentences(point: CurvePoint) -> CurvePoint:
    """The point of an encoder that is not trained to tell them: its answers say nothing."""
    silent = {
        split: look.model_copy(update={"nsp_accuracy": None})
        for split, look in point.heldout.items()
    }
    return point.model_copy(update={"train_nsp_loss": None, "heldout": silent})


def _json_lines(artifact: Artifact, name: str) -> list[dict[str, Any]]:
    """The lines of a content file or record; none if there is no such file."""
    entries = (*artifact.manifest.files, *artifact.manifest.records)
    if name not in {entry.name for entry in entries}:
        return []
    return [json.loads(line) for line in artifact.read_bytes(name).splitlines()]


def _mean(stretch: Sequence[Facts], field: str) -> float:
    return sum(float(point[field]) for point in stretch) / len(stretch)


def _between(sums: Sequence[float], before: int, place: int, share: float) -> float:
    start = sums[before] if before >= 0 else 0.0
    return start + share * (sums[place] - start)
