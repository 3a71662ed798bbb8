"""A modern encoder in the same loop: resumed, with ZeRO, in bf16, in a second phase."""

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load
from transformers import ModernBertConfig, ModernBertForMaskedLM

from cloze.artifacts.errors import ClozeError
from cloze.artifacts.stage import InputRef, read_stage_table
from cloze.artifacts.store import Artifact
from cloze.model.training.optimizer import Schedule
from cloze.model.training.pretrain import make_encoder
from tests.model.training.rank_program import StruckDown, strike
from tests.model.training.training_fixtures import examples_artifact, losses, stage_table

MODERN = {
    "family": "modern",
    "num_hidden_layers": 4,
    "local_attention": 8,
    "max_position_embeddings": 32,
}


@pytest.fixture(scope="module")
def examples(tmp_path_factory: pytest.TempPathFactory) -> Artifact:
    return examples_artifact(tmp_path_factory.mktemp("examples"), lengths=(32, 64))


@pytest.fixture(scope="module")
def trained(examples: Artifact, tmp_path_factory: pytest.TempPathFactory) -> Artifact:
    return run(modern_table(tmp_path_factory.mktemp("trained"), examples))


def modern_table(
    directory: Path, examples: Artifact, *, encoder: dict[str, Any] | None = None, **fields: Any
) -> Path:
    directory.mkdir(exist_ok=True)
    shape = {**MODERN, **(encoder or {})}
    recipe = {"steps": 12, "next_sentence_loss": False, **fields}
    return stage_table(directory, examples, encoder=shape, **recipe)


def run(table: Path, **struck: Any) -> Artifact:
    wish = {"rank": 0, **struck} if struck else None
    return make_encoder(read_stage_table(table), [], fault=strike(wish))


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_an_interrupted_run_ends_bit_for_bit_as_if_nothing_had_happened(
    examples: Artifact, tmp_path: Path, precision: str
) -> None:
    whole = run(modern_table(tmp_path / "whole", examples, precision=precision))
    struck = modern_table(tmp_path / "struck", examples, precision=precision)
    for step in (3, 8):  # before the first checkpoint, and after one
        with pytest.raises(StruckDown):
            run(struck, site="after_step", step=step, do="raise")
    assert run(struck).digest == whole.digest


def test_a_recipe_of_growing_batches_wsd_and_stable_adamw_resumes_bit_for_bit(
    examples: Artifact, tmp_path: Path
) -> None:
    optimizer = {"name": "stable_adamw", "schedule": "wsd", "decay_share": 0.5, "warmup_steps": 2}
    recipe = {"optimizer": optimizer, "batch_growth_steps": 6, "first_batch_size": 2}
    whole = run(modern_table(tmp_path / "whole", examples, **recipe))
    struck = modern_table(tmp_path / "struck", examples, **recipe)
    for step in (3, 8):
        with pytest.raises(StruckDown):
            run(struck, site="after_step", step=step, do="raise")
    assert run(struck).digest == whole.digest


@pytest.mark.slow  # starts DeepSpeed
def test_zero_stages_change_the_loss_by_rounding_only(examples: Artifact, tmp_path: Path) -> None:
    curves = []
    for stage in (0, 1, 3):
        machine = {"zero_stage": stage}
        dry = {"hidden_dropout_prob": 0.0}
        folder = tmp_path / str(stage)
        run(modern_table(folder, examples, encoder=dry, machine=machine))
        curves.append(losses(folder))
    for sliced in curves[1:]:
        assert max(abs(a - b) for a, b in zip(curves[0], sliced, strict=True)) < 1e-5


def test_transformers_reads_what_was_trained(trained: Artifact) -> None:
    config = ModernBertConfig(**trained.read_json("config.json"))
    missing, unexpected = ModernBertForMaskedLM(config).load_state_dict(
        load(trained.read_bytes("model.safetensors")), strict=False
    )
    assert (missing, unexpected) == (["decoder.weight"], [])  # tied to the word embeddings


def test_a_second_run_goes_on_with_longer_sequences_and_a_higher_rotary_base(
    trained: Artifact, examples: Artifact, tmp_path: Path
) -> None:
    table = modern_table(
        tmp_path,
        examples,
        encoder={"max_position_embeddings": 64, "global_rope_theta": 160_000.0},
        init=trained.directory,
        optimizer={"learning_rate": 1e-12, "warmup_steps": 0},
        steps=1,
        phases=[{"max_seq_length": 64, "share": 1.0}],
    )
    found, given = (load(one.read_bytes("model.safetensors")) for one in (run(table), trained))
    assert all(torch.allclose(found[name], given[name], atol=1e-9) for name in given)


def test_a_family_changed_between_two_runs_is_refused_by_its_name_alone(
    trained: Artifact, examples: Artifact, tmp_path: Path
) -> None:
    table = stage_table(tmp_path, examples, init=trained.directory)
    with pytest.raises(ClozeError, match=r"another shape \(family: it has modern, wanted bert\)"):
        run(table)


def test_a_family_changed_under_a_runs_checkpoints_is_refused_with_a_diff(
    examples: Artifact, tmp_path: Path
) -> None:
    with pytest.raises(StruckDown):
        run(modern_table(tmp_path, examples), site="after_step", step=8, do="raise")
    changed = stage_table(tmp_path, examples, steps=12, next_sentence_loss=False)
    with pytest.raises(ClozeError, match="family"):
        run(changed)


def test_further_steps_of_a_finished_run_are_those_of_a_run_without_an_end(
    examples: Artifact, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Schedule, "__call__", lambda schedule, step: 1e-3)
    whole = run(modern_table(tmp_path / "whole", examples))
    half = run(modern_table(tmp_path / "half", examples, steps=5))
    table = read_stage_table(modern_table(tmp_path / "longer", examples))
    continued = InputRef(digest=half.digest, path=half.directory)
    found = make_encoder(
        table.model_copy(update={"inputs": {**table.inputs, "continued": continued}}), []
    )
    assert found.read_bytes("model.safetensors") == whole.read_bytes("model.safetensors")
