"""`cloze ablations`, whole: rows that are runs, one judgement for all, a page and its figures."""

import json
from pathlib import Path

import pytest

from tests.cloze.execution.test_text_folder import TINY, text
from tests.conftest import cloze


@pytest.mark.slow
def test_a_table_of_the_paper_is_made_of_ordinary_runs_and_made_once(tmp_path: Path) -> None:
    """Of an encoder of one layer the table *size* has two rows: as it is, and half as wide."""
    folder = tmp_path / "texts"
    folder.mkdir()
    for number in range(25):
        (folder / f"{number}.txt").write_text(text(number, 20))
    settings = {
        "name": "small",
        "corpus.sources.0.path": str(folder),
        "encoder.num_hidden_layers": 1,
        **TINY,
    }
    overrides = [part for key, value in settings.items() for part in ("--set", f"{key}={value}")]
    workspace = tmp_path / "runs"
    command = (
        *("ablations", "configs/text_folder.toml", "--table", "size", "--seeds", "1", "--json"),
        *(*overrides, "--workspace", str(workspace)),
    )
    first = cloze(*command)
    assert first.returncode == 0, first.stderr
    (table,) = json.loads(first.stdout)["tables"]
    assert [row["title"] for row in table["rows"]] == ["1 layers × 16", "1 layers × 32"]
    losses = [row["figures"]["loss"]["mean"] for row in table["rows"]]
    assert losses[0] != losses[1]
    for name, loss in zip(("1x16", "1x32"), losses, strict=True):
        summary = json.loads((workspace / f"small-size-{name}" / "summary.json").read_text())
        judged = [scores for scores in summary["language_model"] if scores["headline"]]
        assert [scores["mlm_loss"] for scores in judged] == [loss]
    page = (workspace / "small-ablations" / "ablations.html").read_text()
    assert "no verdict" in page
    again = cloze(*command)
    assert json.loads(again.stdout) == json.loads(first.stdout)
    assert len(list((workspace / "artifacts" / "pretrain").iterdir())) == 2
