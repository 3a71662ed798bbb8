"""All commands that write something, started together and killed by the dice, then repeated.

A schedule is a seed. In each of its rounds one to three commands start in one folder, and most of
them are sent SIGKILL or SIGTERM at some moment, or one of their processes is. At the end each
command is given once more: its result is the one of an undisturbed folder, and nothing is left
over in TMPDIR, caches, workspace or beside the results, counted against that folder.

Commands and their stages are forks of a process that has imported everything, but in every
twentieth schedule, which starts programs.
"""

import hashlib
import json
import os
import random
import re
import shutil
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.cloze.execution.test_layouts import configuration, task
from tests.cloze.tiny_model import CONFIG, write_model
from tests.conftest import command
from tests.forked_commands import Forked, ForkedCommands
from tests.running import RunFolder
from tests.test_schedules import struck

SCHEDULES = int(os.environ.get("CLOZE_COMMAND_SCHEDULES", "2"))  # `make schedules` follows 200
AS_PROGRAMS = 20
FIRST_SCHEDULE = int(os.environ.get("CLOZE_FIRST_SCHEDULE", "0"))

REFUSALS = re.compile(
    r"in use by|another process is writing|changed while it was read|exists already; name a new"
)
"""What commands say of one another, or of what they have finished in an earlier round."""

HISTORY = re.compile(r"runs/[^/]+/(jobs/|run\.json|report)|runs/\.l|\.lock$")
"""Logs and records of attempts, which may be more after a kill, and locks, which are empty."""

PLACED = re.compile(
    r"(?<=artifacts/vectors/)[0-9a-f]{64}|(?<=artifacts/lexical_index/)[0-9a-f]{64}"
    r"|(?<=\.)[0-9a-f]{12}(?=\.)"
)
"""Keys of indexes, and digests of their files: these tell where the folder is, since passages name
their files."""

ROWS = "id,text_a,note\n1,the list,\n2,a b,x\n3,of names,\n"

COMMANDS: dict[str, tuple[str, ...]] = {
    "search": ("search", "encoder", "texts", "the list", "--json"),
    "embed": ("embed", "encoder", "lines.txt", "--output", "lines.npy"),
    "passages": ("embed", "encoder", "texts", "--passages", "4", "--output", "all.npy"),
    "predict": ("predict", "tuned", "rows.csv"),
    "predict as JSON": ("predict", "tuned", "rows.csv", "--json"),
    "predict to a file": ("predict", "tuned", "rows.csv", "--output", "predicted.csv"),
    "answer": ("fill-mask", "encoder", "the [MASK] of names", "--json"),
    "export": ("export", "encoder", "exported"),
    "export a task": ("export", "tuned", "exported-task", "--task", "topics"),
    "export as ONNX": ("export", "encoder", "graph", "--onnx", "--sample", "sample.txt"),
    "import": ("import", "encoder"),
    "adapt": ("adapt", "encoder", "texts", "--steps", "2", "--name", "mine", "--without-prefect"),
    "run": ("run", "tuned.toml", "--without-prefect"),
    "gc": ("gc", "--delete"),
}
RESULTS = (
    "predicted.csv",
    "lines.npy",
    "all.npy",
    "all.jsonl",
    "exported",
    "exported-task",
    "graph",
    "mine.toml",
)
PROGRAMS = {"adapt": 7, "run": 4}
"""Commands that start stages, and how many programs they are."""

START_SECONDS = 4.0
"""What a program needs to start on a busy machine, so that some are killed when they have begun."""

SPOKEN = ("search", "predict", "predict as JSON", "answer")
"""Commands whose result is what they print."""


@dataclass
class Place:
    """A folder with a workspace, caches and temporary files of its own."""

    folder: Path
    forks: ForkedCommands | None
    """None: commands are programs."""

    def begin(self, name: str) -> "Forked | subprocess.Popen[str]":
        """Start a command."""
        argv, environment = command(*COMMANDS[name])
        for variable, below in (("TMPDIR", "tmp"), ("XDG_CACHE_HOME", "cache")):
            (self.folder / below).mkdir(exist_ok=True)
            environment[variable] = str(self.folder / below)
        if self.forks:
            return self.forks.begin(COMMANDS[name], folder=self.folder, environment=environment)
        return subprocess.Popen(
            argv,
            cwd=self.folder,
            env=environment,
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )

    def undisturbed(self, name: str) -> str:
        """The result of a command that nobody disturbs; a whole export is not made again."""
        run = self.begin(name)
        said, errors = run.communicate(timeout=600)
        is_made = name.startswith("export") and "exists already" in errors
        assert run.returncode == 0 or is_made, (name, errors)
        return said if name in SPOKEN else ""

    def files(self) -> set[str]:
        """Everything but history, by its path in the folder."""
        found = {str(path.relative_to(self.folder)) for path in self.folder.rglob("*")}
        return {PLACED.sub("KEY", path) for path in found if not HISTORY.search(path)}

    def results(self) -> dict[str, str]:
        """Digests of what the commands wrote, without the folder's own name and times."""
        digests = {}
        for name in RESULTS:
            path = self.folder / name
            for file in sorted(path.rglob("*")) if path.is_dir() else [path]:
                if file.is_file():
                    content = file.read_bytes().replace(str(self.folder).encode(), b"FOLDER")
                    digests[str(file.relative_to(self.folder))] = hashlib.sha256(
                        content
                    ).hexdigest()
        for run in ("mine", "tuned"):
            record = self.folder / "runs" / run / "run.json"
            if record.exists():
                stages = json.loads(record.read_text())["stages"]
                for stage, found in stages.items():
                    if stage != "report":
                        digests[f"{run}/{stage}"] = found["digest"]
        return digests


@pytest.fixture(scope="module")
def forks() -> Iterator[ForkedCommands]:
    with ForkedCommands() as commands:
        yield commands


@pytest.fixture(scope="module")
def prepared(forks: ForkedCommands, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An encoder, texts, and a run that fine-tuned it."""
    folder = tmp_path_factory.mktemp("commands") / "prepared"
    folder.mkdir()
    # One layer, since tracing it for ONNX takes longer than all else.
    write_model(folder / "encoder", encoder=CONFIG.model_copy(update={"num_hidden_layers": 1}))
    (folder / "texts").mkdir()
    for number in range(30):
        words = " ".join(("a", "b", "names")[(number + i) % 3] for i in range(4 + number))
        (folder / "texts" / f"{number}.txt").write_text(f"The list of {words}.\n" * 20)
    (folder / "lines.txt").write_text("the list\na b\nof names\n" * 50)
    (folder / "sample.txt").write_text(f"{'the list of names a b ' * 2}the\n" * 300)
    (folder / "rows.csv").write_text(ROWS)
    labelled = "text_a,label\nthe list,x\na b,y\nof names,x\nthe,x\na,y\nof,x\n"
    (folder / "topics.csv").write_text(labelled)
    text = configuration(task("topics", "classification", "topics.csv", epochs=1))
    text = text.replace('save = "none"\n', "").replace('name = "', 'name = "tuned" # ', 1)
    (folder / "tuned.toml").write_text(text)
    Place(folder, forks).undisturbed("run")
    return folder


@dataclass
class Reference:
    """What commands do in a folder where nobody disturbs them."""

    said: dict[str, str]
    seconds: dict[str, float]
    files: dict[str, set[str]]
    """What each of them leaves there, beyond what was prepared, after `cloze gc --delete`."""

    results: dict[str, str]


@pytest.fixture(scope="module")
def reference(prepared: Path, forks: ForkedCommands) -> Reference:
    found = Reference({}, {}, {}, {})
    place = Place(prepared.parent / "reference", forks)
    shutil.copytree(prepared, place.folder, symlinks=True)
    for name in COMMANDS:
        before, started = place.files(), time.monotonic()
        found.said[name] = place.undisturbed(name)
        found.seconds[name] = time.monotonic() - started
        place.undisturbed("gc")
        found.files[name] = place.files() - before
    found.results = place.results()
    return found


def follow(prepared: Path, reference: Reference, seed: int, forks: ForkedCommands | None) -> None:
    """Do what the schedule says, and compare what there is at the end."""
    dice = random.Random(seed)
    place = Place(prepared.parent / f"schedule-{seed}", forks)
    start = 0.0 if forks else START_SECONDS
    lasting = {
        name: 1.1 * (seconds + start * PROGRAMS.get(name, 1))
        for name, seconds in reference.seconds.items()
    }
    shutil.copytree(prepared, place.folder, symlinks=True)
    before = place.files()
    given: dict[str, None] = {}
    for _ in range(dice.randint(1, 3)):
        names = dice.sample([*COMMANDS], dice.choice([1, 2, 3]))
        given |= dict.fromkeys(names)
        runs = {name: place.begin(name) for name in names}
        moments = sorted(
            (dice.uniform(0.0, lasting[name]), name) for name in names if dice.random() < 0.8
        )
        hit, begun = set(), time.monotonic()
        for moment, name in moments:
            time.sleep(max(0.0, begun + moment - time.monotonic()))
            if struck(runs[name], dice):
                hit.add(name)
        for name, run in runs.items():
            _, errors = run.communicate(timeout=600)
            assert "Traceback" not in errors, (seed, name, errors)
            refused = run.returncode == 2 and REFUSALS.search(errors)
            assert run.returncode == 0 or refused or name in hit, (seed, name, errors)
    for name in given:
        assert place.undisturbed(name) == reference.said[name], (seed, name)
    place.undisturbed("gc")
    for name, digest in place.results().items():
        assert digest == reference.results[name], (seed, name)
    assert not RunFolder(place.folder).processes(), seed
    expected = before.union(*(reference.files[name] for name in given))
    left = {path for path in place.files() - expected if not path.startswith("cache/")}
    assert not left, (seed, [*given], left)
    caches = {path for name in reference.files for path in reference.files[name]} | before
    # Ours: matplotlib writes its list of fonts at the first chart, in whichever process draws it.
    assert not {p for p in place.files() - caches if p.startswith("cache/cloze")}, (seed, [*given])
    missing = {path for path in expected - place.files() if not path.startswith("cache/")}
    assert not missing, (seed, [*given], missing)
    shutil.rmtree(place.folder)


@pytest.mark.slow
def test_every_schedule_of_commands_and_kills_ends_with_the_same_results_and_nothing_left(
    prepared: Path, reference: Reference, forks: ForkedCommands
) -> None:
    for seed in range(FIRST_SCHEDULE, FIRST_SCHEDULE + SCHEDULES):
        follow(prepared, reference, seed, forks if seed % AS_PROGRAMS else None)


@pytest.mark.slow
def test_six_adaptations_and_runs_at_once_end_with_the_results_of_one(
    prepared: Path, reference: Reference, forks: ForkedCommands
) -> None:
    """Three commands start twice: of one name one works and the other is told, or both agree."""
    place = Place(prepared.parent / "six", forks)
    shutil.copytree(prepared, place.folder, symlinks=True)
    shutil.rmtree(place.folder / "runs")
    before = place.files()
    names = ["adapt", "run", "search"] * 2
    runs = [(name, place.begin(name)) for name in names]
    for name, run in runs:
        _, errors = run.communicate(timeout=600)
        assert "Traceback" not in errors, (name, errors)
        refused = run.returncode == 2 and REFUSALS.search(errors)
        assert run.returncode == 0 or refused, (name, errors)
    for name in ("adapt", "run"):
        place.undisturbed(name)
    assert place.undisturbed("search") == reference.said["search"]
    # what was fine-tuned anew names its folder, which is another one than the reference's
    found = {name: one for name, one in place.results().items() if not name.startswith("tuned/")}
    assert {name: reference.results[name] for name in found} == found
    assert not RunFolder(place.folder).processes()
    left = {path for path in place.files() - before if not path.startswith(("runs", "cache"))}
    assert left == {"mine.toml", "cache", "tmp"} - before
