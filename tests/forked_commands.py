"""Commands as forks of one process that has imported everything: hundreds of them in minutes.

    python -P tests/forked_commands.py

In:  requests on standard input, each a line of JSON: the arguments of `cloze`, a folder, an
     environment.
Out: for each the number of a process, which then looks like the command's to whoever signals it or
     counts what it leaves, but starts in a hundredth of the time; and its exit code in a file.

Stages are forked as well, by supervisors that have preloaded every stage's program as ours have
those of preparation (flows/launchers/supervisor.py). What is not tested so is a command that is
killed while it imports, when it has done nothing yet.
"""

import gc
import importlib
import json
import os
import resource
import select
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from cloze.artifacts.config import StageConfig
from cloze.flows.launchers.supervisor import PYTHON

PROJECT = Path(__file__).resolve().parent.parent

IMPORTED = (
    *("torch", "transformers", "tokenizers", "safetensors.torch", "sklearn.metrics", "scipy.stats"),
    *("pyarrow.ipc", "pyarrow.parquet", "matplotlib.pyplot", "jinja2", "bm25s", "setproctitle"),
    *("onnx", "onnxruntime", "onnxruntime.quantization", "onnxscript", "accelerate", "networkx"),
    *("torch._dynamo", "torch.export", "torch.onnx._internal.exporter._core", "Stemmer"),
)
"""What commands and stages import while they run, besides their own modules."""

STAGES = (
    *("cloze.pipeline.vocabulary", "cloze.pipeline.tokens", "cloze.pipeline.examples"),
    *("cloze.model.training.pretrain", "cloze.model.finetune.finetune"),
    *("cloze.model.evaluation.evaluate", "cloze.flows.report"),
)

POLL_SECONDS = 0.005


@dataclass
class Forked:
    """A command that runs, with as much of `subprocess.Popen` as tests need."""

    pid: int
    printed: Path
    """The folder of what it prints, and of its exit code."""

    returncode: int | None = None

    def communicate(self, timeout: float) -> tuple[str, str]:
        """What it has printed, once it has ended."""
        deadline = time.monotonic() + timeout
        while not (self.printed / "exit").exists():
            if time.monotonic() > deadline:
                raise subprocess.TimeoutExpired([str(self.pid)], timeout)
            time.sleep(POLL_SECONDS)
        self.returncode = int((self.printed / "exit").read_text())
        return (self.printed / "out").read_text(), (self.printed / "err").read_text()


class ForkedCommands:
    """The process that forks commands; it runs in the context."""

    def __enter__(self) -> "ForkedCommands":
        libraries = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
        self._scratch = tempfile.TemporaryDirectory()
        self._process = subprocess.Popen(
            [sys.executable, "-P", __file__],
            env={**os.environ, **dict.fromkeys(libraries, "1"), "PYTHONPATH": str(PROJECT)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            bufsize=1,
        )
        return self

    def __exit__(self, *_: object) -> None:
        self._process.communicate(timeout=60)
        self._scratch.cleanup()

    def begin(
        self, arguments: Sequence[str], *, folder: Path, environment: Mapping[str, str]
    ) -> Forked:
        """Start `cloze ARGUMENTS` in a folder."""
        printed = Path(tempfile.mkdtemp(dir=self._scratch.name))
        for name in ("out", "err"):  # now, since the process may be killed at once
            (printed / name).touch()
        request = {"arguments": [*arguments], "folder": str(folder), "printed": str(printed)}
        assert self._process.stdin
        assert self._process.stdout
        self._process.stdin.write(json.dumps({**request, "environment": {**environment}}) + "\n")
        return Forked(int(self._process.stdout.readline()), printed)


def serve() -> None:
    """Fork a command for each line of standard input, until there are no more."""
    running: dict[int, Path] = {}
    waiting = True
    while waiting or running:
        with suppress(ChildProcessError):
            while ended := os.waitpid(-1, os.WNOHANG):
                pid, status = ended
                if not pid:
                    break
                printed = running.pop(pid)
                (printed / ".exit").write_text(str(os.waitstatus_to_exitcode(status)))
                (printed / ".exit").rename(printed / "exit")
        if not (waiting and select.select([0], [], [], POLL_SECONDS)[0]):
            continue
        if not (line := sys.stdin.readline()):
            waiting = False
            continue
        request = json.loads(line)
        pid = os.fork()
        if not pid:
            become(request)
        running[pid] = Path(request["printed"])
        print(pid, flush=True)


def become(request: dict[str, Any]) -> NoReturn:
    """Become the command, in a fork."""
    from setproctitle import setproctitle

    from cloze.command import main

    printed = Path(request["printed"])
    streams = [os.open(os.devnull, os.O_RDONLY)]
    streams += [os.open(printed / name, os.O_CREAT | os.O_WRONLY) for name in ("out", "err")]
    for number, handle in enumerate(streams):
        os.dup2(handle, number)
    os.closerange(3, max(streams) + 1)
    os.environ.clear()
    os.environ.update(request["environment"])
    tempfile.tempdir = None
    os.chdir(request["folder"])
    sys.argv = ["cloze", *request["arguments"]]
    setproctitle(f"{' '.join(sys.argv)} # in {request['folder']}")
    leave(main)


def leave(program: Any) -> NoReturn:
    """Run the program in a fork, and end with its exit code."""
    code = 1
    try:
        program()
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 0 if end.code is None else 1
    except BaseException:
        sys.excepthook(*sys.exc_info())
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


class ForkedSupervisor:
    """The process of a supervisor, with as much of `subprocess.Popen` as launchers need."""

    def __init__(self, arguments: Sequence[str], environment: Mapping[str, str]) -> None:
        theirs, ours = os.pipe()
        sys.stdout.flush()
        sys.stderr.flush()
        self.pid = os.fork()
        if not self.pid:
            self._become(theirs, arguments, environment)
        os.close(theirs)
        self.stdin = os.fdopen(ours, "wb", buffering=0)
        self.returncode: int | None = None

    @staticmethod
    def _become(jobs: int, arguments: Sequence[str], environment: Mapping[str, str]) -> NoReturn:
        from setproctitle import setproctitle

        from cloze.flows.launchers import supervisor

        setproctitle(f"{supervisor.__name__} # in {os.getcwd()}")
        gc.freeze()  # what belongs to the command must not be closed a second time
        os.setsid()
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(jobs, 0)
        os.dup2(nowhere, 1)
        # As an exec would: locks, above all, are the command's alone.
        os.closerange(3, min(resource.getrlimit(resource.RLIMIT_NOFILE)[0], 4096))
        os.environ.clear()
        os.environ.update(environment)
        sys.stdin = os.fdopen(0, closefd=False)
        sys.stdout = os.fdopen(1, "w", closefd=False)
        leave(lambda: sys.exit(supervisor.main(arguments)))

    def poll(self) -> int | None:
        """The exit code; None while it runs."""
        if self.returncode is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self.returncode = os.waitstatus_to_exitcode(status)
        return self.returncode

    def communicate(self) -> None:
        """Close its standard input, and wait for its end."""
        self.stdin.close()
        while self.poll() is None:
            time.sleep(POLL_SECONDS)


def prepare() -> None:
    """Import everything, and let launchers fork their supervisors."""
    from cloze.command import COMMANDS
    from cloze.flows import executor, expected
    from cloze.flows.launchers import local
    from cloze.model.training import start

    def directly(config: StageConfig, file: str, **_: object) -> tuple[str, ...]:
        # without a program that only sets the environment and starts the other
        return (*PYTHON, config.program, "--config", file)

    started = local.RunningSupervisor

    def fork(
        preloaded: tuple[str, ...], *, grace: float, environment: Mapping[str, str], **_: object
    ) -> local.RunningSupervisor:
        arguments = ("--grace", str(grace), "--owner", str(os.getpid()), "--preload", *STAGES)
        return started(ForkedSupervisor(arguments, environment), preloaded, {})  # type: ignore[arg-type]

    local.RunningSupervisor.start = fork  # type: ignore[method-assign]
    defaults = local.LocalLauncher.__init__.__kwdefaults__
    defaults["preloaded"] = STAGES
    start.restart_prepared = lambda: None
    executor.program_argv = directly
    # Measured by a program of its own, to say how long a run takes.
    expected.matrix_rates = lambda: {}
    own = (where.partition(":")[0] for where, _, _ in COMMANDS.values())
    for module in (*IMPORTED, *own, *STAGES):
        importlib.import_module(module)
    gc.collect()
    gc.freeze()


if __name__ == "__main__":
    prepare()
    serve()
