"""Staged fine-tuning and ensembles of seeds."""

import contextlib
import json
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

from cloze.command import exit_code
from tests.cloze.names_task import configuration, write_encoder_and_rows

Cloze = Callable[..., Any]

LATER = """
[[finetune.tasks]]
name = "{name}"
glue = "SST-2"
folder = "sst"
{after}
max_seq_length = 16
batch_size = 8
epochs = 1
learning_rate = 1e-3
"""


def write_configuration(folder: Path) -> None:
    """Three tasks decided by one word: a large one, a small one that follows it, one without."""
    write_encoder_and_rows(folder)
    (folder / "sst").mkdir()
    for name, times in (("train", 4), ("dev", 20)):
        table = "sentence\tlabel\n" + "the list\t1\na b\t0\n" * times
        (folder / "sst" / f"{name}.tsv").write_text(table)
    (folder / "sst" / "test.tsv").write_text("index\tsentence\n0\tthe list\n1\ta b\n")
    after = LATER.format(name="after", after='after = "first"')
    first = configuration("first", settings="ensemble = true\n")
    (folder / "names.toml").write_text(first + after + LATER.format(name="alone", after=""))


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a finished run."""
    folder = tmp_path_factory.mktemp("staged")
    write_configuration(folder)
    before = signal.getsignal(signal.SIGTERM)
    with contextlib.chdir(folder):
        assert exit_code(["run", "names.toml", "--without-prefect"]) == 0
    signal.signal(signal.SIGTERM, before)
    return folder


def fits(folder: Path) -> list[dict[str, Any]]:
    """The result of every trial, followed by the ensembles."""
    (file,) = folder.glob("runs/artifacts/finetune/*/trials.*.json")
    return list(json.loads(file.read_text())["trials"])


@pytest.mark.slow
def test_a_task_starts_from_the_encoder_of_another(finished: Path) -> None:
    reached = {
        (fit["task"], fit["seed"]): fit["dev"]["accuracy"]
        for fit in fits(finished)
        if fit["system"] == "pretrained"
    }
    for seed in (1, 2):
        assert reached["first", seed] == reached["after", seed] == 1.0
        assert reached["alone", seed] < 1.0, "one step teaches nothing by itself"


@pytest.mark.slow
def test_an_ensemble_is_the_mean_of_the_seeds_and_its_predictions_are_submitted(
    finished: Path,
) -> None:
    (artifact,) = (finished / "runs" / "artifacts" / "finetune").iterdir()
    members = [load_file(file) for file in sorted(artifact.glob("logits/alone-*"))]
    assert len(members) == 2
    right = np.mean([one["dev"] for one in members], axis=0).argmax(-1) == np.tile([1, 0], 20)
    ensembles = {f["task"]: f for f in fits(finished) if f["system"] == "pretrained-ensemble"}
    assert set(ensembles) == {"first", "after", "alone"}
    assert ensembles["alone"]["dev"]["accuracy"] == right.mean()
    assert ensembles["first"]["dev"]["accuracy"] == 1.0
    answers = np.mean([one["test"] for one in members], axis=0).argmax(-1)
    (sent,) = artifact.glob("submissions/alone/SST-2.*tsv")
    assert sent.read_text().splitlines() == [
        "index\tprediction",
        *(f"{n}\t{a}" for n, a in enumerate(answers)),
    ]
    page = (finished / "runs" / "names" / "report.html").read_text()
    assert "pre-trained, ensemble of seeds" in page


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (('after = "first"', 'after = "nosuch"'), "has after = nosuch"),
        (("seeds = [1, 2]", "seeds = [1]"), "set at least two seeds"),
        (("ensemble = true", "ensemble = true\ngrid = {}"), "searches each task independently"),
    ],
)
def test_invalid_stages_and_ensembles_are_rejected(
    cloze: Cloze, folder: Path, change: tuple[str, str], said: str
) -> None:
    write_configuration(folder)
    text = (folder / "names.toml").read_text()
    (folder / "names.toml").write_text(text.replace(*change))
    done = cloze("plan", "names.toml")
    assert done.returncode == 2
    assert said in done.stderr
