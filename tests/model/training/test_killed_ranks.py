"""Killed and hanging ranks: all of them end, and the restart is bit for bit the same."""

import signal
from pathlib import Path
from typing import Any

import pytest

from cloze.artifacts.store import Artifact
from cloze.model.training.health import HANG_EXIT_CODE
from tests.model.training.soak_program import SITES
from tests.model.training.training_fixtures import examples_artifact, losses, run_ranks, stage_table


@pytest.fixture(scope="module")
def examples(tmp_path_factory: pytest.TempPathFactory) -> Artifact:
    return examples_artifact(tmp_path_factory.mktemp("examples"))


IN_CI = ("before_step", "after_backward", "checkpoint.mid_file", "checkpoint.before_commit")
"""Sites where CI kills a rank; `make test-all` also kills it at the others."""


def _table(directory: Path, name: str, examples: Artifact, **changes: Any) -> dict[str, Any]:
    (directory / name).mkdir(exist_ok=True)
    return {"table": str(stage_table(directory / name, examples, **changes))}


@pytest.fixture(scope="module")
def golden(examples: Artifact, tmp_path_factory: pytest.TempPathFactory) -> list[float]:
    """The losses of two uninterrupted ranks."""
    directory = tmp_path_factory.mktemp("golden")
    run_ranks(2, [_table(directory, "golden", examples)])
    return losses(directory / "golden")


@pytest.mark.slow
@pytest.mark.parametrize(
    "site",
    [*IN_CI, *(pytest.param(site, marks=pytest.mark.long) for site in SITES if site not in IN_CI)],
)
def test_kill_9_ends_all_ranks_and_the_restart_is_bit_for_bit(
    examples: Artifact, golden: list[float], tmp_path: Path, site: str
) -> None:
    rank, step = (0, 10) if site.startswith("checkpoint") else (1, 13)
    struck = {"site": site, "step": step, "rank": rank, "do": "kill"}
    machine = {"keep_checkpoints": 1}
    wish = _table(tmp_path, "struck", examples, machine=machine)
    ended = run_ranks(2, [{**wish, "strike": struck}])
    assert ended[rank].code == -signal.SIGKILL
    assert ended[1 - rank].code != 0
    assert run_ranks(2, [wish])[0].ends == [{"end": "done", "message": ""}]
    assert losses(tmp_path / "struck") == golden


@pytest.mark.slow
@pytest.mark.parametrize("do", ["sleep", "stop"])
def test_a_hanging_rank_ends_the_run_within_its_timeout_and_the_restart_is_bit_for_bit(
    examples: Artifact, golden: list[float], tmp_path: Path, do: str
) -> None:
    struck = {"site": "before_step", "step": 8, "rank": 1, "do": do}
    wish = _table(tmp_path, "struck", examples, machine={"hang_timeout": 30})
    # The other rank, which may be stopped indefinitely, is killed.
    ended = run_ranks(2, [{**wish, "strike": struck}], wait_for=1)[0]
    assert ended.code in (1, HANG_EXIT_CODE)
    assert "no progress for 30 s" in ended.stderr or "Timed out" in ended.stderr
    assert (tmp_path / "struck" / "out" / "checkpoints" / "step-00000005").is_dir()
    assert run_ranks(2, [wish])[0].ends == [{"end": "done", "message": ""}]
    assert losses(tmp_path / "struck") == golden
