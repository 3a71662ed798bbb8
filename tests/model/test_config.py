"""Model configuration: what is refused, and how."""

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
)


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


@pytest.mark.parametrize(
    ("config", "table", "message"),
    [
        (PretrainConfig, {"minutes": 5}, "2 phases, expected one"),
        (PretrainConfig, {"steps": 9, "shortened": [[4, 9]]}, "shortened: [4, 9] is impossible"),
        (PretrainConfig, {"steps": 9, "shortened": [[4, 6], [3, 5]]}, "[3, 5] is impossible"),
        (PretrainConfig, {"steps": 9, "shortened": [[0, 0]]}, "[0, 0] is impossible"),
        (FinetuneConfig, {"minutes": 5, "grid": {}}, "leave out grid"),
        (FinetuneConfig, {"minutes": 5, "shortened": {"a": [[4, 5]]}}, "exclude each other"),
        (FinetuneConfig, {"shortened": {"a": [[4, 3]]}}, "[4, 3] is impossible"),
    ],
)
def test_a_time_limit_that_no_run_could_keep_is_refused(
    config: type[Config], table: dict[str, object], message: str
) -> None:
    with pytest.raises(UsageError) as raised:
        parse(config, table, source="run.toml")
    assert message in str(raised.value)
