"""A finished run for the report, with made-up figures in every artifact."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from cloze.artifacts.manifest import FileEntry
from cloze.artifacts.stage import InputRef, StageTable
from cloze.artifacts.store import Artifact, commit, put_bytes, put_json
from cloze.artifacts.tokenizer import WordPieceTokenizer
from cloze.flows.config import RunConfig

SECRET = "xylophone"
"""A word of the corpus that must not appear without `show_text`."""

RUN: dict[str, Any] = {
    "name": "small",
    "seed": 7,
    "corpus": {
        "sources": [
            {"reader": "docstrings", "packages": ["numpy", "pandas"]},
            {"reader": "docstrings", "packages": ["rich"], "heldout": "package"},
        ]
    },
    "vocabulary": {"size": 100},
    "encoder": {"preset": "tiny"},
    "pretrain": {"steps": 4, "phases": [{"max_seq_length": 128, "share": 1.0}]},
    "labels": {"packages": ["numpy"], "test_packages": ["rich"]},
    "finetune": {
        "tasks": [{"name": "tagging", "kind": "tagging"}],
        "initialisations": ["pretrained", "random"],
    },
    "evaluate": {"masked_sentences": [f"A {SECRET} is a [MASK]."]},
    "report": {
        "title": "A small encoder",
        "note": "A toy.",
        "answers": ["instrument|thing"],
    },
}

VOCABULARY = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the", SECRET, "<b>", "a")
COUNTS = (0, 2, 0, 0, 0, 50, 30, 10, 8)

SPLIT = {
    "documents": 12,
    "sentences": 40,
    "tokens": 100,
    "unknown_tokens": 2,
    "unknown_share": 0.02,
    "text_bytes": 5000,
    "weighted_tokens": 100,
    "document_lengths": [0, 0, 3, 9] + [0] * 28,
    "sentence_lengths": [1, 20, 19] + [0] * 29,
}

EXAMPLES = {
    "rows": 80,
    "tokens": 6400,
    "masked": 1000,
    "replaced_by_mask": 800,
    "replaced_by_random": 101,
    "kept": 99,
    "next_random": 46,
    "not_asked": 0,
    "truncated": 20,
    "cut_tokens": 300,
    "lengths_next": [0, 1, 2, 3, 4, 4, 4, 4, 4, 4, 4],
    "lengths_random": [1, 2, 3, 4, 5, 6, 5, 5, 5, 5, 5],
    "lengths_single": [0] * 11,
    "mean_length": 80.0,
    "next_random_share": 0.575,
    "majority_share": 0.575,
    "length_only_share": 0.6125,
}

CURVE = [
    {"step": 1, "loss": 9.7, "masked_lm_loss": 9.0, "next_sentence_loss": 0.7},
    {"step": 2, "loss": 6.7, "masked_lm_loss": 6.0, "next_sentence_loss": 0.7},
    {"step": 2, "heldout": [6.05, 0.05, 0.7, 0.57]},
    {"step": 3, "loss": 5.0, "masked_lm_loss": 4.4, "next_sentence_loss": 0.6},
    {"step": 4, "loss": 3.9, "masked_lm_loss": 3.3, "next_sentence_loss": 0.6},
    {"step": 4, "heldout": [3.1, 0.42, 0.6, 0.7]},
]
HELDOUT = (
    "masked_lm_loss",
    "masked_lm_accuracy",
    "next_sentence_loss",
    "next_sentence_accuracy",
)
METRICS = [
    {"step": 2, "learning_rate": 0.001, "tokens_per_s": 1000.0, "step_seconds": 30.0},
    {"step": 4, "learning_rate": 0.0, "tokens_per_s": 2000.0, "step_seconds": 15.0},
]

LANGUAGE_MODEL = {
    "split": "package",
    "headline": True,
    "max_seq_length": 128,
    "examples": 60,
    "masked_tokens": 900,
    "mlm_loss": 3.25,
    "mlm_accuracy": 0.405,
    "mlm_perplexity": 25.79,
    "random_mlm_loss": 9.02,
    "unigram_entropy": 6.06,
    "unigram_loss": 6.2,
    "unigram_accuracy": 0.051,
    "count_model_loss": 4.5,
    "count_model_accuracy": 0.31,
    "next_sentence_examples": 60,
    "next_sentence_accuracy": 0.7,
    "next_sentence_majority": 0.575,
}


def spread(*values: float, standard_error: float = 0.0) -> dict[str, Any]:
    """The scores of a metric in the format of `scores.json`."""
    mean = sum(values) / len(values)
    return {
        "values": values,
        "mean": mean,
        "standard_error": standard_error,
        "median": mean,
        "minimum": min(values),
        "maximum": max(values),
    }


TASK = {
    "name": "tagging",
    "kind": "tagging",
    "metric": "f1",
    "metrics": ["f1"],
    "examples": {"train": 400, "dev": 100, "test": 150},
    "seeds": [0, 1],
    "systems": [
        {"name": "lookup", "role": "baseline", "test": {"f1": spread(0.5)}},
        {
            "name": "random",
            "role": "random",
            "test": {"f1": spread(0.56, 0.58, standard_error=0.01)},
            "trials": 2,
        },
        {
            "name": "pretrained",
            "role": "pretrained",
            "test": {"f1": spread(0.62, 0.626, standard_error=0.003)},
            "trials": 2,
        },
    ],
    "comparisons": [
        {
            "system": "pretrained",
            "against": "random",
            "metric": "f1",
            "split": "test",
            "difference": 0.053,
            "standard_error": 0.006,
            "paired": True,
            "seeds": 3,
            "interval": (0.027, 0.079),
            "p_value": 0.0126,
            "corrected": 0.0126,
            "outcome": "win",
            "statement": "wins",
        }
    ],
    "curves": [
        {
            "system": system,
            "seed": 0,
            "points": [
                {"epoch": 1, "train_loss": 1.0, "dev": 0.4},
                {"epoch": 2, "train_loss": 0.5, "dev": last},
            ],
        }
        for system, last in (("random", 0.56), ("pretrained", 0.62))
    ],
    "confusion": {"labels": ["O", "type"], "counts": [[90, 10], [5, 45]]},
    "errors": [{"text": f"The {SECRET} <script>", "gold": "type", "predicted": "O"}],
}

SECONDS = {
    "trials/tagging-random-0.json": 3.0,
    "trials/tagging-random-1.json": 4.0,
    "trials/tagging-pretrained-0.json": 5.0,
    # Neither a point of the grid nor another system counts for `pretrained`.
    "trials/tagging-pretrained-0-batch16.json": 90.0,
    "trials/tagging-pretrained-last-linear-0.json": 80.0,
}

SENTENCES = {
    "sentences": [
        {
            "sentence": f"A {SECRET} is a [MASK].",
            "guesses": [
                {"system": "random", "words": ["qux", "##z"], "probabilities": [0.01, 0.01]},
                {"system": "count", "words": ["the", "thing"], "probabilities": [0.3, 0.2]},
                {
                    "system": "pretrained",
                    "words": ["instrument", SECRET],
                    "probabilities": [0.6, 0.1],
                },
            ],
        }
    ]
}

PRESENT = ("vocabulary", "tokens", "examples", "labels", "pretrain", "finetune", "evaluate")


def report_table(
    folder: Path, *, present: tuple[str, ...] = PRESENT, **report: object
) -> StageTable:
    """The report's stage table, with the stages `present` as inputs."""
    run = RunConfig.model_validate({**RUN, "report": {**RUN["report"], **report}})
    made = {stage: _artifact(folder, stage, run) for stage in present}
    return StageTable(
        stage="report",
        format_version=1,
        config={"name": run.name, "report": run.report.model_dump(mode="json")},
        inputs={
            stage: InputRef(digest=artifact.digest, path=artifact.directory)
            for stage, artifact in made.items()
        },
        output=str(folder / "report"),
        machine={"record": _record(folder, run, made)},
    )


def _artifact(folder: Path, stage: str, run: RunConfig) -> Artifact:
    tables = run.model_dump(mode="json")
    parts = {
        "vocabulary": ("seed", "corpus", "cleaning", "vocabulary"),
        "tokens": ("seed", "corpus", "cleaning"),
        "examples": ("seed", "examples"),
        "labels": ("seed", "labels"),
        "pretrain": ("seed", "encoder", "pretrain"),
        "finetune": ("finetune",),
        "evaluate": ("seed", "evaluate"),
    }
    table = StageTable(
        stage=stage,
        format_version=1,
        config={part: tables[part] for part in parts[stage]},
        output=str(folder / stage),
    )
    files, records = _files(stage, table.output)
    return commit(table, files, records=records, statistics=_statistics(stage))


def _files(stage: str, output: str) -> tuple[list[FileEntry], list[FileEntry]]:
    if stage == "tokens":
        tokenizer = WordPieceTokenizer(VOCABULARY, lowercase=True).tokenizer_json()
        return [
            put_bytes(output, tokenizer.encode(), name="tokenizer.json"),
            put_json(output, list(COUNTS), name="token_counts.json"),
        ], []
    if stage == "examples":
        facts = {"split": "train", "max_seq_length": 128, "bucket": 0, "copies": [40, 40]}
        name = "train-128-00000.arrow"
        return [put_bytes(output, b"rows", name=name, rows=80, statistics=facts)], []
    if stage == "pretrain":
        return (
            [put_bytes(output, _json_lines(map(_named, CURVE)), name="curve.jsonl")],
            [put_bytes(output, _json_lines(METRICS), name="metrics.jsonl")],
        )
    if stage == "evaluate":
        scores = {"parameters": 1000, "language_model": [LANGUAGE_MODEL], "tasks": [TASK]}
        return [
            put_json(output, {**scores, "glue_average": None}, name="scores.json"),
            put_json(output, SENTENCES, name="masked_sentences.json"),
        ], []
    content = [put_json(output, {}, name="content.json")]
    if stage == "finetune":
        halves = (dict(list(SECONDS.items())[::2]), dict(list(SECONDS.items())[1::2]))
        return content, [
            put_json(output, half, name=f"seconds-{worker}.json")
            for worker, half in enumerate(halves)
        ]
    return content, []


def _statistics(stage: str) -> dict[str, Any]:
    return {
        "tokens": {
            "vocabulary_size": len(VOCABULARY),
            "splits": {"train": SPLIT, "package": {**SPLIT, "documents": 3}},
            "documents_read": 20,
            "damaged_documents": 0,
            "dropped": {"duplicate": 4, "empty": 1},
        },
        "examples": {"vocabulary_size": len(VOCABULARY), "splits": {"train": {"128": EXAMPLES}}},
        "pretrain": {"vocabulary_size": len(VOCABULARY), "parameters": 1000, "updates": 4},
    }.get(stage, {})


def _named(point: Mapping[str, Any]) -> dict[str, Any]:
    if "heldout" not in point:
        return {**point, "masked_lm_accuracy": 0.1}
    return {"step": point["step"], "heldout": dict(zip(HELDOUT, point["heldout"], strict=True))}


def _json_lines(rows: Any) -> bytes:
    return "".join(json.dumps(row) + "\n" for row in rows).encode()


def _record(folder: Path, run: RunConfig, made: Mapping[str, Artifact]) -> str:
    stages = {
        stage: {
            "key": artifact.manifest.key,
            "digest": artifact.digest,
            "directory": artifact.directory,
            "state": "made",
            "seconds": 10.0,
            "peak_memory": 1 << 30,
            "argv": ["python", "-P", "-m", f"cloze.pipeline.{stage}", "--config", f"{stage}.json"],
        }
        for stage, artifact in made.items()
    }
    record = {
        "name": run.name,
        "state": "running",
        "config": run.model_dump(mode="json"),
        "machine": {},
        "stages": stages,
        "started_at": "2026-01-12T10:00:00Z",
    }
    path = folder / "run.json"
    path.write_text(json.dumps(record))
    return str(path)
