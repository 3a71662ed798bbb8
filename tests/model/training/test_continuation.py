"""Further steps for a finished run, in this process with the real engine."""

import json
from pathlib import Path
from typing import Any

import pytest

from cloze.artifacts.errors import UsageError
from cloze.artifacts.stage import InputRef, StageTable, read_stage_table
from cloze.artifacts.store import Artifact
from cloze.model.training.optimizer import Schedule
from cloze.model.training.pretrain import make_encoder
from tests.model.training.rank_program import StruckDown, strike
from tests.model.training.training_fixtures import examples_artifact, stage_table


@pytest.fixture(scope="module")
def examples(tmp_path_factory: pytest.TempPathFactory) -> Artifact:
    return examples_artifact(tmp_path_factory.mktemp("examples"))


@pytest.fixture(scope="module")
def finished(examples: Artifact, tmp_path_factory: pytest.TempPathFactory) -> Artifact:
    """A run of ten steps."""
    return trained(tmp_path_factory.mktemp("finished"), examples, steps=10)


def longer(folder: Path, examples: Artifact, finished: Artifact, **recipe: Any) -> StageTable:
    folder.mkdir(exist_ok=True)
    table = read_stage_table(stage_table(folder, examples, **{"steps": 20, **recipe}))
    continued = InputRef(digest=finished.digest, path=finished.directory)
    return table.model_copy(update={"inputs": {**table.inputs, "continued": continued}})


def trained(folder: Path, examples: Artifact, **recipe: Any) -> Artifact:
    folder.mkdir(exist_ok=True)
    return make_encoder(read_stage_table(stage_table(folder, examples, **recipe)), [])


def test_at_equal_rates_further_steps_are_bit_for_bit_those_of_a_run_without_an_end(
    examples: Artifact, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Schedule, "__call__", lambda schedule, step: 1e-3)
    whole = trained(tmp_path / "whole", examples, steps=20)
    half = trained(tmp_path / "half", examples, steps=10)
    found = make_encoder(longer(tmp_path / "longer", examples, half), [])
    for name in ("model.safetensors", "curve.jsonl"):
        assert found.read_bytes(name) == whole.read_bytes(name)
    assert found.manifest.statistics["updates"] == 20
    logged = [json.loads(line)["step"] for line in found.read_bytes("metrics.jsonl").splitlines()]
    assert logged == [5, 10, 15, 20]


FLAT = {"warmup_steps": 12, "schedule": "constant"}
FALLING = {"warmup_steps": 12, "schedule": "wsd", "decay_share": 0.25}


@pytest.mark.parametrize("middle", [10, 14])
def test_a_constant_rate_goes_on_bit_for_bit_as_the_longer_run_that_decays_at_its_end(
    examples: Artifact, tmp_path: Path, middle: int
) -> None:
    whole = trained(tmp_path / "whole", examples, steps=20, optimizer=FALLING)
    half = trained(tmp_path / "half", examples, steps=middle, optimizer=FLAT)
    found = make_encoder(longer(tmp_path / "longer", examples, half, optimizer=FALLING), [])
    assert found.read_bytes("model.safetensors") == whole.read_bytes("model.safetensors")
    assert found.manifest.statistics["continued"] == {
        "steps_before": middle,
        "schedule": "without a break: wsd of all steps",
    }


def test_after_a_constant_rate_another_peak_is_warmed_up_to_and_a_decay_may_not_be_late(
    examples: Artifact, tmp_path: Path
) -> None:
    half = trained(tmp_path / "half", examples, steps=10, optimizer=FLAT)
    other = {**FALLING, "learning_rate": 1e-3}
    found = make_encoder(longer(tmp_path / "longer", examples, half, optimizer=other), [])
    continued = found.manifest.statistics["continued"]
    assert continued["schedule"] == "second warm-up, then wsd of all steps"
    late = {**FALLING, "decay_share": 0.75}
    message = r"10 steps at the peak rate.*decay_share = 0.75 of 20 .* at step 5"
    with pytest.raises(UsageError, match=message):
        make_encoder(longer(tmp_path / "late", examples, half, optimizer=late), [])


def test_further_steps_are_an_artifact_of_their_own_that_names_where_they_began(
    examples: Artifact, finished: Artifact, tmp_path: Path
) -> None:
    table = longer(tmp_path, examples, finished)
    found = make_encoder(table, [])
    anew = read_stage_table(stage_table(tmp_path, examples, steps=20))
    assert found.manifest.key != anew.key
    assert found.manifest.inputs["continued"] == finished.digest
    assert found.manifest.statistics["continued"] == {
        "steps_before": 10,
        "schedule": "second warm-up, then the linear decay of all steps",
    }


def test_an_interrupted_continuation_ends_bit_for_bit_as_if_nothing_had_happened(
    examples: Artifact, finished: Artifact, tmp_path: Path
) -> None:
    whole = make_encoder(longer(tmp_path / "whole", examples, finished), [])
    struck = longer(tmp_path / "struck", examples, finished)
    for step in (12, 17):  # before its first checkpoint, and after it
        with pytest.raises(StruckDown):
            wish = {"rank": 0, "site": "after_step", "step": step, "do": "raise"}
            make_encoder(struck, [], fault=strike(wish))
    assert make_encoder(struck, []).digest == whole.digest


def test_what_is_kept_for_further_steps_changes_no_digest_and_may_be_left_out(
    examples: Artifact, finished: Artifact, tmp_path: Path
) -> None:
    without = trained(tmp_path / "one", examples, steps=10, machine={"keep_optimizer": False})
    assert without.digest == finished.digest
    assert [entry.name for entry in without.manifest.records] == ["metrics.jsonl"]
    with pytest.raises(UsageError, match=r"no optimizer state .*pretrain.init"):
        make_encoder(longer(tmp_path / "two", examples, without), [])


@pytest.mark.parametrize(
    ("recipe", "reason"),
    [
        ({"steps": 10}, "has done 10 steps, which pretrain.steps = 10 includes"),
        ({"batch_size": 4}, "pretrain.batch_size: checkpoint 8, now 4"),
        (
            {"encoder": {"hidden_dropout_prob": 0.0}},
            "hidden_dropout_prob: checkpoint None, now 0.0",
        ),
    ],
)
def test_a_run_with_other_settings_is_not_gone_on_with(
    examples: Artifact, finished: Artifact, tmp_path: Path, recipe: dict[str, Any], reason: str
) -> None:
    with pytest.raises(UsageError, match=reason):
        make_encoder(longer(tmp_path, examples, finished, **recipe), [])


def test_other_examples_are_not_gone_on_with(finished: Artifact, tmp_path: Path) -> None:
    others = examples_artifact(tmp_path / "others", seed=1)
    with pytest.raises(UsageError, match=r"trained on examples .*pretrain.init"):
        make_encoder(longer(tmp_path / "longer", others, finished), [])
