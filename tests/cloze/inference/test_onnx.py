"""`cloze export --onnx`: onnxruntime's results, scores and speed."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import cloze as api
from tests.cloze.inference.test_sentence_modules import write_modules
from tests.cloze.tiny_model import CONFIG, MODERN, write_model
from tests.conftest import PROJECT
from tests.conftest import cloze as command

Cloze = Callable[..., Any]

TEXTS = ["the list of names", "a b"]
RUN = """
import json, sys
import numpy as np, onnxruntime
from transformers import AutoTokenizer
folder, graph, *texts = sys.argv[1:]
pairs = [text.partition(" | ") for text in texts]
seconds = [second for _, _, second in pairs] if all(bar for _, bar, _ in pairs) else None
texts = [first for first, _, _ in pairs]
tokens = AutoTokenizer.from_pretrained(folder)(texts, seconds, padding=True, return_tensors="np")
session = onnxruntime.InferenceSession(f"{folder}/onnx/{graph}", providers=["CPUExecutionProvider"])
wanted = [given.name for given in session.get_inputs()]
(output,) = session.run(None, {name: tokens[name].astype(np.int64) for name in wanted})
print(json.dumps([session.get_outputs()[0].name, output.tolist()]))
"""

FEW = """
name = "few"
[finetune]
encoder = "encoder"
seeds = [0]
precision = "fp32"
[finetune.choose]
approaches = ["linear"]
shares = []
[[finetune.tasks]]
name = "few"
kind = "classification"
train = "few.csv"
columns = { text_a = "text" }
max_seq_length = 16
"""

wants_onnx = pytest.mark.skipif(not find_spec("onnxruntime"), reason="wants the extra `onnx`")


def program(*arguments: str) -> str:
    """Output of a separate program, to keep onnxruntime's threads out of pytest's process."""
    environment = {**os.environ, "PYTHONPATH": str(PROJECT), "ORT_DISABLE_TELEMETRY": "1"}
    done = subprocess.run(
        [sys.executable, *arguments],
        capture_output=True,
        text=True,
        check=False,
        env=environment,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def computed(folder: str, graph: str, *texts: str) -> tuple[str, Any]:
    """The name of onnxruntime's output, and its values for `TEXTS` or others; "a | b" is a pair."""
    name, values = json.loads(program("-c", RUN, folder, graph, *(texts or TEXTS)))
    return name, np.array(values)


@pytest.fixture
def sample(folder: Path) -> str:
    words = ("the", "list", "of", "names", "a", "b")
    lines = (" ".join(words[(n + place) % 6] for place in range(12)) for n in range(12))
    Path("sample.txt").write_text("".join(f"{line} {n}\n" for n, line in enumerate(lines)))
    return "sample.txt"


@wants_onnx
def test_onnxruntime_reports_to_nobody_and_leaves_no_identity(tmp_path: Path) -> None:
    """Its telemetry, silent in CI, begins with files for the session and the device."""
    environment = {name: value for name, value in os.environ.items() if name != "CI"}
    environment |= dict.fromkeys(("HOME", "TMPDIR", "XDG_CACHE_HOME"), str(tmp_path))
    environment |= {"PYTHONPATH": str(PROJECT)}
    argv = [sys.executable, "-c", "import cloze.model.inference.onnx"]
    subprocess.run(argv, env=environment, cwd=tmp_path, check=True)
    assert [*tmp_path.rglob("*")] == []


@wants_onnx
@pytest.mark.slow
@pytest.mark.parametrize("family", ["bert", "modern"])
def test_onnxruntime_computes_the_vectors_of_the_exported_model(
    folder: Path, sample: str, family: str
) -> None:
    write_model(folder / "encoder", encoder=CONFIG if family == "bert" else MODERN)
    write_modules(folder / "encoder", kinds=("Transformer", "Pooling", "Normalize"), limit=16)
    said = program(
        *("-m", "cloze", "export", "encoder", "out", "--onnx", "--int8", "--sample", sample),
        *("--most-loss", "1"),
    )
    assert "out/onnx/model.onnx: score " in said
    assert re.search(r"int8: -?\d+\.\d\d% of the score lost, \d+\.\d\d times as fast", said)
    name, vectors = computed("out", "model.onnx")
    ours = np.stack(list(api.load("out", precision="fp32").sentence_vectors(TEXTS)))
    assert name == "sentence_embedding"
    assert np.abs(vectors - ours).max() < 1e-5
    _, rough = computed("out", "model_int8.onnx")
    assert np.abs(rough - ours).max() < 0.3


@wants_onnx
@pytest.mark.slow
def test_a_graph_in_int8_that_loses_more_than_allowed_is_removed_and_refused(
    cloze: Cloze, folder: Path, sample: str
) -> None:
    write_model(folder / "encoder")
    arguments = ("export", "encoder", "out", "--onnx", "--int8", "--sample", sample)
    refused = cloze(*arguments, "--most-loss", "-2")  # no loss is as low as that
    assert refused.returncode == 2
    assert re.search(r"int8 loses -?\d+\.\d\d% of the score .*, more than -200", refused.stderr)
    assert [path.name for path in (folder / "out" / "onnx").iterdir()] == ["model.onnx"]


@wants_onnx
@pytest.mark.slow
def test_onnxruntime_computes_the_logits_of_an_encoder_with_an_mlm_head(
    folder: Path, sample: str
) -> None:
    import torch
    from transformers import AutoModelForMaskedLM, AutoTokenizer

    write_model(folder / "encoder")
    said = json.loads(
        program("-m", "cloze", "export", "encoder", "out", "--onnx", "--sample", sample, "--json")
    )
    (score,) = said["scores"]
    assert score["file"] == "out/onnx/model.onnx"
    assert 0 <= score["score"] <= 1
    name, logits = computed("out", "model.onnx")
    tokens = AutoTokenizer.from_pretrained("out")(TEXTS, padding=True, return_tensors="pt")
    with torch.inference_mode():
        theirs = AutoModelForMaskedLM.from_pretrained("out")(**tokens).logits.numpy()
    assert name == "logits"
    there = tokens["attention_mask"].numpy().astype(bool)
    assert np.abs(logits - theirs)[there].max() < 1e-5


def test_int8_without_graphs_is_an_error_with_a_remedy(cloze: Cloze, folder: Path) -> None:
    write_model(folder / "encoder")
    refused = cloze("export", "encoder", "out", "--int8")
    assert refused.returncode == 2
    assert "--int8 and --sample apply to ONNX graphs; give --onnx as well" in refused.stderr
    assert not (folder / "out").exists()


@wants_onnx
@pytest.mark.slow
def test_an_export_that_could_not_be_scored_is_finished_by_the_next_command(
    folder: Path, sample: str
) -> None:
    write_model(folder / "encoder")
    (folder / "few.txt").write_text("a b\n")
    export = ("export", "encoder", "out", "--onnx", "--sample")
    refused = command(*export, "few.txt", cwd=folder)
    assert "0 lines of 12 to 80 words" in refused.stderr
    done = command(*export, sample, cwd=folder)
    assert done.returncode == 0, done.stderr
    assert "exists already" in command(*export, sample, cwd=folder).stderr


@wants_onnx
@pytest.mark.slow
def test_the_graph_of_a_head_on_vectors_has_the_probabilities_of_predict(folder: Path) -> None:
    write_model(folder / "encoder")
    write_modules(folder / "encoder", kinds=("Transformer", "Pooling", "Normalize"), limit=16)
    rows = [("the list", "x"), ("of names", "y"), ("a b", "x"), ("b of", "y"), ("list a", "x")] * 4
    table = "".join(f"{text},{label}\n" for text, label in rows)
    (folder / "few.csv").write_text("text,label\n" + table)
    (folder / "few.toml").write_text(FEW)
    program("-m", "cloze", "run", "few.toml", "--without-prefect")
    export = ("export", "few", "out", "--task", "few", "--onnx", "--sample", "few.csv")
    program("-m", "cloze", *export)
    name, logits = computed("out", "model.onnx")
    assert name == "logits"
    # The temperatures are in the weights, so the graph's logits are as calibrated as predict's.
    shares = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
    answers = json.loads(program("-m", "cloze", "predict", "few", "--json", *TEXTS))
    # Vectors agree within 1e-5, and those of this encoder are so alike that the head multiplies
    # their differences by large weights.
    for one, found in zip(answers, shares, strict=True):
        np.testing.assert_allclose(list(one["probabilities"].values()), found, rtol=0, atol=1e-4)


@wants_onnx
@pytest.mark.slow
def test_a_head_that_compares_two_texts_answers_the_same_as_a_graph(folder: Path) -> None:
    write_model(folder / "encoder")
    words = ("the", "list", "of", "names", "a", "b")
    pairs = [(one, other) for one in words for other in words]
    same = "".join(f"{one},{other},{float(one == other)}\n" for one, other in pairs)
    (folder / "same.csv").write_text(f"text_a,text_b,label\n{same}")
    few = FEW.replace("few", "same").replace("classification", "regression")
    choose = '[finetune.choose]\napproaches = ["linear"]\nshares = []\n'
    task = 'compare_texts = true\ndev = "same.csv"\nlearning_rate = 1e-3\nepochs = 30\n'
    few = few.replace(choose, "").replace('columns = { text_a = "text" }\n', task)
    (folder / "same.toml").write_text(few)
    program("-m", "cloze", "run", "same.toml", "--without-prefect")
    rows = [{"text_a": "the list", "text_b": "the list"}, {"text_a": "a b", "text_b": "names"}]
    lines = [json.dumps(row) for row in rows]
    answers = json.loads(program("-m", "cloze", "predict", "same", "--json", *lines))
    alike, unlike = (one["prediction"] for one in answers)
    assert alike > unlike  # neither pair was trained on
    program("-m", "cloze", "export", "same", "out", "--task", "same", "--onnx")
    assert (
        "comparison of both texts' mean vectors and words" in (folder / "out/README.md").read_text()
    )
    name, logits = computed("out", "model.onnx", "the list | the list", "a b | names")
    assert name == "logits"
    np.testing.assert_allclose(logits[:, 0], [alike, unlike], atol=1e-4)
