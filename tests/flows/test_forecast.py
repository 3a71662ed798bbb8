"""Forecasts of time, disk, memory and cost."""

from typing import Any

import pytest

from cloze.flows.config import MachineConfig, RunConfig
from cloze.flows.forecast import (
    MEAN_DOCUMENT,
    MEASURED,
    expected_yield,
    forecast_corpus,
    forecast_training,
    length_flops,
)
from cloze.pipeline.config.settings import ExamplesConfig
from tests.pipeline.shuffle_simulation import SimulatedSplit, simulate_keys


@pytest.fixture
def paper(run_table: dict[str, Any]) -> RunConfig:
    return RunConfig.model_validate(run_table)


def on(ranks: int = 1, **rates: float) -> MachineConfig:
    return MachineConfig.model_validate({"training": {"ranks": ranks}, "rates": rates})


def test_twice_the_text_is_twice_the_work() -> None:
    once, twice = (forecast_corpus(size, ExamplesConfig()) for size in (1e9, 2e9))
    assert twice.core_seconds == pytest.approx(2 * once.core_seconds)
    assert twice.examples_bytes == pytest.approx(2 * once.examples_bytes)
    assert twice.examples[128] == pytest.approx(2 * once.examples[128])


def test_copies_cost_disk_and_no_second_tokenisation() -> None:
    one, ten = (forecast_corpus(1e9, ExamplesConfig(copies=copies)) for copies in (1, 10))
    assert ten.examples_bytes == pytest.approx(10 * one.examples_bytes)
    assert ten.tokens_bytes == one.tokens_bytes
    assert ten.core_seconds < 10 * one.core_seconds
    assert ten.examples == one.examples


@pytest.mark.parametrize(("text_bytes", "key"), [(16e9, 6e6), (300e9, 10e6), (10e12, 100e6)])
def test_an_engine_reads_more_moves_half_and_holds_one_bucket_a_key(
    text_bytes: float, key: float
) -> None:
    found = forecast_corpus(text_bytes, ExamplesConfig())
    engine = found.engine
    assert engine.core_seconds > found.core_seconds
    assert 3 * text_bytes < engine.read_bytes < 4 * text_bytes
    assert engine.shuffle_bytes == pytest.approx(found.tokens_bytes, rel=0.05)
    assert engine.largest_key < key
    corpus = SimulatedSplit(text_bytes / MEAN_DOCUMENT, MEAN_DOCUMENT)
    for workers, disk in engine.worker_disk.items():
        simulated = simulate_keys([corpus], workers=workers)
        assert engine.shuffle_bytes == pytest.approx(simulated.moved, rel=0.01)
        assert engine.largest_key == pytest.approx(simulated.largest_key, rel=0.1)
        assert disk == pytest.approx(simulated.fullest_worker, rel=0.15)


@pytest.mark.parametrize("length", sorted(MEASURED))
def test_measured_lengths_are_given_as_they_were_measured(length: int) -> None:
    assert expected_yield(length) == MEASURED[length]
    assert expected_yield(length).mean_length <= length


def test_epochs_are_steps_of_a_batch_over_the_examples_of_a_copy(paper: RunConfig) -> None:
    found = forecast_training(paper, on(), examples={128: 256_000.0, 512: 128_000.0})
    assert [phase.epochs for phase in found.phases] == pytest.approx([900.0, 200.0])


def test_more_gpus_are_sooner_and_dearer_as_each_step_has_a_fixed_part(paper: RunConfig) -> None:
    one, *_, last = forecast_training(paper, on(ranks=256), examples={}).clusters
    assert (one.gpus, last.gpus) == (1, 256)
    assert last.hours < one.hours
    assert last.cost > one.cost
    assert last.hours * 3600 > paper.pretrain.steps * on().rates.step_seconds


def test_no_more_gpus_are_reckoned_with_than_a_step_has_examples(paper: RunConfig) -> None:
    clusters = forecast_training(paper, on(), examples={}).clusters
    assert max(cluster.gpus for cluster in clusters) <= paper.pretrain.batch_size
    assert all(cluster.examples >= 1 for cluster in clusters)


def test_time_is_work_over_the_rate_where_steps_cost_nothing_of_themselves(
    paper: RunConfig,
) -> None:
    machine = on(gpu_tflops=100.0, step_seconds=0.0, gpu_hour=2.0)
    found = forecast_training(paper, machine, examples={})
    one = found.clusters[0]
    assert one.hours == pytest.approx(found.flops / 1e14 / 3600)
    assert {round(cluster.cost, 6) for cluster in found.clusters} == {round(2 * one.hours, 6)}


def test_the_paper_at_base_is_of_the_known_order_of_work(paper: RunConfig) -> None:
    found = forecast_training(paper, on(), examples={})
    tokens = 1_000_000 * 256 * (0.9 * MEASURED[128].mean_length + 0.1 * MEASURED[512].mean_length)
    assert 6 * 85e6 * tokens < found.flops < 1.4 * 6 * 85e6 * tokens


@pytest.mark.parametrize(("objective", "share"), [("masked_lm", 0.15), ("next_token", 1.0)])
def test_the_work_of_the_head_is_that_of_the_tokens_its_objective_predicts(
    paper: RunConfig, objective: str, share: float
) -> None:
    pretrain = paper.pretrain.model_copy(update={"objective": objective})
    run = paper.model_copy(update={"pretrain": pretrain})
    tokens = expected_yield(128).mean_length
    size = run.vocabulary.size
    assert length_flops(run, 128) == pytest.approx(
        run.encoder.training_flops(size, tokens=tokens, squared=tokens**2, masked=share * tokens)
    )
