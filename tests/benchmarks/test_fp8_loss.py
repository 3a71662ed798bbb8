"""The comparison of FP8 with bf16, on a small encoder and few steps."""

import argparse
from pathlib import Path

from benchmarks.gpu.fp8_loss import ALLOWED, compare
from tests.model.training.training_fixtures import examples_artifact


def test_a_small_encoder_learns_the_same_in_fp8(tmp_path: Path) -> None:
    settings = {"preset": "tiny", "steps": 60, "window": 10, "batch_size": 8}
    settings |= {"max_seq_length": 32, "token_budget": 4096, "learning_rate": 5e-4}
    examples = examples_artifact(tmp_path / "examples").directory
    found = compare(argparse.Namespace(examples=examples, **settings))
    assert found["bf16"][-1] < found["bf16"][0] - 0.3
    assert 0 < found["largest_difference"] < ALLOWED
