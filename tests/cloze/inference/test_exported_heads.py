"""Every exported head gives the same answers in the pipelines of others as in `cloze predict`."""

import json
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from cloze.model.retrieval.reranker import load_reranker
from tests.cloze.execution.test_layouts import configuration, task
from tests.cloze.tiny_model import write_model
from tests.conftest import cloze as command

Cloze = Callable[..., Any]

FILES = {
    "topics.csv": "text_a,label\nthe list,x\na b,y\nof names,z\nthe,x\na,y\nof,z\n",
    "pairs.csv": "text_a,text_b,label\nthe list,list,x\na b,of,y\nnames,a,x\nb,the,y\n",
    "many.csv": "text_a,label\nthe list,x|y\na b,\nof names,y\nthe a,x\n",
    "scores.csv": "text_a,text_b,label\nthe list,list,4.5\na b,of,-1.5\nnames,a,3\nb,the,0\n",
    "tags.conll": "the O\nlist B-X\n\na B-Y\nb I-Y\nof O\n\n",
    "spans.jsonl": json.dumps(
        {
            "question": "a b",
            "context": "the list of names",
            "answers": {"text": ["list"], "answer_start": [4]},
        }
    )
    + "\n",
    "choices.csv": "context,ending0,ending1,label\nthe list,of names,a b,0\na,b,the,1\n",
    "search.csv": "query,passage\nthe,the list\na,a b\nof,of names\n",
    "ranks.csv": "query,passage\nthe,the list\na,a b\nof,of names\n",
}
KINDS = {
    "topics.csv": "classification",
    "pairs.csv": "pair_classification",
    "many.csv": "multi_label_classification",
    "scores.csv": "regression",
    "tags.conll": "tagging",
    "spans.jsonl": "span",
    "choices.csv": "multiple_choice",
    "search.csv": "retrieval",
    "ranks.csv": "reranking",
}


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with one exported model for each family."""
    folder = tmp_path_factory.mktemp("heads")
    write_model(folder / "encoder")
    tasks = []
    for name, content in FILES.items():
        (folder / name).write_text(content)
        more = {"label_separator": "|"} if name == "many.csv" else {}
        steps = {"epochs": 20, "learning_rate": 1e-2, "max_seq_length": 12}
        tasks.append(task(name.partition(".")[0], KINDS[name], name, **steps, **more))
    text = configuration(*tasks).replace('save = "none"\n', "")
    text = text.replace("max_seq_length = 16\n", "")
    (folder / "all.toml").write_text(text)
    done = command("run", "all.toml", "--without-prefect", cwd=folder)
    assert done.returncode == 0, done.stderr
    for name in FILES:
        stem = name.partition(".")[0]
        made = command("export", "all", f"out/{stem}", "--task", stem, cwd=folder)
        assert made.returncode == 0, made.stderr
    return folder


def newest(workspace: Path, stage: str) -> Path:
    """The artifact of a stage that was made last."""
    return max((workspace / "artifacts" / stage).iterdir(), key=lambda path: path.stat().st_mtime)


def predicted(folder: Path, name: str, *rows: Any) -> list[Any]:
    """What `cloze predict` answers for these rows."""
    texts = [row if isinstance(row, str) else json.dumps(row) for row in rows]
    done = command("predict", "all", "--task", name, "--json", *texts, cwd=folder)
    assert done.returncode == 0, done.stderr
    return list(json.loads(done.stdout))


LONG = "the list of names a b the list of names a b the list"
PAIRS = [("the list", "of names"), ("a b", "the"), (LONG, "names")]
TEXTS = ["the list", "a b", "of names a", LONG]


@pytest.mark.slow
def test_texts_and_several_labels_in_the_pipeline_of_transformers(exported: Path) -> None:
    from transformers import pipeline

    for name in ("topics", "many"):
        classify = pipeline("text-classification", str(exported / "out" / name), device="cpu")
        theirs = classify(TEXTS, top_k=None, truncation=True)
        for ours, found in zip(predicted(exported, name, *TEXTS), theirs, strict=True):
            shares = {one["label"]: one["score"] for one in found}
            assert shares.keys() == ours["probabilities"].keys()
            for label, share in ours["probabilities"].items():
                assert shares[label] == pytest.approx(share, abs=1e-5)


@pytest.mark.slow
def test_pairs_and_numbers_in_the_pipeline_and_as_cross_encoders(exported: Path) -> None:
    pytest.importorskip("sentence_transformers", reason="pip install sentence-transformers")
    from sentence_transformers import CrossEncoder
    from transformers import pipeline

    rows = [{"text_a": a, "text_b": b} for a, b in PAIRS]
    given = [{"text": a, "text_pair": b} for a, b in PAIRS]
    ours = predicted(exported, "scores", *rows)
    score = pipeline("text-classification", str(exported / "out" / "scores"), device="cpu")
    theirs = [score(one, truncation=True) for one in given]
    numbers = [(one[0] if isinstance(one, list) else one)["score"] for one in theirs]
    np.testing.assert_allclose(numbers, [row["prediction"] for row in ours], atol=1e-4)
    assert max(abs(number) for number in numbers) > 1  # no sigmoid
    cross = CrossEncoder(str(exported / "out" / "scores"), device="cpu")
    np.testing.assert_allclose(cross.predict(PAIRS), numbers, atol=1e-4)

    pairs = predicted(exported, "pairs", *rows)
    cross = CrossEncoder(str(exported / "out" / "pairs"), device="cpu")
    shares = cross.predict(PAIRS, apply_softmax=True)
    np.testing.assert_allclose(
        shares, [list(row["probabilities"].values()) for row in pairs], atol=1e-5
    )


@pytest.mark.slow
def test_a_reranker_has_the_same_scores_as_a_cross_encoder(exported: Path) -> None:
    pytest.importorskip("sentence_transformers", reason="pip install sentence-transformers")
    from sentence_transformers import CrossEncoder

    folder = exported / "out" / "ranks"
    for reranker in (load_reranker(folder), load_reranker(newest(exported / "runs", "finetune"))):
        passages = ["the list", "of names", LONG, "b"]
        ours = reranker.scores("the list of", passages)
        cross = CrossEncoder(str(folder), device="cpu")
        pairs = [("the list of", passage) for passage in passages]
        np.testing.assert_allclose(cross.predict(pairs), ours, atol=1e-5)
        assert np.ptp(ours) > 1e-3
    CrossEncoder(str(folder), device="cpu").save_pretrained(str(exported / "again"))
    np.testing.assert_allclose(
        load_reranker(exported / "again").scores("the list of", passages), ours, atol=1e-5
    )
    done = command("search", "all", "topics.csv", "a", "--rerank", "all", cwd=exported)
    assert done.returncode == 0, done.stderr
    assert "reranked from" in done.stdout
    done = command("search", "all", "topics.csv", "a", "--rerank", "out/topics", cwd=exported)
    assert "no reranker: the model of a task of the kind classification" in done.stderr
    done = command("predict", "all", "--task", "ranks", "a", cwd=exported)
    assert "use it with `cloze search --rerank`" in done.stderr
    if find_spec("onnxruntime"):
        done = command("export", "all", "out/graph", "--task", "ranks", "--onnx", cwd=exported)
        assert done.returncode == 0, done.stderr
        assert "model.onnx: score " in done.stdout


@pytest.mark.slow
def test_tags_answers_and_endings_in_the_classes_of_transformers(exported: Path) -> None:
    from transformers import (
        AutoModelForMultipleChoice,
        AutoModelForQuestionAnswering,
        AutoTokenizer,
        pipeline,
    )

    ours = predicted(exported, "tags", "the list a b of")[0]
    tag = pipeline("token-classification", str(exported / "out" / "tags"), device="cpu")
    theirs = tag("the list a b of", ignore_labels=[])
    assert [one["entity"] for one in theirs] == ours["prediction"]

    folder = exported / "out" / "spans"
    row = {"question": "a b", "context": "the list of names"}
    (answer,) = predicted(exported, "spans", row)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    given = tokenizer(row["question"], row["context"], return_tensors="pt")
    with torch.inference_mode():
        found = AutoModelForQuestionAnswering.from_pretrained(folder)(**given)
    inside = range(4, 8)  # [CLS] a b [SEP] the list of names [SEP]
    first, last = max(
        ((i, j) for i in inside for j in inside if i <= j),
        key=lambda span: float(found.start_logits[0, span[0]] + found.end_logits[0, span[1]]),
    )
    words = row["context"].split()
    assert answer["best"] == " ".join(words[first - 4 : last - 3])

    folder = exported / "out" / "choices"
    row = {"context": "the list", "endings": ["of names", "a b", "the"]}
    (chosen,) = predicted(exported, "choices", row)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    given = tokenizer([row["context"]] * 3, list(row["endings"]), return_tensors="pt", padding=True)
    with torch.inference_mode():
        model = AutoModelForMultipleChoice.from_pretrained(folder)
        logits = model(**{name: value[None] for name, value in given.items()}).logits
    assert int(logits.argmax()) == chosen["prediction"]


@pytest.mark.slow
def test_vectors_in_sentence_transformers(exported: Path) -> None:
    pytest.importorskip("sentence_transformers", reason="pip install sentence-transformers")
    from sentence_transformers import SentenceTransformer

    theirs = SentenceTransformer(str(exported / "out" / "search"), device="cpu").encode(TEXTS)
    done = command("embed", "out/search", *TEXTS, "--json", cwd=exported)
    np.testing.assert_allclose(json.loads(done.stdout)["vectors"], theirs, atol=1e-5)


@pytest.mark.slow
def test_a_file_is_predicted_with_all_its_columns_in_its_own_format(exported: Path) -> None:
    (exported / "new.csv").write_text('id;text_a;note\n7;"the; list";"""good"""\n8;a b;\n')
    done = command("predict", "all", "--task", "topics", "new.csv", cwd=exported)
    header, first, second = (line.split(";") for line in done.stdout.splitlines())
    assert header[:4] == ["id", "text_a", "note", "prediction"]
    assert first[:4] == ["7", '"the', ' list"', '"""good"""']
    assert second[:3] == ["8", "a b", ""]
    (exported / "new.tsv").write_text('id\ttext_a\n7\t"the list\n')
    done = command("predict", "all", "--task", "topics", "new.tsv", cwd=exported)
    assert done.stdout.splitlines()[1].startswith('7\t"the list\t')


@pytest.mark.slow
def test_a_tagger_takes_empty_lines_and_conll_files(exported: Path) -> None:
    empty, tagged = predicted(exported, "tags", "", "the list")
    assert empty == {"prediction": [], "words": [], "spans": []}
    assert tagged["words"] == ["the", "list"]
    for name in ("new.conll", "new.txt"):
        (exported / name).write_text("-DOCSTART- O\n\nthe O\nlist B-X\n\na B-Y\n")
        done = command("predict", "all", "--task", "tags", name, "--json", cwd=exported)
        assert "read as a task file" in done.stderr
        assert [row["words"] for row in json.loads(done.stdout)] == [["the", "list"], ["a"]]
    (exported / "plain.txt").write_text("the list\na b\n")
    done = command("predict", "all", "--task", "tags", "plain.txt", "--json", cwd=exported)
    assert [row["words"] for row in json.loads(done.stdout)] == [["the", "list"], ["a", "b"]]


@pytest.mark.slow
def test_an_import_says_which_head_it_leaves_out(exported: Path) -> None:
    done = command("import", "out/topics", cwd=exported)
    assert done.returncode == 0, done.stderr
    assert "2 tensors of a task's head are left out: classifier.bias, classifier.weight" in (
        done.stderr
    )
