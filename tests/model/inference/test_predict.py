"""Predictions of fine-tuned models: streams, Hugging Face's layout and data sets."""

import json
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

from cloze.artifacts.errors import ClozeError, UsageError
from cloze.artifacts.store import Artifact
from cloze.model.config import EncoderConfig, TaskConfig
from cloze.model.data.batch import Example, pack_sequences
from cloze.model.finetune.finetune import make_trials
from cloze.model.hugging_face.model_files import read_model
from cloze.model.hugging_face.source import open_source
from cloze.model.inference import predict, task_file
from cloze.model.inference.export import export_task
from cloze.model.inference.predict import load_predictor
from cloze.model.inference.task_file import TaskFile, to_score
from cloze.model.tasks import tagging
from cloze.model.tasks.files.table_files import read_table
from cloze.model.tasks.files.task_table import Wanted
from tests.model.task_builders import TINY, encoder_artifact, inputs, stage_table, write_lines

WORDS = ["list", "array", "name", "value", "of"]
Rows = Callable[[np.random.Generator], dict[str, Any]]


def tagged(rng: np.random.Generator) -> dict[str, Any]:
    words = [str(word) for word in rng.choice(WORDS, 6)]
    tags = ["B-X" if word == "name" else "O" for word in words]
    return {"words": words, "tags": tags, "document": int(rng.integers(3))}


def pair(rng: np.random.Generator) -> dict[str, Any]:
    left, right = (str(word) for word in rng.choice(WORDS, 2))
    return {"text_a": left, "text_b": right, "label": "same" if left == right else "other"}


def scored(rng: np.random.Generator) -> dict[str, Any]:
    return {"text_a": str(rng.choice(WORDS)), "label": float(rng.random())}


def asked(rng: np.random.Generator) -> dict[str, Any]:
    context = " ".join(str(word) for word in rng.choice(WORDS, 6))
    first = context.split()[0]
    return {
        "question": "a name",
        "context": context,
        "answers": {"text": [first], "answer_start": [0]},
    }


def chosen(rng: np.random.Generator) -> dict[str, Any]:
    endings = [str(word) for word in rng.choice(WORDS, 3)]
    return {"context": "the", "endings": endings, "label": int(rng.integers(3))}


FAMILIES: dict[str, tuple[str, Rows]] = {
    "tagging": ("BertForTokenClassification", tagged),
    "pair_classification": ("BertForSequenceClassification", pair),
    "regression": ("BertForSequenceClassification", scored),
    "span": ("BertForQuestionAnswering", asked),
    "multiple_choice": ("BertForMultipleChoice", chosen),
}


@pytest.fixture(scope="module")
def fitted(tmp_path_factory: pytest.TempPathFactory) -> Artifact:
    """A model of each family."""
    return fine_tuned(tmp_path_factory.mktemp("families"), TINY)


@pytest.fixture(scope="module")
def modern(tmp_path_factory: pytest.TempPathFactory) -> Artifact:
    """The same with an encoder of ModernBERT's architecture."""
    shape = TINY.model_dump() | {"family": "modern", "attention_probs_dropout_prob": 0.0}
    return fine_tuned(tmp_path_factory.mktemp("modern"), EncoderConfig.model_validate(shape))


def fine_tuned(folder: Path, encoder: EncoderConfig) -> Artifact:
    tasks = []
    for kind, (_, row) in FAMILIES.items():
        rng = np.random.default_rng(0)
        files = {
            split: write_lines(folder / kind / f"{split}.jsonl", [row(rng) for _ in range(24)])
            for split in ("train", "dev")
        }
        context = {"document_context": True} if kind == "tagging" else {}
        task = {"name": kind, "kind": kind, "max_seq_length": 32, "epochs": 1, **files, **context}
        tasks.append({**task, "learning_rate": 1e-2, "batch_size": 8})
    config = {"tasks": tasks, "seeds": [0], "precision": "fp32", "save": "best"}
    table = stage_table(
        "finetune",
        folder / "fits",
        config={"finetune": config},
        inputs=inputs(encoder=encoder_artifact(folder / "encoder", config=encoder)),
        machine={"threads": 1},
    )
    return make_trials(table, [])


@pytest.mark.parametrize("kind", FAMILIES)
def test_predictions_that_are_no_numbers_are_neither_given_nor_scored(
    fitted: Artifact, tmp_path: Path, kind: str
) -> None:
    """Each weight is a number; their products are too large for fp32."""
    export_task(fitted.directory, tmp_path / kind, task=kind)
    file = tmp_path / kind / "model.safetensors"
    weights = load_file(file)
    weights["bert.encoder.layer.0.output.dense.weight"].fill_(3e38)
    save_file(weights, file)
    predictor = load_predictor(tmp_path / kind)
    labelled = write_lines(tmp_path / "rows.jsonl", [FAMILIES[kind][1](np.random.default_rng(0))])
    for asked in (predictor.evaluate, lambda path: list(predictor.file(path))):
        with pytest.raises(ClozeError, match=f"task {kind}: what the model predicts has NaN"):
            asked(labelled)


@pytest.mark.parametrize("kind", FAMILIES)
def test_an_exported_task_is_the_same_in_transformers(
    fitted: Artifact, tmp_path: Path, kind: str
) -> None:
    export_task(fitted.directory, tmp_path / "out", task=kind)
    assert difference_from(getattr(transformers, FAMILIES[kind][0]), tmp_path / "out", kind) < 2e-5


@pytest.mark.parametrize("kind", FAMILIES)
def test_an_exported_task_of_a_modern_encoder_is_the_same_in_transformers_and_answers_the_same(
    modern: Artifact, tmp_path: Path, kind: str
) -> None:
    export_task(modern.directory, tmp_path / "out", task=kind)
    theirs = getattr(transformers, "Modern" + FAMILIES[kind][0])
    assert difference_from(theirs, tmp_path / "out", kind) < 2e-5
    row = FAMILIES[kind][1](np.random.default_rng(1))
    ours = load_predictor(modern.directory, task=kind).predict([row])
    assert load_predictor(tmp_path / "out").predict([row]) == ours
    given = transformers.AutoTokenizer.from_pretrained(tmp_path / "out")("a name")
    assert sorted(given) == [
        "attention_mask",
        "input_ids",
    ]  # ModernBERT's classes take no token types


def difference_from(theirs: type[transformers.PreTrainedModel], folder: Path, kind: str) -> float:
    """The largest difference between our logits and those of transformers, on one text."""
    theirs = theirs.from_pretrained(folder).eval()
    model, _, tokenizer = read_model(open_source(folder))
    ids = [tokenizer.cls_id, *tokenizer.encode("the list of names"), tokenizer.sep_id]
    given, batch = torch.tensor([ids]), pack_sequences([Example(ids)])
    with torch.inference_mode():
        pooled = kind in ("pair_classification", "regression", "multiple_choice")
        ours = model(batch, None if pooled else torch.arange(batch.tokens))
        given = given[None] if kind == "multiple_choice" else given
        said = theirs(input_ids=given)
        their_logits = (
            torch.stack([said.start_logits[0], said.end_logits[0]], dim=-1)
            if kind == "span"
            else said.logits.reshape(ours.shape)
        )
    return float((ours - their_logits).abs().max())


@pytest.mark.parametrize("kind", FAMILIES)
def test_an_exported_task_answers_as_the_artifact_does(
    fitted: Artifact, tmp_path: Path, kind: str
) -> None:
    export_task(fitted.directory, tmp_path / "out", task=kind)
    rng = np.random.default_rng(1)
    rows = [FAMILIES[kind][1](rng) for _ in range(5)]
    ours = load_predictor(fitted.directory, task=kind).predict(rows)
    assert load_predictor(tmp_path / "out").predict(rows) == ours
    assert len(ours) == 5
    card = (tmp_path / "out" / "README.md").read_text()
    assert f"{FAMILIES[kind][0]}.from_pretrained" in card
    assert fitted.digest[:16] in card


@pytest.mark.parametrize("limit", ["WINDOW", "WINDOW_CHARACTERS"])
def test_windows_of_a_stream_change_nothing_and_keep_documents_whole(
    fitted: Artifact, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: str
) -> None:
    rng = np.random.default_rng(2)
    rows = sorted((tagged(rng) for _ in range(20)), key=lambda row: row["document"])
    tagger = load_predictor(fitted.directory, task="tagging")
    whole = tagger.predict(rows)
    monkeypatch.setattr(predict, limit, 3)
    assert tagger.predict(rows) == whole
    assert list(tagger.file(write_lines(tmp_path / "rows.jsonl", rows))) == whole


def test_windows_of_long_rows_are_short(fitted: Artifact, monkeypatch: pytest.MonkeyPatch) -> None:
    """So that memory depends on neither the number nor the length of a file's rows."""
    monkeypatch.setattr(predict, "WINDOW_CHARACTERS", 1000)
    read = []

    def rows() -> Iterator[str]:
        for _ in range(20):
            read.append(1)
            yield "the list of names " * 30

    predictor = load_predictor(fitted.directory, task="pair_classification")
    texts = ({"text_a": text, "text_b": "a"} for text in rows())
    next(predictor.rows(texts))
    assert len(read) == 3  # two, and the one that shows that a window is over


EVERY_FORMAT = {
    "rows.jsonl": lambda rows: "".join(json.dumps(row) + "\n" for row in rows),
    "rows.json": lambda rows: json.dumps({"version": 1, "data": rows, "more": []}, indent=1),
    "lines.json": lambda rows: "\n\n".join(json.dumps(row) for row in rows),
    "rows.csv": lambda rows: _csv(rows, ";"),
    "rows.tsv": lambda rows: _csv(rows, "\t"),
    "returns.csv": lambda rows: _csv(rows, ",").replace("\n", "\r"),
}


def _csv(rows: list[dict[str, Any]], separator: str) -> str:
    names = ("text_a", "text_b", "label", "note")
    lines = [names, *([str(row.get(name, "")) for name in names] for row in rows)]
    return "".join(separator.join(line) + "\n" for line in lines)


@pytest.mark.parametrize("name", [*EVERY_FORMAT, "rows.parquet", "rows.arrow", "western.csv"])
def test_a_file_is_predicted_some_rows_at_a_time_with_its_columns_and_scored_as_a_whole(
    fitted: Artifact, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    rng = np.random.default_rng(3)
    rows = [pair(rng) for _ in range(11)]
    rows[8]["note"] = "Zürich"  # a column that first occurs late
    predictor = load_predictor(fitted.directory, task="pair_classification")
    expected = predictor.predict([{**row} for row in rows])
    monkeypatch.setattr(predict, "WINDOW", 3)
    path = tmp_path / name
    table = pa.Table.from_pylist([{"note": None, **row} for row in rows])
    if name == "rows.parquet":
        pq.write_table(table, path, row_group_size=4)
    elif name == "rows.arrow":
        with pa.ipc.new_stream(path, table.schema) as stream:
            stream.write_table(table, max_chunksize=4)
    elif name == "western.csv":
        path.write_bytes(_csv(rows, ",").encode("cp1252"))
    else:
        path.write_text(EVERY_FORMAT[name](rows))
    file = predictor.open(path)
    read = [*predictor.answers(file)]
    assert [answer for _, answer in read] == expected
    shown = [file.shown(row) for row, _ in read]
    assert all({*row} == {"text_a", "text_b", "label", "note"} for row in shown)
    assert [row["note"] or "" for row in shown] == [row.get("note", "") for row in rows]
    right = sum(row["label"] == one["prediction"] for row, one in zip(rows, expected, strict=True))
    assert file.score([to_score(one) for one in expected])["accuracy"] == right / len(rows)


def test_memory_does_not_grow_with_the_file(tmp_path: Path) -> None:
    task = TaskConfig(name="t", kind="classification", labels=("x", "y"))
    text = "the list of names " * 500
    row = json.dumps({"text_a": text, "label": "x"})
    for name, content in {
        "a.csv": "text_a,label\n" + f'"{text}",x\n' * 1500,
        "a.tsv": "text_a\tlabel\n" + f"{text}\tx\n" * 1500,
        "a.jsonl": f"{row}\n" * 1500,
        "a.json": f"[{','.join([row] * 1500)}]",
        "squad.json": f'{{"version": 1, "data": [{",".join([row] * 1500)}]}}',
    }.items():
        (tmp_path / name).write_text(content)  # 13 MB
        assert _peak_of_reading(tmp_path / name, task) < 6 << 20, name
    table = pa.Table.from_pylist([{"text_a": text + str(n), "label": "x"} for n in range(1500)])
    pq.write_table(table, tmp_path / "a.parquet", row_group_size=100, use_dictionary=False)
    before, peak = pa.total_allocated_bytes(), 0
    for _ in TaskFile(str(tmp_path / "a.parquet"), task):
        peak = max(peak, pa.total_allocated_bytes() - before)
    assert 0 < peak < 6 << 20
    (tmp_path / "a.conll").write_text(("".join(f"{n} O\n" for n in range(99, 299)) + "\n") * 100)
    tagging = TaskConfig(name="t", kind="tagging", labels=("O", "B-X"))
    # of a labelled file, each tag is kept for its score, in 8 bytes
    assert _peak_of_reading(tmp_path / "a.conll", tagging) < 2 << 20


def _peak_of_reading(path: Path, task: TaskConfig) -> int:
    """The most bytes that Python holds while a file is read."""
    tracemalloc.start()
    file = TaskFile(str(path), task)
    assert sum(1 for _ in file) in (100, 1500)
    assert file.is_scored
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return peak


def test_labels_beyond_a_number_are_not_kept_and_it_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(task_file, "MOST_LABELS", 4)
    task = TaskConfig(name="t", kind="classification", labels=("x", "y"))
    path = write_lines(tmp_path / "a.jsonl", [{"text_a": "a", "label": "x"}] * 5)
    file = TaskFile(path, task)
    assert file.remarks == (
        f"{path}: not scored, as it has more than 4 labels; score a part of it",
    )
    assert file.score([]) == {}
    assert len([*file]) == 5


def test_plain_text_is_cut_into_words_and_tags_become_spans() -> None:
    assert tagging.WORD.findall("J.R. Smith-Jones (of IBM), don't!") == [
        *("J.R", ".", "Smith-Jones", "(", "of", "IBM", ")", ",", "don't", "!")
    ]
    words, tags = ["Ann", "Lee", "of", "IBM"], ["B-PER", "I-PER", "O", "B-ORG"]
    assert tagging.marked_spans(words, tags) == [
        {"label": "PER", "text": "Ann Lee", "first": 0, "last": 1},
        {"label": "ORG", "text": "IBM", "first": 3, "last": 3},
    ]


def test_a_row_without_a_part_of_its_input_is_named_with_the_form(fitted: Artifact) -> None:
    pairs = load_predictor(fitted.directory, task="pair_classification")
    rows = [{"text_a": "list", "text_b": "name"}, {"text": "list"}]
    with pytest.raises(
        UsageError, match=r'rows:2: has text_a; .* expects \{"text_a": "…", "text_b'
    ):
        pairs.predict(rows)


def test_a_data_set_of_the_library_is_read_like_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import datasets

    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    rows = [{"sentence": "a list", "label": 1}, {"sentence": 'a "name"', "label": 0}]
    write_lines(tmp_path / "own" / "train.jsonl", rows)
    wanted = Wanted(required=("text_a",), optional=("label",), names={"text_a": "sentence"})
    table = read_table(f"datasets:{tmp_path / 'own'}::train", wanted)
    assert table.columns == {"text_a": ["a list", 'a "name"'], "label": [1, 0]}
    assert json.dumps(table.place(1)).endswith(':2"')
