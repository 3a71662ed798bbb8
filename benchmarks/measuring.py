"""Running a program on given cores and saying what it took.

In:  a command line, the cores it and all its children may use.
Out: `Measurement`: wall time, processor time; if asked for, the largest memory of all its processes
     together. Looking at it walks their page tables and holds them up, so time is taken without.
"""

import json
import os
import platform
import subprocess
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path

import psutil
from pydantic import JsonValue

from model.hardware import machine_precision

ROOT = Path(__file__).resolve().parent.parent
PRECISION = machine_precision()[0]
"""What `precision = "auto"` stands for here; all sides of a comparison compute in it."""
SAMPLE_SECONDS = 0.2


@dataclass(frozen=True)
class Measurement:
    """What one run of a program took."""

    wall: float
    """Seconds from start to exit."""
    cpu: float
    """Seconds of processor time, of all its processes."""
    peak_pss: float | None
    """Largest proportional set size of all its processes together, in MB, if it was looked at."""
    said: dict[str, JsonValue] = field(default_factory=dict)
    """The JSON line the program printed last, if it did."""


def measure(
    command: list[str],
    *,
    cores: str,
    cwd: Path = ROOT,
    env: dict[str, str] | None = None,
    memory: bool = False,
) -> Measurement:
    """Run `command` on `cores` (as `taskset -c` takes them); a failure ends the benchmark."""
    started, before = time.monotonic(), os.times()
    process = subprocess.Popen(
        ["taskset", "-c", cores, *command],
        cwd=cwd,
        env={**os.environ, "TOKENIZERS_PARALLELISM": "false", **(env or {})},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    peak = _watch_memory(process.pid) if memory else lambda: None
    output, errors = process.communicate()
    wall, after = time.monotonic() - started, os.times()
    if process.returncode:
        raise SystemExit(f"{' '.join(command)}\n{errors[-4000:]}")
    cpu = (
        after.children_user + after.children_system - before.children_user - before.children_system
    )
    lines = [line for line in output.splitlines() if line.startswith("{")]
    return Measurement(wall, cpu, peak(), json.loads(lines[-1]) if lines else {})


def machine() -> dict[str, JsonValue]:
    """What this machine is, for the record."""
    model = [
        line for line in Path("/proc/cpuinfo").read_text().splitlines() if "model name" in line
    ]
    head = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    return {
        "date": time.strftime("%Y-%m-%d"),
        "commit": head.stdout.strip(),
        "processor": model[0].partition(":")[2].strip() if model else platform.processor(),
        "cores": os.cpu_count(),
        "memory_gb": round(psutil.virtual_memory().total / 1e9, 1),
        "python": platform.python_version(),
        "load_before": round(os.getloadavg()[0], 2),
    }


def write_result(path: str, result: Mapping[str, object]) -> None:
    """Keep a result as readable JSON."""
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    Path(path).write_text(json.dumps(result, indent=1, default=asdict) + "\n")


def _watch_memory(pid: int) -> Callable[[], float | None]:
    peak = [0.0]
    stop = threading.Event()

    def sample() -> None:
        while not stop.wait(SAMPLE_SECONDS):
            try:
                root = psutil.Process(pid)
                family = [root, *root.children(recursive=True)]
            except psutil.NoSuchProcess:
                continue
            peak[0] = max(peak[0], sum(_pss(process.pid) for process in family))

    thread = threading.Thread(target=sample, daemon=True)
    thread.start()

    def finish() -> float:
        stop.set()
        thread.join()
        return peak[0] / 1e6

    return finish


def _pss(pid: int) -> float:
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return 0.0
    return sum(1024.0 * int(line.split()[1]) for line in lines if line.startswith("Pss:"))
