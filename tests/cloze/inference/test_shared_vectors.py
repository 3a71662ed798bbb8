"""Embedding over the ranks of a machine file: the same bytes, and nothing left of lost ranks."""

import json
import os
import random
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

from cloze.artifacts.runtime.children import WorkerKilled
from cloze.artifacts.runtime.processes import descendants
from cloze.model.config import TrainingMachine
from cloze.model.inference import load
from cloze.model.inference.ranks import AHEAD, load_over_ranks
from tests.cloze.tiny_model import write_model
from tests.running import all_gone
from tests.waiting import wait_for

Cloze = Callable[..., Any]

PROJECT = Path(__file__).resolve().parents[3]
WORDS = ("the", "list", "of", "names", "a", "b")
PIECE = 32
RANK = "cloze.model.inference.ranks"


@pytest.fixture
def model(folder: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A model, a machine file with three ranks, and small pieces."""
    write_model(folder / "encoder")
    (folder / "ranks.toml").write_text('[training]\nranks = 3\ndevice = "cpu"\n')
    monkeypatch.setattr(load, "WINDOW", PIECE)
    return "encoder"


def texts(number: int) -> list[str]:
    draw = random.Random(number)
    return [" ".join(draw.choices(WORDS, k=draw.randrange(13))) for _ in range(number)]


def ranks_below(pid: int) -> list[psutil.Process]:
    below = psutil.Process(pid).children(recursive=True)
    return [child for child in below if RANK in child.cmdline()]


def test_three_ranks_write_the_bytes_of_one_process(cloze: Cloze, model: str) -> None:
    Path("texts.txt").write_text("\n".join(texts(10 * PIECE + 5)))
    form = ["texts.txt", "--layers", "-2,-1", "--normalize", "--truncate"]
    alone = cloze("embed", model, *form, "--output", "one.npy")
    shared = cloze("embed", model, *form, "--output", "three.npy", "--on", "ranks.toml")
    assert (alone.returncode, shared.returncode) == (0, 0)
    assert shared.stdout == f"three.npy: {10 * PIECE + 5} vectors of 16 float32\n"
    assert "vectors: 3 ranks" in shared.stderr
    assert "ranks" not in alone.stderr
    assert Path("three.npy").read_bytes() == Path("one.npy").read_bytes()
    assert not [*Path().glob("*.unfinished*"), *Path().glob(".tmp-*")]
    assert not ranks_below(os.getpid())


def test_an_input_without_a_piece_for_each_rank_is_computed_by_one_process(
    cloze: Cloze, model: str
) -> None:
    Path("texts.txt").write_text("\n".join(texts(3 * PIECE)))
    done = cloze("embed", model, "texts.txt", "--output", "v.npy", "--on", "ranks.toml")
    assert (done.returncode, "ranks" in done.stderr) == (0, False)
    assert len(np.load("v.npy")) == 3 * PIECE


def test_an_unsuitable_text_is_named_by_its_number_whichever_rank_meets_it(
    cloze: Cloze, model: str
) -> None:
    lines = texts(8 * PIECE)
    for place in (5 * PIECE + 3, 6 * PIECE, 7 * PIECE):
        lines[place] = "a " * 20
    Path("texts.txt").write_text("\n".join(lines))
    done = cloze("embed", model, "texts.txt", "--output", "v.npy", "--on", "ranks.toml")
    assert done.returncode == 2
    assert f"error: text {5 * PIECE + 4}: 22 tokens, the encoder has 16" in done.stderr
    assert not [*Path().glob("*v.npy*")]
    assert not ranks_below(os.getpid())


@pytest.mark.slow
def test_truncated_texts_of_all_ranks_are_counted_together(cloze: Cloze, model: str) -> None:
    Path("texts.txt").write_text("a b\n" * 4 * PIECE + ("a " * 20 + "\n") * PIECE)
    done = cloze("embed", model, "texts.txt", "--truncate", "--on", "ranks.toml", "--json")
    assert f"{PIECE} texts of more than 16 tokens were truncated" in done.stderr
    assert json.loads(done.stdout)["shape"] == [5 * PIECE, 8]


@pytest.mark.slow
def test_ranks_read_a_bounded_number_of_texts_ahead_and_keep_the_order(
    folder: Path, model: str
) -> None:
    machine = TrainingMachine(ranks=2, device="cpu")
    read = 0

    def endless() -> Iterator[str]:
        nonlocal read
        for read in count(1):
            yield WORDS[read % len(WORDS)]

    ours = load_over_ranks(model, precision="fp32", machine=machine)
    expected = ours.embed(WORDS)
    vectors = ours.embed_stream(endless())
    most = 0
    for number in range(1, 40 * PIECE):
        assert np.array_equal(next(vectors), expected[number % len(WORDS)])
        most = max(most, read - number)
    assert most <= (AHEAD * 2 + 1) * PIECE
    pids = [rank.pid for rank in ranks_below(os.getpid())]
    assert len(pids) == 2
    del vectors  # a stream that is given up ends them
    all_gone(pids)


@pytest.mark.slow
def test_the_index_of_a_folder_is_the_same_by_three_ranks(cloze: Cloze, model: str) -> None:
    for number, line in enumerate(texts(6 * PIECE)):
        Path("texts", f"{number}.txt").write_text(f"The list {number}. {line}.\n")
    ask = ("search", model, "texts", "a list", "--json")
    alone = cloze(*ask, "--workspace", "one")
    shared = cloze(*ask, "--workspace", "three", "--on", "ranks.toml")
    assert "vectors: 3 ranks" in shared.stderr
    assert shared.stdout == alone.stdout
    (one,), (three,) = (Path(name).rglob("vectors.*.npy") for name in ("one", "three"))
    assert one.read_bytes() == three.read_bytes()
    assert one.parent.name == three.parent.name


@pytest.mark.parametrize("fault", ["SIGKILL", "SIGSTOP", "SIGTERM to the command"])
@pytest.mark.slow
def test_a_rank_that_dies_or_hangs_ends_the_command_and_nothing_is_left(
    folder: Path, fault: str
) -> None:
    write_model(folder / "encoder")
    (folder / "ranks.toml").write_text('[training]\nranks = 2\nhang_timeout = 20\ndevice = "cpu"\n')
    command = [sys.executable, "-P", "-m", "cloze", "embed", "encoder", "--on", "ranks.toml"]
    with subprocess.Popen(
        [*command, "--output", "v.npy"],
        env={**os.environ, "PYTHONPATH": str(PROJECT)},
        stdin=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdin
        assert process.stderr
        # Enough to start the ranks; then the command waits for more.
        process.stdin.write("a b\n" * (2 * AHEAD + 1) * load.WINDOW)
        process.stdin.flush()
        wait_for(lambda: len(ranks_below(process.pid)) == 2, what="two ranks", seconds=120)
        below = descendants(process.pid)
        if fault == "SIGTERM to the command":
            process.send_signal(signal.SIGTERM)
        else:
            ranks_below(process.pid)[1].send_signal(signal.Signals[fault])
        with suppress(BrokenPipeError):  # it may have ended
            if fault != "SIGTERM to the command":
                process.stdin.write("a b\n" * 8 * load.WINDOW)
            process.stdin.close()
        said = process.stderr.read()
    expected = {
        "SIGKILL": (WorkerKilled.exit_code, "was ended by SIGKILL, possibly out of memory"),
        "SIGSTOP": (1, "hangs, nothing from it for 20 s (training.hang_timeout)"),
        "SIGTERM to the command": (143, "terminated"),
    }[fault]
    assert process.returncode == expected[0], said
    assert expected[1] in said
    assert "Traceback" not in said
    all_gone(below)
    assert not [*folder.glob("*v.npy*")]


def test_ranks_of_a_clusters_jobs_are_not_started_here(cloze: Cloze, model: str) -> None:
    Path("slurm.toml").write_text('[training]\nranks = 3\n[jobs]\nlauncher = "slurm"\n')
    Path("texts.txt").write_text("\n".join(texts(5 * PIECE)))
    done = cloze("embed", model, "texts.txt", "--output", "v.npy", "--on", "slurm.toml")
    assert done.returncode == 0
    assert "slurm.toml: its ranks are those of jobs on slurm; this command uses one" in done.stderr
    assert "3 ranks" not in done.stderr
