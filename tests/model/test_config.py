"""Model configuration: former names keep working, and keys do not change with a name."""

import pytest

from artifacts.config import parse
from model.config import EncoderConfig, PretrainConfig, PretrainStage


@pytest.mark.parametrize(("former", "name"), [("stored", "static"), ("redrawn", "dynamic")])
def test_masks_are_known_by_their_former_names_with_a_warning(
    former: str, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert parse(PretrainConfig, {"masks": former}, source="run.toml").masks == name
    warning = capsys.readouterr().err
    assert warning.splitlines() == [
        f'warning: pretrain.masks = "{former}" is now "{name}"; rename it'
    ]


@pytest.mark.parametrize(("former", "name"), [("stored", "static"), ("redrawn", "dynamic")])
def test_stage_tables_keep_the_former_names_so_that_keys_stay(
    former: str, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    recipe = PretrainConfig.model_validate({"masks": name})
    stage = PretrainStage(seed=1, encoder=EncoderConfig(), pretrain=recipe)
    table = stage.model_dump(mode="json")
    assert table["pretrain"]["masks"] == former
    assert parse(PretrainStage, table, source="stage table") == stage
    assert capsys.readouterr().err == ""
