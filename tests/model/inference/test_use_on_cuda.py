"""Inference on a simulated GPU (tests/model/strict_cuda.py)."""

from pathlib import Path

import numpy as np
import pytest
import torch

from cloze.artifacts.store import Artifact, Store
from cloze.model.data.shards import ExampleShards
from cloze.model.encoder.precision import placed
from cloze.model.evaluation.language_model import evaluate_encoder
from cloze.model.finetune.finetune import make_trials
from cloze.model.inference.export import import_encoder
from cloze.model.inference.load import load_model
from cloze.model.inference.predict import load_predictor
from cloze.model.training.distributed import World
from tests.model.strict_cuda import CUDA, strict_cuda
from tests.model.task_builders import (
    encoder_artifact,
    examples_artifact,
    inputs,
    masked_examples,
    stage_table,
    write_lines,
)

TEXTS = ["the list of [MASK] given", "a new array [MASK] shape int"]


@pytest.fixture(scope="module")
def encoder(tmp_path_factory: pytest.TempPathFactory) -> Artifact:
    return encoder_artifact(tmp_path_factory.mktemp("use") / "encoder")


def test_a_gpu_computes_in_bf16_unless_told_otherwise() -> None:
    assert placed("cpu", "auto") == (torch.device("cpu"), "fp32")
    with strict_cuda():
        assert placed("cuda", "auto") == (torch.device("cuda"), "bf16")
        assert placed("cuda", "fp32") == (torch.device("cuda"), "fp32")


@pytest.mark.parametrize(("precision", "bound"), [("auto", 3e-2), ("fp32", 1e-5)])
def test_embedding_and_filling_masks_wait_once_a_batch(
    encoder: Artifact, precision: str, bound: float
) -> None:
    expected = load_model(encoder.directory, device="cpu")
    vectors, fills = expected.embed(TEXTS), list(expected.fill_masks(TEXTS, top_k=3))
    with strict_cuda() as device:
        model = load_model(encoder.directory, device="cuda", precision=precision)
        device.reset()
        np.testing.assert_allclose(model.embed(TEXTS), vectors, atol=bound)
        assert len(device.reads) == 1
        found = list(model.fill_masks(TEXTS, top_k=3))
        assert len(device.reads) == 3, "ids and probabilities; the second of them waits for nothing"
        assert device.pageable == []
    for ours, theirs in zip(fills, found, strict=True):
        assert theirs[0][0].probability == pytest.approx(ours[0][0].probability, rel=bound)


def test_an_imported_encoder_and_a_fine_tuned_one_answer_on_a_gpu(
    encoder: Artifact, tmp_path: Path
) -> None:
    rows = [{"text_a": "the list of names", "label": "a"}, {"text_a": "shape", "label": "b"}] * 6
    files = {name: write_lines(tmp_path / f"{name}.jsonl", rows) for name in ("train", "dev")}
    task = {"name": "t", "kind": "classification", "max_seq_length": 32, "epochs": 12, **files}
    config = {
        "tasks": [{**task, "learning_rate": 4e-3, "batch_size": 4}],
        "seeds": [0],
        "precision": "fp32",
        "save": "best",
    }
    imported = import_encoder(encoder.directory, Store(str(tmp_path / "store")))
    tuned = make_trials(
        stage_table(
            "finetune",
            tmp_path / "fits",
            config={"finetune": config},
            inputs=inputs(encoder=imported),
            machine={"threads": 1},
        ),
        [],
    )
    vectors = load_model(imported.directory, device="cpu").embed(TEXTS)
    here = load_predictor(tuned.directory, device="cpu").predict(rows)
    with strict_cuda() as device:
        model = load_model(imported.directory, device="cuda", precision="fp32")
        np.testing.assert_allclose(model.embed(TEXTS), vectors, atol=1e-5)
        predictor = load_predictor(tuned.directory, device="cuda")
        device.reset()
        there = predictor.predict(rows)
        assert len(device.reads) == 1, device.reads
        assert device.pageable == []
    assert {row["prediction"] for row in here} == {"a", "b"}, "it has learnt"
    assert [row["prediction"] for row in there] == [row["prediction"] for row in here]
    sure = [row["probability"] for row in here]
    assert [row["probability"] for row in there] == pytest.approx(sure, abs=3e-2)


def test_an_evaluation_of_all_examples_waits_once(encoder: Artifact, tmp_path: Path) -> None:
    artifact = examples_artifact(tmp_path / "examples", {"heldout": masked_examples(30, 0)})
    shards = ExampleShards(artifact, split="heldout", max_seq_length=64)
    examples = shards.gather(0, np.zeros(30, np.int64), np.arange(30))
    module = load_model(encoder.directory, device="cpu").module
    expected = evaluate_encoder(module, examples, World(0, 1, torch.device("cpu")))
    with strict_cuda() as device:
        there = load_model(encoder.directory, device="cuda", precision="fp32").module.to(CUDA)
        device.reset()
        found = evaluate_encoder(there, examples, World(0, 1, CUDA))
        assert found == pytest.approx(expected, rel=1e-5)
        assert len(device.reads) == 1
        assert device.pageable == []
