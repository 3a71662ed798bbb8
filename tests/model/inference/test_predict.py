"""Predictions of fine-tuned models: streams, Hugging Face's layout and data sets."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers

from cloze.artifacts.errors import UsageError
from cloze.artifacts.store import Artifact
from cloze.model.config import EncoderConfig
from cloze.model.data.batch import Example, pack_sequences
from cloze.model.finetune.finetune import make_trials
from cloze.model.hugging_face.model_files import read_model
from cloze.model.hugging_face.source import open_source
from cloze.model.inference import predict
from cloze.model.inference.export import export_task
from cloze.model.inference.predict import load_predictor
from cloze.model.tasks.table_files import read_table
from cloze.model.tasks.task_table import Wanted
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


def test_windows_of_a_stream_change_nothing_and_keep_documents_whole(
    fitted: Artifact, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = np.random.default_rng(2)
    rows = sorted((tagged(rng) for _ in range(20)), key=lambda row: row["document"])
    tagger = load_predictor(fitted.directory, task="tagging")
    whole = tagger.predict(rows)
    monkeypatch.setattr(predict, "WINDOW", 3)
    assert tagger.predict(rows) == whole
    assert list(tagger.file(write_lines(tmp_path / "rows.jsonl", rows))) == whole


def test_plain_text_is_cut_into_words_and_tags_become_spans() -> None:
    assert predict.WORD.findall("J.R. Smith-Jones (of IBM), don't!") == [
        *("J.R", ".", "Smith-Jones", "(", "of", "IBM", ")", ",", "don't", "!")
    ]
    words, tags = ["Ann", "Lee", "of", "IBM"], ["B-PER", "I-PER", "O", "B-ORG"]
    assert predict.marked_spans(words, tags) == [
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
