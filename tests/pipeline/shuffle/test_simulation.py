"""Simulated sizes of keys and buckets for large corpora."""

import pytest

from cloze.artifacts.config import parse, read_toml
from cloze.flows.config import MachineConfig, RatesConfig
from cloze.flows.forecast import (
    KEY_MEMORY,
    PROCESS_MEMORY,
    SHARD_BYTES,
    forecast_corpus,
    forecast_dataflow,
)
from cloze.pipeline.config.engines import given_options
from cloze.pipeline.config.settings import ExamplesConfig
from cloze.pipeline.readers.input_shards import MAX_SHARD_BYTES
from cloze.pipeline.shuffle.beam_group_by_key import ROW_BYTES
from tests.conftest import PROJECT
from tests.pipeline.shuffle_simulation import (
    PACKED_RATIO,
    FrequentText,
    SimulatedSplit,
    ZipfTexts,
    simulate_keys,
)

TERABYTE, MEAN = 1e12, 3_000.0
DOCUMENTS = 10 * TERABYTE / MEAN
TRAIN, HELDOUT = SimulatedSplit(0.995 * DOCUMENTS, MEAN), SimulatedSplit(0.005 * DOCUMENTS, MEAN)
SKEWED = {
    "a huge source beside a held-out one of a megabyte": ([SimulatedSplit(300, MEAN)], []),
    "a held-out source of a gigabyte": ([SimulatedSplit(3e5, MEAN)], []),
    "a million small sources, a quarter thousand held out": ([SimulatedSplit(3e4, MEAN)] * 250, []),
    "a notice in every file": ([], [FrequentText(DOCUMENTS, 1_000)]),
    "a page a million times": ([], [FrequentText(1e6, 10_000)]),
    "a book a thousand times": ([], [FrequentText(1_000, 4e6)]),
}


@pytest.mark.parametrize("named, frequent", SKEWED.values(), ids=SKEWED)
def test_no_key_of_ten_terabytes_has_more_than_100_megabytes(named, frequent) -> None:
    found = simulate_keys([TRAIN, HELDOUT, *named], frequent=frequent, workers=256)
    assert found.largest_key < 100e6
    assert found.fullest_worker < 1.35 * found.moved / 256
    assert found.moved == pytest.approx(10 * TERABYTE * 0.48, rel=0.05)


def test_half_of_the_corpus_held_out_costs_the_other_half_43_bytes_a_document() -> None:
    trains, named = SimulatedSplit(DOCUMENTS / 2, MEAN), SimulatedSplit(DOCUMENTS / 2, MEAN)
    found = simulate_keys([trains, SimulatedSplit(0, MEAN), named])
    alone = simulate_keys([trains, SimulatedSplit(0, MEAN), SimulatedSplit(0, MEAN)])
    expected = 2 * alone.moved + DOCUMENTS / 2 * ROW_BYTES
    assert found.moved == pytest.approx(expected, rel=0.01)
    assert found.largest_key < 100e6


def test_documents_that_fill_hardly_a_bucket_are_one_key() -> None:
    found = simulate_keys([SimulatedSplit(100, MEAN)])
    assert found.buckets == (1,)
    assert found.largest_key == found.moved == found.fullest_worker
    expected = 100 * (MEAN * PACKED_RATIO + ROW_BYTES)
    assert expected / 3 < found.moved < expected * 3


def test_the_same_seed_gives_the_same_sizes() -> None:
    assert simulate_keys([TRAIN], seed=3) == simulate_keys([TRAIN], seed=3)
    assert simulate_keys([TRAIN], seed=3) != simulate_keys([TRAIN], seed=4)


ZIPF = {"natural text": (1.0, 1e7), "a flat tail": (0.7, 1e6), "a steep head": (1.3, 1e8)}


@pytest.mark.parametrize(("exponent", "most"), ZIPF.values(), ids=ZIPF)
def test_ten_million_texts_with_a_zipf_tail_leave_every_worker_within_its_memory(
    exponent: float, most: float
) -> None:
    """Of 10 TB, on the workers of infra/machines/dataflow.toml, wherever the largest keys fall."""
    zipf = ZipfTexts(texts=10**7, most=most, exponent=exponent, text_bytes=MEAN)
    found = simulate_keys([TRAIN, HELDOUT], zipf=zipf, workers=256)
    machine = read_toml(PROJECT / "infra" / "machines" / "dataflow.toml")
    options = given_options(parse(MachineConfig, machine, source="dataflow.toml").pipeline, ())
    assert SHARD_BYTES == MAX_SHARD_BYTES
    forecast = forecast_dataflow(
        forecast_corpus(10 * TERABYTE, ExamplesConfig()), options, RatesConfig()
    )
    assert forecast.threads == 1
    held = sum(found.largest_keys[-forecast.vcpus :])
    needed = forecast.vcpus * PROCESS_MEMORY + KEY_MEMORY * held
    assert needed < forecast.memory / 2
    assert needed == pytest.approx(forecast.needed_memory, rel=0.4)
    assert found.fullest_worker < 1.35 * found.moved / 256
