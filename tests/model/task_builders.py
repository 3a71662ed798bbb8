"""Tiny artifacts, as left by the stages before fine-tuning."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from safetensors.torch import save_file

from cloze.artifacts.manifest import FileEntry
from cloze.artifacts.stage import InputRef, StageTable
from cloze.artifacts.store import Artifact, commit, put_bytes, put_json, put_local_file
from cloze.artifacts.tables import examples_name, examples_schema, tokens_name, tokens_schema
from cloze.artifacts.tokenizer import SPECIAL_TOKENS, WordPieceTokenizer
from cloze.model.config import EncoderConfig
from cloze.model.encoder.models import Encoder, PretrainingModel
from cloze.model.hugging_face.layout import hugging_face_config, to_hugging_face
from tests.model.shapes import small_shape

SENTENCE = "the a new array of given shape returns list int str value name error raised if ,"
LETTERS = "bcdefghijklmnopqrstuvwxyz"
TOKENIZER = WordPieceTokenizer(
    (*SPECIAL_TOKENS, *SENTENCE.split(), *LETTERS, "##s", "##ed"), lowercase=True
)
FIRST_WORD = len(SPECIAL_TOKENS)
TINY = small_shape(layers=1, width=16, heads=2, positions=64)


def stage_table(stage: str, output: Path, **fields: Any) -> StageTable:
    """A stage table with the given fields only."""
    return StageTable.model_validate(
        {"stage": stage, "format_version": 1, "config": {}, "output": str(output), **fields}
    )


def inputs(**artifacts: Artifact) -> dict[str, InputRef]:
    return {
        role: InputRef(digest=artifact.digest, path=artifact.directory)
        for role, artifact in artifacts.items()
    }


def finetune_table(output: Path, encoder: Artifact, **config: Any) -> StageTable:
    """The table of a fine-tuning of `encoder`: with one thread, in fp32."""
    return stage_table(
        "finetune",
        output,
        config={"finetune": {"precision": "fp32", **config}},
        inputs=inputs(encoder=encoder),
        machine={"threads": 1},
    )


def write_lines(path: Path, rows: Sequence[Mapping[str, Any]]) -> str:
    """Write a JSON lines file; return its path."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def encoder_artifact(directory: Path, *, config: EncoderConfig = TINY, seed: int = 0) -> Artifact:
    """A randomly initialised encoder with both heads."""
    directory.mkdir(parents=True)
    torch.manual_seed(seed)
    model = PretrainingModel(Encoder(config, TOKENIZER.size))
    save_file(to_hugging_face(model.state_dict(), config.family), directory / "weights")
    out = str(directory)
    table = hugging_face_config(config, TOKENIZER.size)
    return commit(
        stage_table("pretrain", directory),
        [
            put_local_file(out, str(directory / "weights"), name="model.safetensors"),
            put_bytes(out, json.dumps(table).encode(), name="config.json"),
            put_bytes(out, TOKENIZER.tokenizer_json().encode(), name="tokenizer.json"),
        ],
    )


def tokens_artifact(directory: Path, documents: Sequence[Sequence[int]]) -> Artifact:
    """A tokens artifact whose training split is `documents`, one sentence each."""
    directory.mkdir(parents=True)
    schema = tokens_schema(TOKENIZER.size)
    table = pa.table(
        {
            "document_digest": [i.to_bytes(16) for i in range(len(documents))],
            "copies": [1] * len(documents),
            "token_ids": [list(document) for document in documents],
            "sentence_lengths": [[len(document)] for document in documents],
        },
        schema=schema,
    )
    counts = np.bincount(np.concatenate(documents), minlength=TOKENIZER.size)
    entry = _put_table(directory, table, tokens_name("train", 0), statistics={"split": "train"})
    counted = put_json(str(directory), counts.tolist(), name="token_counts.json")
    statistics = {"tokenizer_digest": TOKENIZER.digest, "vocabulary_size": TOKENIZER.size}
    return commit(stage_table("tokens", directory), [entry, counted], statistics=statistics)


def examples_artifact(
    directory: Path, splits: Mapping[str, Sequence[Mapping[str, Any]]]
) -> Artifact:
    """An examples artifact of length 64 with one copy."""
    directory.mkdir(parents=True)
    entries = [
        _put_table(
            directory,
            pa.Table.from_pylist(list(rows), schema=examples_schema(TOKENIZER.size)),
            examples_name(split, 64, 0),
            statistics={"split": split, "max_seq_length": 64, "bucket": 0, "copies": [len(rows)]},
        )
        for split, rows in splits.items()
    ]
    statistics = {"tokenizer_digest": TOKENIZER.digest, "vocabulary_size": TOKENIZER.size}
    table = stage_table("examples", directory, config={"examples": {}})
    return commit(table, entries, statistics=statistics)


def masked_examples(count: int, seed: int) -> list[dict[str, Any]]:
    """Random pairs with two masked tokens each."""
    rng = np.random.default_rng(seed)
    examples = []
    for _ in range(count):
        a, b = (rng.integers(FIRST_WORD, TOKENIZER.size, rng.integers(2, 9)).tolist() for _ in "ab")
        ids = [TOKENIZER.cls_id, *a, TOKENIZER.sep_id, *b, TOKENIZER.sep_id]
        places = [1, len(a) + 2]
        answers = [ids[place] for place in places]
        for place in places:
            ids[place] = TOKENIZER.mask_id
        examples.append(
            {
                "input_ids": ids,
                "segment_a_length": len(a) + 2,
                "masked_lm_positions": places,
                "masked_lm_ids": answers,
                "next_sentence_label": int(rng.integers(2)),
            }
        )
    return examples


def _put_table(
    directory: Path, table: pa.Table, name: str, *, statistics: dict[str, Any]
) -> FileEntry:
    path = directory / "unfinished"
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table)
    return put_local_file(
        str(directory), str(path), name=name, rows=table.num_rows, statistics=statistics
    )
