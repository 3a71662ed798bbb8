r"""Text in, verified shards out: ours and the peers', side by side on the same cores.

    python benchmarks/corpus.py --wikiextractor FOLDER --megabytes 75 --output w75.txt
    python benchmarks/preparing/preparation.py --vocabulary vocab.txt --small w10.txt \
        --large w75.txt w150.txt --sizes w400.txt --paragraphs FOLDER --small-files 100000 \
        --google CHECKOUT --google-python PYTHON \
        --lddl CHECKOUT --lddl-python PYTHON --huggingface

In:  corpora in Google's format, one sentence per line.
Out: benchmarks/results/preparation.json: the figures of every run, and claims, each figure beside
     its target.

The peers are timed without their imports, ours including everything. Peers that are not named are
reported as not measured. `--parts` measures some parts only; the others stay in the result file,
each with its date, commit and load.
"""

import argparse
import shutil
import statistics
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import islice
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks import measuring
from benchmarks.corpus import corpus_of, write_corpus
from benchmarks.measuring import ROOT
from cloze.artifacts.store import Artifact, open_artifact

SEED = 1

Figures = measuring.Figures
"""The figures of one run: times in seconds, `cpu` that of all processes; text in MB; the memory of
all processes, if it was sampled. A peer's times are without its imports, hence their names."""

Runs = Mapping[str, Mapping[str, Figures]]
"""By part (`peers`, `drivers`, …): its runs by label."""


@dataclass(frozen=True)
class Setting:
    """One way to prepare a corpus."""

    corpus: str
    vocabulary: str
    workers: int = 1
    """Each has a core."""
    max_seq_lengths: tuple[int, ...] = (128,)
    copies: int = 1
    reader: str = "sentence_lines"
    driver: str = "beam"
    """`beam`, or `plain`: the same functions in a multiprocessing loop."""
    memory: bool = False
    """Whether memory is sampled."""

    def __call__(self) -> Figures:
        """Prepare the corpus in a workspace of its own."""
        corpus = {
            "sources": [{"reader": self.reader, "path": self.corpus}],
            "heldout_share": 0.0,
        }
        text = {"seed": SEED, "corpus": corpus, "cleaning": {}}
        words = {**text, "vocabulary": {"path": self.vocabulary}}
        form = {"max_seq_lengths": self.max_seq_lengths, "copies": self.copies}
        with tempfile.TemporaryDirectory(prefix="cloze-bench-") as folder:
            run = partial(self.run_stage, Path(folder))
            vocabulary, _ = run("vocabulary", words, {})
            tokens, of_tokens = run("tokens", text, {"vocabulary": vocabulary})
            examples, of_examples = run(
                "examples", {"seed": SEED, "examples": form}, {"tokens": tokens}
            )
        shards = [entry for entry in examples.manifest.files if entry.name.endswith(".arrow")]
        rows = sum(entry.rows or 0 for entry in shards)
        # The vocabulary is given, so its stage is not counted.
        wall, cpu = of_tokens.wall + of_examples.wall, of_tokens.cpu + of_examples.cpu
        figures = {
            "wall": wall,
            "cpu": cpu,
            "tokens_cpu": of_tokens.cpu,
            "examples_cpu": of_examples.cpu,
            **speeds(self.corpus, wall, cpu, rows, sum(entry.size for entry in shards)),
            "examples": rows,
            "digest": examples.digest[:12],
        }
        peaks = [took.peak_pss for took in (of_tokens, of_examples) if took.peak_pss]
        return {**figures, "peak_pss_mb": max(peaks)} if peaks else figures

    def run_stage(
        self,
        folder: Path,
        stage: str,
        config: Mapping[str, object],
        inputs: Mapping[str, Artifact],
    ) -> tuple[Artifact, measuring.Measurement]:
        """Run one stage as a flow does: as a program of its own."""
        machine = {"workers": self.workers, "worker_mode": "processes"}
        table = measuring.write_table(
            folder, stage, format_version=1, config=config, inputs=inputs, machine=machine
        )
        program = ["-m", f"cloze.pipeline.{stage}"]
        if self.driver == "plain" and stage != "vocabulary":
            program = [str(ROOT / "benchmarks/preparing/plain_driver.py"), stage]
        command = [sys.executable, *program, *table]
        took = measuring.measure(command, cores=f"0-{self.workers - 1}", memory=self.memory)
        return open_artifact(str(folder / stage)), took


def speeds(corpus: str, seconds: float, cpu: float, examples: float, size: float) -> Figures:
    """The figures that follow from the times and from what was written."""
    text = megabytes(corpus)
    return {
        "megabytes": text,
        "mb_per_second": text / seconds,
        "mb_per_cpu_second": text / cpu,
        "examples_per_second": examples / seconds,
        "bytes_per_example": size / examples,
    }


def megabytes(corpus: str) -> float:
    """Size of a file or of a folder's files."""
    path = Path(corpus)
    files = path.rglob("*") if path.is_dir() else [path]
    return sum(file.stat().st_size for file in files if file.is_file()) / 1e6


PEERS = {
    "google": ("google", 25.0, (1,)),
    "lddl, sentences given": ("lddl", 14.0, (1, 2)),
    "lddl, with its segmentation": ("lddl", 14.0, (1, 2)),
    "huggingface": ("huggingface", 12.0, (1, 2)),
}
"""By name: the option that enables it, how many times faster ours should be per core, and the
numbers of workers that it supports."""


def peers(arguments: argparse.Namespace) -> list[str]:
    """The peers to measure; says which are left out."""
    for option in dict.fromkeys(option for option, *_ in PEERS.values()):
        if not getattr(arguments, option):
            print(f"{option} is not measured: --{option} was not given")
    return [name for name, (option, *_) in PEERS.items() if getattr(arguments, option)]


def run_peer(name: str, arguments: argparse.Namespace, corpus: str, workers: int) -> Figures:
    """Prepare the corpus as a peer does, in a folder of its own."""
    programs, vocabulary = ROOT / "benchmarks" / "peers", arguments.vocabulary
    with tempfile.TemporaryDirectory(prefix="cloze-bench-") as folder:
        output = f"{folder}/output"
        if name == "google":
            command = [arguments.google_python, f"{programs}/google_bert.py", arguments.google]
            command += [f"--input_file={corpus}", f"--output_file={output}"]
            command += [f"--vocab_file={vocabulary}", "--dupe_factor=1"]
        elif name == "huggingface":
            command = [sys.executable, f"{programs}/huggingface.py", str(workers), corpus]
            command += [vocabulary, output, "128"]
        else:
            sentences = "segmented" if "segmentation" in name else "given"
            command = [arguments.lddl_python, f"{programs}/lddl_bert.py", arguments.lddl]
            command += [str(workers), corpus, vocabulary, output, sentences]
        # One thread per worker, an empty cache, and no network.
        alone = {"OMP_NUM_THREADS": "1", "HF_HOME": folder, "HF_HUB_OFFLINE": "1"}
        took = measuring.measure(command, cores=f"0-{workers - 1}", cwd=Path(folder), env=alone)
        shards = [Path(output), *Path(output).rglob("*.arrow")]
        written = sum(shard.stat().st_size for shard in shards if shard.is_file())
    seconds, examples = took.said["seconds"], took.said["examples"]
    cpu = took.cpu - took.said["cpu_aside"]  # imports and counting
    return {
        "seconds_without_imports": seconds,
        "cpu_without_imports": cpu,
        **speeds(corpus, seconds, cpu, examples, took.said.get("bytes", written)),
    }


def median(runs: Sequence[Figures]) -> Figures:
    """Medians of the measured figures; counts and digests are the same in every run."""
    return {
        name: statistics.median(run[name] for run in runs) if isinstance(value, float) else value
        for name, value in runs[0].items()
    }


Part = Mapping[str, Callable[[], Figures]]
"""The runs of a part, by label."""


def of_peers(arguments: argparse.Namespace, scratch: Path) -> Part:
    """Each peer on the small corpus, and ours on the same one."""
    ours = Setting(arguments.small, arguments.vocabulary)
    theirs = {
        f"{name}, {workers} workers": partial(run_peer, name, arguments, arguments.small, workers)
        for name in peers(arguments)
        for workers in PEERS[name][2]
    }
    return {**theirs, "ours, 1 workers": ours, "ours, 2 workers": replace(ours, workers=2)}


def of_peers_at_length(arguments: argparse.Namespace, scratch: Path) -> Part:
    """Each peer on the largest corpus, on one core, and ours after each."""
    corpus = arguments.large[-1]
    runs: dict[str, Callable[[], Figures]] = {}
    for name in peers(arguments):
        runs[f"{name}, 1 workers"] = partial(run_peer, name, arguments, corpus, 1)
        runs[f"ours after {name}, 1 workers"] = Setting(corpus, arguments.vocabulary)
    return runs


def of_drivers(arguments: argparse.Namespace, scratch: Path) -> Part:
    """The large corpora on one core and on two, with Beam and in a plain loop."""
    settings = {}
    for corpus in arguments.large:
        for workers in (1, 2):
            setting = Setting(corpus, arguments.vocabulary, workers=workers)
            label = f"{megabytes(corpus):.0f} MB, {workers} workers"
            settings[label] = setting
            settings[f"{label}, plain loop"] = replace(setting, driver="plain")
    return settings


def of_sizes(arguments: argparse.Namespace, scratch: Path) -> Part:
    """The small corpus and the largest ones: whether time grows linearly with text."""
    return {
        f"{megabytes(corpus):.0f} MB, 2 workers": Setting(corpus, arguments.vocabulary, workers=2)
        for corpus in (arguments.small, *arguments.sizes)
    }


def of_memory(arguments: argparse.Namespace, scratch: Path) -> Part:
    """The peak memory while the largest corpus is prepared."""
    corpus = arguments.sizes[-1]
    setting = Setting(corpus, arguments.vocabulary, workers=2, memory=True)
    return {f"{megabytes(corpus):.0f} MB, 2 workers": setting}


def of_start_up(arguments: argparse.Namespace, scratch: Path) -> Part:
    """A corpus of a few documents, so that only start-up remains."""
    corpus = scratch / "few.txt"
    with open(arguments.small, "rb") as file:
        corpus.write_bytes(b"".join(islice(file, 500)))
    one = Setting(str(corpus), arguments.vocabulary)
    return {"1 workers": one, "2 workers": replace(one, workers=2)}


def of_lengths_and_copies(arguments: argparse.Namespace, scratch: Path) -> Part:
    """The cost of a second length and of further copies."""
    base = Setting(arguments.large[0], arguments.vocabulary)
    return {
        "128, 1 copy": base,
        "128 and 512, 1 copy": replace(base, max_seq_lengths=(128, 512)),
        "128, 5 copies": replace(base, copies=5),
    }


def of_paragraphs(arguments: argparse.Namespace, scratch: Path) -> Part:
    """The same documents with sentences given, and as paragraphs to be split into sentences."""
    given, folder = str(scratch / "given.txt"), arguments.paragraphs
    write_corpus(corpus_of(folder, reader="wikiextractor"), megabytes=1e9, output=given)
    base = Setting(given, arguments.vocabulary)
    return {
        "sentences given": base,
        "paragraphs": replace(base, corpus=folder, reader="wikiextractor"),
    }


def of_small_files(arguments: argparse.Namespace, scratch: Path) -> Part:
    """The corpus as a great many files of one document each."""
    text = Path(arguments.large[-1]).read_text(encoding="utf-8")
    documents = text.split("\n\n")[: arguments.small_files]
    for number, document in enumerate(documents):
        folder = scratch / f"{number // 1000:04}"
        folder.mkdir(exist_ok=True)
        (folder / f"{number:07}.txt").write_text(document, encoding="utf-8")
    setting = Setting(str(scratch), arguments.vocabulary, workers=2, reader="text")
    return {f"{len(documents)} files, 2 workers": setting}


PARTS: dict[str, tuple[Callable[[argparse.Namespace, Path], Part], str, bool]] = {
    "peers": (of_peers, "", True),
    "peers at length": (of_peers_at_length, "", False),
    "drivers": (of_drivers, "", True),
    "start-up": (of_start_up, "", True),
    "lengths and copies": (of_lengths_and_copies, "", True),
    "sizes": (of_sizes, "sizes", True),
    "memory": (of_memory, "sizes", False),
    "paragraphs": (of_paragraphs, "paragraphs", True),
    "small files": (of_small_files, "small_files", False),
}
"""By name: its runs by label, given a scratch folder; the option that it requires; whether the runs
are repeated, in turns."""


def measured(part: str, arguments: argparse.Namespace) -> Mapping[str, Figures]:
    """The runs of a part by label: medians over rounds in which they take turns."""
    make, _, repeated = PARTS[part]
    with tempfile.TemporaryDirectory(prefix="cloze-bench-") as scratch:
        runs = make(arguments, Path(scratch))
        rounds = arguments.repeats if repeated else 1
        found = measuring.in_turns(runs, lambda label: runs[label](), rounds=rounds)
    return {label: median(of_label) for label, of_label in found.items()}


@dataclass(frozen=True)
class Claim:
    """A figure and its target."""

    name: str
    figure: float
    target: float
    at_most: bool = False

    @property
    def reached(self) -> bool:
        """Whether the figure meets the target."""
        return self.figure <= self.target if self.at_most else self.figure >= self.target


def claims(runs: Runs) -> Iterator[Claim]:
    """Every claim whose runs have been measured."""
    yield from peer_claims(runs)
    ones, twos, plains = (  # both drivers have read these sizes
        by_size(runs, label, "drivers")
        for label in ("1 workers", "2 workers", "2 workers, plain loop")
    )
    if ones and twos:
        speeds = (twos[-1]["mb_per_second"], ones[-1]["mb_per_second"])
        yield Claim("2 cores, times one", speeds[0] / speeds[1], 1.6)
    if twos and plains:
        name = "Beam's processor time, times the plain loop's, 2 workers"
        yield Claim(name, twos[-1]["cpu"] / plains[-1]["cpu"], 1.2, at_most=True)
    if len(twos) > 1 and len(plains) > 1:
        name = "Beam's wall time per MB, times the plain loop's, 2 workers"
        yield Claim(name, slope(*twos[-2:]) / slope(*plains[-2:]), 1.3, at_most=True)
    if tiny := runs.get("start-up", {}).get("2 workers"):
        yield Claim("seconds of start-up, both stages", tiny["wall"], 5.0, at_most=True)
    if texts := runs.get("paragraphs"):
        # not MB: markup is no text
        speed = {label: run["examples_per_second"] for label, run in texts.items()}
        share = speed["paragraphs"] / speed["sentences given"]
        yield Claim("speed from paragraphs, share of that with sentences given", share, 0.5)
    if found := runs.get("lengths and copies", {}):
        first = found["128, 1 copy"]["cpu"]
        further = found["128 and 512, 1 copy"]["cpu"] - first
        yield Claim("cost of a second length, of the first", further / first, 0.25, at_most=True)
        copy = (found["128, 5 copies"]["cpu"] - first) / 4
        yield Claim("cost of a further copy, of the first", copy / first, 0.25, at_most=True)
    sizes = by_size(runs, "2 workers", "sizes", "drivers")
    if sizes:
        largest = sizes[-1]["bytes_per_example"]
        yield Claim("bytes an example at 128", largest, 300.0, at_most=True)
    if len(sizes) > 2:
        middle = sizes[len(sizes) // 2]
        growth = slope(middle, sizes[-1]) / slope(sizes[0], middle)
        name = f"time per MB above {middle['megabytes']:.0f} MB, times that below"
        yield Claim(name, growth, 1.2, at_most=True)
    for run in runs.get("memory", {}).values():
        name = f"memory at {run['megabytes']:.0f} MB, all processes, MB"
        yield Claim(name, run["peak_pss_mb"], 1.5 * 1024**3 / 1e6, at_most=True)


def peer_claims(runs: Runs) -> Iterator[Claim]:
    """The speed per core: at length against our run after the peer's, else against our best."""
    ours_alone = by_size(runs, "1 workers", "drivers")
    for part in ("peers", "peers at length"):
        measured = runs.get(part, {})
        for peer, (_, target, _) in PEERS.items():
            theirs, ours = (
                measured.get(f"{label}, 1 workers") for label in (peer, f"ours after {peer}")
            )
            if ours is None and ours_alone:
                ours = ours_alone[-1]
            if theirs and ours:
                name = f"times {peer} at {theirs['megabytes']:.0f} MB, by"
                by_wall = ours["mb_per_second"] / theirs["mb_per_second"]
                by_cpu = ours["mb_per_cpu_second"] / theirs["mb_per_cpu_second"]
                yield Claim(f"{name} wall time", by_wall, target)
                yield Claim(f"{name} processor time", by_cpu, target)


def by_size(runs: Runs, label: str, *parts: str) -> list[Figures]:
    """The runs of these parts of all sizes under `label`, the smallest first."""
    found = {
        run["megabytes"]: run
        for part in parts
        for name, run in runs.get(part, {}).items()
        if name.endswith(f" MB, {label}")
    }
    return [found[size] for size in sorted(found)]


def slope(first: Figures, last: Figures) -> float:
    """Seconds of wall-clock time per further MB."""
    # Start-up is in both and cancels out.
    return float((last["wall"] - first["wall"]) / (last["megabytes"] - first["megabytes"]))


def options() -> argparse.Namespace:
    """The command line."""
    parser = measuring.Arguments(__doc__, output="preparation.json")
    parser.add_argument("--vocabulary", required=True, help="Google's vocab.txt")
    parser.add_argument("--small", required=True, help="the corpus that the peers read too")
    parser.add_argument("--large", nargs="+", required=True, help="larger ones")
    parser.add_argument("--sizes", nargs="*", default=[], help="even larger ones, for ours only")
    parser.add_argument("--paragraphs", default="", help="folder of WikiExtractor files")
    parser.add_argument("--small-files", type=int, default=0, help="number of files to make")
    parser.add_argument("--google", default="", help="checkout of google-research/bert")
    parser.add_argument("--google-python", default=sys.executable, help="Python with TensorFlow")
    parser.add_argument("--lddl", default="", help="checkout of NVIDIA/LDDL")
    parser.add_argument("--lddl-python", default=sys.executable, help="Python with LDDL's packages")
    parser.add_argument("--huggingface", action="store_true", help="datasets and transformers")
    parser.add_argument("--parts", nargs="+", choices=PARTS, help="default: all of them")
    parser.add_argument("--repeats", type=int, default=3)
    return parser.parse_args()


def main() -> None:
    """Measure part by part, writing the result after each."""
    arguments = options()
    if not shutil.which("taskset"):
        sys.exit("taskset is missing (util-linux): without it the cores cannot be pinned")
    for name in arguments.parts or PARTS:
        option = PARTS[name][1]
        if option and not getattr(arguments, option):
            print(f"{name} is not measured: --{option.replace('_', '-')} was not given")
            continue
        print(f"-- {name}", flush=True)
        where, runs = measuring.machine(), measured(name, arguments)
        for label, run in runs.items():
            memory = f" {run['peak_pss_mb']:6.0f} MB" if "peak_pss_mb" in run else ""
            print(
                f"{label:42} {run['mb_per_second']:8.2f} MB/s "
                f"{run['mb_per_cpu_second']:8.2f} MB/cpu-s "
                f"{run['examples_per_second']:10,.0f} examples/s {run['bytes_per_example']:5.0f} B"
                f"{memory}",
                flush=True,
            )
        parts = measuring.read_result(arguments.output).get("parts", {})
        earlier = parts.get(name, {}).get("runs", {})
        parts[name] = {"machine": where, "runs": {**earlier, **runs}}
        stated = [
            {**asdict(claim), "reached": claim.reached}
            for claim in claims({each: kept["runs"] for each, kept in parts.items()})
        ]
        measuring.write_result(arguments.output, {"claims": stated, "parts": parts})
    for claim in measuring.read_result(arguments.output)["claims"]:
        sign = "<=" if claim["at_most"] else ">="
        verdict = "" if claim["reached"] else "   MISSED"
        print(f"{claim['name']:75} {claim['figure']:8.2f} {sign} {claim['target']:g}{verdict}")


if __name__ == "__main__":
    main()
