"""Small examples artifacts for training tests."""

import json
import os
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from cloze.artifacts.stage import InputRef, StageTable, write_stage_table
from cloze.artifacts.store import Artifact, commit, open_artifact, put_bytes, put_local_file
from cloze.artifacts.tables import examples_name, examples_schema
from cloze.artifacts.tokenizer import SPECIAL_TOKENS, WordPieceTokenizer
from cloze.model.training.telemetry import StepRecord
from tests.waiting import PATIENCE, free_port

WORDS = 200
TOKENIZER = WordPieceTokenizer(
    (*SPECIAL_TOKENS, *(f"w{i}" for i in range(WORDS - len(SPECIAL_TOKENS)))), True
)

ENCODER = {
    "preset": None,
    "num_hidden_layers": 2,
    "hidden_size": 32,
    "num_attention_heads": 2,
    "intermediate_size": 64,
    "max_position_embeddings": 64,
}


def example(rng: np.random.Generator, max_seq_length: int) -> dict[str, Any]:
    """An example in which most words are the successor of the previous one."""
    length = int(rng.integers(8, max_seq_length + 1))
    a = int(rng.integers(3, length - 2))
    ids = 5 + (rng.integers(0, WORDS - 5) + np.arange(length)) % (WORDS - 5)
    ids[[0, a - 1, length - 1]] = TOKENIZER.cls_id, TOKENIZER.sep_id, TOKENIZER.sep_id
    maskable = np.setdiff1d(np.arange(length), [0, a - 1, length - 1])
    count = max(1, round(0.15 * length))
    positions = np.sort(rng.choice(maskable, count, replace=False))
    originals = ids[positions].copy()
    ids[positions] = TOKENIZER.mask_id
    return {
        "input_ids": ids.tolist(),
        "segment_a_length": a,
        "masked_lm_positions": positions.tolist(),
        "masked_lm_ids": originals.tolist(),
        "next_sentence_label": int(rng.integers(0, 2)),
    }


def examples_artifact(
    directory: Path,
    *,
    rows: tuple[tuple[int, ...], ...] = ((40, 30), (25, 25)),
    lengths: tuple[int, ...] = (32,),
    heldout: int = 20,
    seed: int = 0,
    mask_share: float = 0.8,
    sources: dict[str, int] | None = None,
) -> Artifact:
    """`rows[i][c]`: rows of copy c in bucket i of the training split.

    sources: rows of each source in a copy, divided between the buckets, instead of `rows`.
    """
    rng = np.random.default_rng(seed)
    files = []
    for length in lengths:
        of_sources = [count // len(rows) for count in (sources or {}).values()]
        counts = [(sum(of_sources),) * len(rows[0])] * len(rows) if sources else rows
        for bucket, copies in enumerate(counts):
            files.append(_put(directory, rng, "train", length, bucket, copies, of_sources))
        if heldout:
            each = [heldout // len(sources)] * len(sources) if sources else []
            total = sum(each) or heldout
            files.append(_put(directory, rng, "heldout", length, 0, (total,) * len(rows[0]), each))
    output = str(directory)
    files.append(put_bytes(output, TOKENIZER.tokenizer_json().encode(), name="tokenizer.json"))
    files.append(put_bytes(output, TOKENIZER.vocab_txt().encode(), name="vocab.txt"))
    masking = {"unit": "token", "mask_share": mask_share, "random_share": mask_share / 8}
    table = StageTable(
        stage="examples",
        format_version=1,
        config={"examples": {"masking": masking}, "seed": seed},
        output=output,
    )
    return commit(
        table,
        files,
        statistics={
            "tokenizer_digest": TOKENIZER.digest,
            "vocabulary_size": TOKENIZER.size,
            **({"sources": list(sources)} if sources else {}),
        },
    )


def _put(
    directory: Path,
    rng: np.random.Generator,
    split: str,
    length: int,
    bucket: int,
    copies: tuple[int, ...],
    of_sources: list[int],
) -> Any:
    schema = examples_schema(TOKENIZER.size)
    name = examples_name(split, length, bucket)
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / f"making-{name}"
    tokens = np.zeros(len(of_sources), np.int64)
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, schema) as writer:
        for count in copies:
            made = [example(rng, length) for _ in range(count)]
            sizes = [len(row["input_ids"]) for row in made]
            ends = np.cumsum(of_sources, dtype=np.int64)
            tokens += np.array([sum(part) for part in np.split(sizes, ends)[:-1]], np.int64)
            writer.write_batch(pa.RecordBatch.from_pylist(made, schema=schema))
    return put_local_file(
        str(directory),
        str(path),
        name=name,
        rows=sum(copies),
        statistics={
            "split": split,
            "max_seq_length": length,
            "bucket": bucket,
            "copies": list(copies),
            **(
                {"source_rows": [of_sources] * len(copies), "source_tokens": tokens.tolist()}
                if of_sources
                else {}
            ),
        },
    )


def stage_table(
    directory: Path,
    examples: Artifact,
    *,
    machine: dict[str, Any] | None = None,
    encoder: dict[str, Any] | None = None,
    word_vectors: Artifact | None = None,
    **recipe: Any,
) -> Path:
    """The path of a stage table for pre-training on `examples` into `directory/out`."""
    given = {"examples": examples, **({"word_vectors": word_vectors} if word_vectors else {})}
    optimizer = {"learning_rate": 2e-3, "warmup_steps": 5, **recipe.pop("optimizer", {})}
    config = {
        "seed": 7,
        "encoder": {**ENCODER, **(encoder or {})},
        "pretrain": {
            "steps": 20,
            "batch_size": 8,
            "phases": [{"max_seq_length": 32, "share": 1.0}],
            "precision": "fp32",
            "evaluate_every": 10,
            "evaluation_examples": 16,
            "optimizer": optimizer,
            **recipe,
        },
    }
    table = StageTable(
        stage="pretrain",
        format_version=1,
        config=config,
        inputs={
            role: InputRef(digest=artifact.digest, path=artifact.directory)
            for role, artifact in given.items()
        },
        output=str(directory / "out"),
        machine={"threads": 1, "checkpoint_every": 5, "log_every": 5, **(machine or {})},
    )
    path = directory / "table.json"
    write_stage_table(table, path)
    return path


@dataclass(frozen=True)
class Ended:
    """The outcome of a rank."""

    code: int
    ends: list[dict[str, Any]]
    stderr: str
    seconds: float


def run_ranks(
    ranks: int,
    wishes: list[dict[str, Any]] | str,
    *,
    program: str = "rank_program.py",
    timeout: float = 2 * PATIENCE,
    wait_for: int = 0,
) -> list[Ended]:
    """Run `program` with its argument as several ranks, without a launcher.

    Waits for the first `wait_for` of them (0: all), and kills the others.
    """
    started = time.monotonic()
    argument = wishes if isinstance(wishes, str) else json.dumps(wishes)
    command = [sys.executable, str(Path(__file__).with_name(program)), argument]
    environment = {
        **os.environ,
        "WORLD_SIZE": str(ranks),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(free_port()),
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": str(Path(__file__).parents[3]),
    }
    processes = [
        subprocess.Popen(
            command,
            env={**environment, "RANK": str(rank), "LOCAL_RANK": str(rank)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(ranks)
    ]
    found = []
    try:
        for process in processes[: wait_for or ranks]:
            left = max(0.1, started + timeout - time.monotonic())
            out, err = process.communicate(timeout=left)
            ends = [json.loads(line) for line in out.splitlines() if line.startswith('{"end"')]
            found.append(Ended(process.returncode, ends, err, time.monotonic() - started))
    finally:
        for process in processes:
            process.kill()
            process.communicate(timeout=PATIENCE)  # what a rank has started may hold its pipes
    return found


def losses(directory: Path) -> list[float]:
    """The losses of a finished run, step by step."""
    artifact = open_artifact(str(directory / "out"))
    points = [json.loads(line) for line in artifact.read_bytes("curve.jsonl").splitlines()]
    return [point["loss"] for point in points if "loss" in point]


def step_record(step: int, **changes: float) -> StepRecord:
    """The log record of a healthy step."""
    values = {
        "loss": 3.41, "masked_lm_loss": 2.81, "masked_lm_accuracy": 0.4, "next_sentence_loss": 0.6,
        "next_sentence_accuracy": 0.7, "gradient_norm": 1.5, "learning_rate": 1e-3, "examples": 10,
        "tokens": 1000, "flops": 2e9, "seconds": 0.5, "waited": 0.05, "imbalance": 0.01,
    }  # fmt: skip
    return StepRecord(step=step, **{**values, **changes})
