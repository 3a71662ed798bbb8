import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from artifacts.errors import ClozeError
from artifacts.progress import Progress
from artifacts.stage import write_stage_table
from artifacts.store import open_artifact
from model.finetune.finetune import finetune
from model.finetune.workers import Worker, run_workers
from tests.model.task_builders import encoder_artifact, inputs, stage_table, write_lines
from tests.waiting import PATIENCE


def test_every_worker_does_its_part_and_the_first_ones_result_comes_back(tmp_path: Path) -> None:
    def work(worker: Worker) -> str:
        (tmp_path / str(worker.number)).write_text(str(os.getpid()))
        return f"{worker.number} of {worker.size}"

    assert run_workers(3, work) == "0 of 3"
    assert len({(tmp_path / str(number)).read_text() for number in range(3)}) == 3


def test_progress_counts_the_steps_of_all(capsys: pytest.CaptureFixture[str]) -> None:
    def work(worker: Worker) -> Progress:
        worker.progress = Progress("finetune", total=30, unit="steps", interval=0.0)
        worker.advance(10 * (worker.number + 1))
        return worker.progress

    assert run_workers(2, work).done == 30
    assert "finetune 30/30 steps" in capsys.readouterr().err


def test_a_worker_that_fails_ends_the_launch_with_its_message(
    capfd: pytest.CaptureFixture[str],
) -> None:
    def work(worker: Worker) -> None:
        if worker.number == 1:
            raise ClozeError("this task cannot be done")

    with pytest.raises(ClozeError, match="ended with 1"):
        run_workers(2, work)
    assert "error: this task cannot be done" in capfd.readouterr().err


def test_a_killed_worker_ends_the_launch_as_if_killed_so_that_it_is_tried_again() -> None:
    def work(worker: Worker) -> None:
        if worker.number == 1:
            os.kill(os.getpid(), signal.SIGKILL)

    with pytest.raises(ClozeError, match="was ended by SIGKILL, perhaps for memory") as caught:
        run_workers(2, work)
    assert caught.value.exit_code == 128 + signal.SIGKILL


def test_no_worker_outlives_a_launch_that_fails(tmp_path: Path) -> None:
    def work(worker: Worker) -> None:
        if worker.number == 0:
            while not (tmp_path / "child").exists():
                time.sleep(0.01)
            raise ClozeError("the first one fails")
        (tmp_path / "begun").write_text(str(os.getpid()))
        (tmp_path / "begun").rename(tmp_path / "child")
        time.sleep(600)

    with pytest.raises(ClozeError, match="the first one fails"):
        run_workers(2, work)
    child = int((tmp_path / "child").read_text())
    assert os.waitpid(child, 0)[0] == child


def test_two_workers_leave_the_same_bytes_as_one(tmp_path: Path) -> None:
    rows = [{"text_a": text, "label": str(n % 2)} for n, text in enumerate(["the", "list"] * 4)]
    path = write_lines(tmp_path / "a.jsonl", rows)
    task = {"name": "t", "kind": "classification", "train": path, "dev": path, "epochs": 1}
    config = {"tasks": [{**task, "max_seq_length": 32}], "seeds": [0, 1, 2], "precision": "fp32"}
    encoder = inputs(encoder=encoder_artifact(tmp_path / "encoder"))

    def table(threads: int) -> object:
        return stage_table(
            "finetune",
            tmp_path / f"with{threads}",
            config={"finetune": config},
            inputs=encoder,
            machine={"threads": threads},
        )

    alone = finetune(table(1), [])
    write_stage_table(table(2), tmp_path / "table.json")
    command = [sys.executable, "-m", "model.finetune.finetune", "--config", tmp_path / "table.json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=True)
    both = open_artifact(str(tmp_path / "with2"))
    assert both.digest == alone.digest == done.stdout.strip()
    assert [entry.name for entry in both.manifest.records] == ["seconds-0.json", "seconds-1.json"]
