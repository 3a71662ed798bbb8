"""Task files in keys: existing files are inputs, and optional ones may be missing."""

from pathlib import Path
from typing import Any

import pytest

from cloze.artifacts.store import Store
from cloze.flows.config import RunConfig
from cloze.flows.external_inputs import Digests
from cloze.flows.stages import Stage, chain, stage_table


def finetune_stage(table: dict[str, Any], **task: str) -> Stage:
    run = RunConfig.model_validate({**table, "finetune": {"tasks": [{"name": "own", **task}]}})
    return next(stage for stage in chain(run) if stage.name == "finetune")


def key(stage: Stage) -> str:
    lonely = Stage(stage.config, external=stage.external)
    return stage_table(lonely, {}, store=Store("/store"), machine={}, digests=Digests()).key


@pytest.fixture
def glue(tmp_path: Path) -> Path:
    folder = tmp_path / "RTE"
    folder.mkdir()
    for split in ("train", "dev"):
        (folder / f"{split}.tsv").write_text("sentence1\tsentence2\tlabel\na\tb\tentailment\n")
    return folder


def test_glue_without_test_files_has_a_key_that_follows_its_files(
    run_table: dict[str, Any], glue: Path, tmp_path: Path
) -> None:
    before = key(finetune_stage(run_table, glue="RTE", folder=str(glue)))
    moved = glue.rename(tmp_path / "moved")
    assert key(finetune_stage(run_table, glue="RTE", folder=str(moved))) == before
    (moved / "test.tsv").write_text("sentence1\tsentence2\na\tb\n")
    assert key(finetune_stage(run_table, glue="RTE", folder=str(moved))) != before


def test_a_hugging_face_data_set_is_part_of_the_key_by_its_name(
    run_table: dict[str, Any], glue: Path
) -> None:
    def of(split: str) -> Stage:
        files = {"dev": str(glue / "dev.tsv"), "train": f"datasets:nyu-mll/glue:rte:{split}"}
        return finetune_stage(run_table, kind="pair_classification", **files)

    assert set(of("train").external["task own"].files) == {"finetune.tasks.0.dev"}
    assert key(of("train")) != key(of("validation"))
