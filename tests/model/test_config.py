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
    TaskConfig,
)
from cloze.model.task_families import TASK_FAMILIES


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


OF_KINDS = {
    "class_weights": "balanced",
    "collection": {"passages": "corpus.jsonl"},
    "compare_texts": True,
    "document_context": True,
    "label_separator": "|",
    "reranking": {"negatives": 3},
    "retrieval": {"dimensions": [64]},
    "span": {"doc_stride": 64},
    "threshold": 0.9,
    "thresholds": [0.9],
}


@pytest.mark.parametrize("kind", TASK_FAMILIES)
@pytest.mark.parametrize("name", OF_KINDS)
def test_a_setting_is_followed_by_its_kinds_of_tasks_and_refused_by_all_others(
    kind: str, name: str
) -> None:
    table = {"name": "t", "kind": kind, "labels": ["a"] * (name == "thresholds")}
    with_it = {**table, name: OF_KINDS[name]}
    assert name in {one for family in TASK_FAMILIES.values() for one in family.settings}
    if name in TASK_FAMILIES[kind].settings:
        parse(TaskConfig, with_it, source="run.toml")
        return
    with pytest.raises(UsageError, match=f"{name} applies to tasks of kind .*, not to {kind};"):
        parse(TaskConfig, with_it, source="run.toml")


def test_a_configuration_that_was_written_out_in_full_is_read_again() -> None:
    """Stage tables and manifests hold every field, also those that do not apply."""
    for kind in TASK_FAMILIES:
        config = FinetuneConfig(tasks=(TaskConfig(name="t", kind=kind),))
        assert FinetuneConfig.model_validate(config.model_dump(mode="json")) == config
