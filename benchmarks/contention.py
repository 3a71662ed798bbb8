"""Pre-training beside other programs: `cloze pretrain` next to busy processes, settings in turns.

    python benchmarks/contention.py [--config configs/demo.toml] [--busy 0 1 2 4] [--rounds 2]

In:  a run's configuration; the stages before pre-training run once, in the workspace.
Out: benchmarks/results/contention.json, and a table of real tokens/s on standard output.

The command is the one that users run. Each busy process is a loop in a session of its own, as other
programs are: within one session the kernel would share the cores by session, not by process. A
turn's figure is the median of its log lines after the first. The settings:
`ours`, the environment that `cloze` sets; `asleep`, threads that always sleep while they wait;
`spinning`, the libraries' defaults without any variable; `one`, a single thread.
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

from benchmarks import measuring
from benchmarks.measuring import ROOT
from cloze.model.training.start import ALLOCATOR, KERNEL_CACHES

SETTINGS: dict[str, dict[str, str]] = {
    "ours": {},
    "asleep": {"OMP_WAIT_POLICY": "PASSIVE", "GOMP_SPINCOUNT": "0"},
    "spinning": {"OMP_WAIT_POLICY": "ACTIVE", "GOMP_SPINCOUNT": "30000000000"},
    "one": {},
}


def turn(setting: str, busy: int, arguments: argparse.Namespace, *, steps: int) -> float:
    """Real tokens/s of one run beside `busy` processes."""
    folder = Path(arguments.workspace)
    threads = "threads = 1\n" if setting == "one" else ""
    every = max(1, arguments.steps // 20)
    (folder / "machine.toml").write_text(f"[training]\nlog_every = {every}\n{threads}")
    # Lines of an earlier turn must not count.
    for log in folder.glob("*/jobs/pretrain/log"):
        log.unlink()
    # Without inherited variables, which would decide instead of the setting.
    inherited = {
        name: value
        for name, value in os.environ.items()
        if name not in {**ALLOCATOR, **KERNEL_CACHES} and not name.startswith(("OMP_", "GOMP_"))
    }
    loop = [sys.executable, "-c", "while True: pass"]
    others = [subprocess.Popen(loop, start_new_session=True) for _ in range(busy)]
    try:
        measuring.run_cloze(
            *("pretrain", arguments.config, "--workspace", str(folder)),
            *("--on", str(folder / "machine.toml"), "--set", f"pretrain.steps={steps}"),
            *itertools.chain.from_iterable(("--set", field) for field in arguments.set),
            env={**inherited, **SETTINGS[setting]},
        )
    finally:
        for other in others:
            other.kill()
            other.wait()
    (log,) = folder.glob("*/jobs/pretrain/log")
    logged = re.findall(r"tokens_per_s=([\d,]+)", log.read_text())
    rates = [float(rate.replace(",", "")) for rate in logged]
    return statistics.median(rates[1:] or rates)


def main() -> None:
    """Read the arguments, take turns, write."""
    parser = measuring.Arguments(__doc__, output="contention.json")
    parser.add_argument("--set", action="append", default=[], help="override, as for `cloze`")
    parser.add_options(settings=list(SETTINGS), busy=[0, 1, 2, 4], rounds=2, steps=400)
    parser.add_options(config="configs/demo.toml", workspace=str(ROOT / "runs" / "contention"))
    arguments = parser.parse_args()
    Path(arguments.workspace).mkdir(parents=True, exist_ok=True)
    # another number of steps each time, since a finished run would be reused
    steps = itertools.count(arguments.steps)
    rates = measuring.in_turns(
        itertools.product(arguments.busy, arguments.settings),
        lambda case: turn(case[1], case[0], arguments, steps=next(steps)),
        rounds=arguments.rounds,
    )
    found = {
        setting: {busy: rates[busy, setting] for busy in arguments.busy}
        for setting in arguments.settings
    }
    result = {"machine": measuring.machine(), "tokens_per_second": found}
    measuring.write_result(arguments.output, result)
    rows = [
        [setting, *(f"{statistics.median(values):,.0f}" for values in by_busy.values())]
        for setting, by_busy in found.items()
    ]
    print(measuring.markdown(["real tokens/s beside", *map(str, arguments.busy)], rows))


if __name__ == "__main__":
    main()
