"""Reuse, damage and repair of one stage's artifact."""

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from cloze.artifacts.errors import IntegrityError
from cloze.artifacts.manifest import MANIFEST_NAME
from cloze.artifacts.stage import StageTable, read_stage_table
from cloze.flows.config import MachineConfig, RunConfig
from cloze.flows.executor import execute
from cloze.flows.inventory import look_up
from cloze.flows.job import JobResult
from cloze.flows.plan import Plan
from cloze.flows.workspace import workspace


class Made(NamedTuple):
    """The artifact of a run's report."""

    state: str
    digest: str
    directory: str


Make = Callable[[], Made]


@pytest.fixture
def make(inline: Callable[..., None], run: RunConfig, machine: MachineConfig) -> Make:
    """Execute the run; returns its report, an artifact of two files."""

    def report() -> Made:
        found = execute(Plan(run, machine)).stages["report"]
        directory = workspace(machine.workspace).store.directory("report", found.key)
        return Made(found.state, found.digest, directory)

    return report


def table(machine: MachineConfig) -> StageTable:
    return read_stage_table(Path(machine.workspace) / "try" / "stages" / "report.json")


def stored(made: Made, name: str) -> Path:
    stem, _, extension = name.partition(".")
    (found,) = Path(made.directory).glob(f"{stem}.*.{extension}")
    return found


def delete(path: Path) -> None:
    path.unlink()


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[7] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize(
    ("harm", "message"),
    [
        (delete, "summary.json is missing"),
        (cut, "bytes instead of"),
        (flip, "has sha256"),
    ],
)
def test_a_damaged_file_is_logged_and_made_again_alone(
    make: Make,
    events: list[tuple[str, str, str]],
    harm: Callable[[Path], None],
    message: str,
) -> None:
    whole = make()
    kept = stored(whole, "report.html").stat().st_mtime_ns
    harm(stored(whole, "summary.json"))
    events.clear()
    mended = make()
    assert (mended.state, mended.digest) == ("made", whole.digest)
    assert stored(mended, "report.html").stat().st_mtime_ns == kept
    ((stage, text),) = [(stage, text) for stage, state, text in events if state == "warning"]
    assert stage == "report"
    assert message in text
    assert text.endswith("; making it again")


def test_a_manifest_that_cannot_be_read_means_a_new_start(make: Make) -> None:
    whole = make()
    kept = stored(whole, "report.html").stat().st_mtime_ns
    (Path(whole.directory) / MANIFEST_NAME).write_text("{")
    assert make().digest == whole.digest
    assert stored(whole, "report.html").stat().st_mtime_ns > kept


def test_looking_changes_nothing(make: Make, machine: MachineConfig) -> None:
    made = make()
    flip(stored(made, "summary.json"))
    before = sorted(path.name for path in Path(made.directory).rglob("*"))
    assert "summary.json" in look_up(table(machine)).damage
    assert sorted(path.name for path in Path(made.directory).rglob("*")) == before


def test_a_program_that_leaves_no_manifest_has_failed(
    run: RunConfig, machine: MachineConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cloze.flows.job.run_job", lambda argv, **_: JobResult(0.0, 0))
    with pytest.raises(IntegrityError, match="wrote no manifest.json"):
        execute(Plan(run, machine, wanted=("vocabulary",)))
