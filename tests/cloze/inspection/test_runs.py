"""The runs of a workspace: listed, shown, compared, and their garbage."""

import json
import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any, NoReturn

import pytest

from cloze.artifacts.errors import UsageError
from cloze.artifacts.results import SeedScores, SystemScore, TaskScore
from cloze.flows import locks
from cloze.flows.report.summary import Summary
from cloze.inference import exchange, prediction, searcher, vectors
from cloze.inspection import runs
from cloze.inspection.trace import find_file
from cloze.pipeline.config.settings import CleaningConfig, CorpusConfig
from cloze.pipeline.text.texts import read_documents
from tests.artifacts.test_temporary import left_by_a_killed_process

Cloze = Callable[..., Any]


def answer(cloze: Cloze, *arguments: str) -> Any:
    done = cloze(*arguments, "--json")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.fixture
def two_runs(cloze: Cloze, folder: Path) -> Path:
    """The workspace of `try` and `small`, whose vocabularies differ in size."""
    (folder / "small.toml").write_text(
        (folder / "try.toml").read_text().replace('"try"', '"small"') + "[vocabulary]\nsize = 80\n"
    )
    answer(cloze, "vocabulary", "try.toml")
    time.sleep(1.0)  # starts are recorded in whole seconds, and older runs are listed first
    answer(cloze, "vocabulary", "small.toml")
    return folder / "runs"


def test_a_workspace_without_runs_is_reported(cloze: Cloze, folder: Path) -> None:
    assert cloze("runs").stdout == f"no runs in {folder / 'runs'}\n"
    assert answer(cloze, "runs")["runs"] == []


def test_runs_are_listed_shown_compared_and_collected(cloze: Cloze, two_runs: Path) -> None:
    listed = {run["run"]: run for run in answer(cloze, "runs")["runs"]}
    assert list(listed) == ["try", "small"], "the oldest first"
    assert {run["stages"] for run in listed.values()} == {1}
    assert cloze("runs").stdout.splitlines()[0].split() == [
        *("run", "state", "started", "took", "stages", "headline")
    ]

    record = answer(cloze, "show", "small")["record"]
    directory = Path(record["stages"]["vocabulary"]["directory"])
    assert (record["state"], record["config"]["vocabulary"]["size"]) == ("finished", 80)
    shown = cloze("show", "small").stdout
    assert shown.startswith("small: finished in ")
    assert str(directory) in shown

    compared = answer(cloze, "compare", "try", "small")
    assert list(compared["configuration"]) == ["vocabulary.size"]
    assert compared["configuration"]["vocabulary.size"][1] == "80"
    assert compared["figures"] == {}, "neither has a report"
    names, differing = cloze("compare", "try", "small").stdout.splitlines()
    assert names.split() == ["try", "small"]
    assert differing.split()[::2] == ["vocabulary.size", "80"]

    assert answer(cloze, "gc")["found"] == []
    shutil.rmtree(two_runs / "small")
    (found,) = answer(cloze, "gc")["found"]
    assert (found["path"], directory.exists()) == (str(directory), True)
    deleted = answer(cloze, "gc", "--delete")
    assert (deleted["bytes"], directory.exists()) == (found["bytes"], False)
    assert answer(cloze, "plan", "try.toml")["stages"][0]["action"] == "reuse"


KEY = "a" * 64


def test_gc_removes_what_killed_commands_left_in_workspace_and_caches(
    cloze: Cloze, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder / "cache"))
    places = [folder / "runs" / "artifacts", folder / "cache" / "cloze" / "artifacts" / KEY]
    for place in places:
        place.mkdir(parents=True)
    left = [left_by_a_killed_process(place) for place in places]
    assert cloze("gc").returncode == 0
    assert all(one.exists() for one in left)
    assert cloze("gc", "--delete").returncode == 0
    assert not any(one.exists() for one in left)


def test_gc_removes_copies_of_remote_artifacts_that_nobody_has_used_for_a_month(
    cloze: Cloze, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder / "cache"))
    (folder / "runs").mkdir()
    copies = [folder / "cache" / "cloze" / "artifacts" / name for name in ("new", "old")]
    for copy, days in zip(copies, (29, 31), strict=True):
        copy.mkdir(parents=True)
        (copy / "model").write_bytes(bytes(1000))
        moment = time.time() - days * 86_400
        os.utime(copy, (moment, moment))
    (found,) = answer(cloze, "gc")["found"]
    reason = "copy of a remote artifact, unused for 31 days"
    assert found == {"path": str(copies[1]), "bytes": 1000, "reason": reason}
    assert cloze("gc", "--delete").returncode == 0
    assert [copy.exists() for copy in copies] == [True, False]


@pytest.mark.parametrize(
    ("scores", "shown"),
    [([0.625], "0.625"), ([0.625, 0.625], "0.625"), ([0.5, 0.75], "0.625 0.125")],
    ids=["one seed", "equal seeds", "two seeds"],
)
def test_seeds_without_a_spread_have_no_error(
    cloze: Cloze, folder: Path, scores: list[float], shown: str
) -> None:
    run = folder / "runs" / "try"
    run.mkdir(parents=True)
    record = {"name": "try", "state": "finished", "machine": {}, "config": {}, "stages": {}}
    (run / "run.json").write_text(json.dumps({**record, "started_at": "2026-01-12T10:00:00Z"}))
    ours = SystemScore(
        name="pretrained",
        role="pretrained",
        trials=len(scores),
        test={"f1": SeedScores.of(scores)},
    )
    parts = {"name": "topic", "kind": "classification", "metric": "f1", "metrics": ("f1",)}
    task = TaskScore.model_validate(
        {**parts, "examples": {}, "seeds": (0,), "systems": (ours,), "comparisons": ()}
    )
    summary = Summary(name="try", title="try", tasks=(task,))
    (run / "summary.json").write_text(summary.model_dump_json())
    lines = [line.split() for line in cloze("show", "try").stdout.splitlines()]
    told = [line for line in lines if line[:3] == ["topic", "pretrained", "f1"]]
    assert " ".join(line[-1] for line in told) == shown
    assert [line[3:-1] for line in told] == [[], ["±"]][: len(told)]


@pytest.mark.parametrize(
    "arguments", [("show", "other"), ("compare", "other", "try"), ("trace", "other")]
)
def test_a_missing_run_is_named_in_one_line(cloze: Cloze, arguments: tuple[str, ...]) -> None:
    done = cloze(*arguments)
    assert (done.returncode, done.stdout) == (2, "")
    (line,) = done.stderr.splitlines()
    assert line.startswith("error: other: no run of this name in ")


def test_a_run_that_was_killed_is_listed_and_shown_as_interrupted(
    cloze: Cloze, two_runs: Path
) -> None:
    file = two_runs / "small" / "run.json"
    record = json.loads(file.read_text())
    file.write_text(json.dumps({**record, "state": "running"}))
    states = {run["run"]: run["state"] for run in answer(cloze, "runs")["runs"]}
    assert states == {"try": "finished", "small": "interrupted"}
    assert answer(cloze, "show", "small")["record"]["state"] == "interrupted"


@pytest.mark.parametrize(
    ("module", "looks_up", "arguments"),
    [
        (searcher, "vectors_directory", ("search", "m", "texts", "q")),
        (vectors, "vectors_directory", ("embed", "m", "text")),
        (exchange, "model_directory", ("export", "m", "out")),
        (exchange, "writable_workspace", ("import", "m")),
        (prediction, "model_directory", ("predict", "m", "text")),
        (prediction, "model_directory", ("fill-mask", "m", "text")),
    ],
    ids=["search", "embed", "export", "import", "predict", "fill-mask"],
)
def test_nothing_is_deleted_under_a_command_that_reads_it(
    cloze: Cloze,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    module: ModuleType,
    looks_up: str,
    arguments: tuple[str, ...],
) -> None:
    (folder / "runs").mkdir()
    monkeypatch.setattr(locks, "NAMING_SECONDS", 0.0)

    def meanwhile(*_: object, **__: object) -> NoReturn:
        with pytest.raises(UsageError, match="in use by a command"):
            runs.gc(delete=True)
        raise UsageError("reached")

    monkeypatch.setattr(module, looks_up, meanwhile)
    assert "reached" in cloze(*arguments).stderr
    assert cloze("gc", "--delete").returncode == 0, "afterwards"


def test_the_file_of_a_document_is_found_by_its_digest(folder: Path) -> None:
    (folder / "texts" / "two.txt").write_text("The second document.\nOf two lines.\n")
    source = {"reader": "sentence_lines", "path": str(folder / "texts")}
    corpus, cleaning = CorpusConfig.model_validate({"sources": [source]}), CleaningConfig()
    digests = {one.sentences[0]: one.digest for one in read_documents(corpus, cleaning)}
    found = find_file(digests["The second document."], corpus, cleaning)
    assert found == f"{folder / 'texts' / 'two.txt'}, line 1"
    (folder / "texts" / "two.txt").write_text("Another document.\n")
    gone = find_file(digests["The second document."], corpus, cleaning)
    assert gone == "not found: the corpus has changed since"
