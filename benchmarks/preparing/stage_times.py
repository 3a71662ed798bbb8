"""The preparation stages as a user runs them: one program each, on given cores.

In:  a corpus file in Google's format, a vocabulary, settings.
Out: what each program took, and the finished artifacts.
"""

import sys
from dataclasses import dataclass
from pathlib import Path

from artifacts.stage import InputRef, StageTable, write_stage_table
from artifacts.store import Artifact, open_artifact
from benchmarks.measuring import ROOT, Measurement, measure

SEED = 1


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


@dataclass(frozen=True)
class Prepared:
    """What a preparation took and made."""

    vocabulary: Measurement
    tokens: Measurement
    examples: Measurement
    rows: int
    bytes: int
    digest: str

    @property
    def wall(self) -> float:
        """Seconds, tokens and examples."""
        return self.tokens.wall + self.examples.wall

    @property
    def cpu(self) -> float:
        """Seconds of processor time, tokens and examples."""
        return self.tokens.cpu + self.examples.cpu

    @property
    def peak_pss(self) -> float | None:
        """Largest memory of all processes, MB, if it was looked at."""
        return max(filter(None, (self.tokens.peak_pss, self.examples.peak_pss)), default=None)


def prepare(setting: Setting, workspace: Path) -> Prepared:
    """Text in, verified shards out."""
    corpus = {
        "sources": [{"reader": setting.reader, "path": setting.corpus}],
        "heldout_share": 0.0,
    }
    words = {"seed": SEED, "corpus": corpus, "cleaning": {}}
    vocabulary, took_vocabulary = _run(
        "vocabulary", {**words, "vocabulary": {"path": setting.vocabulary}}, {}, setting, workspace
    )
    tokens, took_tokens = _run("tokens", words, {"vocabulary": vocabulary}, setting, workspace)
    form = {"max_seq_lengths": setting.max_seq_lengths, "copies": setting.copies}
    examples, took_examples = _run(
        "examples", {"seed": SEED, "examples": form}, {"tokens": tokens}, setting, workspace
    )
    shards = [entry for entry in examples.manifest.files if entry.name.endswith(".arrow")]
    return Prepared(
        vocabulary=took_vocabulary,
        tokens=took_tokens,
        examples=took_examples,
        rows=sum(entry.rows or 0 for entry in shards),
        bytes=sum(entry.size for entry in shards),
        digest=examples.digest,
    )


def _run(
    stage: str,
    config: dict[str, object],
    inputs: dict[str, Artifact],
    setting: Setting,
    workspace: Path,
) -> tuple[Artifact, Measurement]:
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
