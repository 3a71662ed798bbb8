"""The paper's eleven tasks, from files in their official layout to official submissions."""

import json
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cloze.artifacts.results import Scores, Trials
from cloze.paper.submissions import GLUE_FILES
from tests.cloze.inference.official_tasks import GLUE_NAMES, write_official_tasks
from tests.cloze.tiny_model import write_model
from tests.conftest import cloze as command

Cloze = Callable[..., Any]

NUMBERS, ENTAILMENT = {"0", "1"}, {"entailment", "not_entailment"}
THREE_WAYS = {"contradiction", "entailment", "neutral"}
LABELS = {
    **dict.fromkeys(("CoLA", "SST-2", "MRPC", "QQP", "WNLI"), NUMBERS),
    **dict.fromkeys(("MNLI-m", "MNLI-mm", "AX"), THREE_WAYS),
    **dict.fromkeys(("QNLI", "RTE"), ENTAILMENT),
}


@pytest.fixture(scope="module")
def official(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a finished run of all tasks."""
    folder = tmp_path_factory.mktemp("official")
    write_model(folder / "encoder")
    write_official_tasks(folder)
    done = command("run", "official.toml", "--without-prefect", cwd=folder)
    assert done.returncode == 0, done.stderr
    return folder


def read(folder: Path, stage: str, name: str) -> Any:
    (path,) = folder.glob(f"runs/artifacts/{stage}/*/{name}.*.json")
    return json.loads(path.read_text())


def test_all_eleven_tasks_run_from_their_official_files_to_official_submissions(
    cloze: Cloze, official: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(official)
    done = cloze("submissions", "official", "sent")
    assert done.returncode == 0, done.stderr
    glue = {path.stem: path.read_text().splitlines() for path in (official / "sent/glue").iterdir()}
    assert set(glue) == set(GLUE_FILES)
    for name, lines in glue.items():
        header, *rows = (line.split("\t") for line in lines)
        assert header == ["index", "prediction"]
        assert [index for index, _ in rows] == ["0", "1", "2", "3"]
        if name == "STS-B":
            assert all(0.0 <= float(value) <= 5.0 for _, value in rows)
        else:
            assert {value for _, value in rows} <= LABELS[name]
    with zipfile.ZipFile(official / "sent" / "glue.zip") as archive:
        assert archive.namelist() == sorted(f"{name}.tsv" for name in GLUE_FILES)
    for task in ("squad1", "squad2"):
        answers = json.loads((official / "sent" / task / "test-predictions.json").read_text())
        assert set(answers) == {"test0", "test1", "test2", "test3"}
        assert all(isinstance(answer, str) for answer in answers.values())

    again = cloze("submissions", "official", "sent")
    assert again.returncode == 2
    assert "sent: already exists; choose a new or empty directory" in again.stderr

    trials = {
        fit.task: fit for fit in Trials.model_validate(read(official, "finetune", "trials")).trials
    }
    assert set(trials) == {*GLUE_NAMES, "squad1", "squad2", "swag"}
    assert set(trials["MNLI"].more) == {"dev_mismatched"}
    assert trials["squad2"].dev.keys() >= {"has_answer_f1", "no_answer_exact_match"}


def test_unlabelled_data_has_no_score_and_decides_nothing(official: Path) -> None:
    scores = Scores.model_validate(read(official, "evaluate", "scores"))
    assert {task.name for task in scores.tasks} == {*GLUE_NAMES, "squad1", "squad2", "swag"}
    for task in scores.tasks:
        assert all(system.test == {} for system in task.systems), task.name
        assert {comparison.split for comparison in task.comparisons} <= {"dev"}


def test_a_run_without_unlabelled_test_files_has_nothing_to_submit(
    cloze: Cloze, folder: Path
) -> None:
    write_model(folder / "encoder")
    (folder / "a.csv").write_text("text_a,label\nthe list,yes\na b,no\n")
    (folder / "a.toml").write_text(
        'name = "a"\n[finetune]\nencoder = "encoder"\nseeds = [0]\n[[finetune.tasks]]\nname = "a"\n'
        'kind = "classification"\ntrain = "a.csv"\ndev = "a.csv"\nmax_seq_length = 16\nepochs = 1\n'
    )
    assert cloze("run", "a.toml", "--without-prefect").returncode == 0
    done = cloze("submissions", "a", "sent")
    assert done.returncode == 2
    assert "no predictions for unlabelled test files" in done.stderr
    assert not (folder / "sent").exists()
