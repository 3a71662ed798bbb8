"""The comparison of FP8 with bf16, on a small encoder and few steps."""

import argparse
from pathlib import Path

from benchmarks.gpu.fp8_loss import ALLOWED, PRECISIONS, compare, losses
from tests.model.training.training_fixtures import examples_artifact


def test_a_small_encoder_learns_the_same_in_fp8(tmp_path: Path) -> None:
    settings = {"preset": "tiny", "steps": 40, "window": 10, "batch_size": 8}
    settings |= {"max_seq_length": 32, "token_budget": 4096, "learning_rate": 5e-4}
    examples = examples_artifact(tmp_path / "examples").directory
    asked = argparse.Namespace(examples=examples, seed=1, **settings)
    found = compare({name: losses(name, asked) for name in PRECISIONS}, window=10)
    assert found["bf16"][-1] < found["bf16"][0] - 0.3
    assert 0 < found["fp8_against_composed"] < ALLOWED
    assert 0 < found["composed_against_bf16"] < ALLOWED, "the same products, rounded elsewhere"
