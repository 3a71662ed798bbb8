"""What starting costs: commands beside the import of torch, a run with Prefect beside one without.

    python benchmarks/startup.py [--rounds 3] [--earlier ../before/.venv/bin/python]

In:  this installation, and with --earlier the Python of another one, an earlier state of the
     project, which takes part in the same turns.
Out: benchmarks/results/startup.json, under --name: medians of processor time over all processes,
     and of wall-clock time; their ratios, and the shares of the earlier state. Also as tables on
     standard output.

Nearly all of what the smoke configuration takes is imports. On a busy machine only processor time
can be compared. Bytecode is written in the first turn, which does not count.
"""

import os
import statistics
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks import measuring
from benchmarks.measuring import ROOT, Measurement

CONFIG = "configs/smoke.toml"
RATIOS = {
    "load": ("load", "torch"),
    "fill-mask": ("fill-mask", "torch"),
    "nothing to do": ("nothing to do", "plan"),
    "with Prefect": ("smoke", "smoke without Prefect"),
}
"""Each command beside what it is measured against."""


@dataclass(frozen=True)
class Side:
    """An installation."""

    name: str
    python: str
    root: Path
    """The checkout whose configuration it reads."""
    workspace: Path
    """Where its smoke run has finished."""

    def command(self, case: str, folder: Path) -> list[str]:
        """The command line of a case; runs that make everything do it in `folder`."""
        cloze = [self.python, "-P", "-m", "cloze"]
        finished = ["--workspace", str(self.workspace)]
        fresh = ["--workspace", str(folder / "workspace")]
        loading = f"import cloze; cloze.load('smoke', workspace={str(self.workspace)!r})"
        return {
            "torch": [self.python, "-c", "import torch"],
            "load": [self.python, "-c", loading],
            "fill-mask": [*cloze, "fill-mask", "smoke", "a [MASK].", *finished],
            "plan": [*cloze, "plan", CONFIG, *finished],
            "nothing to do": [*cloze, "run", CONFIG, *finished],
            "smoke": [*cloze, "run", CONFIG, *fresh],
            "smoke without Prefect": [*cloze, "run", CONFIG, "--without-prefect", *fresh],
        }[case]

    def measure(self, case: str) -> Measurement:
        """One turn, on all cores."""
        cores = ",".join(map(str, sorted(os.sched_getaffinity(0))))
        with tempfile.TemporaryDirectory() as folder:
            command = self.command(case, Path(folder))
            return measuring.measure(command, cores=cores, cwd=self.root)


def shares(of: Mapping[str, float]) -> dict[str, float]:
    """The ratios of one installation's medians."""
    return {name: round(of[case] / of[beside], 2) for name, (case, beside) in RATIOS.items()}


def main() -> None:
    """Measure and write the result."""
    parser = measuring.Arguments(
        __doc__, output="startup.json", rounds=3, earlier="", name="measured"
    )
    arguments = parser.parse_args()
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    result: dict[str, object] = {"machine": measuring.machine(), "rounds": arguments.rounds}
    names = list(dict.fromkeys(name for pair in RATIOS.values() for name in pair))
    with tempfile.TemporaryDirectory() as kept:
        sides = [Side("now", sys.executable, ROOT, Path(kept) / "now")]
        if arguments.earlier:
            # The path as it was given: resolved, it would be the interpreter outside.
            python = Path(os.path.abspath(arguments.earlier))
            sides.append(Side("earlier", str(python), python.parents[2], Path(kept) / "earlier"))
        for side in sides:
            side.measure("nothing to do")  # this once, it has everything to do
        cases = {f"{case}, {side.name}": (side, case) for case in names for side in sides}
        found = measuring.in_turns(
            cases, lambda label: Side.measure(*cases[label]), rounds=arguments.rounds
        )
    for clock, field in (("processor", "cpu"), ("wall", "wall")):
        medians: dict[str, dict[str, float]] = {side.name: {} for side in sides}
        for label, (side, case) in cases.items():
            medians[side.name][case] = statistics.median(getattr(m, field) for m in found[label])
        now = medians["now"]
        columns = {
            side: {c: round(took, 2) for c, took in of.items()} for side, of in medians.items()
        }
        compared = {side: shares(of) for side, of in medians.items()}
        if arguments.earlier:
            columns["now / earlier"] = {c: round(now[c] / medians["earlier"][c], 2) for c in now}
        result[clock] = {"seconds": columns, "ratios": compared}
        rows = [(case, *(of[case] for of in columns.values())) for case in names]
        print(measuring.markdown((f"{clock} seconds", *columns), rows), end="\n\n")
        rows = [
            (" / ".join(pair), *(of[name] for of in compared.values()))
            for name, pair in RATIOS.items()
        ]
        print(measuring.markdown((f"{clock} ratios", *compared), rows), end="\n\n")
    measuring.add_result(arguments.output, arguments.name, result)


if __name__ == "__main__":
    main()
