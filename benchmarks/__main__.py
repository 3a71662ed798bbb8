"""The benchmarks that need nothing but this project, one after another: `make bench`.

    python -m benchmarks [--only training race …] [--tiny] [--output runs/bench]

In:  nothing: text and vocabulary are the demo's, from the docstrings of installed packages.
Out: one JSON file per benchmark, and the race's plot, in the output folder. Each command is
     printed, so that it can be repeated on its own. The figures in docs/benchmarks.md were measured
     on more text and against more peers; their commands are given there.
"""

import json
import os
import shlex
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.corpus import write_corpus
from benchmarks.measuring import PRECISION, ROOT, Arguments, flags, run_cloze
from cloze.artifacts.config import parse, read_toml
from cloze.artifacts.store import open_artifact
from cloze.flows.config import RunConfig


@dataclass(frozen=True)
class Scale:
    """How much is measured."""

    config: str
    """The run whose text, vocabulary and examples are used."""
    megabytes: tuple[float, float]
    """Sizes of the small and the large text."""
    repeats: int
    training: str
    """Options of `training/cpu_training.py`."""
    race: str
    """Options of `race.py`."""


FULL = Scale(
    config="configs/demo.toml",
    megabytes=(8.0, 24.0),
    repeats=3,
    training="--presets mini --rounds 3",
    race="--preset mini --steps 600",
)
TINY = Scale(
    config="configs/smoke.toml",
    megabytes=(0.2, 3.0),
    repeats=1,
    training=f"--presets tiny --sides ours huggingface_{PRECISION} --rounds 1 --batch-size 8",
    race="--preset tiny --steps 24 --batch-size 8 --max-seq-length 64",
)
"""A smoke test: every program runs, no figure means anything."""

NAMES = ("tokenization", "preparation", "loader", "training", "race")


def commands(scale: Scale, output: Path) -> dict[str, list[str]]:
    """Make the inputs; return each benchmark's program under benchmarks/ with its arguments."""
    config, workspace = ROOT / scale.config, str(output / "workspace")
    made = run_cloze("examples", str(config), "--workspace", workspace, "--json")
    examples = open_artifact(json.loads(made)["examples"]["directory"])
    vocabulary = output / "vocab.txt"
    vocabulary.write_bytes(examples.read_bytes("vocab.txt"))
    corpus = parse(RunConfig, read_toml(config), source=config).corpus
    small, large = (str(output / f"{name}.txt") for name in ("small", "large"))
    for text, megabytes in zip((small, large), scale.megabytes, strict=True):
        write_corpus(corpus, megabytes=megabytes, output=text)
    longest = max(map(int, examples.manifest.statistics["splits"]["train"]))
    cores = len(os.sched_getaffinity(0))
    found = {
        "tokenization": [
            "preparing/tokenizer_speed.py",
            *flags(corpus=large, vocabulary=vocabulary),
        ],
        "preparation": [
            "preparing/preparation.py",
            *flags(vocabulary=vocabulary, small=small, large=large, repeats=scale.repeats),
        ],
        "loader": [
            "preparing/loader.py",
            *flags(examples=examples.directory, max_seq_length=longest),
        ],
        "training": ["training/cpu_training.py", *scale.training.split()],
        "race": [
            "race.py",
            *flags(examples=examples.directory, threads=cores),
            *scale.race.split(),
        ],
    }
    files = {"training": "cpu_training"}
    return {
        name: [*command, *flags(output=output / f"{files.get(name, name)}.json")]
        for name, command in found.items()
    }


def run(name: str, arguments: Sequence[str]) -> int:
    """Run one program; returns its exit code."""
    program, *options = arguments
    command = [sys.executable, str(Path("benchmarks") / program), *options]
    print(f"\n== {name}\n{shlex.join(command)}", flush=True)
    return subprocess.run(command, cwd=ROOT, check=False).returncode


def main() -> int:
    """Make the inputs, run each benchmark; one that fails does not stop the others."""
    parser = Arguments(__doc__)
    parser.add_argument("--only", nargs="+", default=NAMES, choices=NAMES, metavar="NAME")
    parser.add_argument("--tiny", action="store_true", help="a smoke test on tiny inputs")
    parser.add_argument("--output", type=Path, default=ROOT / "runs" / "bench")
    arguments = parser.parse_args()
    scale, output = TINY if arguments.tiny else FULL, arguments.output.resolve()
    output.mkdir(parents=True, exist_ok=True)
    chosen = commands(scale, output)
    failed = [name for name in arguments.only if run(name, chosen[name])]
    print(f"\nresults in {output}" + (f"; failed: {', '.join(failed)}" if failed else ""))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
