"""A checkpoint of another configuration is refused, with a diff."""

import pytest

from artifacts.errors import UsageError
from model.training.resuming import refuse_changes

FACTS = {
    "config": {"seed": 1, "encoder": {"hidden_size": 128}, "phases": [{"share": 1.0}]},
    "inputs": {"examples": "abc"},
}


def test_the_same_configuration_is_accepted_whatever_else_was_saved() -> None:
    refuse_changes({**FACTS, "step": 5, "curve": {}}, FACTS, where="ck")


@pytest.mark.parametrize(
    ("state", "difference"),
    [
        ({"config": {**FACTS["config"], "seed": 2}}, "config.seed: checkpoint 2, now 1"),
        ({"config": {**FACTS["config"], "encoder": {"hidden_size": 64}}},
         "config.encoder.hidden_size: checkpoint 64, now 128"),
        ({"config": {**FACTS["config"], "phases": [{"share": 0.9}]}},
         "config.phases.0.share: checkpoint 0.9, now 1.0"),
        ({"inputs": {"examples": "xyz"}}, "inputs.examples: checkpoint 'xyz', now 'abc'"),
        ({"inputs": {}}, "inputs.examples: checkpoint None, now 'abc'"),
    ],
)  # fmt: skip
def test_every_difference_is_named(state: dict[str, object], difference: str) -> None:
    with pytest.raises(UsageError) as refused:
        refuse_changes({**FACTS, **state}, FACTS, where="ck")
    assert difference in str(refused.value)
    assert "change it back, or remove them" in str(refused.value)
