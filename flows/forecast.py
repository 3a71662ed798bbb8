"""What a run takes: work, shuffle and disk of preparation; FLOPs, memory, hours, cost of training.

In:  a run's configuration, bytes of text, the rates of a machine. No framework is imported; tests
     compare the figures with the real model, with the trainer's own count of FLOPs and with
     DeepSpeed's estimates.
Out: `CorpusForecast` and `TrainingForecast`.

All ratios of preparation were measured on 138 MB of clean English Wikipedia (30,522 word-pieces,
one core of the machine in docs/benchmarks.md). Longer documents fill examples better, other
languages and vocabularies have other lengths: `cloze prepare` on a sample says more than any table.
"""

import contextlib
import math
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import accumulate, pairwise

from artifacts.errors import ClozeError
from artifacts.store import open_artifact
from flows.config import MachineConfig, RunConfig
from model.config import EncoderConfig
from pipeline.config.settings import ExamplesConfig

WORD_PIECES_PER_BYTE = 0.217
"""Of text."""

TOKENS_RATIO = 0.497
"""Bytes of the tokens artifact for each byte of text."""

BYTES_PER_TOKEN = 2.72
"""Of an examples file, masks and offsets included, for each token of its examples."""

TOKENS_RATE = 18e6
"""Bytes of text that one core turns into tokens in a second, start-up included."""

READ_RATE = 39e6
"""Bytes of text that one core reads, cleans and names in a second: what the vocabulary stage does,
and on an engine the tokens stage before it sends anything."""

MEAN_DOCUMENT = 1_300
"""Bytes of text, in Wikipedia. Longer ones are fewer rows, and travel in a little less."""

VARIATION = 2.0
"""Standard deviation of documents' lengths by their mean."""

PACKED_RATIO, ROW_BYTES = 0.467, 43
"""Through an engine's shuffle: bytes for each byte of text, and for each document."""

BUCKET_BYTES, MOST_BUCKETS = 4 << 20, 1 << 16
"""Text in a bucket, and how many there are at most: the shuffle's own (a test compares)."""

EXAMPLES_RATE = 70e6
"""Bytes of text for which one core writes one copy of one length in a second."""


@dataclass(frozen=True)
class Yield:
    """Examples of one length, as they were measured."""

    mean_length: float
    """Tokens, special ones included."""
    per_word_piece: float
    """Examples in one copy for each word-piece of the corpus."""


MEASURED = {128: Yield(95.99, 0.01356), 512: Yield(192.6, 0.007353)}
"""Half of Wikipedia's articles are shorter than one example of 128, so few reach 512."""


@dataclass(frozen=True)
class EngineForecast:
    """What an engine elsewhere does for it, with its own shuffle."""

    core_seconds: float
    """Work: the texts are read once more than here."""
    read_bytes: float
    """Of text from the store, by vocabulary and tokens, and of tokens by examples."""
    shuffle_bytes: float
    """Moved: the documents as ids, once, each to its bucket."""
    largest_key: float
    """Bytes that one worker gathers for a bucket, and holds."""
    worker_disk: dict[int, float]
    """By number of workers, bytes on the fullest one's disk, if the engine shuffles on disks."""


@dataclass(frozen=True)
class CorpusForecast:
    """Estimates for vocabulary, tokens and examples."""

    text_bytes: float
    """Of text."""
    word_pieces: float
    """Of the whole corpus, once."""
    examples: dict[int, float]
    """Examples of each length in one copy."""
    core_seconds: float
    """Work, here."""
    tokens_bytes: float
    """The tokens artifact on disk."""
    examples_bytes: float
    """The examples artifact on disk."""
    engine: EngineForecast
    """The same elsewhere."""


WORKERS = (2, 16, 128, 1024)
"""Numbers of workers for which the fullest disk is estimated."""


def forecast_corpus(text_bytes: float, config: ExamplesConfig) -> CorpusForecast:
    """What preparing so much text takes."""
    word_pieces = text_bytes * WORD_PIECES_PER_BYTE
    yields = {
        length: expected_yield(length, packed=config.pack_documents)
        for length in config.max_seq_lengths
    }
    examples = {length: word_pieces * found.per_word_piece for length, found in yields.items()}
    a_copy = sum(count * yields[length].mean_length for length, count in examples.items())
    written = config.copies * len(config.max_seq_lengths)
    core_seconds = text_bytes * (1 / TOKENS_RATE + written / EXAMPLES_RATE)
    documents = text_bytes / MEAN_DOCUMENT
    moved = text_bytes * PACKED_RATIO + documents * ROW_BYTES
    wanted = max(int(min(text_bytes / BUCKET_BYTES, MOST_BUCKETS)), 1)
    buckets = 1 << (wanted.bit_length() - 1)
    # the fullest bucket or disk: the largest of n normal draws is sqrt(2 ln n) deviations off
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
            largest_key=moved / buckets * (1 + spread * math.sqrt(2 * math.log(buckets))),
            worker_disk=worker_disk,
        ),
    )


def expected_yield(max_seq_length: int, *, packed: bool = False) -> Yield:
    """Scaled from the nearest measured length; packed examples are full."""
    if packed:
        return Yield(max_seq_length, 1 / max_seq_length)
    nearest = min(MEASURED, key=lambda length: abs(length - max_seq_length))
    found, ratio = MEASURED[nearest], max_seq_length / nearest
    return Yield(found.mean_length * ratio, found.per_word_piece / ratio)


MASTER_BYTES = 4 + 4 + 4
"""A weight in fp32 and its two moments: what ZeRO 1 slices first, and what a checkpoint holds."""

ROUNDED_BYTES = 2
"""The weight as it is multiplied, in bf16."""

GRADIENT_BYTES = 2 + 4
"""Its gradient in bf16, and the sum of gradients in fp32."""

ACTIVATION_BYTES = 34
"""Per token, layer and unit of width, if attention is not kept (Korthikanti et al. 2022, 4.1)."""

LOGIT_BYTES = 2 + 4
"""A word-piece's score at a masked place, and its probability."""


def parameters(encoder: EncoderConfig, vocabulary_size: int) -> int:
    """Weights of the encoder with its pre-training heads; the decoder is the word embeddings."""
    width = encoder.hidden_size
    layers = encoder.num_hidden_layers * layer_parameters(encoder)
    if encoder.family == "modern":
        # word embeddings, norms of embeddings, last layer and head, its dense layer and the bias;
        # the first layer has no norm before its attention
        rows = encoder.max_position_embeddings if encoder.has_position_table else 0
        outside = vocabulary_size * (width + 1) + rows * width + 3 * width + width**2
        return outside + layers - width
    rows = vocabulary_size + encoder.max_position_embeddings + encoder.type_vocab_size
    embeddings = rows * width + 2 * width
    pooler = width**2 + width
    masked_lm = width**2 + width + 2 * width + vocabulary_size
    next_sentence = 2 * width + 2
    return embeddings + layers + pooler + masked_lm + next_sentence


def layer_parameters(encoder: EncoderConfig) -> int:
    """Weights of one layer.

    Four projections, two dense layers, two layer norms; of the modern family three dense layers and
    no biases; of an LSTM four gates with two biases each, and the projection.
    """
    width, inner = encoder.hidden_size, encoder.intermediate_size
    if encoder.layer_type == "lstm":
        return 4 * inner * (2 * width + 2) + inner * width
    if encoder.family == "modern":
        return encoder.layer_weights + 2 * width
    attention = 4 * (width**2 + width)
    feed_forward = 2 * width * inner + inner + width
    return attention + feed_forward + 2 * 2 * width


def example_flops(
    encoder: EncoderConfig, vocabulary_size: int, *, tokens: float, masked: float
) -> float:
    """FLOPs of one example, forward and backward, of the matrix products alone."""
    width = encoder.hidden_size
    weights = encoder.num_hidden_layers * encoder.layer_weights
    attention = 12.0 * width * encoder.attended(tokens=tokens, squared=tokens**2)
    head = 6.0 * (width * vocabulary_size + width**2) * masked
    return 6.0 * weights * tokens + attention + head


def length_flops(run: RunConfig, max_seq_length: int) -> float:
    """FLOPs of a pre-training example of at most so many tokens, on average."""
    tokens = expected_yield(max_seq_length, packed=run.examples.pack_documents).mean_length
    masked = run.examples.masking.masked_lm_prob * tokens
    return example_flops(run.encoder, run.vocabulary.size, tokens=tokens, masked=masked)


def step_flops(run: RunConfig) -> float:
    """FLOPs of a step of pre-training, the mean over its phases."""
    flops = 0.0
    for phase in run.pretrain.phases:
        one = length_flops(run, phase.max_seq_length)
        flops += phase.share * run.pretrain.batch_size * one
    return flops


def state_bytes(encoder: EncoderConfig, vocabulary_size: int, *, ranks: int) -> tuple[int, ...]:
    """Bytes of weights, gradients and optimizer state on one of `ranks`, for ZeRO 0, 1, 2 and 3.

    For 2 and 3 these are DeepSpeed's own estimates (`estimate_zero2_model_states_mem_needs`, …),
    with the word embeddings as the largest thing gathered at once; 0 and 1 follow from the parts.
    """
    count = parameters(encoder, vocabulary_size)
    largest = max(layer_parameters(encoder), vocabulary_size * encoder.hidden_size)
    whole = ROUNDED_BYTES + GRADIENT_BYTES
    everything = whole + MASTER_BYTES
    return (
        count * everything,
        count * whole + count * MASTER_BYTES // ranks,
        count * ROUNDED_BYTES + count * (everything - ROUNDED_BYTES) // ranks,
        largest * 2 * ROUNDED_BYTES + count * (everything - ROUNDED_BYTES) // ranks,
    )


def activation_bytes(
    encoder: EncoderConfig, vocabulary_size: int, *, tokens: int, masked_share: float
) -> int:
    """Bytes that the forward pass of a micro-batch of `tokens` keeps for the backward pass."""
    layers = ACTIVATION_BYTES * encoder.num_hidden_layers * encoder.hidden_size
    head = round(masked_share * LOGIT_BYTES * vocabulary_size)
    return tokens * (layers + head)


TOKEN_BUDGET = 65_536
"""Tokens of a micro-batch on a GPU where `training.token_budget` says nothing."""

GPUS = (1, 8, 64, 512, 1024)
"""Numbers of GPUs for which the time is estimated, besides the machine's own, as far as a step has
an example for each."""


@dataclass(frozen=True)
class PhaseForecast:
    """A stretch of pre-training at one length."""

    max_seq_length: int
    """Its examples' length."""
    steps: int
    """Optimizer steps."""
    epochs: float
    """Passes over the corpus, each with another of its copies."""
    flops: float
    """Of all its steps."""


@dataclass(frozen=True)
class Cluster:
    """The same training on so many GPUs."""

    gpus: int
    """Each with `rates.gpu_tflops`."""
    examples: float
    """Of a step, on each GPU."""
    hours: float
    """Wall-clock."""
    cost: float
    """US dollars."""


@dataclass(frozen=True)
class TrainingForecast:
    """Estimates for pre-training."""

    parameters: int
    """Weights, heads included."""
    phases: tuple[PhaseForecast, ...]
    """In order."""
    flops: float
    """Of all steps, the matrix products alone."""
    state_bytes: tuple[int, ...]
    """On one of `training.ranks` GPUs: weights, gradients, optimizer, by ZeRO stage."""
    activation_bytes: int
    """On each of them, at most, of one micro-batch."""
    checkpoint_bytes: int
    """One checkpoint on disk."""
    clusters: tuple[Cluster, ...]
    """By number of GPUs."""


def steps_to_do(run: RunConfig) -> list[int]:
    """Steps of each phase, without those of the finished run that it continues."""
    return [stop - first for first, stop in _steps_of_phases(run)]


def sequences_to_read(run: RunConfig) -> list[int]:
    """Sequences of the same steps."""
    return [run.pretrain.sequences(first, stop) for first, stop in _steps_of_phases(run)]


def _steps_of_phases(run: RunConfig) -> list[tuple[int, int]]:
    recipe, done = run.pretrain, 0
    if recipe.continue_from:
        with contextlib.suppress(ClozeError):  # of an earlier run, removed since
            done = open_artifact(recipe.continue_from).manifest.config["pretrain"]["steps"]
    ends = [round(share * recipe.steps) for share in accumulate(p.share for p in recipe.phases)]
    return list(pairwise([done, *(max(end, done) for end in ends)]))


def forecast_training(
    run: RunConfig, machine: MachineConfig, *, examples: Mapping[int, float]
) -> TrainingForecast:
    """What pre-training takes where a copy of the corpus has so many `examples` of each length."""
    recipe, vocabulary, ranks = run.pretrain, run.vocabulary.size, machine.training.ranks
    count = parameters(run.encoder, vocabulary)
    is_masked = recipe.objective == "masked_lm"
    masked = run.examples.masking.masked_lm_prob if is_masked else 1.0
    phases = []
    of_phases = zip(recipe.phases, steps_to_do(run), sequences_to_read(run), strict=True)
    for phase, steps, read in of_phases:
        length = phase.max_seq_length
        tokens = expected_yield(length, packed=run.examples.pack_documents).mean_length
        one = example_flops(run.encoder, vocabulary, tokens=tokens, masked=masked * tokens)
        epochs = read / examples[length] if examples.get(length) else 0.0
        phases.append(PhaseForecast(length, steps, epochs, flops=read * one))
    flops = sum(phase.flops for phase in phases)
    # a rank's share of a step is all that it could put into a micro-batch
    longest = max(phase.max_seq_length for phase in recipe.phases)
    share = -(-recipe.batch_size // ranks) * longest
    budget = min(machine.training.token_budget or TOKEN_BUDGET, share)
    clusters = []
    for gpus in sorted({*GPUS, ranks}):
        if gpus <= recipe.batch_size:
            rates = machine.rates
            fixed = sum(steps_to_do(run)) * rates.step_seconds
            hours = (fixed + flops / (rates.gpu_tflops * 1e12 * gpus)) / 3600
            cost = gpus * hours * rates.gpu_hour
            clusters.append(Cluster(gpus, recipe.batch_size / gpus, hours, cost))
    return TrainingForecast(
        parameters=count,
        phases=tuple(phases),
        flops=flops,
        state_bytes=state_bytes(run.encoder, vocabulary, ranks=ranks),
        activation_bytes=activation_bytes(
            run.encoder, vocabulary, tokens=budget, masked_share=masked
        ),
        checkpoint_bytes=count * MASTER_BYTES,
        clusters=tuple(clusters),
    )
