"""Reuse, damage and repair of one stage's artifact."""

from collections.abc import Callable
from pathlib import Path

import pytest

from artifacts.errors import IntegrityError
from artifacts.manifest import MANIFEST_NAME
from artifacts.stage import StageTable, read_stage_table
from artifacts.store import Store, commit, finished_file, put_bytes
from flows.ensure import Outcome, ensure, look_up
from flows.launchers.watch import JobResult


class Bench:
    """A store and a program that counts how often it makes each of its two files."""

    def __init__(self, root: Path) -> None:
        self.store = Store(str(root / "artifacts"))
        self.file = root / "stages" / "words.json"
        self.made: list[str] = []
        bare = StageTable(stage="words", format_version=1, config={"n": 1}, output="")
        directory = self.store.directory("words", bare.key)
        self.table = bare.model_copy(update={"output": directory})

    def ensure(self) -> Outcome:
        return ensure(self.table, store=self.store, file=self.file, run_program=self.program)

    def program(self, table: StageTable, file: Path) -> JobResult:
        assert read_stage_table(file) == table
        entries = []
        for name in ("a.txt", "b.txt"):
            entry = finished_file(table.output, name)
            if entry is None:
                self.made.append(name)
                entry = put_bytes(table.output, name.encode() * 100, name=name)
            entries.append(entry)
        commit(table, entries)
        return JobResult(seconds=1.0, peak_memory=2)

    def stored(self, name: str) -> Path:
        (found,) = Path(self.table.output).glob(f"{name.partition('.')[0]}.*.txt")
        return found


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


def test_what_is_there_is_not_made_again(bench: Bench) -> None:
    first, second = bench.ensure(), bench.ensure()
    assert (first.state, second.state) == ("made", "reused")
    assert second.artifact.digest == first.artifact.digest
    assert bench.made == ["a.txt", "b.txt"]


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
    [(delete, "a.txt is missing"), (cut, "499 bytes"), (flip, "has sha256")],
)
def test_a_damaged_file_is_said_and_made_again_alone(
    bench: Bench,
    events: list[tuple[str, str, str]],
    harm: Callable[[Path], None],
    message: str,
) -> None:
    whole = bench.ensure()
    harm(bench.stored("a.txt"))
    bench.made.clear()
    mended = bench.ensure()
    assert mended.state == "made"
    assert bench.made == ["a.txt"]
    assert mended.artifact.digest == whole.artifact.digest
    ((stage, state, text),) = events
    assert (stage, state) == ("words", "warned")
    assert message in text
    assert "made again" in text


def test_a_manifest_that_cannot_be_read_means_a_new_start(bench: Bench) -> None:
    whole = bench.ensure()
    (Path(bench.table.output) / MANIFEST_NAME).write_text("{")
    bench.made.clear()
    assert bench.ensure().artifact.digest == whole.artifact.digest
    assert bench.made == ["a.txt", "b.txt"]


def test_looking_changes_nothing(bench: Bench) -> None:
    bench.ensure()
    flip(bench.stored("a.txt"))
    before = sorted(path.name for path in Path(bench.table.output).rglob("*"))
    assert "a.txt" in look_up(bench.table).damage
    assert sorted(path.name for path in Path(bench.table.output).rglob("*")) == before


def test_a_program_that_leaves_no_manifest_has_failed(bench: Bench) -> None:
    with pytest.raises(IntegrityError, match="left no manifest.json"):
        ensure(
            bench.table,
            store=bench.store,
            file=bench.file,
            run_program=lambda table, file: JobResult(0.0, 0),
        )
