"""The supervisor restarts what died, stops when asked to, and never retries usage errors."""

import subprocess
import sys
from pathlib import Path

import pytest

from cloze.model.training import supervisor as supervisor_module
from cloze.model.training.start import Rank
from cloze.model.training.supervisor import main, supervise
from tests.waiting import PATIENCE, wait_for

COUNTING = """
import pathlib, sys
path = pathlib.Path(sys.argv[1])
starts = len(path.read_text()) if path.exists() else 0
path.write_text("x" * (starts + 1))
sys.exit(int(sys.argv[2 + min(starts, len(sys.argv) - 3)]))
"""


def rank(source: str) -> Rank:
    return Rank((sys.executable, "-c", source), {})


def _run(tmp_path: Path, codes: list[int], restarts: int) -> tuple[int, int]:
    argv = (sys.executable, "-c", COUNTING, str(tmp_path / "n"), *map(str, codes))
    code = supervise([Rank(argv, {})], max_restarts=restarts, pause=0.0)
    return code, len((tmp_path / "n").read_text())


def test_what_died_is_started_again_until_it_is_done(tmp_path: Path) -> None:
    assert _run(tmp_path, [1, 247, 0], restarts=5) == (0, 3)


def test_it_gives_up_after_so_many_restarts(tmp_path: Path) -> None:
    assert _run(tmp_path, [9], restarts=2) == (9, 3)


@pytest.mark.parametrize("code", [2, 130, 143])
def test_wrong_use_and_a_wish_to_stop_are_final(tmp_path: Path, code: int) -> None:
    assert _run(tmp_path, [code], restarts=5) == (code, 1)


def test_a_kill_is_reported_as_a_shell_does() -> None:
    assert supervise([rank("import os; os.kill(os.getpid(), 9)")], max_restarts=0) == 137


def test_a_killed_rank_is_reported_as_killed_through_deepspeeds_launcher() -> None:
    assert supervise([rank("import sys; sys.exit(-9)")], max_restarts=0) == 137


def test_a_rank_that_fails_ends_the_others_and_its_code_counts() -> None:
    sleeping = rank("import time; time.sleep(600)")
    assert supervise([sleeping, rank("raise SystemExit(2)")], max_restarts=3) == 2


def test_ranks_that_were_told_to_stop_are_left_to_save(tmp_path: Path) -> None:
    saving = f"import time; time.sleep(1); open({str(tmp_path / 'saved')!r}, 'w'); exit(143)"
    assert supervise([rank("exit(143)"), rank(saving)], max_restarts=3) == 143
    assert (tmp_path / "saved").exists()


def test_sigterm_reaches_the_child_and_nothing_is_started_again(tmp_path: Path) -> None:
    child = (
        "import pathlib, signal, sys, time\n"
        f"path = pathlib.Path({str(tmp_path / 'log')!r})\n"
        "def stop(*_):\n    path.write_text('saved'); sys.exit(143)\n"
        "signal.signal(signal.SIGTERM, stop)\n"
        "path.write_text('ready')\n"
        "time.sleep(600)\n"
    )
    parent = (
        "import sys; from cloze.model.training.supervisor import Rank, supervise; "
        f"rank = Rank((sys.executable, '-c', {child!r}), {{}}); "
        "sys.exit(supervise([rank], max_restarts=3))"
    )
    log = tmp_path / "log"
    with subprocess.Popen([sys.executable, "-c", parent]) as process:
        wait_for(lambda: log.exists() and log.read_text() == "ready", what="the rank")
        process.terminate()
        assert process.wait(PATIENCE) == 143
    assert (tmp_path / "log").read_text() == "saved"


def test_sigterm_between_two_starts_is_not_lost(tmp_path: Path) -> None:
    parent = (
        "import sys; from cloze.model.training.supervisor import Rank, supervise; "
        "rank = Rank((sys.executable, '-c', 'raise SystemExit(9)'), {}); "
        "sys.exit(supervise([rank], max_restarts=3, pause=600.0))"
    )
    command = [sys.executable, "-c", parent]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr
        assert "starting again (3 left)" in process.stderr.readline()
        process.terminate()
        assert process.wait(PATIENCE) == 143


def test_a_missing_table_is_wrong_use(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["m", "--config", "/nowhere/table.json"]) == 2
    assert "/nowhere/table.json: no such stage table" in capsys.readouterr().err


@pytest.mark.parametrize(
    "options", [["--hostfile", "absent"], ["--hostfile=absent"], ["-H", "absent"]]
)
def test_a_missing_hostfile_is_wrong_use_instead_of_training_on_one_host(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], options: list[str]
) -> None:
    table = tmp_path / "t.json"
    table.write_text('{"stage": "s", "format_version": 1, "config": {}, "output": "o"}')
    assert main(["m", "--config", str(table), "--", *options]) == 2
    assert "--hostfile absent: no such file; expected a line for every host" in (
        capsys.readouterr().err
    )


def test_options_not_its_own_go_to_the_launcher(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = tmp_path / "t.json"
    table.write_text('{"stage": "s", "format_version": 1, "config": {}, "output": "o"}')
    seen: list[object] = []

    def recorded(ranks: list[Rank], *, max_restarts: int) -> int:
        seen.extend([ranks[0].argv, max_restarts])
        return 0

    monkeypatch.setattr(supervisor_module, "supervise", recorded)
    own = ["m", "--config", str(table), "--max-restarts", "4", "--ranks", "3"]
    hosts = tmp_path / "h"
    hosts.write_text("localhost slots=3\n")
    assert main([*own, "--", "--hostfile", str(hosts)]) == 0
    command, restarts = seen
    assert command[3:6] == ("deepspeed.launcher.runner", "--hostfile", str(hosts))
    assert restarts == 4
