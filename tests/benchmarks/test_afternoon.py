"""The afternoon's configuration, its ladder and its curve, without training anything."""

import json
from pathlib import Path

import pytest

from benchmarks.afternoon.curve import at, course, point_of
from benchmarks.afternoon.ladder import RUNGS, rung_of
from benchmarks.afternoon.short_grid import IN_MEAN, PUBLISHED, read
from cloze.artifacts.config import flat
from cloze.flows.config import RunConfig
from cloze.flows.variants import changed

CONFIG = Path(__file__).resolve().parents[2] / "configs" / "afternoon.toml"
MINI = {
    "encoder.num_hidden_layers": 4,
    "encoder.hidden_size": 384,
    "encoder.num_attention_heads": 6,
    "encoder.intermediate_size": 1536,
}


@pytest.fixture(scope="module")
def base() -> RunConfig:
    return read(str(CONFIG))


def test_both_encoders_have_the_parameters_of_the_published_ones(base: RunConfig) -> None:
    mini = changed(base, "mini", {**MINI}, source="test")
    # Turc et al. 2019: 2 × 128 and 4 × 256 with 30,522 word-pieces
    for run, published in ((base, 4_386_178), (mini, 11_171_074)):
        ours = run.encoder.parameters(run.vocabulary.size)
        assert abs(ours / published - 1) < 0.1


def test_the_configuration_says_the_settings_of_the_larger_one() -> None:
    comments = [line for line in CONFIG.read_text().splitlines() if line.startswith("#")]
    said = " ".join(comments)
    assert all(f"--set {name}={value}" in said for name, value in MINI.items())


@pytest.mark.parametrize("name", RUNGS)
def test_a_rung_changes_what_it_names_and_nothing_else(base: RunConfig, name: str) -> None:
    rungs = [rung_of(base, one, steps=1000, seed=1) for one in ("base", name)]
    plain, changed_ = (flat(rung.model_dump(mode="json")) for rung in rungs)
    differ = {key for key in plain.keys() | changed_.keys() if plain.get(key) != changed_.get(key)}
    named = {"name", *(place for place in RUNGS[name])}
    assert {key for key in differ if not any(key.startswith(place) for place in named)} == set()
    assert [task.name for task in rungs[1].finetune.tasks] == [*IN_MEAN]


def test_the_published_means_are_those_of_the_table() -> None:
    means = {name: round(row["mean"], 1) for name, row in PUBLISHED.items()}
    assert means == {"BERT-Tiny": 71.3, "BERT-Mini": 72.2, "BERT-Small": 76.2}


def test_a_point_of_the_curve_knows_its_tokens_and_seconds(tmp_path: Path) -> None:
    log = tmp_path / "metrics.jsonl"
    rows = [
        {"step": 50, "seconds": 100.0, "tokens_per_s": 4000.0, "step_seconds": 2.0},
        {"step": 50, "heldout_mlm": 7.0},
        {"step": 150, "seconds": 250.0, "tokens_per_s": 5000.0, "step_seconds": 1.5},
    ]
    both = {"learning_rate": 2e-3}
    lines = [{**row, **both, "masked_lm_loss": 9.0 - row["step"] / 50} for row in rows]
    log.write_text("".join(json.dumps(line) + "\n" for line in lines))
    found = course(log)
    # 50 steps of 2 s at 4,000 tokens a second, then 100 of 1.5 s at 5,000
    assert [row["tokens"] for row in found] == [400_000, 1_150_000]
    assert at(found, 100) == {"tokens": 775_000.0, "seconds": 175.0, "loss": 7.0}


def test_a_point_of_the_curve_trains_no_encoder(base: RunConfig) -> None:
    point = point_of(base, "kept/step-00000220", name="at-220")
    assert point.corpus is None
    assert point.finetune.encoder == "kept/step-00000220"
    assert len(point.finetune.tasks) == 5
    assert point.finetune.grid is None
