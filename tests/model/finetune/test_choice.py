import csv
import io
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pydantic import ValidationError

from cloze.artifacts.errors import UsageError
from cloze.artifacts.progress import Progress
from cloze.artifacts.results import Candidate, Trial, Trials
from cloze.artifacts.store import Artifact
from cloze.model.config import ApproachName, ChoiceConfig, FinetuneConfig, TaskConfig
from cloze.model.finetune import finetune, sentence_heads
from cloze.model.finetune.choice import folds_of, predicted_rows, preferred
from cloze.model.finetune.finetune import make_trials
from cloze.model.finetune.sentence_heads import fit_head, inverse_penalty
from cloze.model.inference.predict import load_predictor
from cloze.model.tasks.files.task_table import TaskTable
from cloze.model.tasks.problems import load_problem
from tests.model.task_builders import (
    TOKENIZER,
    encoder_artifact,
    finetune_table,
    write_lines,
)

WORDS = {"pos": ["list", "array", "value"], "neg": ["name", "error", "str"]}


def rows(count: int, seed: int = 0) -> list[dict[str, Any]]:
    """Texts of three words of their class, and one of the other, every other row positive."""
    rng = np.random.default_rng(seed)
    found = []
    for number in range(count):
        label, other = ("pos", "neg") if number % 2 else ("neg", "pos")
        words = [*rng.choice(WORDS[label], 3), rng.choice(WORDS[other])]
        found.append({"text_a": " ".join(words), "label": label})
    return found


def table(labels: list[Any]) -> TaskTable:
    return TaskTable("t.csv", {"text_a": ["the"] * len(labels), "label": labels})


@pytest.fixture(scope="module")
def encoder(tmp_path_factory: pytest.TempPathFactory) -> Artifact:
    return encoder_artifact(tmp_path_factory.mktemp("encoder") / "artifact")


def run(
    folder: Path, encoder: Artifact, train: list[dict[str, Any]], *, dev: Any = None, **more: Any
) -> Artifact:
    paths = {"train": write_lines(folder / "train.jsonl", train)}
    if dev:
        paths["dev"] = write_lines(folder / "dev.jsonl", dev)
    task = {"name": "t", "kind": "classification", "max_seq_length": 16, **paths, **more}
    choice = {"fewest_steps": 2, "folds": 4, "fine_tuning_rows": 0, **task.pop("choose", {})}
    stage = finetune_table(folder / "out", encoder, tasks=[task], seeds=[0], choose=choice)
    return make_trials(stage, [])


def trial_of(artifact: Artifact) -> Trial:
    (trial,) = Trials.model_validate(artifact.read_json("trials.json")).trials
    return trial


@pytest.fixture(scope="module")
def chosen(tmp_path_factory: pytest.TempPathFactory, encoder: Artifact) -> Artifact:
    return run(tmp_path_factory.mktemp("chosen"), encoder, rows(24))


def test_every_approach_is_compared_on_the_same_rows(chosen: Artifact) -> None:
    choice = trial_of(chosen).choice
    assert choice is not None
    names = ["class_means", "linear", "contrastive", "fine_tuning"]
    assert [one.approach for one in choice.candidates] == names
    for one in choice.candidates:
        assert (one.rows, len(one.folds)) == (18, 4)
        assert one.mean == pytest.approx(np.mean(one.folds))
        assert one.standard_error == pytest.approx(np.std(one.folds, ddof=1) / 2)
        low, high = one.interval
        assert low == pytest.approx(one.mean - 3.1824 * one.standard_error, abs=1e-4)
        assert high == pytest.approx(min(1.0, 2 * one.mean - low))


def candidate(approach: ApproachName, mean: float, error: float) -> Candidate:
    return Candidate(
        approach=approach,
        rows=8,
        folds=(mean,),
        mean=mean,
        standard_error=error,
        interval=(mean, mean),
    )


@pytest.mark.parametrize(
    ("means", "expected"),
    [
        # Within one standard error, 0.05, of the best: the cheapest.
        ({"class_means": 0.7, "linear": 0.86, "fine_tuning": 0.9}, "linear"),
        ({"class_means": 0.85, "linear": 0.86, "fine_tuning": 0.9}, "class_means"),
        # Contrastive tuning comes first among them, and not if it is clearly worse.
        ({"class_means": 0.85, "linear": 0.9, "contrastive": 0.85}, "contrastive"),
        ({"class_means": 0.85, "linear": 0.9, "contrastive": 0.84}, "class_means"),
    ],
)
def test_of_the_approaches_within_one_standard_error_of_the_best_one_is_preferred(
    means: dict[ApproachName, float], expected: str
) -> None:
    candidates = [candidate(name, mean, 0.05) for name, mean in means.items()]
    best = max(candidates, key=lambda one: one.mean)
    assert candidates[preferred(candidates, best)].approach == expected


def test_contrastive_tuning_is_left_only_if_the_folds_speak_against_it() -> None:
    linear = candidate("linear", 0.6, 0.04).model_copy(update={"folds": (0.4, 0.6, 0.7, 0.7)})
    tuned = candidate("contrastive", 0.5, 0.2)
    # Ten points below it on average: in one fold thirty and nearly none in the others, or in all.
    for folds, place in (((0.1, 0.6, 0.6, 0.7), 1), ((0.3, 0.5, 0.6, 0.6), 0)):
        assert preferred([linear, tuned.model_copy(update={"folds": folds})], linear) == place


def test_with_many_rows_fine_tuning_is_taken_unless_it_is_clearly_worse() -> None:
    linear = candidate("linear", 0.85, 0.01).model_copy(update={"folds": (0.84, 0.85, 0.86)})
    for folds, place in (((0.84, 0.84, 0.86), 1), ((0.80, 0.81, 0.82), 0)):
        tuned = candidate("fine_tuning", sum(folds) / 3, 0.01).model_copy(update={"folds": folds})
        assert preferred([linear, tuned], linear, favoured="fine_tuning") == place


def test_the_chosen_approach_is_that_of_the_rule(chosen: Artifact) -> None:
    choice = trial_of(chosen).choice
    assert choice is not None
    best = max(choice.candidates, key=lambda one: one.mean)
    place = preferred(choice.candidates, best)
    assert (choice.chosen, choice.best) == (choice.candidates[place].approach, best.approach)


def test_all_folds_have_the_penalty_that_suits_all_rows_by_row(
    encoder: Artifact, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("sklearn.linear_model")
    penalties: list[float] = []
    fitted = sentence_heads._logistic

    def noted(problem: Any, inputs: Any, answers: Any, penalty: float) -> Any:
        penalties.append(penalty)
        return fitted(problem, inputs, answers, penalty)

    # Every question which penalty is best gets another answer.
    answers = iter((5.0, *range(100, 200)))
    monkeypatch.setattr(sentence_heads, "_logistic", noted)
    monkeypatch.setattr(sentence_heads, "inverse_penalty", lambda *_: next(answers))
    run(tmp_path, encoder, rows(24), choose={"approaches": ["linear"], "shares": []})
    assert penalties[:4] == pytest.approx([5.0 * 24 / 18] * 4)


def test_dev_is_predicted_by_models_that_have_not_seen_its_rows(chosen: Artifact) -> None:
    trial = trial_of(chosen)
    choice = trial.choice
    assert choice is not None
    (found,) = [one for one in choice.candidates if one.approach == choice.chosen]
    assert trial.dev["accuracy"] == pytest.approx(found.mean)
    record = Trial.model_validate(chosen.read_json("trials/t-pretrained-0.json"))
    assert len(record.predictions["dev"]) == 24
    assert trial.calibration is not None
    assert (trial.calibration.rows, trial.calibration.split) == (24, "dev")


def test_a_head_that_is_fitted_at_once_has_no_steps_to_show(
    encoder: Artifact,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """However long it takes: no line says that none of them is made."""
    monkeypatch.setattr(finetune, "Progress", partial(Progress, interval=0.0))
    run(tmp_path, encoder, rows(12), choose={"approaches": ["linear"], "shares": []})
    said = capsys.readouterr().err
    assert "finetune t pretrained seed 0: dev accuracy" in said
    assert "steps/s" not in said


def test_a_learning_curve_ends_on_all_rows(chosen: Artifact) -> None:
    choice = trial_of(chosen).choice
    assert choice is not None
    assert [one.rows for one in choice.curve] == [5, 9, 18]
    assert {one.approach for one in choice.curve} == {choice.chosen}


def test_the_same_configuration_gives_the_same_bytes(
    chosen: Artifact, encoder: Artifact, tmp_path: Path
) -> None:
    again = run(tmp_path, encoder, rows(24))
    names = {entry.name: entry.sha256 for entry in chosen.manifest.files}
    same = {entry.name: entry.sha256 for entry in again.manifest.files}
    assert names["models/t/model.safetensors"] == same["models/t/model.safetensors"]
    assert names["trials/t-pretrained-0.json"] == same["trials/t-pretrained-0.json"]


@pytest.mark.parametrize("approach", ["class_means", "linear", "contrastive", "fine_tuning"])
def test_a_model_of_each_approach_predicts_as_it_was_scored(
    approach: str, encoder: Artifact, tmp_path: Path
) -> None:
    dev = rows(20, seed=1)
    artifact = run(
        tmp_path,
        encoder,
        rows(24),
        dev=dev,
        choose={"approaches": [approach], "shares": []},
        learning_rate=1e-3,
    )
    trial = trial_of(artifact)
    record = Trial.model_validate(artifact.read_json("trials/t-pretrained-0.json"))
    predictor = load_predictor(artifact.directory)
    answers = list(predictor.file(tmp_path / "dev.jsonl"))
    assert [one["prediction"] for one in answers] == record.predictions["dev"]
    assert trial.choice is not None and trial.choice.chosen == approach
    if approach != "fine_tuning":
        assert trial.dev["accuracy"] > 0.8


def test_numbers_and_several_labels_are_fitted_by_regression(
    encoder: Artifact, tmp_path: Path
) -> None:
    numbers = [{"text_a": one["text_a"], "label": one["text_a"].count("list")} for one in rows(40)]
    found = trial_of(run(tmp_path / "n", encoder, numbers, kind="regression"))
    assert found.choice is not None
    assert [one.approach for one in found.choice.candidates] == ["linear", "fine_tuning"]
    several = [
        {"text_a": one["text_a"], "label": [w for w in ("list", "name") if w in one["text_a"]]}
        for one in rows(40)
    ]
    found = trial_of(run(tmp_path / "s", encoder, several, kind="multi_label_classification"))
    assert found.choice is not None
    assert found.choice.candidates[0].approach == "linear"
    assert found.dev["f1_micro"] > 0.5


def test_the_threshold_of_a_rare_label_is_saved_with_the_model(
    encoder: Artifact, tmp_path: Path
) -> None:
    # A third of the texts with `list` have the label, and nothing else tells: no probability comes
    # near a half.
    several = []
    for number, one in enumerate(rows(120)):
        words = one["text_a"].split()
        labels = [word for word in ("name",) if word in words]
        rare = ["rare"] if "list" in words and number % 3 == 1 else []
        several.append({"text_a": one["text_a"], "label": labels + rare})
    only = {"approaches": ["linear"], "shares": []}
    artifact = run(tmp_path, encoder, several, kind="multi_label_classification", choose=only)
    trial = trial_of(artifact)
    assert len(trial.thresholds) == 2
    assert trial.dev["label_f1_rare"] > 0.3
    # The model decides as the thresholds do, with probabilities divided by temperatures.
    predictor = load_predictor(artifact.directory)
    assert "rare" in predictor.predict(["list array value name"])[0]["prediction"]  # type: ignore[operator]


def test_parts_have_as_many_rows_of_each_label_and_each_row_once() -> None:
    labels = ["a"] * 10 + ["b"] * 7 + ["c"] * 3
    folds = folds_of(table(labels), ChoiceConfig(folds=5))
    assert sorted(row for fold in folds for row in fold.parts[0].tolist()) == list(range(20))
    for fold in folds:
        assert not set(fold.train) & set(fold.parts[0])
        assert len(fold.parts[0]) == 4
        assert [labels[row] for row in fold.parts[0]].count("a") == 2
        assert {labels[row] for row in fold.train} == {"a", "b", "c"}


def test_with_many_rows_one_model_is_trained_and_its_parts_are_of_held_out_rows() -> None:
    config = ChoiceConfig(folds=4, many_rows=50)
    (fold,) = folds_of(table(["a", "b"] * 40), config)
    assert (len(fold.train), [len(part) for part in fold.parts]) == (60, [5, 5, 5, 5])
    assert len(predicted_rows(table(["a", "b"] * 40), config)) == 20


def test_other_repeats_divide_the_rows_otherwise() -> None:
    first, second = (
        folds_of(table(["a", "b"] * 10), ChoiceConfig(), repeat=repeat)[0].parts[0].tolist()
        for repeat in (0, 1)
    )
    assert first != second


def test_the_linear_head_is_logistic_regression_of_scikit_learn() -> None:
    linear_model = pytest.importorskip("sklearn.linear_model")
    rng = np.random.default_rng(0)
    vectors = rng.normal(3.0, 1.0, (60, 5)).astype(np.float32)
    labels = [("x", "y", "z")[int(value)] for value in rng.integers(0, 3, 60)]
    task = TaskConfig(name="t", kind="classification", train="t.csv")
    problem = load_problem(task, TOKENIZER, {"train": table(labels)})
    head = fit_head(problem, vectors)
    centred = vectors - vectors.mean(0)
    scaled = centred / np.sqrt((centred**2).sum(-1).mean())
    theirs = linear_model.LogisticRegression(C=1.0, max_iter=1000).fit(scaled, labels)
    ours = np.array(problem.labels)[head(vectors).argmax(-1)]
    assert (ours == theirs.predict(scaled)).all()
    shares = np.exp(head(vectors)) / np.exp(head(vectors)).sum(-1, keepdims=True)
    np.testing.assert_allclose(shares, theirs.predict_proba(scaled), atol=1e-5)


def test_the_penalty_is_weak_only_where_the_rows_show_that_it_is_better() -> None:
    linear_model = pytest.importorskip("sklearn.linear_model")
    rng = np.random.default_rng(0)

    def chosen(labels: int, of_each: int, noise: float) -> float:
        # Means that share one large direction: regularised strongly, a head sees little else.
        means = rng.normal(0.0, 1.0, (labels, 16)) * ([3.0] * 2 + [0.3] * 14)
        targets = np.repeat(np.arange(labels), of_each)
        vectors = (means[targets] + rng.normal(0.0, noise, (len(targets), 16))).astype(np.float32)

        def fit(inputs: Any, answers: Any, inverse_penalty: float) -> Any:
            head = linear_model.LogisticRegression(C=inverse_penalty, max_iter=1000)
            head.fit(inputs, answers)
            return head.coef_, head.intercept_

        return inverse_penalty(vectors / 4, targets, fit)

    assert chosen(40, 8, 0.05) > 1.0
    assert chosen(2, 8, 3.0) == 1.0
    assert chosen(2, 1, 0.1) == 1.0  # a part without a label


def test_a_class_with_one_row_is_refused_with_its_line(encoder: Artifact, tmp_path: Path) -> None:
    lone = [*rows(8), {"text_a": "the", "label": "rare"}]
    with pytest.raises(UsageError, match=r"train.jsonl:9: the only row with the label 'rare'"):
        run(tmp_path, encoder, lone)


@pytest.mark.parametrize(
    "other", [{"ensemble": True, "seeds": [0, 1]}, {"grid": {}}, {"features": [{}]}]
)
def test_a_choice_is_refused_beside_other_protocols(other: dict[str, Any]) -> None:
    with pytest.raises(ValidationError, match="compares approaches of its own"):
        FinetuneConfig.model_validate({"choose": {}, **other})


def test_predictions_of_a_confidence_have_label_sets_and_flag_unfamiliar_texts(
    chosen: Artifact,
) -> None:
    plain = load_predictor(chosen.directory).predict(["list array value name"])[0]
    sure = load_predictor(chosen.directory, confidence=0.9)
    (found,) = sure.predict(["list array value name"])
    assert {name: found[name] for name in plain} == plain
    assert (found["prediction"], found["labels"], found["unsure"]) == ("pos", ["pos"], False)
    assert found["unfamiliar"] is False
    (odd,) = sure.predict(["q w z x q w z x"])
    assert odd["unfamiliar"] is True
    with pytest.raises(UsageError, match="expected a probability between 0 and 1"):
        load_predictor(chosen.directory, confidence=90.0)
    # 24 rows cannot promise 99 %: nothing is excluded
    (vague,) = load_predictor(chosen.directory, confidence=0.99).predict(["list array"])
    assert (vague["labels"], vague["unsure"]) == (["neg", "pos"], True)


def test_numbers_have_intervals(encoder: Artifact, tmp_path: Path) -> None:
    numbers = [{"text_a": one["text_a"], "label": one["text_a"].count("list")} for one in rows(40)]
    artifact = run(tmp_path, encoder, numbers, kind="regression", choose={"approaches": ["linear"]})
    (found,) = load_predictor(artifact.directory, confidence=0.9).predict(["list list"])
    low, high = found["interval"]  # type: ignore[misc]
    assert low < found["prediction"] < high


@pytest.mark.parametrize("approach", ["linear", "fine_tuning"])
@pytest.mark.parametrize(
    ("zero", "unit"), [(0.0, 1.0), (1960.0, 15.0), (-3e6, 2e5), (0.0, 1e-4), (7e4, 0.5)]
)
def test_numbers_on_any_scale_are_learnt_and_predicted_on_it_in_either_precision(
    approach: str, zero: float, unit: float, encoder: Artifact, tmp_path: Path
) -> None:
    def labelled(seed: int) -> list[dict[str, Any]]:
        texts = [one["text_a"] for one in rows(60, seed)]
        return [{"text_a": text, "label": zero + unit * text.count("list")} for text in texts]

    dev = labelled(1)
    artifact = run(
        tmp_path,
        encoder,
        labelled(0),
        dev=dev,
        kind="regression",
        choose={"approaches": [approach], "shares": []},
        learning_rate=2e-3,
        batch_size=8,
        epochs=12,
    )
    record = Trial.model_validate(artifact.read_json("trials/t-pretrained-0.json"))
    labels = np.array([one["label"] for one in dev])
    scored = np.array(record.predictions["dev"])
    assert np.abs(scored - labels).mean() < 0.4 * unit
    for precision in ("fp32", "bf16"):
        predictor = load_predictor(artifact.directory, precision=precision, device="cpu")
        found = np.array([one["prediction"] for one in predictor.file(tmp_path / "dev.jsonl")])
        near = 1e-3 if precision == "fp32" else 0.05
        np.testing.assert_allclose(found, scored, rtol=1e-6, atol=near * unit)


def test_a_tagger_makes_no_sets_and_says_so(encoder: Artifact, tmp_path: Path) -> None:
    tagged = [{"words": ["list", "the"], "tags": ["N", "O"]}] * 12
    artifact = run(tmp_path, encoder, tagged, kind="tagging")
    with pytest.raises(UsageError, match=r"t is tagging, and label sets are made for class"):
        load_predictor(artifact.directory, confidence=0.9)


def test_planted_label_errors_are_listed_and_left_out_by_weights(
    encoder: Artifact, tmp_path: Path
) -> None:
    train = rows(40)
    for row in (4, 9, 21, 30):
        train[row]["label"] = "pos" if train[row]["label"] == "neg" else "neg"
    only = {"choose": {"approaches": ["linear"], "shares": []}}
    artifact = run(tmp_path / "first", encoder, train, **only)
    listed = list(csv.DictReader(io.StringIO(artifact.read_bytes("label_errors/t.csv").decode())))
    assert len({int(one["row"]) - 1 for one in listed} & {4, 9, 21, 30}) >= 3
    # Only those beyond chance are left out; they come first, and the doubtful ones last.
    order = ["unlikely", "contradiction", "doubtful"]
    reasons = [order.index(one["why"]) for one in listed]
    assert reasons == sorted(reasons) and reasons[0] == 0
    assert {one["weight"] for one in listed if one["why"] == "unlikely"} == {"0"}
    counts = trial_of(artifact).label_error_counts
    assert counts and (counts.rows, counts.split) == (40, "train")
    assert counts.doubtful == sum(one["why"] == "doubtful" for one in listed)
    assert counts.unlikely == sum(one["why"] == "unlikely" for one in listed)
    found = {int(one["row"]) - 1 for one in listed if one["weight"] == "0"}
    assert found and found <= {4, 9, 21, 30}
    first = next(one for one in listed if one["weight"] == "0")
    row = train[int(first["row"]) - 1]
    assert (first["text"], first["given"]) == (row["text_a"], row["label"])
    assert first["proposed"] != first["given"]
    path = tmp_path / "weights.csv"
    path.write_bytes(artifact.read_bytes("label_errors/t.csv"))
    again = run(tmp_path / "again", encoder, train, weights=str(path), **only)
    (task,) = Trials.model_validate(again.read_json("trials.json")).tasks
    assert task.examples["train"] == 40 - len(found)
    assert any(f"{len(found)} of 40 training rows are left out, by" in n for n in task.notes)
    assert trial_of(again).dev["accuracy"] >= trial_of(artifact).dev["accuracy"]


def test_rows_without_a_label_are_left_out_and_wrong_labels_have_the_rows_of_the_file(
    encoder: Artifact, tmp_path: Path
) -> None:
    labelled = rows(40)
    for row in (4, 9, 21, 30):
        labelled[row]["label"] = "pos" if labelled[row]["label"] == "neg" else "neg"
    # Every row with a label is followed by two without.
    train = [{**row, "label": label} for row in labelled for label in (row["label"], None, "")]
    only = {"choose": {"approaches": ["linear"], "shares": []}, "skip_unlabelled_rows": True}
    artifact = run(tmp_path / "first", encoder, train, **only)
    (task,) = Trials.model_validate(artifact.read_json("trials.json")).tasks
    assert task.examples["train"] == 40
    assert any("80 of 120 rows of" in n and "have no label and are left" in n for n in task.notes)
    weights = tmp_path / "weights.csv"
    weights.write_bytes(artifact.read_bytes("label_errors/t.csv"))
    listed = list(csv.DictReader(io.StringIO(weights.read_text())))
    assert {int(one["row"]) % 3 for one in listed} == {1}
    assert len({int(one["row"]) - 1 for one in listed} & {12, 27, 63, 90}) >= 3
    found = {int(one["row"]) - 1 for one in listed if one["weight"] == "0"}
    again = run(tmp_path / "again", encoder, train, weights=str(weights), **only)
    (task,) = Trials.model_validate(again.read_json("trials.json")).tasks
    assert task.examples["train"] == 40 - len(found)
    weights.write_text("row,weight\n2,0\n")
    with pytest.raises(UsageError, match=r"row is '2', expected a row of .*, 1 to 118, with a lab"):
        run(tmp_path / "blank", encoder, train, weights=str(weights), **only)


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ("row,weight\n99,0\n", r"w.csv:2: row is '99', expected a row of .*train.jsonl, 1 to 8"),
        ("row,weight\n1,0.5\n", r"w.csv:2: weight is '0.5'; expected 0, to leave the row out, or"),
        ("row,text,weight\n1,the,0\n", r"w.csv:2: its text is 'the', but row 1 of"),
        ("row,weight\n1,0\n3,0\n5,0\n7,0\n", "only the label pos in the training data"),
    ],
)
def test_weights_that_do_not_fit_the_rows_are_refused(
    lines: str, message: str, encoder: Artifact, tmp_path: Path
) -> None:
    path = tmp_path / "w.csv"
    path.write_text(lines)
    with pytest.raises(UsageError, match=message):
        run(tmp_path, encoder, rows(8), weights=str(path))


def test_small_classes_count_in_the_headline_if_one_class_has_most_rows(
    encoder: Artifact, tmp_path: Path
) -> None:
    few = [one for one in rows(60) if one["label"] == "pos"][:5]
    many = [one for one in rows(60) if one["label"] == "neg"][:25]
    only = {"choose": {"approaches": ["linear"], "shares": []}, "class_weights": "balanced"}
    trial = trial_of(run(tmp_path / "uneven", encoder, [*few, *many], **only))
    assert trial.metric == "f1_macro"
    assert set(trial.dev) == {"f1_macro", "balanced_accuracy", "accuracy"}
    trial = trial_of(run(tmp_path / "even", encoder, rows(20), **only))
    assert trial.metric == "accuracy"
