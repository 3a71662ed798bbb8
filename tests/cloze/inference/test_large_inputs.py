"""Memory of `cloze embed` and `cloze predict` on inputs that would not fit into what they may take.

`CLOZE_INPUT_MEGABYTES=1000` makes inputs of 1 GB, in a quarter of an hour.
"""

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cloze.inference.test_predicted_tables import tuned
from tests.cloze.tiny_model import write_model
from tests.conftest import command

pytestmark = [pytest.mark.slow, pytest.mark.long]

MEGABYTES = int(os.environ.get("CLOZE_INPUT_MEGABYTES", "100"))
LIMIT = 1536
"""MiB of memory, for 1 GB as for less."""

GROWTH = 200
"""MiB that ten times the input may take more, which is noise of the allocator."""

TEXT = " ".join(letter * 199 for letter in "abcdefghijklmnopqrstuvwxyz0123456789vwxy")
"""8 kB in 40 words, of a token each: much to read, and little to compute."""


def peak(folder: Path, *arguments: str) -> int:
    """MiB that the command took at most; it has to succeed."""
    argv, environment = command(*arguments)
    with (folder / "said").open("wb") as said:
        running = subprocess.Popen(argv, cwd=folder, env=environment, stdout=said, stderr=said)
        _, status, used = os.wait4(running.pid, 0)
        running.returncode = os.waitstatus_to_exitcode(status)
    assert running.returncode == 0, (folder / "said").read_text()[-2000:]
    return used.ru_maxrss >> 10


def write(path: Path, head: str, line: str, *, megabytes: int) -> Path:
    """A file with `head` and as many lines as it takes."""

    def lines() -> Iterator[str]:
        yield head
        for _ in range(megabytes * 1_000_000 // len(line)):
            yield line

    with path.open("w") as file:
        file.writelines(lines())
    return path


@pytest.mark.timeout(3600)
def test_embed_of_a_large_file_takes_no_more_memory_than_of_a_small_one(tmp_path: Path) -> None:
    write_model(tmp_path / "encoder")
    peaks = []
    for megabytes in (MEGABYTES // 10, MEGABYTES):
        write(tmp_path / "large.txt", "", f"{' '.join([TEXT] * 5)}\n", megabytes=megabytes)
        given = ("embed", "encoder", "large.txt", "--truncate", "--output", f"{megabytes}.npy")
        peaks.append(peak(tmp_path, *given))
    assert peaks[1] < min(LIMIT, peaks[0] + GROWTH), peaks


@pytest.mark.timeout(3600)
def test_predict_of_a_large_table_takes_no_more_memory_than_of_a_small_one(tmp_path: Path) -> None:
    model = tuned(tmp_path / "task", "classification", {"a list": "a", "b names": "b"})
    peaks = []
    for megabytes in (MEGABYTES // 10, MEGABYTES):
        write(tmp_path / "large.csv", "text_a,label\n", f"{TEXT},a\n", megabytes=megabytes)
        peaks.append(peak(tmp_path, "predict", model, "large.csv", "--output", f"{megabytes}.csv"))
    assert peaks[1] < min(LIMIT, peaks[0] + GROWTH), peaks
