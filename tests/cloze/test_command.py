"""The command line: help, errors, exit codes."""

import gc
import json
import signal
import subprocess
import sys
import time
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cloze import command
from cloze.artifacts.errors import UsageError
from cloze.artifacts.runtime.program import Terminated
from cloze.command import COMMANDS, EXTRA_WITH, exit_code
from cloze.inspection import runs
from tests.cloze.tiny_model import write_model
from tests.conftest import PROJECT

Cloze = Callable[..., Any]


def error_line(stderr: str) -> str:
    (line,) = stderr.splitlines()
    assert line.startswith("error: ")
    return line.removeprefix("error: ")


def test_help_names_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert exit_code(["--help"]) == 0
    shown = capsys.readouterr().out
    assert all(f" {name} " in shown for name in COMMANDS)


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_explains_itself_with_an_example(
    capsys: pytest.CaptureFixture[str], name: str
) -> None:
    assert exit_code([name, "--help"]) == 0
    shown = capsys.readouterr().out
    assert "Example: cloze " + name in shown
    assert "--json" in shown


def test_a_terminal_of_no_width_gets_the_help(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "0")
    assert exit_code(["search", "--help"]) == 0
    assert "--evaluate" in capsys.readouterr().out


def test_help_does_not_import_the_frameworks() -> None:
    source = """
import sys
from cloze.command import exit_code
exit_code(["--help"])
heavy = {"torch", "apache_beam", "deepspeed", "prefect", "pyarrow"} & set(sys.modules)
sys.exit(str(heavy) if heavy else 0)
"""
    done = subprocess.run([sys.executable, "-P", "-c", source], capture_output=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["plam", "try.toml"], "plam"),
        (["plan"], "CONFIG"),
        (["plan", "try.toml", "--what"], "--what"),
        (["plan", "missing.toml"], "missing.toml: no such configuration file"),
        (["plan", "texts/one.txt"], "not a TOML file"),
        (["plan", "texts"], "texts: Is a directory; expected a configuration file"),
        (["plan", "try.toml", "--set", "pretrain.stepz=1"], "unknown key pretrain.stepz, did you"),
        (["plan", "try.toml", "--set", "pretrain.steps"], "expected KEY=VALUE"),
        (["prepare", "try.toml", "corpus.heldout_share=2"], "write --set KEY=VALUE"),
        (["plan", "try.toml", "--set", "pretrain.steps=many"], "pretrain.steps: "),
        (["plan", "try.toml", "--set", "name=artifacts"], "choose another name"),
        (["plan", "try.toml", "--on", "missing.toml"], "missing.toml: no such configuration file"),
        (["run", "try.toml", "--set", "corpus.sources.0.path=nowhere"], "nowhere: no files here"),
        (["run", "try.toml", "--workspace", "texts/one.txt/runs"], "cannot be written"),
        (["report", "try.toml", "--set", "corpus.sources.0.path=nowhere"], "no files here"),
        (["finetune", "try.toml"], "no stage finetune; it has vocabulary, tokens"),
        (["inspect", "try/tokens"], "neither the directory of a finished artifact nor RUN/STAGE"),
    ],
)
def test_a_usage_error_is_one_line_and_exit_code_2(
    cloze: Cloze, arguments: list[str], message: str
) -> None:
    done = cloze(*arguments)
    assert message in error_line(done.stderr)
    assert (done.returncode, done.stdout) == (2, "")


def test_an_empty_corpus_is_refused_before_anything_starts(cloze: Cloze, folder: Path) -> None:
    (folder / "texts" / "one.txt").write_text("")
    done = cloze("run", "try.toml")
    assert "corpus.sources.0.path: texts: 1 file, empty" in error_line(done.stderr)
    assert done.returncode == 2
    assert not (folder / "runs" / "artifacts").exists()


def test_a_second_run_of_the_same_name_names_the_first_ones_process(
    cloze: Cloze, folder: Path
) -> None:
    (folder / "runs").mkdir()
    source = """
import sys
from pathlib import Path
from cloze.flows.locks import locked
with locked(Path("runs").resolve(), run="try"):
    print("held", flush=True)
    sys.stdin.read()
"""
    with subprocess.Popen(
        [sys.executable, "-P", "-c", source], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as other:
        assert other.stdin
        assert other.stdout
        assert other.stdout.readline() == b"held\n"
        for arguments in (["run", "try.toml"], ["tokens", "try.toml"]):
            done = cloze(*arguments)
            assert f"in use by run try (pid {other.pid}" in error_line(done.stderr)
            assert done.returncode == 2
        other.stdin.close()


def test_with_json_an_error_is_json_too(cloze: Cloze) -> None:
    done = cloze("plan", "missing.toml", "--json")
    answer = json.loads(done.stdout)
    assert answer["exit_code"] == done.returncode == 2
    assert error_line(done.stderr) == answer["error"]


@pytest.mark.parametrize(
    ("workspace", "remedy"),
    [
        ("gs://bucket/runs", "gcsfs is not installed; pip install 'cloze-encoder[gs]'"),
        ("s3://bucket/runs", "s3fs is not installed; pip install 'cloze-encoder[s3]'"),
        ("abfs://bucket/runs", "adlfs is not installed; pip install adlfs"),
    ],
)
def test_a_workspace_whose_library_is_missing_names_what_to_install(
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    workspace: str,
    remedy: str,
) -> None:
    monkeypatch.setitem(sys.modules, remedy.split(maxsplit=1)[0], None)
    assert exit_code(["runs", "--workspace", workspace]) == 1
    assert error_line(capsys.readouterr().err) == remedy


def test_every_named_extra_has_the_library() -> None:
    extras = tomllib.loads((PROJECT / "pyproject.toml").read_text())["project"][
        "optional-dependencies"
    ]
    called = {"sklearn": "scikit-learn", "Stemmer": "PyStemmer"}
    for module, extra in EXTRA_WITH.items():
        wanted = called.get(module, module.replace("_", "-"))
        assert any(entry.startswith(wanted) for entry in extras[extra]), module


def test_plan_lists_the_stages_to_run_and_writes_nothing(cloze: Cloze, folder: Path) -> None:
    done = cloze("plan", "try.toml")
    assert done.returncode == 0
    assert done.stdout.splitlines()[:2] == [
        "vocabulary  run    no earlier artifact of this stage",
        "tokens      run    new vocabulary",
    ]
    assert not (folder / "runs").exists()


def test_plan_as_json_is_one_document(cloze: Cloze) -> None:
    stages = json.loads(cloze("plan", "try.toml", "--json").stdout)["stages"]
    assert [stage["stage"] for stage in stages][:3] == ["vocabulary", "tokens", "examples"]
    assert {stage["action"] for stage in stages} == {"run"}


def test_plan_estimates_resources(cloze: Cloze, folder: Path) -> None:
    (folder / "machine.toml").write_text("[rates]\ngpu_hour = 2.5\n")
    found = json.loads(cloze("plan", "try.toml", "--json").stdout)
    assert found["preparation"]["text_bytes"] == len("The first document.\n")
    assert found["pretraining"]["parameters"] == 110_106_428
    shown = cloze("plan", "try.toml", "--on", "machine.toml").stdout
    assert "ZeRO 3" in shown
    assert "per GPU at $2.5 an hour" in shown


def test_plan_writes_the_tables_of_stages_that_are_ready(cloze: Cloze, folder: Path) -> None:
    told = json.loads(cloze("plan", "try.toml", "--tables", "--json").stdout)
    (table,) = told["tables"]  # the others depend on this one's output
    assert Path(table) == folder / "runs" / "try" / "stages" / "vocabulary.json"
    argv = [sys.executable, "-P", "-m", "cloze.pipeline.vocabulary", "--config", table]
    subprocess.run(argv, check=True, capture_output=True)
    told = json.loads(cloze("plan", "try.toml", "--tables", "--json").stdout)
    assert told["stages"][0]["action"] == "reuse"
    assert [Path(table).stem for table in told["tables"]] == ["tokens"]
    shown = cloze("plan", "try.toml", "--tables").stdout.splitlines()
    assert shown[-1].startswith("no table yet: examples, pretrain, ")


def test_plan_estimates_a_corpus_that_is_elsewhere(cloze: Cloze, folder: Path) -> None:
    (folder / "texts" / "one.txt").unlink()
    assert cloze("plan", "try.toml").returncode == 2
    found = json.loads(cloze("plan", "try.toml", "--gigabytes", "300", "--json").stdout)
    assert found["stages"] == []
    assert found["preparation"]["text_bytes"] == 300e9
    (folder / "dataflow.toml").write_text(
        'workspace = "gs://bucket/runs"\n[pipeline]\nrunner = "DataflowRunner"\n'
        '[pipeline.options]\nmax_num_workers = 64\nmachine_type = "n2-standard-4"\n'
    )
    sized = ("plan", "try.toml", "--corpus-bytes", "10TB", "--on", "dataflow.toml")
    shown = cloze(*sized).stdout
    assert "on Dataflow: at most 64 workers of 4 vCPUs and 16 GB" in shown
    assert "does NOT fit" in shown and "number_of_worker_harness_threads = 1" in shown
    found = json.loads(cloze(*sized, "--json").stdout)
    assert (found["preparation"]["text_bytes"], found["dataflow"]["fits"]) == (1e13, False)
    for wrong in ("many", "10XB", "-1GB", "0"):
        refused = cloze("plan", "try.toml", f"--corpus-bytes={wrong}")
        assert refused.returncode == 2
        assert "expected a size such as 10TB" in refused.stderr


def test_a_machine_file_and_the_workspace_option_select_the_workspace(
    cloze: Cloze, folder: Path
) -> None:
    (folder / "machine.toml").write_text('workspace = "there"\n')
    cloze("vocabulary", "try.toml", "--on", "machine.toml")
    assert (folder / "there" / "artifacts" / "vocabulary").exists()
    done = cloze("vocabulary", "try.toml", "--on", "machine.toml", "--workspace", "here", "--json")
    directory = json.loads(done.stdout)["vocabulary"]["directory"]
    assert directory.startswith(str(folder / "here"))
    assert "-P -m cloze.pipeline.vocabulary --config" in done.stderr


@pytest.mark.parametrize(
    ("signum", "code", "word"), [(signal.SIGINT, 130, "interrupted"), (signal.SIGTERM, 143, "term")]
)
def test_a_signal_ends_the_command_with_one_line(
    folder: Path, signum: signal.Signals, code: int, word: str
) -> None:
    source = """
import signal, time
signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored in the background
from cloze import command
command.run_command = lambda arguments: (print("ready", flush=True), time.sleep(60))
command.main()
"""
    with subprocess.Popen(
        [sys.executable, "-P", "-c", source, "plan"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=folder,
    ) as running:
        assert running.stdout
        assert running.stderr
        assert running.stdout.readline() == "ready\n"
        time.sleep(0.1)
        running.send_signal(signum)
        (line,) = running.stderr.read().splitlines()
    assert running.returncode == code
    assert line.startswith(word)
    assert "run the same command to resume" in line


def test_garbage_is_collected_again_once_a_subcommand_begins(tmp_path: Path) -> None:
    gc.disable()  # as the entry point does for its imports
    try:
        command.run_command(["runs", "--workspace", str(tmp_path)])
        assert gc.isenabled()
    finally:
        gc.enable()
        gc.unfreeze()


@pytest.mark.parametrize(
    "given",
    [
        ("search", "encoder", "texts", "q", "--rerank", ""),
        ("search", "encoder", "texts", "q", "--rerank="),
        ("embed", "encoder", "text", "--output", ""),
        ("predict", "tuned", "text", "--task", "", "--json"),
        ("run", "config.toml", "--set", ""),
        ("export", "encoder", "out", "--task", "", "--onnx"),
        ("runs", "--workspace", ""),
        ("runs", "--json", "--workspace="),
        ("label", "rows.csv", "--merge", "", "--output", "next.csv"),
    ],
)
def test_an_option_with_an_empty_value_is_refused(cloze: Cloze, given: tuple[str, ...]) -> None:
    """A shell makes it of a variable that is not set; the option must not count as left out."""
    done = cloze(*given)
    assert done.returncode == 2
    assert "its value is empty; name something, or leave it out" in done.stderr


def test_an_empty_text_is_one(cloze: Cloze) -> None:
    for words in (("--json", ""), ("", "--json"), ("--", ""), ("--truncate", "")):
        done = cloze("embed", "nowhere", *words)
        assert "nowhere: no run of this name" in done.stderr  # so the text was read


@pytest.mark.parametrize("words", [("search", "encoder", "", "question"), ("init", "")])
def test_an_empty_folder_name_is_not_the_working_directory(
    cloze: Cloze, folder: Path, words: tuple[str, ...]
) -> None:
    write_model(folder / "encoder")
    done = cloze(*words)
    assert done.returncode == 2
    assert "the path of the files is empty; name a file, a folder or a pattern" in done.stderr


class Swallowed:
    """Drops an exception, as compiled code does where it cannot pass it on."""

    def __init__(self, signum: signal.Signals) -> None:
        self.signum = signum

    def __del__(self) -> None:
        signal.raise_signal(self.signum)


def drop_and_fail(signum: signal.Signals) -> None:
    Swallowed(signum)
    raise UsageError("tuned.toml: name: expected a pattern")


def drop_and_go_on(signum: signal.Signals) -> None:
    Swallowed(signum)
    time.sleep(60)


def wrap(signum: signal.Signals) -> None:
    try:
        signal.raise_signal(signum)
    except BaseException as error:  # as compiled code does, without a cause
        raise ValueError(f"no validator: {error}") from None


def import_nothing(signum: signal.Signals) -> None:
    try:
        signal.raise_signal(signum)
    except BaseException as error:
        raise ImportError(str(error), name="cloze") from None


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("library", [drop_and_fail, drop_and_go_on, wrap, import_nothing])
def test_a_library_that_swallows_a_signal_changes_neither_code_nor_message(
    library: Callable[[signal.Signals], None],
    signum: signal.Signals,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(command, "run_command", lambda arguments: library(signum))
    before = [*map(signal.getsignal, (signal.SIGTERM, signal.SIGINT)), sys.unraisablehook]
    assert exit_code(["plan"]) == 128 + signum
    word = "terminated" if signum == signal.SIGTERM else "interrupted"
    assert capsys.readouterr().err == f"{word}; run the same command to resume\n"
    after = [*map(signal.getsignal, (signal.SIGTERM, signal.SIGINT)), sys.unraisablehook]
    assert after == before


def test_doctor_finds_this_machine_healthy(cloze: Cloze) -> None:
    done = cloze("doctor", "--json")
    answer = json.loads(done.stdout)
    assert done.returncode == (0 if answer["healthy"] else 1)
    assert {check["state"] for check in answer["checks"] if check["name"] == "python"} == {"good"}


def test_doctor_names_the_lock_of_a_killed_build(
    cloze: Cloze, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TORCH_EXTENSIONS_DIR", str(folder))
    lock = folder / "py311_cu130" / "fused_adam" / "lock"
    lock.parent.mkdir(parents=True)
    lock.touch()
    done = cloze("doctor")
    assert f"build lock      unless a build is running now, rm {lock}" in done.stdout
    assert done.returncode == 1


@pytest.mark.parametrize("words", [("runs",), ("runs", "--json"), ("show", "nothing", "--json")])
def test_a_full_disk_behind_standard_output_is_one_line(
    tmp_path: Path, words: tuple[str, ...]
) -> None:
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-P", "-m", "cloze", *words],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            cwd=tmp_path,
            check=False,
        )
    assert done.returncode != 0
    (line,) = done.stderr.splitlines()
    assert line.startswith("error: ")


def test_a_panic_of_a_library_in_rust_is_one_line(
    cloze: Cloze, monkeypatch: pytest.MonkeyPatch
) -> None:
    panic = type("PanicException", (BaseException,), {})

    def fail(*_: object, **__: object) -> None:
        raise panic("index out of bounds")

    monkeypatch.setattr(runs, "list_runs", fail)
    done = cloze("runs")
    assert done.returncode == 1
    (line,) = done.stderr.splitlines()
    assert line.startswith("error: a library in Rust failed (index out of bounds)")


class Interrupting:
    """A signal arrives while a class is made, as pydantic's are during imports."""

    def __init__(self, arrived: type[BaseException]) -> None:
        self.arrived = arrived

    def __set_name__(self, owner: type, name: str) -> None:
        raise self.arrived


@pytest.mark.parametrize(("arrived", "code"), [(Terminated, 143), (KeyboardInterrupt, 130)])
def test_a_signal_while_a_class_is_made_is_one_line(
    cloze: Cloze, monkeypatch: pytest.MonkeyPatch, arrived: type[BaseException], code: int
) -> None:
    monkeypatch.setattr(
        command, "application", lambda: type("Made", (), {"a": Interrupting(arrived)})
    )
    done = cloze("runs")
    assert done.returncode == code
    assert done.stderr.endswith("run the same command to resume\n")
