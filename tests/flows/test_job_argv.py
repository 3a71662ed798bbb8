"""The command line of a stage's program."""

import sys

import pytest

from artifacts.config import StageConfig
from flows.config import MachineConfig
from flows.job import program_argv
from model.config import EvaluateStage, FinetuneStage, PretrainStage
from pipeline.config.settings import TokensStage

PRETRAIN = PretrainStage.model_construct()
TOKENS = TokensStage.model_construct()


def words(config: StageConfig, *options: str, **training: int) -> str:
    machine = MachineConfig.model_validate({"training": training})
    argv = program_argv(config, "TABLE", machine=machine, options=options)
    assert argv[0] == sys.executable
    return " ".join(argv[1:])


def test_a_program_runs_with_p_and_its_options_come_last() -> None:
    assert words(TOKENS) == "-P -m pipeline.tokens --config TABLE"
    assert words(TOKENS, "--region=x").endswith("--config TABLE --region=x")


@pytest.mark.parametrize("stage", [PretrainStage, FinetuneStage, EvaluateStage])
def test_what_computes_with_torch_is_started_in_the_environment_for_it(
    stage: type[StageConfig],
) -> None:
    started = f"-P -m model.training.start {stage.program} --config TABLE"
    assert words(stage.model_construct()) == started


@pytest.mark.parametrize("training", [{"ranks": 2}, {"max_restarts": 1}])
def test_training_with_ranks_or_restarts_has_a_supervisor(training: dict[str, int]) -> None:
    supervised = "-P -m model.training.supervisor model.training.pretrain --config TABLE"
    assert words(PRETRAIN, **training) == supervised
    assert "supervisor" not in words(TOKENS, **training)


def test_options_for_the_launcher_go_through_the_supervisor() -> None:
    shown = words(PRETRAIN, "--hostfile", "hosts")
    assert shown.endswith("pretrain --config TABLE --hostfile hosts")
    assert "supervisor" in shown
