r"""Text in, verified shards out: ours and the peers', side by side on the same cores.

    python benchmarks/corpus.py --wikiextractor FOLDER --megabytes 75 --output w75.txt
    python benchmarks/preparation.py --vocabulary vocab.txt --small w10.txt \
        --large w75.txt w150.txt --google CHECKOUT --google-python PYTHON \
        --lddl CHECKOUT --lddl-python PYTHON --huggingface

Corpora are in Google's format: the sentences are given. The peers, which take minutes for what we
do in seconds, read the small one; they are timed without their imports, ours with everything. A
peer that is not named is left out, and said to be.
"""

import argparse
import shutil
import statistics
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from measuring import ROOT, machine, measure, write_result
from stages import Prepared, Setting, prepare

PEERS = ROOT / "benchmarks" / "peers"
Run = Callable[[str, int, str, Path], dict[str, Any]]


def ours(setting: Setting) -> dict[str, Any]:
    """One preparation in a workspace of its own."""
    with tempfile.TemporaryDirectory(prefix="cloze-bench-") as workspace:
        return _rates(prepare(setting, Path(workspace)), setting)


def google(arguments: argparse.Namespace) -> Run:
    """create_pretraining_data.py; on several cores one process and one shard of the corpus each."""

    def run(corpus: str, workers: int, cores: str, workspace: Path) -> dict[str, Any]:
        command = [
            arguments.google_python,
            str(PEERS / "google_bert.py"),
            arguments.google,
            f"--input_file={corpus}",
            f"--output_file={workspace}/google.tfrecord",
            f"--vocab_file={arguments.vocabulary}",
            "--dupe_factor=1",
        ]
        took = measure(command, cores=cores)
        size = (workspace / "google.tfrecord").stat().st_size
        return {**asdict(took), **took.said, "bytes": size}

    return run


def lddl(arguments: argparse.Namespace, *, sentences: str) -> Run:
    """LDDL with static masks."""

    def run(corpus: str, workers: int, cores: str, workspace: Path) -> dict[str, Any]:
        command = [
            arguments.lddl_python,
            str(PEERS / "lddl_bert.py"),
            arguments.lddl,
            str(workers),
            corpus,
            arguments.vocabulary,
            str(workspace / "lddl"),
            sentences,
        ]
        took = measure(command, cores=cores)
        return {**asdict(took), **took.said}

    return run


def huggingface(arguments: argparse.Namespace) -> Run:
    """datasets.map and the masking collator."""

    def run(corpus: str, workers: int, cores: str, workspace: Path) -> dict[str, Any]:
        command = [
            sys.executable,
            str(PEERS / "huggingface.py"),
            str(workers),
            corpus,
            arguments.vocabulary,
            str(workspace / "blocks"),
            "128",
        ]
        cache = {"HF_HOME": str(workspace), "HF_HUB_OFFLINE": "1"}
        took = measure(command, cores=cores, env=cache)
        size = sum(file.stat().st_size for file in (workspace / "blocks").rglob("*.arrow"))
        return {**asdict(took), **took.said, "bytes": size}

    return run


def peers(arguments: argparse.Namespace) -> Iterator[tuple[str, Run, tuple[int, ...]]]:
    """The peers that are here, with the numbers of workers each can use by itself."""
    if arguments.google:
        yield "google", google(arguments), (1,)
    if arguments.lddl:
        yield "lddl, sentences given", lddl(arguments, sentences="given"), (1, 2)
        yield "lddl, with its segmentation", lddl(arguments, sentences="segmented"), (1, 2)
    if arguments.huggingface:
        yield "huggingface", huggingface(arguments), (1, 2)
    for name in ("google", "lddl", "huggingface"):
        if not getattr(arguments, name):
            print(f"{name} is not measured: --{name} was not given")


def measure_peers(arguments: argparse.Namespace) -> dict[str, Any]:
    """Each peer on the small corpus, ours on the same one before each of them."""
    megabytes = Path(arguments.small).stat().st_size / 1e6
    results: dict[str, Any] = {}
    for name, run, workers in peers(arguments):
        for count in workers:
            cores = "0" if count == 1 else f"0-{count - 1}"
            runs = []
            for _ in range(arguments.repeats):
                with tempfile.TemporaryDirectory(prefix="cloze-bench-") as workspace:
                    runs.append(run(arguments.small, count, cores, Path(workspace)))
            results[f"{name}, {count} workers"] = _peer_rates(runs, megabytes)
            _print(f"{name}, {count} workers", results[f"{name}, {count} workers"])
    return results


def measure_ours(arguments: argparse.Namespace) -> dict[str, Any]:
    """Every corpus on one and on two cores, under Beam and in a plain loop."""
    results: dict[str, Any] = {}
    for corpus in (arguments.small, *arguments.large):
        base = Setting(corpus=corpus, vocabulary=arguments.vocabulary)
        settings = {
            "1 worker": base,
            "2 workers": replace(base, workers=2, cores="0-1"),
            "1 worker, plain loop": replace(base, driver="plain"),
            "2 workers, plain loop": replace(base, workers=2, cores="0-1", driver="plain"),
        }
        if corpus == arguments.large[0]:
            settings |= {
                "1 worker, 128 and 512": replace(base, max_seq_lengths=(128, 512)),
                "1 worker, 5 copies": replace(base, copies=5),
            }
        for name, setting in settings.items():
            runs = [ours(setting) for _ in range(arguments.repeats)]
            label = f"{Path(corpus).stem}, {name}"
            results[label] = _median(runs)
            _print(label, results[label])
    return results


def _rates(prepared: Prepared, setting: Setting) -> dict[str, Any]:
    plain = setting.driver == "plain"  # counts from after the imports
    parts = (prepared.tokens, prepared.examples)
    wall = sum(part.said["wall"] if plain else part.wall for part in parts)
    cpu = sum(part.said["cpu"] if plain else part.cpu for part in parts)
    megabytes = Path(setting.corpus).stat().st_size / 1e6
    return {
        "megabytes": megabytes,
        "wall": wall,
        "cpu": cpu,
        "tokens_cpu": prepared.tokens.cpu,
        "examples_cpu": prepared.examples.cpu,
        "mb_per_second": megabytes / wall,
        "mb_per_cpu_second": megabytes / cpu,
        "examples": prepared.rows,
        "examples_per_second": prepared.rows / wall,
        "bytes_per_example": prepared.bytes / prepared.rows,
        "peak_pss_mb": prepared.peak_pss,
        "digest": prepared.digest[:12],
    }


def _peer_rates(runs: list[dict[str, Any]], megabytes: float) -> dict[str, Any]:
    middle = _median(runs)
    return {
        "megabytes": megabytes,
        "seconds_without_imports": middle["seconds"],
        "cpu": middle["cpu"],
        "mb_per_second": megabytes / middle["seconds"],
        "mb_per_cpu_second": megabytes / middle["cpu"],
        "examples_per_second": middle["examples"] / middle["seconds"],
        "bytes_per_example": middle["bytes"] / middle["examples"],
        "peak_pss_mb": middle["peak_pss"],
    }


def _median(runs: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        name: statistics.median(run[name] for run in runs) if isinstance(value, float) else value
        for name, value in runs[0].items()
    }


def _print(label: str, result: dict[str, Any]) -> None:
    print(
        f"{label:42} {result['mb_per_second']:8.2f} MB/s "
        f"{result['mb_per_cpu_second']:8.2f} MB/cpu-s "
        f"{result['examples_per_second']:10,.0f} examples/s {result['bytes_per_example']:5.0f} B "
        f"{result['peak_pss_mb']:6.0f} MB",
        flush=True,
    )


def main() -> None:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--vocabulary", required=True, help="Google's vocab.txt")
    parser.add_argument("--small", required=True, help="the corpus the peers read, too")
    parser.add_argument("--large", nargs="+", required=True, help="larger ones, for ours alone")
    parser.add_argument("--google", default="", help="checkout of google-research/bert")
    parser.add_argument("--google-python", default=sys.executable, help="one with TensorFlow")
    parser.add_argument("--lddl", default="", help="checkout of NVIDIA/LDDL")
    parser.add_argument("--lddl-python", default=sys.executable, help="one with LDDL's packages")
    parser.add_argument("--huggingface", action="store_true", help="datasets and transformers")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--output", default="benchmarks/results/preparation.json")
    arguments = parser.parse_args()
    if not shutil.which("taskset"):
        sys.exit("taskset is missing (util-linux): without it the cores cannot be pinned")
    result = {
        "machine": machine(),
        "peers": measure_peers(arguments),
        "ours": measure_ours(arguments),
    }
    write_result(arguments.output, result)


if __name__ == "__main__":
    main()
