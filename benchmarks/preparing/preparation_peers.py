"""The peers of the preparation benchmark: each a program of its own, timed without its imports.

In:  checkouts and interpreters, a corpus in Google's format, numbers of workers and cores.
Out: for each run its seconds, processor time, memory, examples and bytes.
"""

import sys
from argparse import Namespace
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from pydantic import TypeAdapter

from benchmarks.measuring import ROOT, measure

PROGRAMS = ROOT / "benchmarks" / "peers"
NAMES = ("google", "lddl", "huggingface")


@dataclass(frozen=True)
class Taken:
    """What a peer took and made: the line its program prints, and its processor time."""

    seconds: float
    """Without imports and counting."""
    whole_cpu: float
    cpu_aside: float
    """Seconds of processor time for imports and counting."""
    examples: int
    bytes: int = 0
    """0 until its files are looked at, if its program does not say it."""

    @property
    def cpu(self) -> float:
        """Seconds of processor time without imports and counting."""
        return self.whole_cpu - self.cpu_aside


Run = Callable[[str, int, str, Path], Taken]
"""Corpus, workers, cores (as `taskset -c` takes them), an empty folder → what it took."""


@dataclass(frozen=True)
class Peer:
    """One way of a peer to prepare a corpus."""

    name: str
    run: Run
    workers: tuple[int, ...] = (1, 2)
    """The numbers of workers it can use by itself."""


def peers(arguments: Namespace) -> Iterator[Peer]:
    """The peers that are here; the others are said to be missing."""
    if arguments.google:
        yield Peer("google", google(arguments), workers=(1,))
    if arguments.lddl:
        yield Peer("lddl, sentences given", lddl(arguments, sentences="given"))
        yield Peer("lddl, with its segmentation", lddl(arguments, sentences="segmented"))
    if arguments.huggingface:
        yield Peer("huggingface", huggingface(arguments))
    for name in NAMES:
        if not getattr(arguments, name):
            print(f"{name} is not measured: --{name} was not given")


def google(arguments: Namespace) -> Run:
    """create_pretraining_data.py, one process; it has no way to use two cores."""

    def run(corpus: str, workers: int, cores: str, workspace: Path) -> Taken:
        target = workspace / "google.tfrecord"
        command = [
            *(arguments.google_python, str(PROGRAMS / "google_bert.py"), arguments.google),
            *(f"--input_file={corpus}", f"--output_file={target}"),
            *(f"--vocab_file={arguments.vocabulary}", "--dupe_factor=1"),
        ]
        took = _measured(command, cores=cores, workspace=workspace)
        return replace(took, bytes=target.stat().st_size)

    return run


def lddl(arguments: Namespace, *, sentences: str) -> Run:
    """LDDL with static masks; `sentences` are given, or segmented by NLTK."""

    def run(corpus: str, workers: int, cores: str, workspace: Path) -> Taken:
        command = [
            *(arguments.lddl_python, str(PROGRAMS / "lddl_bert.py"), arguments.lddl),
            *(str(workers), corpus, arguments.vocabulary, str(workspace / "lddl"), sentences),
        ]
        return _measured(command, cores=cores, workspace=workspace)

    return run


def huggingface(arguments: Namespace) -> Run:
    """datasets.map and the masking collator."""

    def run(corpus: str, workers: int, cores: str, workspace: Path) -> Taken:
        blocks = workspace / "blocks"
        command = [
            *(sys.executable, str(PROGRAMS / "huggingface.py"), str(workers), corpus),
            *(arguments.vocabulary, str(blocks), "128"),
        ]
        took = _measured(command, cores=cores, workspace=workspace)
        return replace(took, bytes=sum(file.stat().st_size for file in blocks.rglob("*.arrow")))

    return run


def _measured(command: list[str], *, cores: str, workspace: Path) -> Taken:
    alone = {"OMP_NUM_THREADS": "1", "HF_HOME": str(workspace), "HF_HUB_OFFLINE": "1"}
    took = measure(command, cores=cores, cwd=workspace, env=alone)
    return TypeAdapter(Taken).validate_python({**took.said, "whole_cpu": took.cpu})
