import csv
import io
import json
import math
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import psutil
import pytest
import torch

from cloze.artifacts.errors import ClozeError, UsageError
from cloze.artifacts.progress import Progress
from cloze.artifacts.results import MaskedSentences, Scores, Trial, Trials
from cloze.artifacts.stage import write_stage_table
from cloze.artifacts.store import Artifact, open_artifact
from cloze.model.config import TrainingMachine
from cloze.model.evaluation.evaluate import make_scores
from cloze.model.finetune.approaches import FineTuning, split_logits
from cloze.model.finetune.finetune import (
    Worker,
    make_trials,
    run_each,
    run_workers,
    worker_count,
)
from cloze.model.finetune.trainer import TrialResult, TrialTrainer
from cloze.model.finetune.trials import TrialRunner
from cloze.model.hugging_face.model_files import read_encoder_files, read_model
from cloze.model.hugging_face.source import open_source
from cloze.model.inference.export import export_task
from cloze.model.inference.predict import load_predictor
from cloze.model.tasks.problems import load_problem, load_tables
from tests.model.task_builders import (
    FIRST_WORD,
    TOKENIZER,
    encoder_artifact,
    examples_artifact,
    inputs,
    masked_examples,
    stage_table,
    tokens_artifact,
    write_lines,
)
from tests.waiting import PATIENCE


def tagging_rows(count: int, seed: int) -> list[dict]:
    """Three of the words are NAMEs, and two of these have several word-pieces."""
    rng = np.random.default_rng(seed)
    rows = []
    for _ in range(count):
        words = [str(word) for word in rng.choice(["list", "arrays", "names", "of", "given"], 8)]
        rows.append(
            {"words": words, "tags": ["NAME" if word[0] in "lan" else "O" for word in words]}
        )
    return rows


def pair_rows(count: int, seed: int) -> list[dict]:
    rng = np.random.default_rng(seed)
    rows = []
    for _ in range(count):
        left, right = rng.choice(["list", "array", "name", "value"], 2)
        same = "yes" if left == right else "no"
        rows.append({"text_a": f"the {left}", "text_b": f"a new {right}", "label": same})
    return rows


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data")
    for name, rows in (("tags", tagging_rows), ("pairs", pair_rows)):
        for split, seed in (("train", 0), ("dev", 1), ("test", 2)):
            write_lines(folder / name / f"{split}.jsonl", rows(40, seed))
    return folder


@pytest.fixture(scope="module")
def encoder(tmp_path_factory: pytest.TempPathFactory) -> Artifact:
    return encoder_artifact(tmp_path_factory.mktemp("encoder") / "artifact")


def finetune_config(data: Path, **changes: object) -> dict:
    def task(name: str, kind: str, **more: object) -> dict:
        files = {split: str(data / name / f"{split}.jsonl") for split in ("train", "dev", "test")}
        return {"name": name, "kind": kind, "max_seq_length": 32, "epochs": 2, **files, **more}

    tasks = [
        task("tags", "tagging", batch_size=8, learning_rate=1e-2, epochs=6),
        task("pairs", "pair_classification"),
    ]
    return {
        "tasks": tasks,
        "seeds": [0, 1],
        "initialisations": ["pretrained", "random"],
        "precision": "fp32",
        **changes,
    }


@pytest.fixture(scope="module")
def fitted(data: Path, encoder: Artifact, tmp_path_factory: pytest.TempPathFactory) -> Artifact:
    output = tmp_path_factory.mktemp("finetune") / "artifact"
    table = stage_table(
        "finetune",
        output,
        config={"finetune": finetune_config(data)},
        inputs=inputs(encoder=encoder),
        machine={"threads": 1},
    )
    return make_trials(table, [])


def test_every_task_beginning_and_seed_is_fitted_in_one_launch(fitted: Artifact) -> None:
    fits = Trials.model_validate(fitted.read_json("trials.json")).trials
    assert [(fit.task, fit.system, fit.seed) for fit in fits] == [
        (task, system, seed)
        for task in ("tags", "pairs")
        for system in ("pretrained", "random")
        for seed in (0, 1)
    ]
    assert fitted.manifest.statistics["trials"] == 8


def test_a_tagger_learns_its_words(fitted: Artifact) -> None:
    fits = Trials.model_validate(fitted.read_json("trials.json"))
    assert [(b.name, b.test["accuracy"]) for b in fits.tasks[0].baselines][1] == ("lookup", 1.0)
    assert all(fit.test["accuracy"] > 0.95 for fit in fits.trials if fit.task == "tags")


def test_a_second_fine_tuning_gives_the_same_bytes(
    fitted: Artifact, data: Path, encoder: Artifact, tmp_path: Path
) -> None:
    table = stage_table(
        "finetune",
        tmp_path,
        config={"finetune": finetune_config(data)},
        inputs=inputs(encoder=encoder),
        machine={"threads": 1},
    )
    assert make_trials(table, []).digest == fitted.digest


def test_an_interrupted_launch_keeps_the_fits_it_has_finished(
    data: Path, encoder: Artifact, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = finetune_config(data, initialisations=["pretrained"], seeds=[0])
    table = stage_table(
        "finetune",
        tmp_path,
        config={"finetune": config},
        inputs=inputs(encoder=encoder),
        machine={"threads": 1},
    )
    first = make_trials(table, [])
    (tmp_path / "manifest.json").unlink()
    (tmp_path / "finished" / "trials" / "pairs-pretrained-0.json.json").unlink()
    capsys.readouterr()
    assert make_trials(table, []).digest == first.digest
    said = capsys.readouterr().err
    assert "finetune tags pretrained seed 0: " not in said
    assert "finetune pairs pretrained seed 0: " in said


def test_trials_share_the_time_and_their_records_repeat_them(
    data: Path, encoder: Artifact, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def fit(name: str, **limits: object) -> Artifact:
        config = finetune_config(data, initialisations=["pretrained"], seeds=[0, 1], **limits)
        table = stage_table(
            "finetune",
            tmp_path / name,
            config={"finetune": config},
            inputs=inputs(encoder=encoder),
            machine={"threads": 1},
        )
        return make_trials(table, [])

    limited = fit("limited", minutes=1e-6)  # which is over before the first step is
    trials = Trials.model_validate(limited.read_json("trials.json")).trials
    assert [(one.label, one.steps, one.shortened) for one in trials] == [
        (f"{task}-pretrained-{seed}", 1, ((1, 1),)) for task in ("tags", "pairs") for seed in (0, 1)
    ]
    assert limited.manifest.statistics["steps"] == 4
    again = fit("again", shortened={one.label: one.shortened for one in trials})
    assert again.digest == limited.digest
    with pytest.raises(UsageError, match=r"finetune.shortened: tag-pretrained-0: no trial of this"):
        fit("mistyped", shortened={"tag-pretrained-0": [(1, 1)]})
    # a model that is trained again for its weights ends where its trial ended
    (tmp_path / "limited" / "manifest.json").unlink()
    capsys.readouterr()
    assert fit("limited", minutes=1e-6).digest == limited.digest
    assert "is trained again for its weights" in capsys.readouterr().err


def test_another_seed_costs_one_more_fit_and_changes_nothing_else(
    data: Path, encoder: Artifact, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def fit(store: str, seeds: list[int]) -> Artifact:
        config = finetune_config(data, initialisations=["pretrained"], seeds=seeds)
        table = stage_table(
            "finetune",
            tmp_path / store / "-".join(map(str, seeds)),
            config={"finetune": config},
            inputs=inputs(encoder=encoder),
            machine={"threads": 1},
        )
        return make_trials(table, [])

    fit("grown", [0, 1])
    capsys.readouterr()
    grown = fit("grown", [0, 1, 2])
    said = capsys.readouterr().err
    assert "finetune: 4 trials reused from" in said
    assert "pairs pretrained seed 2: " in said and "pairs pretrained seed 1: " not in said
    assert "is trained again for its weights" not in said
    assert grown.digest == fit("at once", [0, 1, 2]).digest


def test_predictions_of_every_fit_are_kept_in_the_files_order(fitted: Artifact) -> None:
    record = Trial.model_validate(fitted.read_json("trials/pairs-pretrained-0.json"))
    assert len(record.predictions["test"]) == 40
    assert set(record.predictions["test"]) <= {"yes", "no"}


def run_finetune(config: dict, encoder: Artifact, output: Path) -> Artifact:
    table = stage_table(
        "finetune",
        output,
        config={"finetune": config},
        inputs=inputs(encoder=encoder),
        machine={"threads": 1},
    )
    return make_trials(table, [])


def test_errors_of_the_best_trial_are_a_file_with_their_rows(fitted: Artifact) -> None:
    fits = Trials.model_validate(fitted.read_json("trials.json")).trials
    best = max(
        (f for f in fits if (f.task, f.system) == ("pairs", "pretrained")), key=lambda f: f.merit
    )
    header, *rows = csv.reader(io.StringIO(fitted.read_bytes("errors/pairs-test.csv").decode()))
    assert header == ["row", "text", "gold", "predicted"]
    assert len(rows) == round(40 * (1 - best.test["accuracy"]))
    assert all(gold != predicted for _, _, gold, predicted in rows)
    assert best.confusion is not None
    by_label = best.confusion.by_label()
    assert sum(one.rows for one in by_label) == 40
    recalled = sum(one.rows * one.recall for one in by_label)
    assert recalled == pytest.approx(40 * best.test["accuracy"])


def test_a_grid_is_searched_on_dev_and_its_best_point_gets_all_seeds(
    data: Path, encoder: Artifact, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    grid = {"batch_sizes": [8, 32], "learning_rates": [1e-5, 1e-2], "epochs": [1, 4]}
    config = finetune_config(data, initialisations=["pretrained"], grid=grid)
    config["tasks"] = config["tasks"][:1]
    artifact = run_finetune(config, encoder, tmp_path)
    fits = Trials.model_validate(artifact.read_json("trials.json")).trials
    tried = {fit.point: fit.dev["accuracy"] for fit in fits if fit.point}
    assert len(tried) == 8
    assert max(tried, key=tried.__getitem__).startswith("b8-lr0.01")
    # Points have different numbers of steps; in the end as many are counted as were announced.
    last = [line for line in capsys.readouterr().err.splitlines() if " steps/s remaining " in line]
    found = re.search(r"finetune ([\d,]+)/([\d,]+) steps", last[-1])
    assert found
    assert found[1] == found[2]
    assert [(fit.learning_rate, fit.seed) for fit in fits if not fit.point] == [
        (1e-2, 0),
        (1e-2, 1),
    ]


def test_the_first_seed_is_not_trained_again_at_the_best_point(
    data: Path, encoder: Artifact, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trained: list[tuple[int, float]] = []
    run = TrialTrainer.run

    def noted(trainer: TrialTrainer, *given: Any) -> TrialResult:
        recipe = trainer.recipe
        trained.append((recipe.seed, recipe.task.learning_rate))
        return run(trainer, *given)

    monkeypatch.setattr(TrialTrainer, "run", noted)
    grid = {"batch_sizes": [8], "learning_rates": [1e-2, 1e-5], "epochs": [4]}
    config = finetune_config(data, initialisations=["pretrained"], grid=grid, save="best")
    config |= {"tasks": config["tasks"][:1], "ensemble": True}
    once = run_finetune(config, encoder, tmp_path / "once" / "trials")
    assert trained == [(0, 1e-2), (0, 1e-5), (1, 1e-2)]
    # As it was before: the point's training is not taken, but repeated.
    search = TrialRunner.search
    monkeypatch.setattr(TrialRunner, "search", lambda *given: (search(*given)[0], None))
    # In a folder of its own, where there are no trials to take over.
    twice = run_finetune(config, encoder, tmp_path / "twice" / "trials")
    assert trained[3:] == [(0, 1e-2), (0, 1e-5), (0, 1e-2), (1, 1e-2)]
    assert once.digest == twice.digest


def test_frozen_layers_feed_a_probe_and_a_bilstm_from_one_or_two_encoders(
    data: Path, encoder: Artifact, tmp_path: Path
) -> None:
    features = [
        {"layers": "sum_all", "head": "bilstm", "hidden_size": 8, "learning_rate": 0.05},
        {"layers": "embeddings", "head": "linear", "learning_rate": 0.2, "epochs": 20},
    ]
    config = finetune_config(
        data,
        fine_tuning=False,
        features=features,
        second_encoder=encoder.directory,
        initialisations=["pretrained"],
    )
    artifact = run_finetune(config, encoder, tmp_path)
    fits = Trials.model_validate(artifact.read_json("trials.json")).trials
    assert {fit.system for fit in fits} == {
        "pretrained-sum_all-bilstm",
        "pretrained-embeddings-linear",
    }
    probes = [f.test["accuracy"] for f in fits if f.task == "tags" and "linear" in f.system]
    assert min(probes) > 0.9


def test_the_best_fit_is_saved_and_answers_as_it_did(
    data: Path, encoder: Artifact, tmp_path: Path
) -> None:
    artifact = run_finetune(
        finetune_config(data, initialisations=["pretrained"], save="best"), encoder, tmp_path
    )
    fits = Trials.model_validate(artifact.read_json("trials.json")).trials
    best = max((f for f in fits if f.task == "tags"), key=lambda fit: fit.dev["accuracy"])
    model, saved, tokenizer = read_model(open_source(artifact.directory).inside("models/tags/"))
    problem = load_problem(saved.task, tokenizer, load_tables(saved.task))
    logits = split_logits(problem, FineTuning(problem, model), "test")
    assert problem.labels == saved.task.labels == ("NAME", "O")
    assert problem.score("test", problem.predictions("test", logits)) == best.test


def test_a_saved_model_predicts_rows_and_files(
    data: Path, encoder: Artifact, tmp_path: Path
) -> None:
    config = finetune_config(data, initialisations=["pretrained"], save="best", seeds=[0])
    artifact = run_finetune(config, encoder, tmp_path / "artifact")
    fits = Trials.model_validate(artifact.read_json("trials.json")).trials
    with pytest.raises(UsageError, match="has the tasks pairs, tags; name one of them"):
        load_predictor(artifact.directory)
    with pytest.raises(UsageError, match="no model of task 'names', it has pairs, tags"):
        load_predictor(artifact.directory, task="names")
    tagger = load_predictor(artifact.directory, task="tags")
    record = Trial.model_validate(artifact.read_json(f"trials/{fits[0].task}-pretrained-0.json"))
    found = [row["prediction"] for row in tagger.file(data / "tags" / "test.jsonl")]
    assert found == record.predictions["test"]
    (tagged,) = tagger.predict([{"words": ["list", "of"]}])
    assert tagged == {"prediction": ["NAME", "O"], "words": ["list", "of"], "spans": []}
    assert tagger.predict(["list of"]) == [tagged]
    pairs = load_predictor(artifact.directory, task="pairs")
    (guess,) = pairs.rows([{"text_a": "the list", "text_b": "a new list"}])
    assert guess["prediction"] in ("yes", "no")
    assert 0.5 <= guess["probability"] <= 1.0
    assert guess["probabilities"].keys() == {"no", "yes"}
    assert guess["probabilities"][guess["prediction"]] == guess["probability"]
    assert sum(guess["probabilities"].values()) == pytest.approx(1.0, abs=1e-5)
    with pytest.raises(UsageError, match="rows:1: has text_a; task pairs"):
        list(pairs.rows([{"text_a": "the list"}]))


def test_a_bilstm_to_fine_tune_is_refused_where_nothing_is_fine_tuned(tmp_path: Path) -> None:
    table = stage_table(
        "finetune",
        tmp_path / "out",
        config={"finetune": {"tasks": [], "bilstm": True, "fine_tuning": False}},
        inputs=inputs(encoder=encoder_artifact(tmp_path / "encoder")),
    )
    with pytest.raises(UsageError, match=r"head = .bilstm"):
        make_trials(table, [])


def test_a_saved_model_keeps_its_bilstm_and_its_card_says_so(
    data: Path, encoder: Artifact, tmp_path: Path
) -> None:
    wanted = {"initialisations": ["pretrained"], "save": "best", "seeds": [0], "bilstm": True}
    artifact = run_finetune(finetune_config(data, **wanted), encoder, tmp_path / "artifact")
    for task in ("tags", "pairs"):
        record = Trial.model_validate(artifact.read_json(f"trials/{task}-pretrained-0.json"))
        predictor = load_predictor(artifact.directory, task=task)
        assert predictor.model.bilstm is not None
        assert task == "pairs" or record.test["accuracy"] > 0.95
        found = [row["prediction"] for row in predictor.file(data / task / "test.jsonl")]
        assert found == record.predictions["test"]
    export_task(artifact.directory, tmp_path / "out", task="tags")
    assert "a BiLSTM before its head" in (tmp_path / "out" / "README.md").read_text()
    rows = [{"words": ["list", "of", "names"]}]
    ours = load_predictor(artifact.directory, task="tags").predict(rows)
    assert load_predictor(tmp_path / "out").predict(rows) == ours


def test_without_a_corpus_the_tasks_alone_are_judged(
    fitted: Artifact, encoder: Artifact, tmp_path: Path
) -> None:
    table = stage_table(
        "evaluate",
        tmp_path,
        config={"seed": 1, "evaluate": {}},
        inputs=inputs(encoder=encoder, finetune=fitted),
        machine={"threads": 1},
    )
    artifact = make_scores(table, [])
    scores = Scores.model_validate(artifact.read_json("scores.json"))
    assert [task.name for task in scores.tasks] == ["tags", "pairs"]
    assert scores.language_model == ()
    assert scores.parameters == sum(
        tensor.numel() for tensor in read_encoder_files(encoder.directory).tensors.values()
    )
    assert artifact.read_json("masked_sentences.json") == {"sentences": []}


def test_evaluation_says_everything_beside_its_baselines(
    fitted: Artifact, encoder: Artifact, tmp_path: Path
) -> None:
    rng = np.random.default_rng(3)
    documents = [rng.integers(FIRST_WORD, TOKENIZER.size, 30) for _ in range(50)]
    examples = examples_artifact(
        tmp_path / "examples",
        {
            "train": masked_examples(4, 0),
            "heldout": masked_examples(20, 1),
            "package": masked_examples(10, 2),
        },
    )
    table = stage_table(
        "evaluate",
        tmp_path / "scores",
        config={"seed": 1, "evaluate": {"masked_sentences": ["the [MASK] of given shape"]}},
        inputs=inputs(
            encoder=encoder,
            examples=examples,
            tokens=tokens_artifact(tmp_path / "tokens", documents),
            finetune=fitted,
        ),
        machine={"threads": 1},
    )
    artifact = make_scores(table, [])
    scores = Scores.model_validate(artifact.read_json("scores.json"))
    by_split = {score.split: score for score in scores.language_model}
    assert set(by_split) == {"heldout", "package"}
    assert by_split["package"].headline
    assert not by_split["heldout"].headline
    for score in scores.language_model:
        assert score.masked_tokens == 2 * score.examples
        assert abs(score.mlm_loss - math.log(TOKENIZER.size)) < 0.5
        assert score.next_sentence_majority is not None
        assert score.next_sentence_majority >= 0.5
    tags, pairs = scores.tasks
    assert [system.name for system in tags.systems] == [
        "majority",
        "lookup",
        "random",
        "pretrained",
    ]
    assert {comparison.against for comparison in pairs.comparisons} == {
        "majority",
        "word_overlap",
        "random",
    }
    assert len(tags.systems[-1].test["accuracy"].values) == 2
    sentences = MaskedSentences.model_validate(artifact.read_json("masked_sentences.json"))
    (sentence,) = sentences.sentences
    assert [guess.system for guess in sentence.guesses] == ["random", "count", "pretrained"]
    assert json.loads(Path(artifact.path("scores.json")).read_text())["parameters"] > 0


def test_every_worker_does_its_part_and_the_first_ones_result_comes_back(tmp_path: Path) -> None:
    def work(worker: Worker) -> str:
        (tmp_path / str(worker.number)).write_text(str(os.getpid()))
        return f"{worker.number} of {worker.size}"

    assert run_workers(3, work) == "0 of 3"
    assert len({(tmp_path / str(number)).read_text() for number in range(3)}) == 3


def test_progress_counts_the_steps_of_all(capsys: pytest.CaptureFixture[str]) -> None:
    def work(worker: Worker) -> Progress:
        worker.progress = Progress("finetune", total=30, unit="steps", interval=0.0)
        worker.advance(10 * (worker.number + 1))
        return worker.progress

    assert run_workers(2, work).done == 30
    said = capsys.readouterr().err
    assert "finetune 30/30 steps" in said
    assert "remaining unknown" not in said


def test_a_worker_that_fails_ends_the_launch_with_its_message(
    capfd: pytest.CaptureFixture[str],
) -> None:
    def work(worker: Worker) -> None:
        if worker.number == 1:
            raise ClozeError("this task cannot be done")

    with pytest.raises(ClozeError, match="was ended by exit code 1; its messages are above"):
        run_workers(2, work)
    assert "error: this task cannot be done" in capfd.readouterr().err


def test_a_killed_worker_ends_the_launch_as_if_killed_so_that_it_is_tried_again() -> None:
    def work(worker: Worker) -> None:
        if worker.number == 1:
            os.kill(os.getpid(), signal.SIGKILL)

    with pytest.raises(ClozeError, match="was ended by SIGKILL, possibly out of memory") as caught:
        run_workers(2, work)
    assert caught.value.exit_code == 128 + signal.SIGKILL


def test_no_worker_outlives_a_launch_that_fails(tmp_path: Path) -> None:
    def work(worker: Worker) -> None:
        if worker.number == 0:
            while not (tmp_path / "child").exists():
                time.sleep(0.01)
            raise ClozeError("the first one fails")
        (tmp_path / "begun").write_text(str(os.getpid()))
        (tmp_path / "begun").rename(tmp_path / "child")
        time.sleep(600)

    with pytest.raises(ClozeError, match="the first one fails"):
        run_workers(2, work)
    assert not psutil.pid_exists(int((tmp_path / "child").read_text()))


@pytest.mark.slow
def test_two_workers_leave_the_same_bytes_as_one(tmp_path: Path) -> None:
    rows = [{"text_a": text, "label": str(n % 2)} for n, text in enumerate(["the", "list"] * 4)]
    path = write_lines(tmp_path / "a.jsonl", rows)
    task = {"name": "t", "kind": "classification", "train": path, "dev": path, "epochs": 1}
    config = {"tasks": [{**task, "max_seq_length": 32}], "seeds": [0, 1, 2], "precision": "fp32"}
    encoder = inputs(encoder=encoder_artifact(tmp_path / "encoder"))

    def table(threads: int) -> object:
        return stage_table(
            "finetune",
            tmp_path / f"with{threads}",
            config={"finetune": config},
            inputs=encoder,
            machine={"threads": threads},
        )

    alone = make_trials(table(1), [])
    write_stage_table(table(2), tmp_path / "table.json")
    command = [
        sys.executable,
        "-m",
        "cloze.model.finetune.finetune",
        "--config",
        tmp_path / "table.json",
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=True)
    both = open_artifact(str(tmp_path / "with2"))
    assert both.digest == alone.digest == done.stdout.strip()
    assert [entry.name for entry in both.manifest.records] == ["seconds-0.json", "seconds-1.json"]


def test_a_task_that_fails_does_not_end_the_others(capsys: pytest.CaptureFixture[str]) -> None:
    groups = [SimpleNamespace(plans=[SimpleNamespace(task=SimpleNamespace(name=n))]) for n in "abc"]
    done = []

    def run(group: Any) -> None:
        name = group.plans[0].task.name
        if name == "b":
            raise UsageError("b.csv:2: nothing there")
        done.append(name)

    with pytest.raises(UsageError, match=r"b\.csv:2"):
        run_each(cast(Any, groups), run)
    assert done == ["a", "c"]
    assert "finetune b: failed, the other tasks go on" in capsys.readouterr().err


def test_the_head_of_a_saved_classifier_is_divided_by_its_temperature(
    data: Path, encoder: Artifact, tmp_path: Path
) -> None:
    config = finetune_config(data, initialisations=["pretrained"], seeds=[0], ensemble=False)
    # So many rows that they speak for a temperature.
    dev = tmp_path / "dev.jsonl"
    dev.write_text((data / "pairs" / "dev.jsonl").read_text() * 10)
    task = {**config["tasks"][1], "dev": str(dev), "epochs": 8, "learning_rate": 1e-2}
    artifact = run_finetune({**config, "tasks": [task]}, encoder, tmp_path)
    (trial,) = Trials.model_validate(artifact.read_json("trials.json")).trials
    assert trial.calibration is not None
    assert (trial.calibration.rows, trial.calibration.split) == (400, "test")
    (temperature,) = trial.calibration.temperatures
    assert temperature != 1.0
    predictor = load_predictor(artifact.directory)
    answers = list(predictor.file(data / "pairs" / "test.jsonl"))
    lines = (data / "pairs" / "test.jsonl").read_text().splitlines()
    gold = [json.loads(line)["label"] for line in lines]
    chances = [
        cast(dict, one["probabilities"])[label] for one, label in zip(answers, gold, strict=True)
    ]
    loss = -np.log(chances).mean()
    assert loss == pytest.approx(trial.calibration.after.log_loss.value, rel=1e-3)
    assert loss != pytest.approx(trial.calibration.before.log_loss.value, rel=1e-3)


@pytest.mark.parametrize(("device", "workers"), [("cpu", 3), ("auto", 1), ("cuda", 1)])
def test_trials_run_side_by_side_where_the_cpu_computes_even_beside_a_gpu(
    encoder: Artifact, monkeypatch: pytest.MonkeyPatch, device: str, workers: int
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    machine = TrainingMachine.model_validate({"device": device, "threads": 3})
    assert worker_count(encoder.directory, machine) == workers
