"""Model configuration: former names still work, and renaming does not change keys."""

import pytest

from cloze.artifacts.config import Config, parse
from cloze.artifacts.errors import UsageError
from cloze.flows.config import RunConfig
from cloze.model.config import (
    EncoderConfig,
    EvaluateConfig,
    FinetuneConfig,
    OptimizerConfig,
    PretrainConfig,
    PretrainStage,
)


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


@pytest.mark.parametrize(
    ("config", "field", "value"),
    [
        (OptimizerConfig, "learning_rate", float("inf")),
        (OptimizerConfig, "learning_rate", float("nan")),
        (PretrainConfig, "steps", 10**20),
        (EncoderConfig, "hidden_size", 10**9),
        (FinetuneConfig, "seeds", []),
        (FinetuneConfig, "seeds", [1, 2, 1]),
        (FinetuneConfig, "seeds", [-1]),
        (FinetuneConfig, "seeds", [10**26]),
        (EvaluateConfig, "masked_sentences", ["Nothing is missing here."]),
        (RunConfig, "seed", -1),
        (RunConfig, "seed", 10**26),
        (RunConfig, "name", "x" * 300),
    ],
)
def test_a_value_that_no_machine_holds_is_one_line_with_its_field(
    config: type[Config], field: str, value: object
) -> None:
    table = {"name": "a", field: value} if config is RunConfig else {field: value}
    with pytest.raises(UsageError) as raised:
        parse(config, table, source="run.toml")
    assert field in str(raised.value)
    assert "\n" not in str(raised.value)
