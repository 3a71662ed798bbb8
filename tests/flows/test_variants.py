"""Seeds and sweeps: their runs, and the artifacts that these share."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tomli_w

from cloze.artifacts.errors import UsageError
from cloze.command import exit_code
from cloze.flows.config import RunConfig
from cloze.flows.stages import chain, keyed_config
from cloze.flows.variants import variants
from cloze.flows.workspace import read_record, workspace

RUN = RunConfig.model_validate(
    {"name": "base", "corpus": {"sources": [{"reader": "text", "path": "/texts"}]}}
)


def test_without_seeds_and_sweeps_the_run_is_itself() -> None:
    (only,) = variants(RUN, seeds=(), sweeps=())
    assert (only.title, only.runs) == ("", (RUN,))


def test_seeds_train_again_on_the_same_data() -> None:
    (variant,) = variants(RUN, seeds=(0, 1), sweeps=())
    assert [run.name for run in variant.runs] == ["base-seed-0", "base-seed-1"]
    first, second = ({s.name: keyed_config(s) for s in chain(run)} for run in variant.runs)
    same = [name for name in first if first[name] == second[name]]
    assert {"vocabulary", "tokens", "examples"} <= set(same)
    assert "pretrain" not in same


def test_every_combination_of_swept_values_is_a_variant_of_its_own() -> None:
    rates = "pretrain.optimizer.learning_rate=1e-3,2e-3"
    found = variants(RUN, seeds=(7,), sweeps=(rates, "encoder.preset=tiny,mini"))
    assert [variant.title for variant in found] == [
        f"learning_rate={rate}, preset={preset}"
        for rate in (0.001, 0.002)
        for preset in ("tiny", "mini")
    ]
    assert len({run.name for variant in found for run in variant.runs}) == 4
    assert found[3].runs[0].pretrain.optimizer.learning_rate == 2e-3
    assert found[3].runs[0].encoder.preset == "mini"


@pytest.mark.parametrize("sweep", ["pretrain.steps", "=1,2", "pretrain.steps="])
def test_a_sweep_without_place_or_values_is_refused(sweep: str) -> None:
    with pytest.raises(UsageError, match="expected KEY=VALUE,VALUE"):
        variants(RUN, seeds=(), sweeps=(sweep,))


@pytest.mark.parametrize(
    ("seeds", "sweeps"),
    [((0, 0), ()), ((), ("pretrain.steps=5,5",)), ((), ("report.title=a.b,a-b",))],
)
def test_nothing_is_counted_twice(seeds: tuple[int, ...], sweeps: tuple[str, ...]) -> None:
    with pytest.raises(UsageError, match="two variants would be named base-"):
        variants(RUN, seeds=seeds, sweeps=sweeps)


def test_seeds_of_a_run_that_pretrains_nothing_are_refused() -> None:
    run = RunConfig.model_validate(
        {
            "name": "tasks",
            "finetune": {
                "encoder": "minilm",
                "tasks": [{"name": "t", "kind": "classification", "train": "t.csv"}],
            },
        }
    )
    with pytest.raises(UsageError, match=r"set finetune\.seeds instead"):
        variants(run, seeds=(0,), sweeps=())


def test_the_command_runs_every_seed_and_shares_the_data(
    inline: Callable[..., None],
    run_table: dict[str, Any],
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "run.toml").write_text(tomli_w.dumps(run_table))
    runs = str(tmp_path / "runs")
    command = ["run", str(tmp_path / "run.toml"), "--workspace", runs, "--without-prefect"]
    assert exit_code([*command, "--seeds", "0", "1", "--json"]) == 0
    (variant,) = json.loads(capfd.readouterr().out)["variants"]
    assert variant["variant"] == "try"
    assert variant["runs"] == ["try-seed-0", "try-seed-1"]
    first, second = (read_record(workspace(runs), name).stages for name in variant["runs"])
    assert {first[stage].state for stage in first} == {"made"}
    reused = {stage for stage, found in second.items() if found.state == "reused"}
    assert reused == {"vocabulary", "tokens", "examples", "labels"}

    # the same command finds everything made, and writes its table for a paper
    assert exit_code([*command, "--seeds", "0", "1", "--format", "latex"]) == 0
    lines = capfd.readouterr().out.splitlines()
    assert lines[:3] == [r"\begin{tabular}{lr}", r"\toprule", r" & try \\"]
    assert lines[-2:] == [r"\bottomrule", r"\end{tabular}"]
