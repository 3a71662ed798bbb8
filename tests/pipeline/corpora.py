"""Small corpora, and stage tables for them."""

import gzip
import json
import os
import random
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from cloze.artifacts.stage import InputRef, StageTable, write_stage_table
from cloze.artifacts.store import Artifact
from cloze.artifacts.tokenizer import SPECIAL_TOKENS, WordPieceTokenizer
from cloze.pipeline.config.settings import TokensStage, VocabularyStage
from cloze.pipeline.runner.graph import WorkQueue
from cloze.pipeline.vocabulary import make_vocabulary
from tests.waiting import PATIENCE

WORDS = ("the", "of", "and", "to", "in", "is", "was", "for", "on", "that", "with", "as", "by", "it")
LETTERS = "abcdefghijklmnopqrstuvwxyz"
INLINE = {"worker_mode": "inline"}
TWO_PROCESSES: dict[str, Any] = {"worker_mode": "processes", "workers": 2}


def documents(seed: int, count: int) -> list[str]:
    """Random texts of a few sentences each."""
    rng = random.Random(seed)

    def sentence() -> str:
        words = [rng.choice(WORDS) for _ in range(rng.randint(2, 12))]
        words.append("".join(rng.choice(LETTERS) for _ in range(rng.randint(3, 9))))
        return " ".join(words).capitalize() + rng.choice([".", "?", "!"])

    return [" ".join(sentence() for _ in range(rng.randint(1, 8))) for _ in range(count)]


def write_jsonl(path: Path, texts: Sequence[str]) -> None:
    """One document per line; compressed if the name ends in .gz."""
    raw = "".join(json.dumps({"text": text}) + "\n" for text in texts).encode()
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gzip.compress(raw) if path.suffix == ".gz" else raw)


def source(path: Path, **options: Any) -> dict[str, Any]:
    """A source of JSON lines."""
    return {"reader": "jsonl", "path": str(path), **options}


def letters_tokenizer() -> WordPieceTokenizer:
    """A vocabulary of all letters, frequent words and punctuation."""
    pieces = [*SPECIAL_TOKENS, *".?!,-", *LETTERS, *(f"##{c}" for c in LETTERS), *WORDS]
    return WordPieceTokenizer(tuple(dict.fromkeys(pieces)), lowercase=True)


def given_vocabulary(directory: Path) -> Artifact:
    """A vocabulary artifact of `letters_tokenizer`."""
    path = directory / "vocab.txt"
    directory.mkdir(parents=True, exist_ok=True)
    path.write_text(letters_tokenizer().vocab_txt())
    table = vocabulary_table(directory / "artifact", [], vocabulary={"path": str(path)})
    return make_vocabulary(table, [])


def vocabulary_table(
    output: Path,
    sources: list[dict[str, Any]],
    *,
    vocabulary: dict[str, Any] | None = None,
    machine: dict[str, Any] | None = None,
    cleaning: dict[str, Any] | None = None,
    **corpus: Any,
) -> StageTable:
    """The table of stage `vocabulary`."""
    config = VocabularyStage.model_validate(
        {
            "seed": 5,
            "corpus": {"sources": sources or [source(Path("unused"))], **corpus},
            "cleaning": cleaning or {},
            "vocabulary": vocabulary or {},
        }
    )
    return StageTable(
        stage="vocabulary",
        format_version=1,
        config=config.model_dump(mode="json"),
        output=str(output),
        machine=machine or INLINE,
    )


def tokens_table(
    output: Path,
    sources: list[dict[str, Any]],
    *,
    vocabulary: Artifact,
    machine: dict[str, Any] | None = None,
    cleaning: dict[str, Any] | None = None,
    seed: int = 5,
    **corpus: Any,
) -> StageTable:
    """The table of stage `tokens`."""
    config = TokensStage.model_validate(
        {"seed": seed, "corpus": {"sources": sources, **corpus}, "cleaning": cleaning or {}}
    )
    return StageTable(
        stage="tokens",
        format_version=1,
        config=config.model_dump(mode="json"),
        inputs={"vocabulary": InputRef(digest=vocabulary.digest, path=vocabulary.directory)},
        output=str(output),
        machine=machine or INLINE,
    )


def everything_twice(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """A machine whose engine executes every task on two workers."""
    monkeypatch.setattr(WorkQueue, "claim", lambda queue, pieces, label: iter(pieces))
    return TWO_PROCESSES


class Ended(NamedTuple):
    """How the program of a stage has ended."""

    code: int
    digest: str
    """Of its artifact; empty if it made none."""
    errors: str


def run_as_program(table: StageTable, folder: Path, *, site: str = "", count: int = 0) -> Ended:
    """Run the stage of `table`; it is killed when it reaches `site` for the `count`-th time."""
    path = folder / "table.json"
    write_stage_table(table, path)
    script = Path(__file__).with_name("killed_stage.py")
    done = subprocess.run(
        [sys.executable, str(script), str(path), site, str(count)],
        capture_output=True,
        text=True,
        cwd=Path(__file__).parents[2],
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
        timeout=PATIENCE,
        check=False,
    )
    return Ended(done.returncode, done.stdout.strip(), done.stderr)


def digest_after_a_killed_worker(table: StageTable, folder: Path, *, site: str, count: int) -> str:
    """The digest of the stage, started again after one of its workers was killed at `site`.

    The loss of a worker has ended the run, with its signal named and nothing committed.
    """
    first = run_as_program(table, folder, site=site, count=count)
    assert first.code == 137, first.errors
    assert "was ended by SIGKILL" in first.errors
    assert not Path(table.output, "manifest.json").exists()
    again = run_as_program(table, folder)
    assert again.digest, again.errors
    return again.digest
