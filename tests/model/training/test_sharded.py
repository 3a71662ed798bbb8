"""DeepSpeed's configuration is derived from ours in one place; raw keys override it."""

import subprocess
import sys
from typing import Any

import pytest

from cloze.model.config import OptimizerConfig, TrainingMachine
from cloze.model.training.sharded import engine_configuration


def configuration(machine: TrainingMachine, *, on_gpu: bool = False) -> dict[str, Any]:
    return engine_configuration(machine, OptimizerConfig(), precision="bf16", on_gpu=on_gpu)


@pytest.mark.parametrize("stage", [1, 2, 3])
def test_sliced_engines_hold_bf16_weights_and_clip(stage: int) -> None:
    found = configuration(TrainingMachine(zero_stage=stage))
    assert found["bf16"] == {"enabled": True, "check_grad_overflow": True}
    assert found["gradient_clipping"] == 1.0
    assert found["data_types"] == {"grad_accum_dtype": "fp32"}


def test_raw_keys_win_at_any_depth_and_leave_the_others() -> None:
    machine = TrainingMachine(
        zero_stage=2,
        deepspeed={"zero_optimization": {"reduce_bucket_size": 5}, "wall_clock_breakdown": True},
    )
    found = configuration(machine)
    assert found["zero_optimization"] == {
        "stage": 2,
        "overlap_comm": False,
        "reduce_bucket_size": 5,
    }
    assert found["wall_clock_breakdown"] is True


def test_nothing_of_deepspeed_speaks_on_standard_output() -> None:
    done = subprocess.run(
        [sys.executable, "-c", "import cloze.model.training.sharded"],
        capture_output=True,
        check=True,
    )
    assert done.stdout == b""


@pytest.mark.parametrize("stage", [1, 2, 3])
def test_sliced_gradients_are_reduced_beside_the_backward_pass_on_a_gpu(stage: int) -> None:
    machine = TrainingMachine(zero_stage=stage)
    on_cpu, on_gpu = (configuration(machine, on_gpu=on) for on in (False, True))
    assert on_cpu["zero_optimization"] == {"stage": stage, "overlap_comm": False}
    # DeepSpeed rejects it at stage 1, where gradients are reduced in the step.
    assert on_gpu["zero_optimization"]["overlap_comm"] is (stage > 1)
