"""What a run would take, in words.

In:  the forecasts (flows/forecast) and what they were made from.
Out: lines for a terminal.
"""

from collections.abc import Iterator, Sequence

from cloze.tables import columns
from flows.config import MachineConfig, RunConfig
from flows.forecast.corpus import CorpusForecast
from flows.forecast.training import TrainingForecast

VCPUS = (2, 16, 128, 1024)
"""For so many the time is given."""


def corpus_lines(found: CorpusForecast, run: RunConfig, machine: MachineConfig) -> Iterator[str]:
    """Preparing a corpus."""
    rates = machine.rates
    yield ""
    yield (
        f"preparation: {_bytes(found.text_bytes)} of text, "
        f"{_count(found.word_pieces)} word-pieces, "
        f"{found.core_seconds / 3600:,.3g} core-hours"
    )
    for length, count in found.examples.items():
        yield f"  examples of {length:>3}: {_count(count)} in each of {run.examples.copies} copies"
    yield f"  on disk: tokens {_bytes(found.tokens_bytes)}, examples {_bytes(found.examples_bytes)}"
    vcpu_hours = found.core_seconds / 3600 / rates.core_share
    shuffle = found.shuffle_bytes / 1e9 * rates.shuffle_gigabyte
    cost = vcpu_hours * rates.core_hour + shuffle
    rows = [("vCPUs", "time", "cost on Dataflow")]
    rows += [(f"{n:,}", _time(vcpu_hours / n), _dollars(cost)) for n in VCPUS]
    yield from _indented(rows)


def training_lines(
    found: TrainingForecast, run: RunConfig, machine: MachineConfig
) -> Iterator[str]:
    """Pre-training an encoder."""
    encoder, recipe, ranks = run.encoder, run.pretrain, machine.training.ranks
    yield ""
    yield (
        f"pre-training: {encoder.num_hidden_layers} × {encoder.hidden_size}, "
        f"{found.parameters:,} weights, {recipe.steps:,} steps of {recipe.batch_size:,}, "
        f"{found.flops:.2g} FLOPs"
    )
    for phase in found.phases:
        epochs = f"{phase.epochs:,.1f} epochs, " if phase.epochs else ""
        share = phase.flops / found.flops
        yield f"  {phase.steps:,} steps of {phase.max_seq_length}: {epochs}{share:.0%} of the work"
    state = ", ".join(f"ZeRO {n} {_bytes(size)}" for n, size in enumerate(found.state_bytes))
    yield f"  memory of each of {ranks} GPU{'s' if ranks > 1 else ''}: {state}"
    yield f"    and at most {_bytes(found.activation_bytes)} of activations"
    yield f"  on disk: {_bytes(found.checkpoint_bytes)} a checkpoint"
    rate, price = machine.rates.gpu_tflops, machine.rates.gpu_hour
    rows = [("GPUs", "examples a GPU", "time", f"cost ({rate:g} TFLOP/s and ${price:g} a GPU)")]
    rows += [
        (f"{c.gpus:,}", f"{c.examples:,.0f}", _time(c.hours), _dollars(c.cost))
        for c in found.clusters
    ]
    yield from _indented(rows)


def _indented(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    yield from (f"  {line}" for line in columns(rows).splitlines())


def _bytes(count: float) -> str:
    """`1.3 GB`, decimal as disks and clouds count."""
    for unit, size in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6)):
        if count >= size:
            return f"{count / size:,.3g} {unit}"
    return f"{count / 1e3:,.3g} kB"


def _count(number: float) -> str:
    for unit, size in (("trillion", 1e12), ("billion", 1e9), ("million", 1e6)):
        if number >= size:
            return f"{number / size:,.3g} {unit}"
    return f"{number:,.0f}"


def _time(hours: float) -> str:
    for unit, size in (("days", 72.0), ("h", 1.0), ("min", 1 / 60)):
        if hours >= size:
            return f"{hours / (24.0 if unit == 'days' else size):,.3g} {unit}"
    return f"{hours * 3600:,.0f} s"


def _dollars(cost: float) -> str:
    return f"${cost:,.0f}" if cost >= 10 else f"${cost:,.2f}"
