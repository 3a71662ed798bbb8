"""Encoders are used on a GPU that is not there (tests/model/strict_cuda.py)."""

from pathlib import Path

import numpy as np
import pytest
import torch

from artifacts.store import Artifact
from model.data.shards import ExampleShards
from model.evaluation.language_model import evaluate_encoder
from model.inference.load import load, placed
from tests.model.strict_cuda import CUDA, strict_cuda
from tests.model.task_builders import encoder_artifact, examples_artifact, masked_examples

TEXTS = ["the list of [MASK] given", "a new array [MASK] shape int"]


@pytest.fixture(scope="module")
def encoder(tmp_path_factory: pytest.TempPathFactory) -> Artifact:
    return encoder_artifact(tmp_path_factory.mktemp("use") / "encoder")


def test_a_gpu_computes_in_bf16_unless_told_otherwise() -> None:
    assert placed("cpu", "auto") == (torch.device("cpu"), "fp32")
    assert placed("cuda", "auto") == (torch.device("cuda"), "bf16")
    assert placed("cuda", "fp32") == (torch.device("cuda"), "fp32")


@pytest.mark.parametrize(("precision", "bound"), [("auto", 3e-2), ("fp32", 1e-5)])
def test_embedding_and_filling_masks_wait_once_a_batch(
    encoder: Artifact, precision: str, bound: float
) -> None:
    expected = load(encoder.directory, device="cpu")
    vectors, fills = expected.embed(TEXTS), list(expected.fill_masks(TEXTS, top_k=3))
    with strict_cuda() as device:
        model = load(encoder.directory, device="cuda", precision=precision)
        device.reset()
        np.testing.assert_allclose(model.embed(TEXTS), vectors, atol=bound)
        assert len(device.reads) == 1
        found = list(model.fill_masks(TEXTS, top_k=3))
        assert len(device.reads) == 3, "ids and probabilities; the second of them waits for nothing"
        assert device.pageable == []
    for ours, theirs in zip(fills, found, strict=True):
        assert theirs[0][0].probability == pytest.approx(ours[0][0].probability, rel=bound)


def test_an_evaluation_of_all_examples_waits_once(encoder: Artifact, tmp_path: Path) -> None:
    artifact = examples_artifact(tmp_path / "examples", {"heldout": masked_examples(30, 0)})
    shards = ExampleShards(artifact, split="heldout", max_seq_length=64)
    examples = shards.gather(0, np.zeros(30, np.int64), np.arange(30))
    module = load(encoder.directory, device="cpu").module
    expected = evaluate_encoder(module, examples)
    with strict_cuda() as device:
        there = load(encoder.directory, device="cuda", precision="fp32").module.to(CUDA)
        device.reset()
        assert evaluate_encoder(there, examples) == pytest.approx(expected, rel=1e-5)
        assert len(device.reads) == 1
        assert device.pageable == []
