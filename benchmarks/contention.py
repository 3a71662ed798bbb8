"""Pre-training beside other programs: `cloze pretrain` beside busy processes, settings in turns.

    python benchmarks/contention.py [--config configs/demo.toml] [--busy 0 1 2 4] [--rounds 2]

In:  a run's configuration; the stages before pre-training are made once, in the workspace.
Out: benchmarks/results/contention.json, and a table of real tokens/s on standard output.

What is started is what users start. The busy processes are loops in sessions of their own, as other
programs are: inside one session the kernel would share the cores by session, not by process. The
figure of a turn is the median of its log lines after the first. The settings:
`ours`, what `cloze` sets; `asleep`, threads that always sleep while they wait; `spinning`, the
libraries' default without any variable; `one`, one thread.
"""

import argparse
import itertools
import os
import re
import statistics
import subprocess
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.measuring import ROOT, machine, write_result
from model.training.environment import ALLOCATOR, KERNEL_CACHES

SETTINGS: dict[str, dict[str, str]] = {
    "ours": {},
    "asleep": {"OMP_WAIT_POLICY": "PASSIVE", "GOMP_SPINCOUNT": "0"},
    "spinning": {"OMP_WAIT_POLICY": "ACTIVE", "GOMP_SPINCOUNT": "30000000000"},
    "one": {},
}
ONE_THREAD = "[training]\nthreads = 1\n"
EVERY = "[training]\nlog_every = {every}\n"
BUSY = "while True: pass"


def cloze(arguments: list[str], *, environment: dict[str, str]) -> None:
    """Run `cloze …`; a failure ends the benchmark."""
    program = [sys.executable, "-P", "-c", "from cloze.command import main; main()"]
    inherited = {
        name: value
        for name, value in os.environ.items()
        if name not in {**ALLOCATOR, **KERNEL_CACHES} and not name.startswith(("OMP_", "GOMP_"))
    }
    done = subprocess.run(
        [*program, *arguments],
        cwd=ROOT,
        env={**inherited, **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise SystemExit(f"cloze {' '.join(arguments)}\n{done.stderr[-4000:]}")


def turn(setting: str, busy: int, number: int, arguments: argparse.Namespace) -> float:
    """Real tokens/s of one run beside `busy` processes."""
    folder = Path(arguments.workspace)
    table = EVERY.format(every=max(1, arguments.steps // 20))
    if setting == "one":
        table += ONE_THREAD.removeprefix("[training]\n")
    (folder / "machine.toml").write_text(table)
    for log in folder.glob("*/jobs/pretrain/log"):
        log.unlink()
    others = [
        subprocess.Popen([sys.executable, "-c", BUSY], start_new_session=True) for _ in range(busy)
    ]
    try:
        # Another number of steps each time: a finished run would be reused.
        cloze(
            [
                *("pretrain", arguments.config, "--workspace", str(folder)),
                *("--on", str(folder / "machine.toml")),
                *("--set", f"pretrain.steps={arguments.steps + number}"),
                *itertools.chain.from_iterable(("--set", field) for field in arguments.set),
            ],
            environment=SETTINGS[setting],
        )
    finally:
        for other in others:
            other.kill()
            other.wait()
    (log,) = folder.glob("*/jobs/pretrain/log")
    said = log.read_text()
    rates = [float(found.replace(",", "")) for found in re.findall(r"tokens_per_s=([\d,]+)", said)]
    return statistics.median(rates[1:] or rates)


def main() -> None:
    """Read the arguments, take turns, write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--config", default="configs/demo.toml")
    parser.add_argument("--set", action="append", default=[], help="a field, as `cloze` takes it")
    parser.add_argument("--settings", nargs="+", default=list(SETTINGS))
    parser.add_argument("--busy", nargs="+", type=int, default=[0, 1, 2, 4])
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--workspace", default=str(ROOT / "runs" / "contention"))
    parser.add_argument("--out", default=str(ROOT / "benchmarks/results/contention.json"))
    arguments = parser.parse_args()
    Path(arguments.workspace).mkdir(parents=True, exist_ok=True)
    found: dict[str, dict[int, list[float]]] = {
        setting: {busy: [] for busy in arguments.busy} for setting in arguments.settings
    }
    numbers = itertools.count()
    for _ in range(arguments.rounds):
        for busy, setting in itertools.product(arguments.busy, arguments.settings):
            rate = turn(setting, busy, next(numbers), arguments)
            found[setting][busy].append(rate)
            print(f"{setting} beside {busy}: {rate:,.0f}", file=sys.stderr, flush=True)
    write_result(arguments.out, {"machine": machine(), "tokens_per_second": found})
    print("| real tokens/s beside | " + " | ".join(map(str, arguments.busy)) + " |")
    print("|---" * (1 + len(arguments.busy)) + "|")
    for setting, of_setting in found.items():
        medians = (f"{statistics.median(rates):,.0f}" for rates in of_setting.values())
        print(f"| {setting} | " + " | ".join(medians) + " |")


if __name__ == "__main__":
    main()
