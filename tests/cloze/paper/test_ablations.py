"""`cloze ablations` end to end: its rows are runs; its page and figures compare them."""

import json
from pathlib import Path

import pytest

from tests.cloze.execution.test_text_folder import TINY, text
from tests.conftest import cloze


def small_run(folder: Path, **settings: str) -> list[str]:
    """Configuration, overrides and workspace of a tiny run on texts in `folder`."""
    texts = folder / "texts"
    texts.mkdir()
    for number in range(25):
        (texts / f"{number}.txt").write_text(text(number, 20))
    settings = {"name": "small", "corpus.sources.0.path": str(texts), **settings, **TINY}
    overrides = [part for key, value in settings.items() for part in ("--set", f"{key}={value}")]
    return ["configs/text_folder.toml", *overrides, "--workspace", str(folder / "runs")]


@pytest.mark.slow
def test_a_table_of_the_paper_is_made_of_ordinary_runs_and_made_once(tmp_path: Path) -> None:
    """For an encoder of one layer the table *size* has two rows: the same, and half as wide."""
    configured = small_run(tmp_path, **{"encoder.num_hidden_layers": "1"})
    workspace = tmp_path / "runs"
    command = ("ablations", *configured, "--table", "size", "--seeds", "1", "--json")
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


@pytest.mark.slow
@pytest.mark.long
def test_rungs_of_the_ladder_are_selected_by_name_and_evaluated_on_the_same_text(
    tmp_path: Path,
) -> None:
    configured = small_run(tmp_path)
    command = ("ablations", *configured, "--table", "modern", "--seeds", "1", "--json")
    unknown = cloze(*command, "--row", "nosuch")
    assert unknown.returncode == 2
    assert "row nosuch: not in modern; the rows are bert, no-nsp, mask30, pre" in unknown.stderr
    made = cloze(*command, "--row", "bert", "--row", "wsd")
    assert made.returncode == 0, made.stderr
    (table,) = json.loads(made.stdout)["tables"]
    bert, modern = table["rows"]
    assert [bert["name"], modern["name"]] == ["bert", "wsd"]
    assert bert["differences"] == {}
    losses = [row["figures"]["loss"]["mean"] for row in (bert, modern)]
    assert modern["differences"]["loss"]["difference"] == pytest.approx(losses[1] - losses[0])
    runs = tmp_path / "runs"
    summaries = [
        json.loads((runs / f"small-modern-{name}" / "summary.json").read_text())
        for name in ("bert", "wsd")
    ]
    judged = [summary["language_model"][0]["masked_tokens"] for summary in summaries]
    assert judged[0] == judged[1] == table["masked_tokens"]
    assert len(list((runs / "artifacts" / "pretrain").iterdir())) == 2
