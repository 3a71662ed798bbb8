"""`cloze plan`: what `cloze run` would do, why, and the time, memory, disk space and cost.

In:  a configuration, and a machine file with rates.
Out: one line per stage, then work, sizes, memory, hours and cost. Nothing is started, and without
     --tables nothing is written.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from cloze.answer import Answer, aligned
from cloze.artifacts.errors import UsageError
from cloze.execution.preflight import checked_plan
from cloze.flows.config import MachineConfig, RunConfig
from cloze.flows.executor import write_tables
from cloze.flows.expected import busy_now, docstring_bytes
from cloze.flows.forecast import (
    KEY_MEMORY,
    PROCESS_MEMORY,
    WORD_PIECES_PER_BYTE,
    CorpusForecast,
    DataflowForecast,
    SourceForecast,
    TrainingForecast,
    copies_needed,
    counted_tokens,
    forecast_corpus,
    forecast_dataflow,
    forecast_mixture,
    forecast_training,
)
from cloze.flows.plan import Plan, PlannedStage
from cloze.flows.stages import PREPARE
from cloze.init.corpus_samples import look
from cloze.model.config import repetition
from cloze.model.hardware import has_gpu
from cloze.options import TARGET, ConfigPath, Target
from cloze.pipeline.config.engines import given_options
from cloze.pipeline.config.settings import CorpusConfig

GIGABYTE = 1e9
MOST_BYTES = 1e18
DECIMAL = (("T", 1e12), ("G", 1e9), ("M", 1e6), ("k", 1e3))
LARGE = (("trillion", 1e12), ("billion", 1e9), ("million", 1e6))


def plan(
    config: ConfigPath,
    /,
    *,
    gigabytes: float = 0.0,
    corpus_bytes: str = "",
    tables: bool = False,
    target: Target = TARGET,
) -> Answer:
    """Show which stages `cloze run` would reuse or execute, and the resources they need.

    :param gigabytes: Estimate for a corpus of this many GB of text, which need not be on this
        machine.
    :param corpus_bytes: The same with a unit: 10TB, 300GB, 1.5e12.
    :param tables: Write the stage tables (JSON) of stages that are ready to run, to run them by
        hand.
    """
    run, machine = target.read(config)
    elsewhere = _elsewhere(run, gigabytes, corpus_bytes)
    # A corpus that is not here cannot be looked at, so its stages cannot be planned.
    found = None if elsewhere else checked_plan(run, machine)
    to_run = found.to_run if found else (*PREPARE, "pretrain")
    text_bytes, weight = (elsewhere, 1.0) if elsewhere else _text_of(run)
    corpus = forecast_corpus(text_bytes, run.examples, weight=weight)
    resources: list[Part] = []
    if text_bytes and {*to_run} & {*PREPARE}:
        resources += _preparation_parts(corpus, run, machine)
    if "pretrain" in to_run:
        resources += _pretraining_parts(found, corpus, run, machine)
    written = write_tables(found or Plan(run, machine)) if tables else []
    parts = [
        *_stage_parts(found),
        *resources,
        *([_assumed_part(machine)] if resources else []),
        _written_part(written, to_run if tables else ()),
    ]
    lines = [line for part in parts for line in part.lines]
    return Answer(
        {part.name: part.data for part in parts}, "\n".join(lines).lstrip("\n"), target.json
    )


@dataclass(frozen=True)
class Part:
    """One section of a plan."""

    name: str
    """In the JSON document."""
    data: object
    lines: Sequence[str] = ()
    """For people."""


def _stage_parts(found: Plan | None) -> Iterator[Part]:
    """What would be done with each stage, and how long it takes; empty without a plan."""
    steps = found.steps if found else []
    data = [step.model_dump(mode="json") for step in steps]
    yield Part("stages", data, [_step(step) for step in steps])
    expected, lines = found.expected() if found else [], list[str]()
    if expected:
        total = sum(each.seconds for each in expected)
        lines += ["", f"expected on this machine: {_time(total / 3600)}"]
        lines += _indented([(e.stage, _time(e.seconds / 3600), e.basis) for e in expected])
        lines += [said for said in (busy_now(),) if said]
    yield Part("expected", [asdict(each) for each in expected], lines)


def _preparation_parts(
    corpus: CorpusForecast, run: RunConfig, machine: MachineConfig
) -> Iterator[Part]:
    """What preparing the corpus needs, anywhere and on the engine of the machine file."""
    yield Part("preparation", asdict(corpus), [*_preparation(corpus, run, machine)])
    if machine.pipeline.runner == "DataflowRunner":
        options = given_options(machine.pipeline, ())
        dataflow = forecast_dataflow(corpus, options, machine.rates)
        data = {**asdict(dataflow), "fits": dataflow.fits}
        yield Part("dataflow", data, [*_dataflow(dataflow, corpus)])


def _pretraining_parts(
    found: Plan | None, corpus: CorpusForecast, run: RunConfig, machine: MachineConfig
) -> Iterator[Part]:
    """What training needs, reads and leaves on disks."""
    training = forecast_training(run, machine, examples=corpus.examples)
    lines = [*_pretraining(training, run, machine)]
    if unreached := run.pretrain.unreached_rate:
        lines.append(f"  warning: {unreached}")
    yield Part("pretraining", asdict(training), lines)
    mixture = _mixed(found) if found else ()
    yield Part("mixture", [asdict(source) for source in mixture], [*_mixture(mixture)])
    if corpus.text_bytes:
        stored = _stored(corpus, training, run, mixture)
        yield Part("storage", asdict(stored), [*_storage(stored, run, machine)])


def _written_part(written: Sequence[Path], wanted: Sequence[str]) -> Part:
    """The tables that were written, and which of the `wanted` stages have none yet."""
    lines = [f"table: {file}" for file in written]
    tabled = {file.stem for file in written}
    if later := [name for name in wanted if name not in tabled]:
        lines.append(f"no table yet: {', '.join(later)}, whose inputs the stages before them make")
    return Part("tables", [str(file) for file in written], lines)


def _step(step: PlannedStage) -> str:
    """What would be done with a stage, and why."""
    why = step.digest[:12] if step.action == "reuse" else "; ".join(step.reasons)
    where = f" ({step.device}, {step.precision})" if step.precision else ""
    return f"{step.stage:<11} {step.action:<6} {why}{where}"


def _elsewhere(run: RunConfig, gigabytes: float, corpus_bytes: str) -> float:
    """Bytes of a corpus that is not on this machine, by either option; 0 without one."""
    if gigabytes and corpus_bytes:
        raise UsageError("--gigabytes and --corpus-bytes are the same; give one of them")
    found = gigabytes * GIGABYTE or (bytes_of(corpus_bytes) if corpus_bytes else 0.0)
    if found and not run.corpus:
        given = f"--corpus-bytes {corpus_bytes}" if corpus_bytes else f"--gigabytes {gigabytes:g}"
        raise UsageError(f"{given}: this run reads no corpus; omit the option")
    return found


def _text_of(run: RunConfig) -> tuple[float, float]:
    """Estimated bytes of the sources' text, and the mean weight of a byte."""
    # docstrings of installed packages have no path, and their size is unknown
    sources = [source for source in run.corpus.sources if source.path] if run.corpus else []
    sizes = [look(source.path, source.exclude).text_bytes for source in sources]
    weighted = sum(size * source.weight for size, source in zip(sizes, sources, strict=True))
    return sum(sizes), weighted / sum(sizes) if weighted else 1.0


def _mixed(found: Plan) -> tuple[SourceForecast, ...]:
    """What training would read of each source; empty if sources have no names."""
    corpus, examples = found.run.corpus, found.finished.get("examples")
    if not corpus or not corpus.names:
        return ()
    tokens = counted_tokens(examples) if examples else _estimated_tokens(corpus)
    return forecast_mixture(found.run, tokens)


def _estimated_tokens(corpus: CorpusConfig) -> dict[str, float]:
    """Estimated tokens for training of the sources of each name."""
    sizes: dict[str, float] = {}
    for source in corpus.sources:
        if not source.heldout:
            text = docstring_bytes(source.packages)
            if source.path:
                text = look(source.path, source.exclude).text_bytes
            kept = (1 - corpus.heldout_share) * text * WORD_PIECES_PER_BYTE
            sizes[source.name] = sizes.get(source.name, 0.0) + kept
    return sizes


def _mixture(found: Sequence[SourceForecast]) -> Iterator[str]:
    """Which source gives which share of each phase, and how often it is read."""
    if not found:
        return
    yield ""
    yield "mixture, with tokens as counted in the examples or, before there are any, estimated:"
    rows = [("source", "tokens", "share by phase", "tokens read", "epochs")]
    rows += [
        (
            source.name,
            _count(source.tokens),
            ", ".join(f"{share:.1%}" for share in source.shares),
            _count(source.read),
            f"{source.epochs:,.2f}",
        )
        for source in found
    ]
    yield from _indented(rows)
    for source in found:
        if warning := repetition(source.name, source.epochs):
            yield f"  warning: {warning}"


def _preparation(found: CorpusForecast, run: RunConfig, machine: MachineConfig) -> Iterator[str]:
    """Resources for preparing the corpus."""
    yield ""
    yield (
        f"preparation: {_bytes(found.text_bytes)} of text, {_count(found.word_pieces)} tokens, "
        f"{_hours(found.core_seconds)} core-hours"
    )
    for length, count in found.examples.items():
        yield f"  examples of {length:>3}: {_count(count)} in each of {run.examples.copies} copies"
    yield f"  on disk: tokens {_bytes(found.tokens_bytes)}, examples {_bytes(found.examples_bytes)}"
    engine, rates = found.engine, machine.rates
    yield (
        f"  on an engine: {_hours(engine.core_seconds)} core-hours, "
        f"{_bytes(engine.read_bytes)} read, {_bytes(engine.shuffle_bytes)} through its shuffle, "
        f"{_bytes(engine.largest_key)} in the largest key"
    )
    vcpu_hours, cost = engine.vcpu_hours(rates), _dollars(engine.cost(rates))
    rows = [("vCPUs", "time", "cost on Dataflow", "the fullest disk, if the shuffle is on disks")]
    rows += [
        (f"{vcpus:,}", _time(vcpu_hours / vcpus), cost, _bytes(disk))
        for vcpus, disk in engine.worker_disk.items()
    ]
    yield from _indented(rows)


def _dataflow(found: DataflowForecast, corpus: CorpusForecast) -> Iterator[str]:
    """The same on the workers that the machine file asks for, with the source of each figure."""
    size, engine = f"{found.vcpus} vCPUs and {_bytes(found.memory)}", corpus.engine
    share = f"{found.vcpus} × ({_bytes(PROCESS_MEMORY)} + {found.threads} × {KEY_MEMORY:g} × key)"
    verdict = "fits" if found.fits else "does NOT fit; see below"
    yield f"on Dataflow: at most {found.workers:,} workers of {size}, as the machine file says"
    rows = [
        ("time", _time(found.hours), "rates measured; half a core per vCPU assumed"),
        ("cost", _dollars(found.cost), "list prices (rates)"),
        ("fan-out", f"{found.shards:,} tasks, {found.keys:,} keys", "computed"),
        ("shuffle", _bytes(engine.shuffle_bytes), "bytes per byte of text measured"),
        ("largest key", _bytes(engine.largest_key), "computed; a simulation with skew: +20 %"),
        ("a worker's memory", f"{_bytes(found.needed_memory)}, {verdict}", f"measured: {share}"),
    ]
    yield from _indented(rows)
    if not found.fits:
        yield (
            "  warning: a worker whose threads all hold the largest key has too little memory: set "
            "number_of_worker_harness_threads = 1 in [pipeline.options], or a highmem machine_type"
        )


def bytes_of(text: str) -> float:
    """The number of bytes in `10TB`, `300 GB` or `1.5e12`; raises `UsageError`."""
    # The B is optional and case is free, as people write sizes; an exponent too, as programs do.
    found = re.fullmatch(r"\s*([0-9.]+(?:e[0-9]+)?)\s*([TGMk]?)B?\s*", text, re.IGNORECASE)
    units = {name.upper(): size for name, size in DECIMAL}
    try:
        number = float(found[1]) * units.get(found[2].upper(), 1.0) if found else 0.0
    except ValueError:
        number = 0.0
    if not 0 < number < MOST_BYTES:
        raise UsageError(f"--corpus-bytes {text}: expected a size such as 10TB, 300GB or 1.5e12")
    return number


@dataclass(frozen=True)
class Stored:
    """Disk space of what a run keeps."""

    bytes: float
    """Tokens, examples and a checkpoint."""
    saved: float
    """Of these, the examples of copies that no epoch needs."""
    copies: int
    """Copies of the examples that suffice for the epochs."""
    epochs: float
    """Passes over the corpus, of the phase that makes most; or over the most repeated source."""


def _stored(
    corpus: CorpusForecast,
    training: TrainingForecast,
    run: RunConfig,
    mixture: Sequence[SourceForecast],
) -> Stored:
    # The phase, or the source of a mixture, that is read most often decides how many copies are of
    # use.
    epochs, copies = max(p.epochs for p in mixture or training.phases), run.examples.copies
    needed = copies_needed(run, epochs)
    return Stored(
        bytes=corpus.tokens_bytes + corpus.examples_bytes + training.checkpoint_bytes,
        saved=corpus.examples_bytes * max(0.0, 1 - needed / copies),
        copies=needed,
        epochs=epochs,
    )


def _storage(found: Stored, run: RunConfig, machine: MachineConfig) -> Iterator[str]:
    """Disk space by the month, and what of it fewer copies of the examples would save."""
    price, copies = machine.rates.stored_gigabyte, run.examples.copies
    monthly = _dollars(found.bytes / GIGABYTE * price)
    yield ""
    yield f"storage: {_bytes(found.bytes)}, {monthly} a month (${price:g} per GB)"
    if found.copies < copies:
        yield (
            f"  {found.copies} of {copies} copies suffice for {found.epochs:,.1f} epochs: "
            f"--set examples.copies={found.copies} saves {_bytes(found.saved)}, "
            f"{_dollars(found.saved / GIGABYTE * price)} a month"
        )
    elif found.copies > copies:
        yield (
            f"  {found.epochs:,.1f} epochs read each of {copies} copies "
            f"{found.epochs / copies:,.1f} times; {found.copies} copies, or "
            "pretrain.masks = dynamic, have other masks every time"
        )


def _assumed_part(machine: MachineConfig) -> Part:
    """Which rates are nobody's measurement."""
    assumed = {
        name: value
        for name, value in machine.rates.model_dump().items()
        # Only what the machine file itself sets is somebody's own figure; defaults are not in this
        # set.
        if name not in machine.rates.model_fields_set
    }
    said = ", ".join(f"{name} = {value:g}" for name, value in assumed.items())
    lines = ["", f"assumed, not measured here: {said}; set yours in [rates]"] if assumed else []
    return Part("assumed", assumed, lines)


def _hours(seconds: float) -> str:
    hours = seconds / 3600
    return f"{hours:,.0f}" if hours >= 100 else f"{hours:.3g}"


def _pretraining(found: TrainingForecast, run: RunConfig, machine: MachineConfig) -> Iterator[str]:
    """Resources for pre-training the encoder."""
    encoder, recipe, ranks = run.encoder, run.pretrain, machine.training.ranks
    steps = sum(phase.steps for phase in found.phases)
    yield ""
    yield (
        f"pre-training: {encoder.num_hidden_layers} layers × {encoder.hidden_size}, "
        f"{found.parameters:,} parameters, {steps:,} steps of {recipe.batch_size:,}, "
        f"{found.flops:.2g} FLOPs"
    )
    for phase in found.phases:
        epochs = f"{phase.epochs:,.1f} epochs, " if phase.epochs else ""
        share = phase.flops / found.flops
        yield f"  {phase.steps:,} steps of {phase.max_seq_length}: {epochs}{share:.0%} of the FLOPs"
    state = ", ".join(f"ZeRO {n} {_bytes(size)}" for n, size in enumerate(found.state_bytes))
    yield f"  memory per GPU, {ranks} GPU{'s' if ranks > 1 else ''}: {state}"
    yield f"    and at most {_bytes(found.activation_bytes)} of activations"
    yield f"  on disk: {_bytes(found.checkpoint_bytes)} a checkpoint"
    # What follows is for GPUs even so: the question is often whether to rent one.
    if machine.device("pretrain") == "cpu" and not has_gpu():
        yield "  on GPUs, of which this machine has none:"
    rate, price = machine.rates.gpu_tflops, machine.rates.gpu_hour
    assumed = f"cost ({rate:g} TFLOP/s per GPU at ${price:g} an hour)"
    rows = [("GPUs", "examples per GPU", "time", assumed)]
    rows += [
        (f"{c.gpus:,}", f"{c.examples:,.0f}", _time(c.hours), _dollars(c.cost))
        for c in found.clusters
    ]
    yield from _indented(rows)


def _indented(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    yield from (f"  {line}" for line in aligned(rows).splitlines())


def _bytes(count: float) -> str:
    """`1.3 GB`, in decimal units like disks and clouds."""
    prefix, size = next((unit for unit in DECIMAL if count >= unit[1]), ("", 1.0))
    return f"{count / size:,.3g} {prefix}B"


def _count(number: float) -> str:
    word, size = next((unit for unit in LARGE if number >= unit[1]), ("", 1.0))
    return f"{number / size:,.3g} {word}" if word else f"{number:,.0f}"


def _time(hours: float) -> str:
    """`5.2 h`; in days from three days on."""
    for unit, least, size in (("days", 72.0, 24.0), ("h", 1.0, 1.0), ("min", 1 / 60, 1 / 60)):
        if hours >= least:
            return f"{hours / size:,.3g} {unit}"
    return f"{hours * 3600:,.0f} s"


def _dollars(cost: float) -> str:
    return f"${cost:,.0f}" if cost >= 10 else f"${cost:,.2f}"
