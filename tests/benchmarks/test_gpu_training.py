"""The GPU benchmark's logic, run tiny on a CPU: it must not break where nobody has a GPU."""

import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = Path(__file__).resolve().parents[2] / "benchmarks" / "gpu_training.py"


@pytest.mark.slow
def test_the_self_test_compares_both_sides() -> None:
    run = subprocess.run(
        [sys.executable, str(PROGRAM), "--self-test"],
        check=False,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert run.returncode == 0, run.stderr
    assert "| tiny | 128 | ours |" in run.stdout
    assert "| tiny | 128 | huggingface |" in run.stdout
    assert "not run" not in run.stdout
