"""`--set`: fields of the run and of the machine."""

from pathlib import Path

import pytest

from artifacts.errors import UsageError
from cloze.options import Target
from flows.config import MachineConfig, RunConfig
from tests.conftest import SMOKE

CONFIG = Path(SMOKE[0])


def test_a_setting_is_assigned_by_its_table() -> None:
    target = Target(set=["training.tensorboard=logs", "pretrain.steps=5", "workspace=elsewhere"])
    assert target.run(CONFIG).pretrain.steps == 5
    assert target.machine().training.tensorboard == "logs"
    assert target.machine().workspace == "elsewhere"


def test_run_and_machine_have_no_table_in_common() -> None:
    assert not RunConfig.model_fields.keys() & MachineConfig.model_fields.keys()


def test_a_wrong_setting_of_the_machine_is_named() -> None:
    with pytest.raises(UsageError, match=r"--set: training\.zero_stage"):
        Target(set=["training.zero_stage=9"]).machine()
