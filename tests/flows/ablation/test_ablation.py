"""The rows of the paper's ablation tables, and what is made of their figures."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from artifacts.results import SeedScores
from artifacts.summary import Summary
from flows.ablation.result import as_page, publish, seeds, table
from flows.ablation.rows import rows
from flows.config import MachineConfig, RunConfig
from flows.executor import execute
from flows.workspace import workspace

SUMMARY = {
    "name": "x",
    "title": "x",
    "pretraining": {
        "steps": 20,
        "batch_size": 8,
        "tokens": 1000,
        "curve": [
            {"step": 10, "heldout": {"heldout": {"mlm_loss": 6.0}}},
            {"step": 20, "heldout": {"heldout": {"mlm_loss": 5.0}}},
        ],
    },
}


def test_every_table_of_the_paper_has_its_rows(run: RunConfig) -> None:
    found = rows(run, ("objective", "size", "masking"))
    assert [row.name for row in found if row.table == "objective"] == [
        "base",
        "no-nsp",
        "left-to-right",
        "left-to-right-bilstm",
    ]
    shares = [
        (row.run.examples.masking.mask_share, row.run.examples.masking.random_share)
        for row in found
        if row.table == "masking"
    ]
    assert shares == [(0.8, 0.1), (1.0, 0.0), (0.8, 0.2), (0.8, 0.0), (0.0, 0.8), (0.0, 1.0)]
    sizes = [row.name for row in found if row.table == "size"]
    assert sizes == ["6x768", "12x384", "6x384", "12x768"]
    assert len({row.run.name for row in found}) == len(found)


@pytest.mark.parametrize("preset", ["tiny", "base", "large"])
def test_rows_exist_at_every_size(run_table: dict[str, Any], preset: str) -> None:
    run = RunConfig.model_validate({**run_table, "encoder": {"preset": preset}})
    shapes = [row.run.encoder for row in rows(run, ("size",))]
    assert shapes[-1].hidden_size == run.encoder.hidden_size
    assert all(shape.hidden_size % shape.num_attention_heads == 0 for shape in shapes)


def test_rows_share_what_they_have_in_common(
    inline: Callable[..., None], run: RunConfig, machine: MachineConfig
) -> None:
    made: dict[str, list[str]] = {}
    for row in rows(run, ("objective",)):
        record = execute(row.run, machine)
        made[row.name] = [name for name, stage in record.stages.items() if stage.state == "made"]
    assert made["base"][:4] == ["vocabulary", "tokens", "examples", "pretrain"]
    assert made["no-nsp"] == ["pretrain", "finetune", "evaluate", "report"]
    assert made["left-to-right-bilstm"] == ["finetune", "evaluate", "report"]


def test_the_page_shows_each_row_with_its_figures_and_loads_nothing(run: RunConfig) -> None:
    wanted = rows(run, ("objective",))
    results = {row.run.name: Summary.model_validate(SUMMARY) for row in wanted}
    page = as_page(wanted, results, title="<mine>")
    assert "<h1>&lt;mine&gt;</h1>" in page
    assert all(f"<th>{row.name}</th>" in page for row in wanted)
    assert "<svg" in page
    assert "http://" not in page.replace("http://www.w3.org", "")


def test_page_and_data_lie_in_a_folder_beside_the_runs(run: RunConfig, tmp_path: Path) -> None:
    wanted = rows(run, ("objective",))
    for row in wanted:
        folder = tmp_path / row.run.name
        folder.mkdir()
        (folder / "summary.json").write_text(json.dumps(SUMMARY))
    written = publish(run, wanted, workspace(str(tmp_path)))
    data = json.loads((tmp_path / "try-ablations" / "ablations.json").read_text())
    assert data == json.loads(json.dumps(written))
    assert [row["row"] for row in data["rows"]] == [row.name for row in wanted]
    assert data["rows"][0]["run"] == "try-objective-base"
    assert "<h1>try: ablations</h1>" in Path(data["page"]).read_text()


def test_scores_stand_beside_their_errors_and_the_seeds_are_named(run: RunConfig) -> None:
    wanted = rows(run, ("objective",))
    task = {
        "name": "parts",
        "kind": "tagging",
        "metric": "f1",
        "metrics": ["f1"],
        "examples": {},
        "seeds": [0, 1],
        "comparisons": [],
        "systems": [system("pretrained", 0.7071), system("random", 0.5)],
    }
    whole = Summary.model_validate({**SUMMARY, "tasks": [task]})
    partial = Summary.model_validate(SUMMARY)
    results = {row.run.name: whole if row.name == "base" else partial for row in wanted}
    header, base, other, *_ = table(wanted, results)
    assert header == ("", "parts pretrained f1", "tokens seen")
    assert base == ("base", "0.7071 ± 0.012", "1000")
    assert other == ("no-nsp", "", "1000")
    assert seeds(results) == (0, 1)
    assert "over the seeds 0, 1" in as_page(wanted, results, title="x")


def system(role: str, mean: float) -> dict[str, Any]:
    scores = SeedScores.of([mean, mean]).model_copy(update={"standard_error": 0.0123})
    return {"name": role, "role": role, "test": {"f1": scores.model_dump()}}
