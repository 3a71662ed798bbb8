"""A checkpoint is either complete or absent, whenever its writer dies."""

import json
import os
import random
import resource
import signal
from pathlib import Path

import pytest
import torch

from cloze.artifacts.errors import ClozeError, IntegrityError, UsageError
from cloze.model.training.checkpoints import (
    PARTS,
    Checkpoints,
    ParameterState,
    SavedRun,
    refuse_changes,
)
from cloze.model.training.distributed import World
from tests.model.training.soak_program import SITES

IDENTITY = {
    "config": {"seed": 1, "encoder": {"hidden_size": 128}, "phases": [{"share": 1.0}]},
    "inputs": {"examples": "abc"},
}


def _parameters(value: float) -> dict[str, ParameterState]:
    return {
        name: ParameterState(*(torch.full((3, size), value + i) for i in range(3)))
        for name, size in (("a.weight", 4), ("b.bias", 1))
    }


def _save(directory: Path, *steps: int, keep: int = 2, loss: float | None = None) -> Checkpoints:
    checkpoints = Checkpoints(directory, keep)
    for step in steps:
        checkpoints.save(
            _parameters(step).items(), {"step": step, "heldout_loss": loss}, writes=True
        )
        checkpoints.wait()
    return checkpoints


def test_what_is_read_is_what_was_written(tmp_path: Path) -> None:
    checkpoints = _save(tmp_path, 7)
    found = checkpoints.newest()
    assert found is not None
    assert found["step"] == 7
    for name, kept in _parameters(7).items():
        assert all(map(torch.equal, checkpoints.parameters(7)[name], kept))


def test_a_parameter_that_the_checkpoint_lacks_is_an_error_and_never_zeros() -> None:
    saved = SavedRun({"step": 7}, lambda: _parameters(7))
    world = World(0, 1, torch.device("cpu"))
    shapes = {name: kept.master.shape for name, kept in _parameters(7).items()}
    assert [name for name, _ in saved.parameters(shapes, world=world)] == ["a.weight", "b.bias"]
    with pytest.raises(IntegrityError, match=r"step 7 lacks c\.bias; expected the state of every"):
        next(saved.parameters({**shapes, "c.bias": torch.Size([1])}, world=world))


def test_no_checkpoint_is_none_and_no_error(tmp_path: Path) -> None:
    assert Checkpoints(tmp_path / "nothing", 2).newest() is None


def test_the_newest_is_the_one_with_the_highest_step_whatever_the_clock_says(
    tmp_path: Path,
) -> None:
    checkpoints = _save(tmp_path, 5, 10)
    os.utime(tmp_path / "step-00000005", (2**31, 2**31))
    os.utime(tmp_path / "step-00000010", (1, 1))
    found = checkpoints.newest()
    assert found is not None
    assert found["step"] == 10


def test_the_last_few_and_the_best_stay(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path, 2)
    for step, loss in ((1, 3.0), (2, 1.0), (3, 2.0), (4, None), (5, 2.5)):
        checkpoints.save(
            _parameters(step).items(), {"step": step, "heldout_loss": loss}, writes=True
        )
        checkpoints.wait()
    assert sorted(checkpoints.steps()) == [2, 4, 5]


@pytest.mark.parametrize("name", [*(f"{part}.safetensors" for part in PARTS), "state.json"])
@pytest.mark.parametrize("damage", ["flip", "cut", "missing"])
def test_a_damaged_checkpoint_is_named_and_the_one_before_is_used(
    tmp_path: Path, name: str, damage: str, capsys: pytest.CaptureFixture[str]
) -> None:
    checkpoints = _save(tmp_path, 5, 10)
    path = tmp_path / "step-00000010" / name
    content = bytearray(path.read_bytes())
    if damage == "missing":
        path.unlink()
    else:
        content[-1] ^= 1
        path.write_bytes(content if damage == "flip" else content[:-1])
    found = checkpoints.newest()
    assert found is not None
    assert found["step"] == 5
    message = capsys.readouterr().err
    assert "step-00000010 is damaged and not used" in message
    assert name in message


def test_nothing_but_damaged_checkpoints_is_an_error_and_never_a_new_beginning(
    tmp_path: Path,
) -> None:
    checkpoints = _save(tmp_path, 5)
    (tmp_path / "step-00000005" / "files.json").write_text("{}")
    with pytest.raises(ClozeError, match="none of the checkpoints is intact"):
        checkpoints.newest()


@pytest.mark.parametrize("site", [site for site in SITES if site.startswith("checkpoint.")])
def test_kill_9_at_any_site_leaves_an_intact_checkpoint(tmp_path: Path, site: str) -> None:
    _save(tmp_path, 5, keep=1)
    pid = os.fork()
    if not pid:  # the child dies at the site; nothing of pytest may run in it

        def fault(here: str, step: int) -> None:
            if here == site:
                os.kill(os.getpid(), signal.SIGKILL)

        struck = Checkpoints(tmp_path, 1, fault)
        struck.save(_parameters(10).items(), {"step": 10}, writes=True)
        struck.wait()
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == -signal.SIGKILL
    survivors = Checkpoints(tmp_path, 1)
    found = survivors.newest()
    assert found is not None
    committed = site in ("checkpoint.after_commit", "checkpoint.purge")
    assert found["step"] == (10 if committed else 5)
    survivors.remove_unfinished()
    assert all(entry.name.startswith("step-") for entry in tmp_path.iterdir())


def test_a_full_disk_is_named_and_earlier_checkpoints_stay(tmp_path: Path) -> None:
    _save(tmp_path, 5)
    pid = os.fork()
    if not pid:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (200, 200))
        try:
            _save(tmp_path, 10)
        except ClozeError as error:
            os._exit(7 if "make room" in str(error) and "step-00000010" in str(error) else 8)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7
    assert Checkpoints(tmp_path, 2).steps() == [5]
    assert not list(tmp_path.glob(".tmp-*"))


def test_saving_a_step_again_keeps_the_intact_one_and_replaces_a_damaged_one(
    tmp_path: Path,
) -> None:
    checkpoints = _save(tmp_path, 5, 5)
    (tmp_path / "step-00000005" / "state.json").write_text("{}")
    _save(tmp_path, 5)
    found = checkpoints.newest()
    assert found is not None
    assert found["step"] == 5


def test_random_bytes_are_never_taken_for_a_checkpoint(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rng = random.Random(1)
    checkpoints = _save(tmp_path, 5)
    for step, text in enumerate((b"", b"[1]", b'{"a": 1}', rng.randbytes(64), b'{"../x": [1]}'), 6):
        directory = tmp_path / f"step-{step:08}"
        directory.mkdir()
        (directory / "files.json").write_bytes(text)
    found = checkpoints.newest()
    assert found is not None
    assert found["step"] == 5
    assert capsys.readouterr().err.count("damaged") == 5


def test_checkpoints_are_readable_by_people(tmp_path: Path) -> None:
    _save(tmp_path, 5)
    state = json.loads((tmp_path / "step-00000005" / "state.json").read_text())
    assert state == {"step": 5, "heldout_loss": None}


def test_the_same_configuration_is_accepted_whatever_else_was_saved() -> None:
    refuse_changes({**IDENTITY, "step": 5, "curve": {}}, IDENTITY, where="ck")


@pytest.mark.parametrize(
    ("state", "difference"),
    [
        ({"config": {**IDENTITY["config"], "seed": 2}}, "config.seed: checkpoint 2, now 1"),
        ({"config": {**IDENTITY["config"], "encoder": {"hidden_size": 64}}},
         "config.encoder.hidden_size: checkpoint 64, now 128"),
        ({"config": {**IDENTITY["config"], "phases": [{"share": 0.9}]}},
         "config.phases.0.share: checkpoint 0.9, now 1.0"),
        ({"inputs": {"examples": "xyz"}}, "inputs.examples: checkpoint 'xyz', now 'abc'"),
        ({"inputs": {}}, "inputs.examples: checkpoint None, now 'abc'"),
    ],
)  # fmt: skip
def test_every_difference_is_named(state: dict[str, object], difference: str) -> None:
    with pytest.raises(UsageError) as refused:
        refuse_changes({**IDENTITY, **state}, IDENTITY, where="ck")
    assert difference in str(refused.value)
    assert "change it back, or remove them" in str(refused.value)
