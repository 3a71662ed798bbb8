"""A family is one module and one registration: everything else asks for its attributes."""

import ast
import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn.metrics import cohen_kappa_score

from cloze.artifacts.results import Trials
from cloze.artifacts.store import Artifact
from cloze.model.config import TaskConfig
from cloze.model.encoder.models import TaskModel
from cloze.model.finetune.finetune import make_trials
from cloze.model.hugging_face.model_files import read_model, saved_source
from cloze.model.hugging_face.source import open_source
from cloze.model.inference.export import export_task
from cloze.model.inference.predict import load_predictor
from cloze.model.task_families import TASK_FAMILIES, TaskFamily
from cloze.model.tasks.features import encode
from cloze.model.tasks.problems import family_of, load_problem, load_tables
from cloze.model.uncertainty.calibration import fit_temperatures
from cloze.model.uncertainty.held_out import held_out_rows
from tests.model.task_builders import TOKENIZER, encoder_artifact, finetune_table, write_lines
from tests.model.tasks.ordinal import ERROR, KAPPA, Ordinal
from tests.test_architecture import MODULES, ours

KNOW_A_FAMILY = {
    "cloze.model.finetune.contrast",  # trains a classification by another loss
    "cloze.model.inference.onnx",  # ranks as retrieval does, by what a graph computes
    "cloze.paper.server_formats",  # the files of two benchmarks' servers
    "cloze.flows.config",  # [pairs] makes files for retrieval
}
"""Modules outside model/tasks that import a family's module, or ask for a `kind` by name."""

TEXTS = {"1": "error raised", "2": "value name", "10": "new array"}


@pytest.fixture(scope="module", autouse=True)
def registered() -> Iterator[None]:
    """The family, beside those of the product."""
    with pytest.MonkeyPatch.context() as patch:
        family = TaskFamily("tests.model.tasks.ordinal:Ordinal", is_chosen=True)
        patch.setitem(TASK_FAMILIES, "ordinal", family)
        yield


@pytest.fixture(scope="module")
def rated(tmp_path_factory: pytest.TempPathFactory) -> Artifact:
    """A model of ratings, trained as cross-validation has chosen."""
    folder = tmp_path_factory.mktemp("ratings")
    rows = [{"text_a": text, "label": label} for label, text in TEXTS.items()]
    files = {
        "train": write_lines(folder / "train.jsonl", rows * 8),
        "dev": write_lines(folder / "dev.jsonl", (rows * 5 + [{**rows[0], "label": "2"}]) * 8),
    }
    task = {"name": "stars", "kind": "ordinal", "max_seq_length": 16, **files}
    task |= {"epochs": 50, "learning_rate": 3e-3, "batch_size": 8}
    table = finetune_table(
        folder / "trials",
        encoder_artifact(folder / "encoder"),
        tasks=[task],
        seeds=[0],
        save="best",
        choose={"folds": 2, "fine_tuning_rows": 0, "fewest_steps": 2, "shares": []},
    )
    return make_trials(table, [])


def test_a_new_family_is_compared_with_baselines_chosen_and_calibrated(rated: Artifact) -> None:
    trials = Trials.model_validate(rated.read_json("trials.json"))
    (task,), (trial,) = trials.tasks, trials.trials
    assert (task.metrics, task.labels) == ((KAPPA, ERROR), ("1", "2", "10"))
    assert [one.name for one in task.baselines] == ["majority", "bag_of_words"]
    assert trial.choice is not None
    assert [one.approach for one in trial.choice.candidates] == ["linear", "fine_tuning"]
    assert trial.dev[KAPPA] > 0.9
    assert trial.calibration is not None and trial.reliance is not None
    (temperature,) = trial.calibration.temperatures
    assert temperature != 1.0


def test_a_temperature_is_how_much_too_sharp_the_outputs_of_a_new_family_are(
    tmp_path: Path,
) -> None:
    rng = np.random.default_rng(0)
    scores = rng.normal(size=3000)[:, None] - [-1.0, 1.0]  # above the first label, the second
    # A label is drawn with the probabilities that one uniform number per row gives.
    places = (rng.random(3000)[:, None] < 1 / (1 + np.exp(-scores))).sum(-1)
    rows = [{"text_a": "the", "label": [*TEXTS][place]} for place in places]
    path = write_lines(tmp_path / "rows.jsonl", rows)
    task = TaskConfig(name="stars", kind="ordinal", train=path, dev=path)
    problem = load_problem(task, None, load_tables(task))
    problem.sequences = {"dev": encode(TOKENIZER, ["the"] * 3000, max_seq_length=8)}
    held = held_out_rows(problem, "dev", (3 * scores).astype(np.float32))
    assert held is not None and held.labels == 3
    assert fit_temperatures(held) == (pytest.approx(3.0, rel=0.1),)


def test_a_new_family_predicts_with_probabilities_and_sets_of_labels(rated: Artifact) -> None:
    found = load_predictor(rated.directory, confidence=0.8).predict([*TEXTS.values()])
    assert [row["prediction"] for row in found] == ["1", "2", "10"]
    for row in found:
        shares = row["probabilities"]
        assert isinstance(shares, dict) and [*shares] == ["1", "2", "10"]
        assert sum(map(float, map(str, shares.values()))) == pytest.approx(1.0, abs=2e-6)
        assert row["probability"] == shares[str(row["prediction"])]
        assert (row["labels"], row["unsure"]) == ([row["prediction"]], False)


def test_a_familys_head_stays_as_it_binds_it_and_is_exported_as_it_says(
    rated: Artifact, tmp_path: Path
) -> None:
    model, saved, _ = read_model(saved_source(open_source(rated.directory), "stars"))
    assert isinstance(model, TaskModel)
    assert (saved.task.labels, saved.outputs) == (("1", "2", "10"), 2)
    assert torch.allclose(model.head.weight[0], model.head.weight[1])
    assert model.head.bias[0] > model.head.bias[1]
    export_task(rated.directory, tmp_path / "out", task="stars")
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    assert config["id2label"] == {"0": "> 1", "1": "> 2"}
    assert config["problem_type"] == "multi_label_classification"


@pytest.mark.parametrize("changes", [{}, {"features": [{}], "fine_tuning": False}])
def test_a_familys_head_is_bound_wherever_it_is_trained(
    changes: dict[str, object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bound: list[tuple[int, int]] = []
    monkeypatch.setattr(Ordinal, "start_head", lambda _, head: bound.append(head.weight.shape))
    rows = [{"text_a": text, "label": label} for label, text in TEXTS.items()] * 4
    path = write_lines(tmp_path / "rows.jsonl", rows)
    task = {"name": "stars", "kind": "ordinal", "train": path, "dev": path, "epochs": 1}
    task |= {"max_seq_length": 16}
    encoder = encoder_artifact(tmp_path / "encoder")
    make_trials(finetune_table(tmp_path / "trials", encoder, tasks=[task], **changes), [])
    assert bound and {shape[0] for shape in bound} == {2}


def test_kappa_is_that_of_scikit_learn_and_errors_are_in_steps(tmp_path: Path) -> None:
    rows = [{"text_a": "the", "label": label} for label in ("10", "1", "2", "2")]
    path = write_lines(tmp_path / "rows.jsonl", rows)
    task = TaskConfig(name="stars", kind="ordinal", train=path, dev=path)
    problem = load_problem(task, TOKENIZER, load_tables(task))
    kappa = cohen_kappa_score([2, 0, 1, 1], [1, 0, 1, 2], weights="quadratic")
    assert problem.score("dev", ["2", "1", "2", "10"]) == {KAPPA: pytest.approx(kappa), ERROR: 0.5}
    logits = np.array([[2.0, 1.0], [-1.0, -2.0], [1.0, -1.0], [3.0, 2.0]], np.float32)
    assert problem.predictions("dev", logits) == ["10", "1", "2", "10"]


def test_a_family_is_named_by_its_registration_alone() -> None:
    homes = {one.problem.partition(":")[0] for one in TASK_FAMILIES.values()}
    outside = {
        module: path
        for module, path in MODULES.items()
        if not module.startswith("cloze.model.task") and module not in KNOW_A_FAMILY
    }
    imported = {module: found for module, path in outside.items() if (found := ours(path) & homes)}
    assert imported == {}
    asked = [
        f"{module}:{node.lineno}: {ast.unparse(node)}"
        for module, path in outside.items()
        for node in ast.walk(ast.parse(path.read_text("utf-8")))
        if isinstance(node, ast.Compare)
        and isinstance(node.left, ast.Attribute | ast.Name)
        and ast.unparse(node.left).rpartition(".")[2] == "kind"
        and any(
            isinstance(one, ast.Constant) and one.value in TASK_FAMILIES
            for right in node.comparators
            for one in ast.walk(right)
        )
    ]
    assert asked == []


@pytest.mark.parametrize("kind", TASK_FAMILIES)
def test_what_a_registration_says_is_what_its_family_does(kind: str) -> None:
    registration, family = TASK_FAMILIES[kind], family_of(kind)
    assert registration.compares_vectors == (family.reads == "vectors")
    assert registration.ranks == (family.predicts == "ranking")
    assert not registration.parts or registration.parts in family.required
    assert registration.is_chosen == (len(family.approaches) > 1)
    # Class weights are those of labels.
    assert "class_weights" not in registration.settings or family.predicts in ("label", "labels")
    assert {*registration.settings} <= {*TaskConfig.model_fields}
