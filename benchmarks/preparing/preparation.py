r"""Text in, verified shards out: ours and the peers', side by side on the same cores.

    python benchmarks/corpus.py --wikiextractor FOLDER --megabytes 75 --output w75.txt
    python benchmarks/preparing/preparation.py --vocabulary vocab.txt --small w10.txt \
        --large w75.txt w150.txt --sizes w400.txt --paragraphs FOLDER --small-files 100000 \
        --google CHECKOUT --google-python PYTHON \
        --lddl CHECKOUT --lddl-python PYTHON --huggingface

Corpora are in Google's format: the sentences are given. The peers are timed without their imports,
ours with everything. A peer that is not named is left out, and said to be. `--parts` measures some
parts only; the others stay in the result as they are, each with its date, commit and load.
"""

import argparse
import json
import shutil
import statistics
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import cast

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from artifacts.stage import InputRef, StageTable, write_stage_table
from artifacts.store import Artifact, open_artifact
from benchmarks.corpus import wikiextractor, write_corpus
from benchmarks.measuring import ROOT, Measurement, machine, measure, write_result
from benchmarks.preparing.preparation_claims import Figures, claims
from benchmarks.preparing.preparation_peers import Peer, peers

SEED = 1

Labelled = Iterator[tuple[str, Figures]]
Part = Callable[[argparse.Namespace], Labelled]


@dataclass(frozen=True)
class Setting:
    """One way to prepare a corpus."""

    corpus: str
    vocabulary: str
    workers: int = 1
    cores: str = "0"
    mode: str = "processes"
    max_seq_lengths: tuple[int, ...] = (128,)
    copies: int = 1
    reader: str = "sentence_lines"
    driver: str = "beam"
    """`beam`, or `plain`: the same functions in a multiprocessing loop."""
    memory: bool = False
    """Whether to look at the memory."""


def measure_peers(arguments: argparse.Namespace) -> Labelled:
    """Each peer on the small corpus, and ours on the same one."""
    for peer in peers(arguments):
        for workers in peer.workers:
            runs = [_peer_run(peer, arguments.small, workers) for _ in range(arguments.repeats)]
            yield f"{peer.name}, {workers} workers", _median(runs)
    base = Setting(corpus=arguments.small, vocabulary=arguments.vocabulary)
    settings = {
        "ours, 1 workers": base,
        "ours, 2 workers": replace(base, workers=2, cores="0-1"),
    }
    yield from _in_turns(settings, arguments)


def measure_peers_at_length(arguments: argparse.Namespace) -> Labelled:
    """Each peer once on the largest corpus, on one core, and ours between them."""
    corpus = arguments.large[-1]
    base = Setting(corpus=corpus, vocabulary=arguments.vocabulary)
    for peer in peers(arguments):
        yield f"{peer.name}, 1 workers", _peer_run(peer, corpus, 1)
        yield f"ours after {peer.name}, 1 workers", _run(base)


def measure_drivers(arguments: argparse.Namespace) -> Labelled:
    """The large corpora on one and on two cores, under Beam and in a plain loop."""
    for corpus in arguments.large:
        settings = {}
        for workers, cores in ((1, "0"), (2, "0-1")):
            setting = Setting(corpus, arguments.vocabulary, workers=workers, cores=cores)
            label = f"{_megabytes(corpus):.0f} MB, {workers} workers"
            settings[label] = setting
            settings[f"{label}, plain loop"] = replace(setting, driver="plain")
        yield from _in_turns(settings, arguments)


def measure_sizes(arguments: argparse.Namespace) -> Labelled:
    """The small corpus and the largest ones: whether time grows as text does."""
    settings = {
        f"{_megabytes(corpus):.0f} MB, 2 workers": Setting(
            corpus, arguments.vocabulary, workers=2, cores="0-1"
        )
        for corpus in (arguments.small, *arguments.sizes)
    }
    yield from _in_turns(settings, arguments)


def measure_memory(arguments: argparse.Namespace) -> Labelled:
    """The largest corpus, looked at while it is prepared."""
    for corpus in arguments.sizes[-1:]:
        setting = Setting(
            corpus=corpus, vocabulary=arguments.vocabulary, workers=2, cores="0-1", memory=True
        )
        yield f"{_megabytes(corpus):.0f} MB, 2 workers", _run(setting)


def measure_start_up(arguments: argparse.Namespace) -> Labelled:
    """A corpus of a few documents: what is left is start-up."""
    with tempfile.TemporaryDirectory(prefix="cloze-bench-") as scratch:
        corpus = Path(scratch) / "few.txt"
        with open(arguments.small, "rb") as file:
            corpus.write_bytes(b"".join(islice(file, 500)))
        base = Setting(corpus=str(corpus), vocabulary=arguments.vocabulary)
        settings = {"1 workers": base, "2 workers": replace(base, workers=2, cores="0-1")}
        yield from _in_turns(settings, arguments)


def measure_lengths_and_copies(arguments: argparse.Namespace) -> Labelled:
    """What a second length and further copies add."""
    base = Setting(corpus=arguments.large[0], vocabulary=arguments.vocabulary)
    settings = {
        "128, 1 copy": base,
        "128 and 512, 1 copy": replace(base, max_seq_lengths=(128, 512)),
        "128, 5 copies": replace(base, copies=5),
    }
    yield from _in_turns(settings, arguments)


def measure_paragraphs(arguments: argparse.Namespace) -> Labelled:
    """The same documents with sentences given, and as paragraphs to be cut into sentences."""
    with tempfile.TemporaryDirectory(prefix="cloze-bench-") as scratch:
        given = str(Path(scratch) / "given.txt")
        write_corpus(wikiextractor(arguments.paragraphs), megabytes=1e9, output=given)
        base = Setting(corpus=given, vocabulary=arguments.vocabulary)
        raw = replace(base, corpus=arguments.paragraphs, reader="wikiextractor")
        yield from _in_turns({"sentences given": base, "paragraphs": raw}, arguments)


def measure_small_files(arguments: argparse.Namespace) -> Labelled:
    """The corpus in a great many files of one document each."""
    with tempfile.TemporaryDirectory(prefix="cloze-bench-") as scratch:
        text = Path(arguments.large[-1]).read_text(encoding="utf-8")
        for number, document in enumerate(text.split("\n\n")[: arguments.small_files]):
            folder = Path(scratch) / f"{number // 1000:04}"
            folder.mkdir(exist_ok=True)
            (folder / f"{number:07}.txt").write_text(document, encoding="utf-8")
        setting = Setting(
            corpus=scratch,
            vocabulary=arguments.vocabulary,
            workers=2,
            cores="0-1",
            reader="text",
        )
        yield f"{number + 1} files, 2 workers", _run(setting)


PARTS: dict[str, tuple[Part, str]] = {
    "peers": (measure_peers, ""),
    "peers at length": (measure_peers_at_length, ""),
    "drivers": (measure_drivers, ""),
    "start-up": (measure_start_up, ""),
    "lengths and copies": (measure_lengths_and_copies, ""),
    "sizes": (measure_sizes, "sizes"),
    "memory": (measure_memory, "sizes"),
    "paragraphs": (measure_paragraphs, "paragraphs"),
    "small files": (measure_small_files, "small_files"),
}
"""By name: what measures it, and the option without which it is left out."""


def _run(setting: Setting) -> Figures:
    """One preparation in a workspace of its own: text in, verified shards out."""
    sources = [{"reader": setting.reader, "path": setting.corpus}]
    corpus = {"sources": sources, "heldout_share": 0.0}
    words = {"seed": SEED, "corpus": corpus, "cleaning": {}}
    given = {**words, "vocabulary": {"path": setting.vocabulary}}
    form = {"max_seq_lengths": setting.max_seq_lengths, "copies": setting.copies}
    with tempfile.TemporaryDirectory(prefix="cloze-bench-") as workspace:
        run = partial(_run_stage, setting, Path(workspace))
        vocabulary, _ = run("vocabulary", given, {})
        tokens, of_tokens = run("tokens", words, {"vocabulary": vocabulary})
        examples, of_examples = run(
            "examples", {"seed": SEED, "examples": form}, {"tokens": tokens}
        )
    shards = [entry for entry in examples.manifest.files if entry.name.endswith(".arrow")]
    rows = sum(entry.rows or 0 for entry in shards)
    wall, cpu = of_tokens.wall + of_examples.wall, of_tokens.cpu + of_examples.cpu
    megabytes = _megabytes(setting.corpus)
    figures: Figures = {
        "megabytes": megabytes,
        "wall": wall,
        "cpu": cpu,
        "tokens_cpu": of_tokens.cpu,
        "examples_cpu": of_examples.cpu,
        "mb_per_second": megabytes / wall,
        "mb_per_cpu_second": megabytes / cpu,
        "examples": rows,
        "examples_per_second": rows / wall,
        "bytes_per_example": sum(entry.size for entry in shards) / rows,
        "digest": examples.digest[:12],
    }
    peaks = [took.peak_pss for took in (of_tokens, of_examples) if took.peak_pss]
    if peaks:
        figures["peak_pss_mb"] = max(peaks)
    return figures


def _run_stage(
    setting: Setting,
    workspace: Path,
    stage: str,
    config: dict[str, object],
    inputs: dict[str, Artifact],
) -> tuple[Artifact, Measurement]:
    """One stage as a user runs it: a program of its own, on given cores."""
    output = workspace / stage
    table = StageTable(
        stage=stage,
        format_version=1,
        config=config,
        inputs={
            role: InputRef(digest=artifact.digest, path=artifact.directory)
            for role, artifact in inputs.items()
        },
        output=str(output),
        machine={"workers": setting.workers, "worker_mode": setting.mode},
    )
    path = workspace / f"{stage}.json"
    write_stage_table(table, path)
    program = ["-m", f"pipeline.{stage}"]
    if setting.driver == "plain" and stage != "vocabulary":
        program = [str(ROOT / "benchmarks/preparing/plain_driver.py"), stage]
    command = [sys.executable, *program, "--config", str(path)]
    took = measure(command, cores=setting.cores, memory=setting.memory)
    return open_artifact(str(output)), took


def _in_turns(settings: dict[str, Setting], arguments: argparse.Namespace) -> Labelled:
    """Medians of rounds in which each is run once: a machine is faster at one time than another."""
    rounds = [[_run(each) for each in settings.values()] for _ in range(arguments.repeats)]
    for label, *runs in zip(settings, *rounds, strict=True):
        yield label, _median(runs)


def _peer_run(peer: Peer, corpus: str, workers: int) -> Figures:
    cores = "0" if workers == 1 else f"0-{workers - 1}"
    with tempfile.TemporaryDirectory(prefix="cloze-bench-") as workspace:
        took = peer.run(corpus, workers, cores, Path(workspace))
    megabytes = _megabytes(corpus)
    return {
        "megabytes": megabytes,
        "seconds_without_imports": took.seconds,
        "cpu_without_imports": took.cpu,
        "mb_per_second": megabytes / took.seconds,
        "mb_per_cpu_second": megabytes / took.cpu,
        "examples_per_second": took.examples / took.seconds,
        "bytes_per_example": took.bytes / took.examples,
    }


def _megabytes(corpus: str) -> float:
    path = Path(corpus)
    files = path.rglob("*") if path.is_dir() else [path]
    return sum(file.stat().st_size for file in files if file.is_file()) / 1e6


def _median(runs: Sequence[Figures]) -> Figures:
    """Of what is measured; what is counted or named is the same in every run."""
    measured = [
        {name: value for name, value in run.items() if isinstance(value, float)} for run in runs
    ]
    medians = {name: statistics.median(run[name] for run in measured) for name in measured[0]}
    return cast("Figures", {**runs[0], **medians})


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--vocabulary", required=True, help="Google's vocab.txt")
    parser.add_argument("--small", required=True, help="the corpus the peers read, too")
    parser.add_argument("--large", nargs="+", required=True, help="larger ones")
    parser.add_argument("--sizes", nargs="*", default=[], help="even larger ones, for ours alone")
    parser.add_argument("--paragraphs", default="", help="folder of WikiExtractor files")
    parser.add_argument("--small-files", type=int, default=0, help="how many to make")
    parser.add_argument("--google", default="", help="checkout of google-research/bert")
    parser.add_argument("--google-python", default=sys.executable, help="one with TensorFlow")
    parser.add_argument("--lddl", default="", help="checkout of NVIDIA/LDDL")
    parser.add_argument("--lddl-python", default=sys.executable, help="one with LDDL's packages")
    parser.add_argument("--huggingface", action="store_true", help="datasets and transformers")
    parser.add_argument("--parts", nargs="+", choices=PARTS, help="all of them by default")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--output", default="benchmarks/results/preparation.json")
    return parser.parse_args()


def main() -> None:
    """Measure part by part; what is measured is kept at once."""
    arguments = _options()
    if not shutil.which("taskset"):
        sys.exit("taskset is missing (util-linux): without it the cores cannot be pinned")
    output = Path(arguments.output)
    for name in arguments.parts or PARTS:
        part, option = PARTS[name]
        if option and not getattr(arguments, option):
            print(f"{name} is not measured: --{option.replace('_', '-')} was not given")
            continue
        print(f"-- {name}", flush=True)
        where = machine()
        runs: dict[str, Figures] = {}
        for label, run in part(arguments):
            runs[label] = run
            memory = f" {run['peak_pss_mb']:6.0f} MB" if "peak_pss_mb" in run else ""
            print(
                f"{label:42} {run['mb_per_second']:8.2f} MB/s "
                f"{run['mb_per_cpu_second']:8.2f} MB/cpu-s "
                f"{run['examples_per_second']:10,.0f} examples/s {run['bytes_per_example']:5.0f} B"
                f"{memory}",
                flush=True,
            )
        parts = json.loads(output.read_text())["parts"] if output.exists() else {}
        earlier = parts.get(name, {}).get("runs", {})
        parts[name] = {"machine": where, "runs": {**earlier, **runs}}
        found = claims({each: kept["runs"] for each, kept in parts.items()})
        stated = [{**asdict(claim), "reached": claim.reached} for claim in found]
        write_result(arguments.output, {"claims": stated, "parts": parts})
    for claim in json.loads(output.read_text())["claims"]:
        sign = "<=" if claim["at_most"] else ">="
        verdict = "" if claim["reached"] else "   MISSED"
        print(f"{claim['name']:75} {claim['figure']:8.2f} {sign} {claim['target']:g}{verdict}")


if __name__ == "__main__":
    main()
