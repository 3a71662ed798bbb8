"""The rows of the ablation tables, and their results."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from scipy.stats import ttest_rel

from cloze.artifacts.config import parse, read_toml
from cloze.artifacts.errors import UsageError
from cloze.artifacts.results import SeedScores
from cloze.flows.config import MachineConfig, RunConfig
from cloze.flows.executor import execute
from cloze.flows.forecast import step_flops
from cloze.flows.plan import Plan
from cloze.flows.report.summary import Summary
from cloze.flows.report.units import MINUS
from cloze.flows.workspace import Workspace, read_record, run_artifact, workspace
from cloze.paper import flow
from cloze.paper.result import (
    AblationResult,
    TableResult,
    ablation_result,
    as_page,
    clear_differences,
    publish,
)
from cloze.paper.rows import Row, rows_of_tables
from tests.conftest import PROJECT

OBJECTIVES = ["base", "no-nsp", "left-to-right", "left-to-right-bilstm", "concatenated", "elmo"]

LANGUAGE_MODEL = {
    "split": "package",
    "headline": True,
    "max_seq_length": 32,
    "examples": 100,
    "masked_tokens": 1234,
    "mlm_accuracy": 0.2,
    "mlm_perplexity": 148.4,
    "random_mlm_loss": 7.6,
    "unigram_entropy": 6.2,
    "unigram_loss": 6.3,
    "unigram_accuracy": 0.05,
    "count_model_loss": 5.1,
    "count_model_accuracy": 0.2,
}


def summary(*, loss: float, f1: float) -> Summary:
    """A run's figures: a held-out loss and a tagging score."""
    scores = SeedScores.of([f1, f1]).model_dump()
    return Summary.model_validate(
        {
            "name": "x",
            "title": "x",
            "pretraining": {
                "steps": 20,
                "batch_size": 8,
                "tokens": 1000,
                "curve": [
                    {"step": 10, "heldout": {"heldout": {"mlm_loss": 6.0}}},
                    {"step": 20, "heldout": {"heldout": {"mlm_loss": loss}}},
                ],
            },
            "language_model": [{**LANGUAGE_MODEL, "mlm_loss": loss}],
            "tasks": [
                {
                    "name": "parts",
                    "kind": "tagging",
                    "metric": "f1",
                    "metrics": ["f1"],
                    "examples": {},
                    "seeds": [0, 1],
                    "comparisons": [],
                    "systems": [
                        {"name": "pretrained", "role": "pretrained", "test": {"f1": scores}},
                        {"name": "random", "role": "random", "test": {"f1": scores}},
                    ],
                }
            ],
        }
    )


def found(run: RunConfig, wanted: list[Row], figures: dict[str, list[float]]) -> AblationResult:
    """The result for the given losses of each row; low losses give high tagging scores."""
    results = {
        one.name: summary(loss=loss, f1=1 - loss / 10)
        for row in wanted
        for one, loss in zip(row.runs, figures[row.name], strict=True)
    }
    return ablation_result(run, wanted, results, page="page.html")


def difference(table: TableResult, row: str, key: str = "loss") -> str:
    return next(one for one in table.rows if one.name == row).differences[key].outcome


def test_every_table_of_the_paper_has_its_rows(run: RunConfig) -> None:
    wanted = rows_of_tables(run, ("objective", "size", "masking"))
    assert [row.name for row in wanted if row.table == "objective"] == OBJECTIVES
    shares = [
        (row.runs[0].examples.masking.mask_share, row.runs[0].examples.masking.random_share)
        for row in wanted
        if row.table == "masking"
    ]
    assert shares == [(0.8, 0.1), (1.0, 0.0), (0.8, 0.2), (0.8, 0.0), (0.0, 0.8), (0.0, 1.0)]
    sizes = [row.name for row in wanted if row.table == "size"]
    assert sizes == ["6x768", "12x384", "6x384", "12x768"]
    names = [one.name for row in wanted for one in (*row.runs, *row.partners)]
    assert len(set(names)) == len(names)


def test_the_runs_own_encoder_is_pre_trained_once_for_all_tables(run: RunConfig) -> None:
    wanted = rows_of_tables(run, ("objective", "size", "masking"))
    own = {(row.table, row.name): row.runs for row in wanted}
    base = own["objective", "base"]
    for again in (own["size", "12x768"], own["masking", "mask80-same10-random10"]):
        assert [one.model_copy(update={"name": ""}) for one in again] == [
            one.model_copy(update={"name": ""}) for one in base
        ]


def test_language_models_read_running_text_in_which_nothing_is_replaced(run: RunConfig) -> None:
    for row in rows_of_tables(run, ("objective",)):
        for one in (*row.runs, *row.partners):
            is_language_model = one.pretrain.objective == "next_token"
            assert is_language_model == (row.name not in ("base", "no-nsp"))
            if is_language_model:
                assert one.encoder.attention_direction != "bidirectional"
                assert not one.pretrain.next_sentence_loss
                assert one.examples.second_segment == "none"
                assert one.examples.masking.mask_share == one.examples.masking.random_share == 0


def test_elmo_is_two_lstms_that_read_apart_and_are_only_features(run: RunConfig) -> None:
    (elmo,) = [row for row in rows_of_tables(run, ("objective",)) if row.name == "elmo"]
    for left, right in zip(elmo.runs, elmo.partners, strict=True):
        assert left.encoder.layer_type == right.encoder.layer_type == "lstm"
        assert left.encoder.attention_direction == "left_to_right"
        assert right.encoder.attention_direction == "right_to_left"
        assert not left.finetune.fine_tuning
        assert left.finetune.features
        assert left.pretrain.seed == right.pretrain.seed


def test_main_rows_are_pre_trained_with_three_seeds_on_the_same_examples(run: RunConfig) -> None:
    base = rows_of_tables(run, ("objective",))[0]
    assert [one.pretrain.seed for one in base.runs] == [None, 12346, 12347]
    alike = [one.model_copy(update={"name": "", "pretrain": run.pretrain}) for one in base.runs]
    assert alike[0] == alike[1] == alike[2]
    kept = [row for row in rows_of_tables(run, ("masking",)) if row.name == "mask80-same20-random0"]
    assert [len(row.runs) for row in kept] == [1]


@pytest.mark.parametrize("preset", ["tiny", "base", "large"])
def test_rows_exist_at_every_size(run_table: dict[str, Any], preset: str) -> None:
    run = RunConfig.model_validate({**run_table, "encoder": {"preset": preset}})
    shapes = [row.runs[0].encoder for row in rows_of_tables(run, ("size",))]
    assert shapes[-1].hidden_size == run.encoder.hidden_size
    assert all(shape.hidden_size % shape.num_attention_heads == 0 for shape in shapes)


def test_rows_share_what_they_have_in_common(
    inline: Callable[..., None], run: RunConfig, machine: MachineConfig
) -> None:
    made: dict[str, list[str]] = {}
    for row in rows_of_tables(run, ("objective",), seeds=1):
        record = execute(Plan(row.runs[0], machine))
        made[row.name] = [name for name, stage in record.stages.items() if stage.state == "made"]
    assert made["base"][:4] == ["vocabulary", "tokens", "examples", "pretrain"]
    assert made["no-nsp"] == ["pretrain", "finetune", "evaluate", "report"]
    assert made["left-to-right"] == ["examples", "pretrain", "finetune", "evaluate", "report"]
    assert made["left-to-right-bilstm"] == ["finetune", "evaluate", "report"]


def test_every_row_is_judged_on_the_same_examples_and_two_directions_share_a_head(
    inline: Callable[..., None],
    run: RunConfig,
    machine: MachineConfig,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    judged: list[Row] = []

    def collected(_: RunConfig, wanted: list[Row], space: Workspace) -> AblationResult:
        judged.extend(wanted)
        return AblationResult(title="", page="", seeds=(), tables=())

    monkeypatch.setattr(flow, "tracked", execute)
    monkeypatch.setattr(flow, "publish", collected)
    flow.run_rows.fn(run, machine, ("objective",), seeds=1)
    space = workspace(machine.workspace)
    examples = run_artifact(space, run.name, stage="examples").directory
    for row in judged:
        settings = RunConfig.model_validate(read_record(space, row.runs[0].name).config)
        assert settings.evaluate.heldout_examples == examples
        assert settings.evaluate.all_masked
        second = settings.finetune.second_encoder
        if row.partners:
            partner = run_artifact(space, row.partners[0].name, stage="pretrain").directory
            own = run_artifact(space, row.runs[0].name, stage="pretrain").directory
            assert second == partner != own
        else:
            assert second == ""
    assert [row.name for row in judged if row.partners] == ["concatenated", "elmo"]


def test_a_difference_is_called_one_if_three_seeds_make_it_significant_in_its_table(
    run: RunConfig,
) -> None:
    wanted = rows_of_tables(run, ("masking",))
    losses = {row.name: [5.0 + 0.01 * n for n in range(len(row.runs))] for row in wanted}
    losses["mask100-same0-random0"] = [5.100, 5.111, 5.119]
    losses["mask0-same0-random100"] = [5.00, 5.02, 5.03]
    (table,) = found(run, wanted, losses).tables
    assert difference(table, "mask100-same0-random0") == "loss"
    assert difference(table, "mask100-same0-random0", "parts pretrained") == "loss"
    assert difference(table, "mask0-same0-random100") == "none"
    assert difference(table, "mask80-same20-random0") == "undecided"
    said = " ".join(clear_differences(table))
    assert "100 % [MASK], 0 % kept, 0 % random: held-out loss 0.10 nats worse" in said
    assert "80 % [MASK], 20 % kept" not in said
    below = [row.model_copy(update={"title": f"{MINUS}1, {row.title}"}) for row in table.rows]
    said = " ".join(clear_differences(table.model_copy(update={"rows": below})))
    assert f"{MINUS}1, 100 % [MASK], 0 % kept, 0 % random: held-out loss 0.10 nats worse" in said


def test_a_row_on_the_plateau_of_the_word_frequencies_is_marked(run: RunConfig) -> None:
    wanted = rows_of_tables(run, ("objective",), seeds=1)
    losses = {row.name: [5.0] for row in wanted} | {"no-nsp": [6.25]}
    result = found(run, wanted, losses)
    assert [row.name for row in result.tables[0].rows if row.on_plateau] == ["no-nsp"]
    assert "MLM, no NSP, still on the plateau" in as_page(result)


def test_the_page_speaks_in_words_and_loads_nothing(run: RunConfig) -> None:
    wanted = rows_of_tables(run, ("objective",))
    losses = {row.name: [5.0, 5.01, 5.02][: len(row.runs)] for row in wanted}
    result = found(run, wanted, losses).model_copy(update={"title": "<mine>"})
    page = as_page(result)
    assert "<h1>&lt;mine&gt;</h1>" in page
    assert all(row.title in page for row in wanted)
    assert "held-out loss, nats" in page
    assert "Parts, fine-tuned: F1, %" in page
    assert "49.9" in page
    assert "± 0.1" in page
    assert "mlm_loss" not in page
    assert "1,234 predicted tokens of held-out package" in page
    assert page.count("<svg") == len(wanted)
    assert "http://" not in page.replace("http://www.w3.org", "")


def test_page_and_data_lie_in_a_folder_beside_the_runs(run: RunConfig, tmp_path: Path) -> None:
    wanted = rows_of_tables(run, ("objective",), seeds=1)
    for row in wanted:
        folder = tmp_path / row.runs[0].name
        folder.mkdir()
        content = summary(loss=5.0, f1=0.5).model_dump_json()
        (folder / "summary.json").write_text(content)
    written = publish(run, wanted, workspace(str(tmp_path)))
    data = json.loads((tmp_path / "try-ablations" / "ablations.json").read_text())
    assert AblationResult.model_validate(data) == written
    assert [row["name"] for row in data["tables"][0]["rows"]] == OBJECTIVES
    assert data["tables"][0]["rows"][0]["runs"] == ["try-objective-base"]
    assert "<h1>try: ablations</h1>" in Path(written.page).read_text()


def test_the_ladder_climbs_by_one_change_a_rung_at_equal_flops(run_table: dict[str, Any]) -> None:
    run = RunConfig.model_validate({**run_table, "encoder": {"preset": "small"}})
    rungs = [row.runs[0] for row in rows_of_tables(run, ("modern",))]
    assert len(rungs) == 9
    assert all(len(row.runs) == 3 for row in rows_of_tables(run, ("modern",)))
    for one in rungs:
        flops = one.pretrain.steps * step_flops(one)
        assert flops == pytest.approx(run.pretrain.steps * step_flops(run), rel=0.05)
    bert, *_, last = rungs
    assert bert.encoder == run.encoder
    assert last.encoder.family == "modern"
    assert (last.encoder.gated, last.encoder.positions) == (True, "rotary")
    assert last.encoder.num_hidden_layers > bert.encoder.num_hidden_layers
    assert last.encoder.hidden_size < bert.encoder.hidden_size
    assert last.encoder.global_layers < last.encoder.num_hidden_layers
    assert last.pretrain.optimizer.schedule == "wsd"


def test_the_configured_ladder_has_nine_rungs_of_three_pre_trainings_at_equal_flops() -> None:
    run = parse(RunConfig, read_toml(PROJECT / "configs" / "ladder.toml"), source="ladder.toml")
    wanted = rows_of_tables(run, ("modern",))
    assert [len(row.runs) for row in wanted] == [3] * 9
    flops = [row.runs[0].pretrain.steps * step_flops(row.runs[0]) for row in wanted]
    assert flops == pytest.approx([flops[0]] * 9, rel=0.01)
    assert {row.runs[0].examples.masking.of("heldout").masked_lm_prob for row in wanted} == {0.15}
    assert [task.kind for task in run.finetune.tasks] == ["tagging"]


def test_a_ladder_begins_at_bert(run_table: dict[str, Any]) -> None:
    table = {
        **run_table,
        "encoder": {"family": "modern", "preset": "17M"},
        "examples": {**run_table.get("examples", {}), "second_segment": "none"},
        "pretrain": {**run_table.get("pretrain", {}), "next_sentence_loss": False},
    }
    with pytest.raises(UsageError, match="the ladder begins at BERT's encoder"):
        rows_of_tables(RunConfig.model_validate(table), ("modern",))


def test_a_rung_is_compared_with_the_one_before_it_in_pairs_of_seeds(
    run: RunConfig,
) -> None:
    wanted = rows_of_tables(run, ("modern",))
    losses = {row.name: [5.0 - 0.1 * n + 0.01 * seed for seed in (0, 1, 3)]
              for n, row in enumerate(wanted)}  # fmt: skip
    losses["deep"] = [5.0, 4.9, 5.3]
    (table,) = found(run, wanted, losses).tables
    by_name = {row.name: row.differences for row in table.rows}
    assert not by_name["bert"]
    assert by_name["rotary"]["loss"].difference == pytest.approx(-0.1)
    expected = ttest_rel(losses["deep"], losses["geglu"]).pvalue
    assert by_name["deep"]["loss"].p_value == pytest.approx(expected)
    assert table.reference_title == "the previous rung"
    assert "p = " in as_page(found(run, wanted, losses))
