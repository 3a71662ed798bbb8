"""`cloze distill`: from a teacher and a folder of text to a student in use."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cloze.artifacts.config import read_toml
from cloze.artifacts.errors import UsageError
from cloze.execution import distillation
from cloze.model.encoder.operations.native_kernels import kernels
from tests.cloze.tiny_model import CONFIG, MODERN, write_cross_encoder, write_model

Cloze = Callable[..., Any]


@pytest.fixture
def begun(folder: Path) -> Path:
    """A teacher of four layers, and documents with words of its vocabulary."""
    write_model(folder / "teacher", encoder=CONFIG.model_copy(update={"num_hidden_layers": 4}))
    (folder / "texts" / "one.txt").unlink()
    draw = np.random.default_rng(0)
    for number in range(40):
        lines = (" ".join(draw.choice(["a", "b", "names", "list"], 30)) for _ in range(8))
        text = "".join(f"The {line}.\n" for line in lines)
        (folder / "texts" / f"{number}.txt").write_text(text)
    return folder


@pytest.mark.slow
def test_a_folder_makes_a_student_that_is_used_and_exported_by_its_runs_name(
    cloze: Cloze, begun: Path
) -> None:
    # wide enough for the kernels of int8
    sizes = {"num_hidden_layers": 4, "hidden_size": 32, "intermediate_size": 32}
    write_model(begun / "wide", encoder=CONFIG.model_copy(update=sizes))
    command = ("distill", "wide", "texts", "--layers", "2", "--name", "small")
    done = cloze(*command, "--without-prefect", "--json")
    assert done.returncode == 0, done.stderr
    assert "teacher: 4 layers × 32; student: 2 layers × 32" in done.stderr
    made = json.loads(done.stdout)["distilled"]
    assert (made["teacher"]["layers"], made["student"]["layers"]) == (4, 2)
    page = (begun / "runs" / "small" / "report.html").read_text()
    assert "Teacher and student" in page and "% of the teacher" in page
    summary = json.loads((begun / "runs" / "small" / "summary.json").read_text())
    _, student, *int8 = summary["distillation"]["systems"]
    assert ("Student in int8" in page) == bool(int8) == (kernels() is not None)
    for one in int8:
        assert one["megabytes"] < student["megabytes"]
        assert one["score"] == pytest.approx(student["score"], abs=0.1)
        assert one["milliseconds"].keys() == student["milliseconds"].keys() != set()
    assert cloze("embed", "small", "the list", "--output", "v.npy").returncode == 0
    assert np.load(begun / "v.npy").shape == (1, 32)
    exported = cloze("export", "small", "out")
    assert exported.returncode == 0, exported.stderr
    assert json.loads((begun / "out" / "config.json").read_text())["num_hidden_layers"] == 2
    again = cloze(*command, "--without-prefect")
    assert "0 stages made, 4 reused" in again.stdout
    planned = cloze("plan", "small.toml")
    assert planned.returncode == 0, planned.stderr


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("teacher", "texts", "--layers", "5"), "layers 5: the teacher has 4"),
        (("teacher", "texts", "--width", "6"), "expected a multiple of 4"),
        (("teacher", "texts", "--passages", "3"), "--passages 3: expected 16 or more"),
        (("texts", "texts"), "no config.json among its 40 files"),
        (("nobody", "texts"), "no run of this name"),
        (("teacher", "nothing"), "nothing"),
        (("teacher", "empty"), "empty"),
        (("modern", "texts", "--layers", "1", "--width", "4"), "only encoders of BERT's family"),
    ],
)
def test_what_cannot_be_distilled_is_refused_in_one_line(
    cloze: Cloze, begun: Path, options: tuple[str, ...], said: str
) -> None:
    write_model(begun / "modern", encoder=MODERN)
    (begun / "empty").mkdir()
    (begun / "empty" / "none.txt").touch()
    done = cloze("distill", *options, "--name", "small")
    assert done.returncode == 2, done.stderr
    assert said in done.stderr.splitlines()[-1]
    assert not (begun / "small.toml").exists()


def test_the_same_command_finds_its_own_configuration_and_another_is_refused(
    cloze: Cloze, begun: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop(config: Path, **_: object) -> None:
        raise UsageError(f"reached {config}")

    monkeypatch.setattr(distillation, "run", stop)
    for _ in range(2):
        assert "reached small.toml" in cloze("distill", "teacher", "texts", "--name=small").stderr
    table = read_toml(begun / "small.toml")
    assert table["distill"]["teacher"] == str(begun / "teacher")
    assert table["pairs"]["train_pairs"] == 20_000
    other = cloze("distill", "teacher", "texts", "--layers", "2", "--name", "small")
    earlier = "cloze distill teacher texts --layers 3 --passages 40000"
    assert (
        f"small.toml: already exists, written by another command (`{earlier}`); remove it if that "
        "is not wanted any more, choose another --name" in other.stderr
    )


def test_a_distilling_run_does_nothing_else(cloze: Cloze, begun: Path) -> None:
    tables = '[distill]\nteacher = "teacher"\n'
    (begun / "none.toml").write_text(f'name = "none"\n{tables}')
    assert (
        "[distill] needs distill.teacher, and what to learn on" in cloze("plan", "none.toml").stderr
    )
    corpus = '[[corpus.sources]]\nreader = "text"\npath = "texts"\n'
    (begun / "both.toml").write_text(f'name = "both"\n{corpus}{tables}')
    assert "[distill] is a run of its own" in cloze("plan", "both.toml").stderr


def test_a_ranker_of_pairs_teaches_no_vectors(cloze: Cloze, begun: Path) -> None:
    write_cross_encoder(begun / "ranker")
    done = cloze("distill", "ranker", "texts", "--layers", "1", "--name", "small")
    assert done.returncode == 2, done.stderr
    assert "ranker: has classifier.bias, a task's head, and no modules.json" in done.stderr
