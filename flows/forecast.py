"""Forecast of resources: CPU time and disk of preparation; FLOPs, memory and cost of training.

In:  a run's configuration, bytes of text, the rates of a machine. No framework is imported; FLOPs
     are counted as the trainer does, and tests compare the rest with the real model and DeepSpeed's
     estimates.
Out: `CorpusForecast` and `TrainingForecast`.

All ratios of preparation were measured on 138 MB of clean English Wikipedia (vocabulary of 30,522,
one core of the machine in docs/benchmarks.md). Longer documents fill examples better, and other
languages and vocabularies give other lengths: for better estimates, prepare a sample.
"""

import contextlib
import math
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import accumulate, pairwise

from cloze.artifacts.errors import ClozeError
from cloze.artifacts.results import TRAIN
from cloze.artifacts.store import Artifact, open_artifact
from cloze.flows.config import MachineConfig, RatesConfig, RunConfig
from cloze.model.config import EncoderConfig
from cloze.pipeline.config.settings import ExamplesConfig, bucket_bits

WORD_PIECES_PER_BYTE = 0.217
"""Tokens per byte of text."""

TOKENS_RATIO = 0.497
"""Bytes of the tokens artifact per byte of text."""

BYTES_PER_TOKEN = 2.72
"""Bytes of an examples file per token, with masks and offsets."""

TOKENS_RATE = 18e6
"""Bytes of text that one core tokenises per second, including start-up."""

READ_RATE = 39e6
"""Bytes of text that one core reads, cleans and hashes per second, in the vocabulary stage and, on
a distributed engine, in the tokens stage before the shuffle."""

MEAN_DOCUMENT = 1_300
"""Mean bytes of text per document in Wikipedia. Longer documents mean fewer rows to shuffle."""

VARIATION = 2.0
"""Standard deviation of document length divided by the mean."""

PACKED_RATIO, ROW_BYTES = 0.467, 43
"""Bytes through an engine's shuffle, per byte of text and per document."""

SHARD_BYTES = 64 << 20
"""Bytes of text in a task of a large corpus."""

KEY_MEMORY = 10.0
"""Bytes of memory of the worker that writes a bucket, per byte gathered for it: 8 to 10, measured
with keys of 20 and 80 MB."""

PROCESS_MEMORY = 0.37e9
"""Bytes of memory of a worker process without a bucket, measured."""

PROCESS_THREADS = 12
"""Buckets that a process of Dataflow may hold at once, unless `number_of_worker_harness_threads` is
given: assumed, after Google's documentation."""

MACHINE_TYPE = "n1-standard-1"
"""Dataflow's default for batch jobs."""

GIGABYTES_PER_VCPU = {"standard": 4.0, "highmem": 8.0, "highcpu": 1.0}
"""Memory of Google's machine types, rounded up by at most 0.25."""

MOST_WORKERS = 1000
"""Dataflow's default of `max_num_workers`: assumed."""

EXAMPLES_RATE = 70e6
"""Bytes of text per second from which one core writes one copy of one length."""


@dataclass(frozen=True)
class Yield:
    """Measured statistics of examples of one length."""

    mean_length: float
    """Tokens, including special ones."""
    per_word_piece: float
    """Examples in one copy per token of the corpus."""


MEASURED = {128: Yield(95.99, 0.01356), 512: Yield(192.6, 0.007353)}
"""Half of Wikipedia's articles are shorter than one example of 128, so few reach 512."""


@dataclass(frozen=True)
class EngineForecast:
    """Estimates for preparation on a distributed engine with its own shuffle."""

    core_seconds: float
    """CPU time; the texts are read once more than locally."""
    read_bytes: float
    """Bytes read from the store: text by vocabulary and tokens, tokens by examples."""
    shuffle_bytes: float
    """Bytes shuffled: each document once, as token ids."""
    keys: int
    """Buckets."""
    largest_key: float
    """Bytes of the largest bucket, which one worker holds in memory."""
    worker_disk: dict[int, float]
    """Bytes on the fullest worker's disk by number of workers, if the engine shuffles on disk."""

    def vcpu_hours(self, rates: RatesConfig) -> float:
        """Hours of one vCPU."""
        return self.core_seconds / 3600 / rates.core_share

    def cost(self, rates: RatesConfig) -> float:
        """US dollars on Dataflow."""
        shuffle = self.shuffle_bytes / 1e9 * rates.shuffle_gigabyte
        return self.vcpu_hours(rates) * rates.core_hour + shuffle


@dataclass(frozen=True)
class CorpusForecast:
    """Estimates for vocabulary, tokens and examples."""

    text_bytes: float
    """Bytes of text."""
    word_pieces: float
    """Tokens in the corpus."""
    examples: dict[int, float]
    """Examples of each length in one copy."""
    core_seconds: float
    """CPU time on this machine."""
    tokens_bytes: float
    """The tokens artifact on disk."""
    examples_bytes: float
    """The examples artifact on disk."""
    engine: EngineForecast
    """The same on a distributed engine."""


@dataclass(frozen=True)
class DataflowForecast:
    """Estimates for preparation on the workers that a machine file asks Dataflow for."""

    workers: int
    """Number of machines."""
    vcpus: int
    """vCPUs of a machine, each with a process of its own."""
    memory: float
    """Bytes of memory of a machine."""
    threads: int
    """Buckets that a process may hold at once."""
    shards: int
    """Tasks that read text."""
    keys: int
    """Buckets that text is sent to, as many keys of the shuffle."""
    hours: float
    """Time with all workers busy."""
    cost: float
    """US dollars."""
    needed_memory: float
    """Bytes of a worker all of whose threads hold the largest bucket."""

    @property
    def fits(self) -> bool:
        """Whether that is within a worker's memory."""
        return self.needed_memory <= self.memory


def forecast_dataflow(
    found: "CorpusForecast", options: Mapping[str, tuple[str, ...]], rates: RatesConfig
) -> DataflowForecast:
    """Estimate the preparation of a corpus on Dataflow, given Beam's options by name."""

    def one(*names: str) -> str:
        return next((options[name][-1] for name in names if options.get(name)), "")

    kind = one("machine_type", "worker_machine_type") or MACHINE_TYPE
    family, _, size = kind.rpartition("-")
    vcpus = int(size) if size.isdigit() else 1
    per_vcpu = GIGABYTES_PER_VCPU.get(family.rpartition("-")[2], GIGABYTES_PER_VCPU["standard"])
    if family.startswith("n1-"):
        # 3.75 GB: the only family without whole gigabytes.
        per_vcpu *= 0.9375
    memory = per_vcpu * 1e9 * vcpus
    if "custom" in family:  # custom-VCPUS-MEGABYTES
        vcpus, memory = int(family.rpartition("-")[2]), int(size) * 1e6
    workers = int(one("max_num_workers", "num_workers") or MOST_WORKERS)
    threads = int(one("number_of_worker_harness_threads") or PROCESS_THREADS)
    engine, shards = found.engine, max(round(found.text_bytes / SHARD_BYTES), 1)
    # More cores than tasks stay idle.
    busy = min(workers * vcpus, max(shards, engine.keys))
    # The worst case: all threads of a process hold the largest bucket at the same time.
    held = KEY_MEMORY * engine.largest_key * threads
    return DataflowForecast(
        workers=workers,
        vcpus=vcpus,
        memory=memory,
        threads=threads,
        shards=shards,
        keys=engine.keys,
        hours=engine.vcpu_hours(rates) / busy,
        cost=engine.cost(rates),
        needed_memory=vcpus * (PROCESS_MEMORY + held),
    )


WORKERS = (2, 16, 128, 1024)
"""Numbers of workers for which disk usage is estimated."""


def forecast_corpus(
    text_bytes: float, config: ExamplesConfig, *, weight: float = 1.0
) -> CorpusForecast:
    """Estimate the preparation of `text_bytes` of text; `weight` is its sources' mean weight."""
    word_pieces = text_bytes * WORD_PIECES_PER_BYTE
    yields = {
        length: expected_yield(length, packed=config.pack_documents)
        for length in config.max_seq_lengths
    }
    examples = {
        length: weight * word_pieces * found.per_word_piece for length, found in yields.items()
    }
    a_copy = sum(count * yields[length].mean_length for length, count in examples.items())
    written = config.copies * len(config.max_seq_lengths)
    # Text is cleaned and tokenised once; every copy of every length reads all tokens again.
    core_seconds = text_bytes * (1 / TOKENS_RATE + weight * written / EXAMPLES_RATE)
    documents = text_bytes / MEAN_DOCUMENT
    # Each document crosses the shuffle once, packed, and with a row of facts.
    moved = text_bytes * PACKED_RATIO + documents * ROW_BYTES
    buckets = 1 << bucket_bits(documents, text_bytes)
    # the fullest bucket or disk: the largest of n normal draws is sqrt(2 ln n) deviations off
    # A bucket has documents / buckets documents in the mean, a Poisson number of them, each of
    # random size: the relative deviation of such a sum is √((v² + 1) / mean), v that of a
    # document's size.
    spread = math.sqrt((VARIATION**2 + 1) * buckets / max(documents, 1.0))
    worker_disk = {
        workers: min(
            moved, moved / workers * (1 + math.sqrt(2 * math.log(workers) * workers / buckets))
        )
        for workers in WORKERS
    }
    return CorpusForecast(
        text_bytes=text_bytes,
        word_pieces=word_pieces,
        examples=examples,
        core_seconds=core_seconds,
        tokens_bytes=text_bytes * TOKENS_RATIO,
        examples_bytes=config.copies * a_copy * BYTES_PER_TOKEN,
        engine=EngineForecast(
            core_seconds=core_seconds + text_bytes / READ_RATE,
            read_bytes=3 * text_bytes + text_bytes * TOKENS_RATIO,
            shuffle_bytes=moved,
            keys=buckets,
            largest_key=moved / buckets * (1 + spread * math.sqrt(2 * math.log(buckets))),
            worker_disk=worker_disk,
        ),
    )


def expected_yield(max_seq_length: int, *, packed: bool = False) -> Yield:
    """Statistics scaled from the nearest measured length; packed examples are full."""
    if packed:
        return Yield(max_seq_length, 1 / max_seq_length)
    nearest = min(MEASURED, key=lambda length: abs(length - max_seq_length))
    # Twice the length: twice the tokens of an example, and half as many examples.
    found, ratio = MEASURED[nearest], max_seq_length / nearest
    return Yield(found.mean_length * ratio, found.per_word_piece / ratio)


def copies_needed(run: RunConfig, epochs: float) -> int:
    """Copies of the examples that differ in every one of `epochs` passes over the corpus.

    Dynamic masks are drawn anew in every pass, so one copy suffices.
    """
    return 1 if run.pretrain.masks == "dynamic" else max(1, math.ceil(round(epochs, 3)))


MASTER_BYTES = 4 + 4 + 4
"""An fp32 weight and its two moments, which ZeRO 1 partitions and checkpoints contain."""

ROUNDED_BYTES = 2
"""The bf16 copy of a weight."""

GRADIENT_BYTES = 2 + 4
"""A gradient in bf16, and the accumulated gradient in fp32."""

ACTIVATION_BYTES = 34
"""Per token, layer and unit of width, without attention scores (Korthikanti et al. 2022, 4.1)."""

LOGIT_BYTES = 2 + 4
"""A logit of a masked position, and its probability."""


def length_flops(run: RunConfig, max_seq_length: int) -> float:
    """Mean FLOPs of a pre-training example of one sequence length."""
    tokens = expected_yield(max_seq_length, packed=run.examples.pack_documents).mean_length
    predicted = predicted_share(run) * tokens
    return run.encoder.training_flops(
        run.vocabulary.size, tokens=tokens, squared=tokens**2, masked=predicted
    )


def predicted_share(run: RunConfig) -> float:
    """Share of the tokens that pre-training predicts."""
    masked_lm = run.pretrain.objective == "masked_lm"
    return run.examples.masking.masked_lm_prob if masked_lm else 1.0


def step_flops(run: RunConfig) -> float:
    """Mean FLOPs of a pre-training step over all phases."""
    return sum(
        phase.share * run.pretrain.batch_size * length_flops(run, phase.max_seq_length)
        for phase in run.pretrain.phases
    )


def state_bytes(encoder: EncoderConfig, vocabulary_size: int, *, ranks: int) -> tuple[int, ...]:
    """Bytes of weights, gradients and optimizer state per rank, for ZeRO 0, 1, 2 and 3.

    For 2 and 3 these are DeepSpeed's own estimates (`estimate_zero2_model_states_mem_needs`, …),
    with the word embeddings or a layer as the largest module that is gathered at once.
    """
    count = encoder.parameters(vocabulary_size)
    largest = max(encoder.layer_parameters, vocabulary_size * encoder.hidden_size)
    whole = ROUNDED_BYTES + GRADIENT_BYTES
    everything = whole + MASTER_BYTES
    # ZeRO 0: everything; 1: masters and moments divided; 2: all but the bf16 weights divided; 3:
    # weights as well, but for the largest module at a time.
    return (
        count * everything,
        count * whole + count * MASTER_BYTES // ranks,
        count * ROUNDED_BYTES + count * (everything - ROUNDED_BYTES) // ranks,
        largest * 2 * ROUNDED_BYTES + count * (everything - ROUNDED_BYTES) // ranks,
    )


def activation_bytes(
    encoder: EncoderConfig, vocabulary_size: int, *, tokens: int, masked_share: float
) -> int:
    """Bytes of activations that a micro-batch of `tokens` stores for the backward pass."""
    layers = ACTIVATION_BYTES * encoder.num_hidden_layers * encoder.hidden_size
    head = round(masked_share * LOGIT_BYTES * vocabulary_size)
    return tokens * (layers + head)


TOKEN_BUDGET = 65_536
"""Tokens of a micro-batch on a GPU unless `training.token_budget` is set."""

GPUS = (1, 8, 64, 512, 1024)
"""Numbers of GPUs for which the time is estimated, besides the machine's own; at most one GPU per
example of a step."""


@dataclass(frozen=True)
class PhaseForecast:
    """A phase of pre-training at one sequence length."""

    max_seq_length: int
    """Sequence length."""
    steps: int
    """Optimizer steps."""
    epochs: float
    """Passes over the corpus, each with a different copy."""
    flops: float
    """FLOPs of all its steps."""


@dataclass(frozen=True)
class Cluster:
    """The training time and cost on a number of GPUs."""

    gpus: int
    """GPUs with `rates.gpu_tflops` each."""
    examples: float
    """Examples per GPU and step."""
    hours: float
    """Wall-clock time."""
    cost: float
    """US dollars."""


@dataclass(frozen=True)
class TrainingForecast:
    """Estimates for pre-training."""

    parameters: int
    """Number of weights, including heads."""
    phases: tuple[PhaseForecast, ...]
    """In order."""
    flops: float
    """FLOPs of all matrix products."""
    state_bytes: tuple[int, ...]
    """Weights, gradients and optimizer state on each of `training.ranks` GPUs, by ZeRO stage."""
    activation_bytes: int
    """Maximum activations of a micro-batch on each GPU."""
    checkpoint_bytes: int
    """One checkpoint on disk."""
    clusters: tuple[Cluster, ...]
    """By number of GPUs."""


def phases_to_do(run: RunConfig) -> list[tuple[int, int]]:
    """Steps and sequences of each phase, without those already done by the continued run."""
    recipe, done = run.pretrain, 0
    if recipe.continue_from:
        with contextlib.suppress(ClozeError):  # that run may have been removed
            done = open_artifact(recipe.continue_from).manifest.config["pretrain"]["steps"]
    # Rounded as training does, so that plan and run agree on the step of the change.
    ends = [round(share * recipe.steps) for share in accumulate(p.share for p in recipe.phases)]
    # Phases that the continued run has finished have no steps left.
    bounds = pairwise([done, *(max(end, done) for end in ends)])
    return [(stop - first, recipe.sequences(first, stop)) for first, stop in bounds]


@dataclass(frozen=True)
class SourceForecast:
    """What training reads of the sources of one name."""

    name: str
    """Their name."""
    tokens: float
    """Their tokens for training."""
    shares: tuple[float, ...]
    """Their share of the tokens of each phase."""
    read: float
    """Tokens read of them in all phases."""
    epochs: float
    """How often each token is read."""


def forecast_mixture(run: RunConfig, tokens: Mapping[str, float]) -> tuple[SourceForecast, ...]:
    """How training mixes the sources, of which these are the tokens by name.

    Raises `UsageError` if a source with a share is empty.
    """
    phases = []
    for phase, (_, sequences) in zip(run.pretrain.phases, phases_to_do(run), strict=True):
        # What is read is counted in sequences, sources in tokens: the mean length is between the
        # two.
        length, packed = phase.max_seq_length, run.examples.pack_documents
        read = sequences * expected_yield(length, packed=packed).mean_length
        phases.append((run.mixed_recipe.shares(phase, tokens), read))
    return tuple(
        SourceForecast(
            name=name,
            tokens=count,
            shares=tuple(shares[name] for shares, _ in phases),
            read=(read := sum(shares[name] * total for shares, total in phases)),
            epochs=read / count if count else 0.0,
        )
        for name, count in tokens.items()
    )


def counted_tokens(examples: Artifact) -> dict[str, float]:
    """Tokens for training of each source by name, as counted in examples; empty without names."""
    facts = [entry.statistics for entry in examples.manifest.files]
    train = [found for found in facts if found.get("split") == TRAIN and "source_tokens" in found]
    # The same text at every length: the shortest one stands for all.
    length = min((found["max_seq_length"] for found in train), default=0)
    counts = [
        # Copies are counted together, and read in turns.
        [tokens / len(found["copies"]) for tokens in found["source_tokens"]]
        for found in train
        if found["max_seq_length"] == length
    ]
    names = examples.manifest.statistics.get("sources", ())
    return {name: sum(tokens) for name, *tokens in zip(names, *counts, strict=True) if any(tokens)}


def forecast_training(
    run: RunConfig, machine: MachineConfig, *, examples: Mapping[int, float]
) -> TrainingForecast:
    """Estimate pre-training on a corpus with `examples` of each length in one copy."""
    recipe, vocabulary, ranks = run.pretrain, run.vocabulary.size, machine.training.ranks
    count = run.encoder.parameters(vocabulary)
    phases = []
    for phase, (steps, read) in zip(recipe.phases, phases_to_do(run), strict=True):
        length = phase.max_seq_length
        epochs = read / examples[length] if examples.get(length) else 0.0
        phases.append(PhaseForecast(length, steps, epochs, flops=read * length_flops(run, length)))
    flops = sum(phase.flops for phase in phases)
    # a micro-batch is at most a rank's share of a step
    longest = max(phase.max_seq_length for phase in recipe.phases)
    share = -(-recipe.batch_size // ranks) * longest
    budget = min(machine.training.token_budget or TOKEN_BUDGET, share)
    clusters = []
    for gpus in sorted({*GPUS, ranks}):
        # More GPUs than sequences in a step would idle.
        if gpus <= recipe.batch_size:
            rates = machine.rates
            # Overhead of steps does not shrink with more GPUs.
            fixed = sum(phase.steps for phase in phases) * rates.step_seconds
            hours = (fixed + flops / (rates.gpu_tflops * 1e12 * gpus)) / 3600
            cost = gpus * hours * rates.gpu_hour
            clusters.append(Cluster(gpus, recipe.batch_size / gpus, hours, cost))
    return TrainingForecast(
        parameters=count,
        phases=tuple(phases),
        flops=flops,
        state_bytes=state_bytes(run.encoder, vocabulary, ranks=ranks),
        activation_bytes=activation_bytes(
            run.encoder, vocabulary, tokens=budget, masked_share=predicted_share(run)
        ),
        checkpoint_bytes=count * MASTER_BYTES,
        clusters=tuple(clusters),
    )
