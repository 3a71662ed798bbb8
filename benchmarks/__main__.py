"""The benchmarks that need nothing but this project, one after the other: what `make bench` runs.

    python -m benchmarks [--only training race …] [--tiny] [--output runs/bench]

In:  nothing: text and vocabulary are the demo's, from the docstrings of installed packages.
Out: one JSON file a benchmark, and the race's plot, in the output folder; each command is printed,
     so that it can be repeated alone. The figures in docs/benchmarks.md were measured on more text
     and against more peers; their commands stand there.
"""

import argparse
import json
import os
import shlex
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from artifacts.config import parse, read_toml
from artifacts.store import Artifact, open_artifact
from benchmarks.corpus import write_corpus
from benchmarks.cpu_training import BEST
from benchmarks.measuring import ROOT
from flows.config import RunConfig


@dataclass(frozen=True)
class Scale:
    """How much is measured."""

    config: Path
    """The run whose text, vocabulary and examples are used."""
    small_megabytes: float
    large_megabytes: float
    repeats: int
    training: tuple[str, ...]
    """Options of `cpu_training.py`."""
    race: tuple[str, ...]
    """Options of `race.py`."""


FULL = Scale(
    config=ROOT / "configs" / "demo.toml",
    small_megabytes=8.0,
    large_megabytes=24.0,
    repeats=3,
    training=("--presets", "mini", "--rounds", "3"),
    race=("--preset", "mini", "--steps", "600"),
)
TINY = Scale(
    config=ROOT / "configs" / "smoke.toml",
    small_megabytes=0.2,
    large_megabytes=3.0,
    repeats=1,
    training=(
        *("--presets", "tiny", "--sides", "ours", "deepspeed", BEST[0]),
        *("--rounds", "1", "--batch-size", "8"),
    ),
    race=("--preset", "tiny", "--steps", "24", "--batch-size", "8", "--max-seq-length", "64"),
)
"""Every program runs, no figure means anything."""


@dataclass(frozen=True)
class Inputs:
    """What the programs are given."""

    small: str
    large: str
    """Text, one sentence a line."""
    vocabulary: str
    examples: str
    """Directory of the artifact."""


def commands(inputs: Inputs, scale: Scale, output: Path) -> dict[str, list[str]]:
    """By name: the program under benchmarks/ and its arguments."""

    def kept(name: str) -> tuple[str, str]:
        return "--output", str(output / f"{name}.json")

    cores = str(len(os.sched_getaffinity(0)))
    return {
        "tokenization": [
            *("preparing/tokenizer_speed.py", "--corpus", inputs.large),
            *("--vocabulary", inputs.vocabulary, *kept("tokenization")),
        ],
        "preparation": [
            *("preparing/preparation.py", "--vocabulary", inputs.vocabulary),
            *("--small", inputs.small, "--large", inputs.large),
            *("--repeats", str(scale.repeats), *kept("preparation")),
        ],
        "loader": [
            *("preparing/loader.py", "--examples", inputs.examples),
            *("--max-seq-length", str(longest(inputs.examples)), *kept("loader")),
        ],
        "training": [
            *("cpu_training.py", *scale.training),
            *("--out", str(output / "cpu_training.json")),
        ],
        "race": [
            *("race.py", "--examples", inputs.examples, *scale.race),
            *("--threads", cores, *kept("race")),
        ],
    }


NAMES = ("tokenization", "preparation", "loader", "training", "race")


def longest(examples: str) -> int:
    """The longest sequences of an examples artifact."""
    return max(map(int, open_artifact(examples).manifest.statistics["splits"]["train"]))


def make_inputs(scale: Scale, output: Path) -> Inputs:
    """Examples and vocabulary by the real stages; text from the same sources."""
    examples = prepared(scale.config, output)
    corpus = parse(RunConfig, read_toml(scale.config), source=scale.config).corpus
    texts = {}
    for name, megabytes in (("small", scale.small_megabytes), ("large", scale.large_megabytes)):
        texts[name] = str(output / f"{name}.txt")
        write_corpus(corpus, megabytes=megabytes, output=texts[name])
    vocabulary = output / "vocab.txt"
    vocabulary.write_bytes(examples.read_bytes("vocab.txt"))
    return Inputs(**texts, vocabulary=str(vocabulary), examples=examples.directory)


def prepared(config: Path, output: Path) -> Artifact:
    """The examples of a configuration, made or reused."""
    command = ["-P", "-c", "from cloze.command import main; main()", "examples", str(config)]
    done = subprocess.run(
        [sys.executable, *command, "--workspace", str(output / "workspace"), "--json"],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    return open_artifact(json.loads(done.stdout)["examples"]["directory"])


def run(name: str, arguments: Sequence[str]) -> int:
    """Run one program; returns its exit code."""
    program, *options = arguments
    command = [sys.executable, str(Path("benchmarks") / program), *options]
    print(f"\n== {name}\n{shlex.join(command)}", flush=True)
    return subprocess.run(command, cwd=ROOT, check=False).returncode


def main() -> int:
    """Make the inputs, run each benchmark; one that fails does not stop the others."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", nargs="+", default=NAMES, choices=NAMES, metavar="NAME")
    parser.add_argument("--tiny", action="store_true", help="only whether everything runs")
    parser.add_argument("--output", type=Path, default=ROOT / "runs" / "bench")
    arguments = parser.parse_args()
    scale, output = TINY if arguments.tiny else FULL, arguments.output.resolve()
    output.mkdir(parents=True, exist_ok=True)
    chosen = commands(make_inputs(scale, output), scale, output)
    failed = [name for name in arguments.only if run(name, chosen[name])]
    print(f"\nresults in {output}" + (f"; failed: {', '.join(failed)}" if failed else ""))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
