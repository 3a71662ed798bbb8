"""A mixture of three sources with other shares in the decay: what was asked and what was read.

    python benchmarks/training/mixtures.py --wikiextractor FOLDER --novels FOLDER

In:  a folder of WikiExtractor files, a folder of novels, which are divided into passages, and the
     docstrings of installed packages.
Out: the largest distance of any source's share of the tokens from the one asked for, at every
     thousandth of the run, and in every hundredth by itself; whether a run that was interrupted
     twice, or made by two ranks, has read the same; the held-out loss of each source, beside that
     of a run that mixes sources by size; and whether only training was made again for other shares.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks.measuring import ROOT, Arguments, Figures, machine, write_result
from cloze.artifacts.store import Artifact, open_artifact

SHARES = {"wiki": 0.6, "novels": 0.3, "docstrings": 0.1}
DECAY = {"wiki": 0.1, "novels": 0.2, "docstrings": 0.7}
DECAY_SHARE = 0.2
PASSAGE = 8_000
"""Characters of a passage of a novel, to the end of its paragraph."""

CONFIG = """
name = "{name}"
{sources}
[corpus]
heldout_share = 0.05

[vocabulary]
size = 4000

[examples]
max_seq_lengths = [64]
copies = 2

[encoder]
preset = "tiny"

[pretrain]
steps = {steps}
batch_size = {batch_size}
evaluate_every = {evaluate_every}
evaluation_examples = 768
phases = {phases}

[pretrain.optimizer]
learning_rate = 2e-3
schedule = "wsd"
decay_share = {decay_share}
warmup_steps = 100

[evaluate]
examples = 500
"""


def passages(folder: str) -> Iterator[str]:
    """The novels of a folder in passages of whole paragraphs."""
    for path in sorted(Path(folder).iterdir()):
        part: list[str] = []
        for line in path.read_text("utf-8-sig").splitlines():
            part.append(line)
            # Only at a blank line: paragraphs stay whole.
            if sum(map(len, part[-1:])) == 0 and sum(map(len, part)) > PASSAGE:
                yield "\n".join(part)
                part = []
        if part:
            yield "\n".join(part)


def configuration(name: str, folder: Path, arguments: Figures, *, mixed: bool) -> Path:
    """The configuration of a run, with the shares above or by size."""
    origins = {
        "wiki": f'reader = "wikiextractor"\npath = "{os.path.abspath(arguments["wikiextractor"])}"',
        "novels": f'reader = "jsonl"\npath = "{folder / "novels.jsonl"}"',
        "docstrings": f'reader = "docstrings"\npackages = {json.dumps(arguments["packages"])}',
    }
    sources = "".join(
        f'\n[[corpus.sources]]\nname = "{source}"\n{origin}\n'
        + (f"share = {SHARES[source]}\n" if mixed else "")
        for source, origin in origins.items()
    )
    # The last share of the steps, while the rate decays, has a mixture of its own.
    decay = ", mixture = {" + ", ".join(f"{n} = {s}" for n, s in DECAY.items()) + "}"
    shares = ((1 - DECAY_SHARE, ""), (DECAY_SHARE, decay if mixed else ""))
    phases = ", ".join(f"{{ max_seq_length = 64, share = {s}{more} }}" for s, more in shares)
    path = folder / f"{name}.toml"
    path.write_text(
        CONFIG.format(
            name=name,
            sources=sources,
            steps=arguments["steps"],
            batch_size=arguments["batch_size"],
            evaluate_every=arguments["steps"] // 10,
            phases=f"[{phases}]",
            decay_share=DECAY_SHARE,
        )
    )
    return path


def command(config: Path, workspace: Path, *options: str) -> list[str]:
    """The command that trains, in a workspace of its own."""
    pretrain = ["-m", "cloze", "pretrain", str(config), "--workspace", str(workspace)]
    return [sys.executable, *pretrain, *options]


def encoder(workspace: Path) -> Artifact:
    """The only encoder of a workspace."""
    (found,) = (workspace / "artifacts" / "pretrain").glob("*/manifest.json")
    return open_artifact(str(found.parent))


def interrupted(config: Path, workspace: Path, *, at: list[int]) -> Artifact:
    """Train, asked to stop at each of these steps."""
    for step in at:
        process = subprocess.Popen(
            command(config, workspace), cwd=ROOT, stderr=subprocess.PIPE, text=True
        )
        assert process.stderr is not None
        for line in process.stderr:
            # By the step that it logs, as its speed is not known.
            if line.startswith("pretrain step=") and int(line.split("=")[1].split("/")[0]) >= step:
                process.send_signal(signal.SIGTERM)
                break
        # What it still prints has to be read, or it would wait for a reader and never end.
        process.stderr.read()
        process.wait()
    subprocess.run(command(config, workspace), cwd=ROOT, check=True, capture_output=True)
    return encoder(workspace)


def curve(trained: Artifact) -> list[Figures]:
    """The lines of an encoder's curve."""
    return [json.loads(line) for line in trained.read_bytes("curve.jsonl").splitlines()]


def source_tokens(trained: Artifact) -> np.ndarray[tuple[int, int], np.dtype[np.float64]]:
    """Tokens of each source in every step, [steps, sources]."""
    rows = [row["source_tokens"] for row in curve(trained) if "source_tokens" in row]
    return np.array([[row[name] for name in SHARES] for row in rows])


def distances(trained: Artifact) -> Figures:
    """How far shares were from what was asked, in each phase, as shares of the tokens."""
    tokens = source_tokens(trained)
    border = round((1 - DECAY_SHARE) * len(tokens))
    found: Figures = {}
    for name, part, asked in (
        ("before the decay", tokens[:border], SHARES),
        ("in the decay", tokens[border:], DECAY),
    ):
        wanted = np.array([asked[source] for source in SHARES])
        # Three views: of all tokens up to a step, of stretches, and of single steps, which small
        # batches cannot hit exactly.
        so_far = np.cumsum(part, axis=0)
        cumulated = np.abs(so_far / so_far.sum(axis=1, keepdims=True) - wanted)
        hundredths = part.reshape(-1, len(tokens) // 100, len(SHARES)).sum(axis=1)
        alone = np.abs(hundredths / hundredths.sum(axis=1, keepdims=True) - wanted)
        single = np.abs(part / part.sum(axis=1, keepdims=True) - wanted)
        found[name] = {
            "asked": asked,
            "read": dict(zip(SHARES, (so_far[-1] / so_far[-1].sum()).round(5), strict=True)),
            "largest distance up to any thousandth of the run": round(float(cumulated.max()), 5),
            "largest distance after the first five": round(float(cumulated[5:].max()), 5),
            "largest distance within any hundredth": round(float(alone.max()), 5),
            "largest distance within any thousandth": round(float(single.max()), 5),
        }
    return found


def heldout(trained: Artifact) -> dict[str, float]:
    """The held-out loss of each source at the end, in nats per masked token."""
    last = [row["sources"] for row in curve(trained) if "sources" in row][-1]
    return {name: round(last[name]["masked_lm_loss"], 4) for name in SHARES}


def made_again(config: Path, workspace: Path) -> list[str]:
    """The stages that other shares would make again."""
    options = (
        "--set",
        "corpus.sources.0.share=0.5",
        "--set",
        "corpus.sources.1.share=0.4",
        "--json",
    )
    plan = [sys.executable, "-m", "cloze", "plan", str(config), "--workspace", str(workspace)]
    done = subprocess.run([*plan, *options], cwd=ROOT, check=True, capture_output=True, text=True)
    return [s["stage"] for s in json.loads(done.stdout)["stages"] if s["action"] == "run"]


def main() -> None:
    """Train four times and compare."""
    parser = Arguments(__doc__, output="mixtures.json", wikiextractor=str, novels=str)
    parser.add_options(packages=["networkx", "pandas"], steps=1000, batch_size=64, folder="")
    arguments = vars(parser.parse_args())
    result: Figures = {"machine": machine(), "steps": arguments["steps"]}
    folder = Path(arguments["folder"] or tempfile.mkdtemp(prefix="mixtures-")).absolute()
    folder.mkdir(exist_ok=True)
    lines = (json.dumps({"text": text}) + "\n" for text in passages(arguments["novels"]))
    (folder / "novels.jsonl").write_text("".join(lines))
    config = configuration("mixed", folder, arguments, mixed=True)
    began = time.monotonic()
    subprocess.run(command(config, folder / "whole"), cwd=ROOT, check=True)
    result["seconds"] = round(time.monotonic() - began)
    whole = encoder(folder / "whole")
    for name in ("parts", "ranks", "by size"):
        prepared = folder / "whole" / "artifacts"
        skip = shutil.ignore_patterns("pretrain")
        # Prepared once; only training is repeated.
        shutil.copytree(prepared, folder / name / "artifacts", ignore=skip)
    at = [arguments["steps"] // 4, arguments["steps"] * 17 // 20]
    parts = interrupted(config, folder / "parts", at=at)
    two = ("--set", "training.ranks=2")
    subprocess.run(command(config, folder / "ranks", *two), cwd=ROOT, check=True)
    ranks = encoder(folder / "ranks")
    natural = configuration("by-size", folder, arguments, mixed=False)
    subprocess.run(command(natural, folder / "by size"), cwd=ROOT, check=True)
    by_size = encoder(folder / "by size")
    result |= {
        "shares of the tokens": distances(whole),
        "epochs": whole.manifest.statistics["source_epochs"],
        "interrupted twice: same bytes": parts.digest == whole.digest,
        "two ranks: same tokens of each source in every step": bool(
            (source_tokens(ranks) == source_tokens(whole)).all()
        ),
        "held-out loss": {"mixed": heldout(whole), "by size": heldout(by_size)},
        "tokens read by size": dict(zip(SHARES, source_tokens(by_size).sum(0), strict=True)),
        "made again for other shares": made_again(config, folder / "whole"),
    }
    write_result(arguments["output"], result)
    print(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
