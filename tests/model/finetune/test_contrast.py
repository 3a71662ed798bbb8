from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from cloze.artifacts.results import Trials
from cloze.artifacts.store import Artifact
from cloze.model.config import FinetuneConfig, TaskConfig
from cloze.model.encoder.models import Encoder
from cloze.model.finetune.contrast import (
    LEAST_AGREEMENT,
    Contrast,
    FrozenLayers,
    agreement,
    telling_names,
    tuned_by_contrast,
)
from cloze.model.finetune.finetune import make_trials
from cloze.model.finetune.sentence_heads import VectorCache
from cloze.model.finetune.trainer import Recipe
from cloze.model.hugging_face.model_files import EncoderFiles, read_encoder_files
from cloze.model.tasks.base import Problem
from cloze.model.tasks.features import encode
from cloze.model.tasks.files.task_table import TaskTable
from cloze.model.tasks.problems import load_problem
from cloze.model.training.distributed import World
from tests.model.task_builders import TOKENIZER, encoder_artifact, finetune_table, write_lines

CLASSES = ("list", "error", "shape")


@pytest.fixture(scope="module")
def artifact(tmp_path_factory: pytest.TempPathFactory) -> Artifact:
    return encoder_artifact(tmp_path_factory.mktemp("encoder") / "artifact")


@pytest.fixture(scope="module")
def files(artifact: Artifact) -> EncoderFiles:
    return read_encoder_files(artifact.directory)


@pytest.fixture(scope="module")
def vectors(files: EncoderFiles) -> VectorCache:
    encoder = files.encoder(pretrained=True, seed=0)
    return VectorCache(encoder, pooling="mean", precision="fp32")


def texts(labels: dict[str, str], **more: Any) -> dict[str, list[Any]]:
    """Four texts of each class, which repeat its word; `labels`: what the class is called."""
    rows = [(f"{word} {word} the", labels[word]) for word in CLASSES for _ in range(4)]
    return {"text_a": [text for text, _ in rows], "label": [name for _, name in rows], **more}


def problem_of(columns: dict[str, list[Any]], kind: str = "classification") -> Problem:
    fields = {"name": "t", "kind": kind, "train": "t.csv", "max_seq_length": 16}
    task = TaskConfig.model_validate(fields)
    return load_problem(task, TOKENIZER, {"train": TaskTable("t.csv", columns)})


def test_names_that_say_which_rows_are_whose_are_trained_on_and_others_are_not(
    vectors: VectorCache,
) -> None:
    same = {word: word for word in CLASSES}
    found = telling_names(problem_of(texts(same)), vectors, TOKENIZER)
    assert found is not None
    # Each class goes by another's name.
    wrong = dict(zip(CLASSES, (*CLASSES[1:], CLASSES[0]), strict=True))
    assert telling_names(problem_of(texts(wrong)), vectors, TOKENIZER) is None
    # Whose likeness to a pair of texts means nothing.
    pairs = texts(same, text_b=["a"] * 12)
    assert telling_names(problem_of(pairs, "pair_classification"), vectors, TOKENIZER) is None


def test_agreement_is_accuracy_beyond_chance_and_classes_count_alike(vectors: VectorCache) -> None:
    metrics = pytest.importorskip("sklearn.metrics")
    columns = texts({word: word for word in CLASSES})
    # Of 6, 3 and 3 rows, the last class is found by its name in none.
    columns["label"] = ["list"] * 4 + ["error"] * 3 + ["list"] * 2 + ["shape"] * 3
    columns["text_a"][-3:] = ["error error the"] * 3
    columns["text_a"][7:9] = ["list list the"] * 2
    problem = problem_of(columns)
    names = encode(TOKENIZER, problem.labels, max_seq_length=16)
    nearest = (vectors.of(problem, "train") @ vectors.of_sequences(names).T).argmax(-1)
    expected = metrics.balanced_accuracy_score(
        problem.targets("train", np.arange(12)), nearest, adjusted=True
    )
    assert agreement(problem, vectors, names) == pytest.approx(expected)
    assert LEAST_AGREEMENT < expected < 0.9


def test_the_name_of_a_label_is_written_as_words(vectors: VectorCache) -> None:
    called = {word: f"the_{word}-value" for word in CLASSES}
    found = telling_names(problem_of(texts(called)), vectors, TOKENIZER)
    words = encode(TOKENIZER, [f"the {word} value" for word in sorted(CLASSES)], max_seq_length=16)
    assert found is not None
    assert found.input_ids.values.tolist() == words.input_ids.values.tolist()


@pytest.mark.parametrize("pruned", [False, True])
def test_texts_of_a_class_come_close_to_its_name(
    files: EncoderFiles, vectors: VectorCache, pruned: bool
) -> None:
    # Every text has the words of all classes: nothing but its own word, "b" to "d", tells it.
    own = dict(zip(CLASSES, "bcd", strict=True))
    rows = [(f"{own[word]} the a new {n}", word) for word in CLASSES for n in ("int", "str")]
    problem = problem_of({"text_a": [t for t, _ in rows], "label": [label for _, label in rows]})
    if pruned:
        problem.prune_vocabulary()
    names = encode(TOKENIZER, problem.labels, max_seq_length=16)
    view = Contrast(problem, names)
    assert view.units("train") == len(rows) + len(CLASSES)
    assert view.targets("train", np.arange(6, 9)).tolist() == [0, 1, 2]
    frozen = FrozenLayers(vectors.model.encoder, pooling="mean", precision="fp32")
    task = problem.config.model_copy(update={"learning_rate": 2e-3})
    recipe = Recipe(config=FinetuneConfig(), task=task, seed=0)
    world = World(0, 1, torch.device("cpu"))
    tuned, of_split = tuned_by_contrast(problem, frozen, recipe, world, names)
    assert len(of_split("train")) == len(rows)

    def lost(encoder: Encoder) -> float:
        """How far the texts and names are from those of their class."""
        cache = VectorCache(encoder, pooling="mean", precision="fp32")
        both = np.concatenate((cache.of(problem, "train"), cache.of_sequences(names)))
        targets = torch.from_numpy(view.targets("train", np.arange(len(both))))
        return float(view.loss(torch.from_numpy(both), targets))

    assert lost(tuned) < lost(frozen.encoder)


def test_a_run_says_and_records_that_it_trains_on_names(
    artifact: Artifact, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for number, (labels, says) in enumerate(((CLASSES, True), ("xyz", False))):
        columns = texts(dict(zip(CLASSES, labels, strict=True)))
        rows = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
        folder = tmp_path / str(number)
        task = {
            "name": "t",
            "kind": "classification",
            "max_seq_length": 16,
            "train": write_lines(folder / "train.jsonl", rows),
        }
        choose = {"folds": 2, "approaches": ["contrastive"], "shares": []}
        made = make_trials(
            finetune_table(folder / "out", artifact, tasks=[task], seeds=[0], choose=choose), []
        )
        said = capsys.readouterr().err
        assert said.count("the labels' names are trained on, too") == says
        (trial,) = Trials.model_validate(made.read_json("trials.json")).trials
        assert trial.choice and trial.choice.label_names == says
