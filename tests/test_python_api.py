"""The Python API: every argument is checked at the door, and threads may share what it returns."""

import gc
import inspect
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import cloze
from cloze.artifacts.store import Artifact
from cloze.inference.searcher import Search
from cloze.model.config import PretrainConfig
from cloze.model.data.torch_dataset import PretrainingBatches
from cloze.model.finetune.finetune import make_trials
from cloze.model.inference.load import Model
from cloze.model.inference.predict import Predictor
from cloze.model.tasks.files.task_table import TaskTable
from tests.cloze.tiny_model import write_model
from tests.model.task_builders import (
    TINY,
    encoder_artifact,
    finetune_table,
    write_lines,
)

TEXTS = ["the list of names", "a b", "names of the list", "b"] * 8


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("models") / "tiny"
    write_model(directory)
    return directory


@pytest.fixture(scope="module")
def model(folder: Path) -> Model:
    return cloze.load(folder)


@pytest.fixture(scope="module")
def fitted(tmp_path_factory: pytest.TempPathFactory) -> Artifact:
    """A fine-tuned classifier of texts."""
    folder = tmp_path_factory.mktemp("task")
    rows = [{"text_a": text, "label": text[0]} for text in TEXTS]
    files = {split: write_lines(folder / f"{split}.jsonl", rows) for split in ("train", "dev")}
    task = {"name": "first", "kind": "classification", "max_seq_length": 16, "epochs": 1, **files}
    encoder = encoder_artifact(folder / "encoder", config=TINY)
    table = finetune_table(folder / "fits", encoder, tasks=[task], seeds=[0], save="best")
    return make_trials(table, [])


def test_the_classes_that_the_functions_return_have_names_of_their_own() -> None:
    assert (cloze.Model, cloze.Predictor, cloze.Search) == (Model, Predictor, Search)
    assert cloze.PretrainingBatches is PretrainingBatches
    with pytest.raises(AttributeError, match="module 'cloze' has no attribute 'Modell'"):
        getattr(cloze, "Modell")  # noqa: B009 - a name that no type checker lets pass


@pytest.mark.parametrize("enabled", [True, False])
def test_loading_leaves_the_garbage_collector_as_it_was(folder: Path, enabled: bool) -> None:
    try:
        if not enabled:
            gc.disable()
        cloze.load(folder)
        assert gc.isenabled() == enabled
    finally:
        gc.enable()


def public_functions() -> Iterator[tuple[str, Callable[..., Any]]]:
    """What docs/api.md describes, but for `__getattr__` and properties."""
    for name in ("load", "load_task", "load_batches", "search"):
        yield name, getattr(cloze, name)
    for owner in (Model, Predictor):
        for name, found in vars(owner).items():
            if inspect.isfunction(found) and not name.startswith("_"):
                yield f"{owner.__name__}.{name}", found
    yield "PretrainingBatches", vars(PretrainingBatches)["__init__"]


ACCEPTED: dict[str, object] = {
    "self": None,
    **dict.fromkeys(("model", "run", "text", "path", "column", "directory", "folder"), "a"),
    **{name: ["a"] for name in ("texts", "rows")},
    "table": TaskTable("rows", {"text_a": ["a"]}),
    "answers": [{}],
    "recipe": PretrainConfig(),
}
"""Something that the public functions accept, for each argument without a default."""


PUBLIC = dict(public_functions())


@pytest.mark.parametrize("name", PUBLIC)
def test_every_public_function_checks_every_argument(name: str) -> None:
    """Each argument in turn is something that no public function accepts."""
    function = PUBLIC[name]
    parameters = inspect.signature(function).parameters
    needed = {
        parameter
        for parameter, found in parameters.items()
        if found.default is inspect.Parameter.empty
    }
    for parameter in parameters.keys() - {"self"}:
        others = {other: ACCEPTED[other] for other in needed - {parameter}}
        with pytest.raises(cloze.UsageError, match=rf"^\w+: {parameter} = <object"):
            function(**others, **{parameter: object()})


MISTAKES: dict[str, tuple[Callable[[Model], object], str]] = {
    "another pooling": (
        lambda model: model.embed(["a"], pooling="max"),  # type: ignore[arg-type]
        "embed: pooling = 'max', expected 'mean', 'cls', 'pooler' or None",
    ),
    "pooling in capitals": (
        lambda model: model.embed(["a"], pooling="MEAN"),  # type: ignore[arg-type]
        "embed: pooling = 'MEAN', expected 'mean', 'cls', 'pooler' or None; did you mean 'mean'?",
    ),
    "no text": (
        lambda model: model.embed(["a", None]),  # type: ignore[list-item]
        "embed: texts, element 2 = None, expected a string",
    ),
    "not a number": (
        lambda model: model.embed(np.array(["a", float("nan")], object)),
        "embed: texts, element 2 = nan, expected a string",
    ),
    "a dictionary of texts": (
        lambda model: model.embed({"a": "b"}),
        "embed: texts = {'a': 'b'}, expected a string or a list of strings",
    ),
    "a table": (
        lambda model: model.embed(pd.DataFrame({"t": ["a", "b"]})),
        "embed: texts = <DataFrame>, expected a string or a list of strings; give one of the "
        "table's columns, or its rows as a list of dictionaries",
    ),
    "no order": (
        lambda model: model.embed({"a"}),
        "embed: texts = {'a'}, expected a string or a list of strings; a set has no order",
    ),
    "one layer": (
        lambda model: model.embed(["a"], layers=-1),  # type: ignore[arg-type]
        "embed: layers = -1, expected a tuple of integers or None",
    ),
    "a word for a truth value": (
        lambda model: model.embed(["a"], normalize="no"),  # type: ignore[arg-type]
        "embed: normalize = 'no', expected True or False",
    ),
    "a string for a stream": (
        lambda model: list(model.fill_masks("a [MASK]")),
        "fill_masks: texts = 'a [MASK]', expected a list of strings; put it into a list, [text], "
        "if it is the only one",
    ),
    "a number as text": (
        lambda model: model.fill_mask("a [MASK]", top_k="3"),  # type: ignore[arg-type]
        "fill_mask: top_k = '3', expected an integer",
    ),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_wrong_argument_is_refused_with_what_is_expected(model: Model, mistake: str) -> None:
    call, expected = MISTAKES[mistake]
    with pytest.raises(cloze.UsageError) as refused:
        call(model)
    assert str(refused.value) == expected


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"precision": "fp16"}, "load: precision = 'fp16', expected 'auto', 'fp32', 'bf16' or"),
        ({"precision": "int4"}, "load: precision = 'int4', expected 'auto', 'fp32', 'bf16' or"),
        ({"attention": "sdpa"}, "load: attention = 'sdpa', expected 'auto', 'grouped', 'flash' "),
        ({"device": "gpu"}, "device 'gpu': this machine has cpu"),
        ({"device": "cuda:99"}, "device 'cuda:99': this machine has cpu"),
    ],
)
def test_a_model_is_not_loaded_in_another_way_than_asked(
    folder: Path, fitted: Artifact, options: dict[str, Any], expected: str
) -> None:
    with pytest.raises(cloze.UsageError) as refused:
        cloze.load(folder, **options)
    assert str(refused.value).startswith(expected)
    if "attention" not in options:
        with pytest.raises(cloze.UsageError) as refused:
            cloze.load_task(fitted.directory, **options)
        assert str(refused.value).startswith(expected.replace("load:", "load_task:"))


@pytest.mark.parametrize("load", [cloze.load, cloze.load_task])
def test_an_empty_name_is_no_model(load: Callable[[str], object]) -> None:
    with pytest.raises(cloze.UsageError, match="no model is named"):
        load("")


def test_a_misspelt_argument_is_named(model: Model) -> None:
    with pytest.raises(TypeError, match="embed: got an unexpected keyword argument 'batch_size'"):
        model.embed(["a"], batch_size=3)  # type: ignore[call-arg]


def test_texts_may_come_as_a_list_a_column_or_a_stream(model: Model) -> None:
    expected = model.embed(["a", "the list"])
    for texts in (("a", "the list"), np.array(["a", "the list"]), iter(["a", "the list"])):
        assert np.array_equal(model.embed(texts), expected)
    layers = model.embed(["a"], layers=[np.int64(-2), -1])  # type: ignore[arg-type]
    assert np.array_equal(layers, model.embed(["a"], layers=(-2, -1)))


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        (
            "bad",
            "predict: rows = 'bad', expected a list of dictionaries or strings; "
            "put it into a list, [text], if it is the only one",
        ),
        (
            {"text": "bad"},
            "predict: rows = {'text': 'bad'}, expected a list of dictionaries or strings",
        ),
        ([None], "predict: rows, element 1 = None, expected a dictionary or a string"),
        ([3.5], "predict: rows, element 1 = 3.5, expected a dictionary or a string"),
        (None, "predict: rows = None, expected a list of dictionaries or strings"),
        (
            pd.DataFrame({"text": ["bad"]}),
            "predict: rows = <DataFrame>, expected a list of dictionaries or strings; give one of "
            "the table's columns, or its rows as a list of dictionaries",
        ),
    ],
    ids=["string", "dictionary", "none", "number", "nothing", "table"],
)
def test_predict_refuses_what_is_no_list_of_rows(
    fitted: Artifact, rows: Any, expected: str
) -> None:
    with pytest.raises(cloze.UsageError) as refused:
        cloze.load_task(fitted.directory).predict(rows)
    assert str(refused.value) == expected


@pytest.mark.parametrize("text", [None, 3, ["a"]])
def test_predict_refuses_rows_without_a_text(fitted: Artifact, text: Any) -> None:
    with pytest.raises(cloze.UsageError, match=r"rows:2: "):
        cloze.load_task(fitted.directory).predict([{"text": "a"}, {"text": text}])


def test_a_model_is_evaluated_on_a_labelled_file_with_the_metrics_of_its_run(
    fitted: Artifact, tmp_path: Path
) -> None:
    predictor = cloze.load_task(fitted.directory)
    (trial,) = fitted.read_json("trials.json")["trials"]
    rows = [{"text_a": text, "label": text[0]} for text in TEXTS]
    found = predictor.evaluate(write_lines(tmp_path / "dev.jsonl", rows))
    assert found == trial["dev"]
    assert next(iter(found)) == trial["metric"]
    # by hand: the label of every row is what the model says, but for one of the 32
    said = [row["prediction"] for row in predictor.predict(TEXTS)]
    said[0] = next(label for label in ("t", "a", "n", "b") if label != said[0])
    own = [{"text_a": text, "label": label} for text, label in zip(TEXTS, said, strict=True)]
    assert predictor.evaluate(write_lines(tmp_path / "own.jsonl", own))["accuracy"] == 31 / 32


def test_a_file_without_labels_is_not_evaluated(fitted: Artifact, tmp_path: Path) -> None:
    path = write_lines(tmp_path / "new.jsonl", [{"text_a": text} for text in TEXTS])
    with pytest.raises(cloze.UsageError) as refused:
        cloze.load_task(fitted.directory).evaluate(path)
    assert str(refused.value) == (
        f"{path}: no labels that can be scored, expected some as label; `file` predicts rows "
        "without labels"
    )


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_threads_share_a_model_and_a_predictor(
    folder: Path, fitted: Artifact, precision: Any
) -> None:
    """In bf16 a predictor puts rounded parameters in the place of its own while it computes."""
    model = cloze.load(folder, precision=precision)
    predictor = cloze.load_task(fitted.directory, precision=precision)
    weights = {name: value.clone() for name, value in predictor.model.state_dict().items()}
    vectors, answers = model.embed(TEXTS), predictor.predict(TEXTS)
    with ThreadPoolExecutor(8) as threads:
        embedded = [threads.submit(partial(model.embed, TEXTS)) for _ in range(8)]
        predicted = [threads.submit(partial(predictor.predict, TEXTS)) for _ in range(16)]
        assert all(np.array_equal(each.result(), vectors) for each in embedded)
        assert all(each.result() == answers for each in predicted)
    after = predictor.model.state_dict()
    assert all(after[name].equal(value) for name, value in weights.items())
