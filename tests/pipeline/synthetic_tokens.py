"""Synthetic tokens artifacts, to test the examples stage without the stages before it."""

import hashlib
import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa

from cloze.artifacts.stage import InputRef, StageTable
from cloze.artifacts.store import Artifact, commit, put_bytes, put_local_file
from cloze.artifacts.tables import tokens_name, tokens_schema
from cloze.artifacts.tokenizer import SPECIAL_TOKENS, WordPieceTokenizer

# A document is a list of sentences, a sentence a list of token ids.
DocumentIds = Sequence[Sequence[int]]


def small_tokenizer(words: int = 200) -> WordPieceTokenizer:
    """Special tokens, then words w5 …, every fourth of which continues a word."""
    names = [f"##p{index}" if index % 4 == 3 else f"w{index}" for index in range(5, words)]
    return WordPieceTokenizer((*SPECIAL_TOKENS, *names), lowercase=True)


def random_documents(seed: int, *, count: int, words: int = 200) -> list[DocumentIds]:
    """Documents of 1 to 30 sentences of 1 to 50 tokens."""
    rng = np.random.default_rng(seed)
    return [
        [rng.integers(5, words, rng.integers(1, 50)).tolist() for _ in range(rng.integers(1, 30))]
        for _ in range(count)
    ]


def document_digest(document: DocumentIds) -> bytes:
    return hashlib.blake2b(repr(document).encode(), digest_size=16).digest()


def tokens_table(
    documents: Sequence[DocumentIds], *, vocabulary_size: int, weights: Sequence[int] | None = None
) -> pa.Table:
    """Documents as a tokens table, sorted by digest as by the stage."""
    weighted = zip(documents, weights or [1] * len(documents), strict=True)
    rows = sorted((document_digest(document), document, weight) for document, weight in weighted)
    return pa.table(
        {
            "document_digest": [digest for digest, _, _ in rows],
            "copies": [weight for _, _, weight in rows],
            "token_ids": [
                [i for sentence in document for i in sentence] for _, document, _ in rows
            ],
            "sentence_lengths": [[len(s) for s in document] for _, document, _ in rows],
        },
        schema=tokens_schema(vocabulary_size),
    )


def tokens_artifact(
    directory: Path,
    buckets: dict[tuple[str, int], pa.Table],
    *,
    tokenizer: WordPieceTokenizer,
) -> Artifact:
    """A finished tokens artifact with one table for each (split, bucket)."""
    directory.mkdir(parents=True, exist_ok=True)
    table = StageTable(stage="tokens", format_version=1, config={}, output=str(directory))
    entries = [
        put_bytes(str(directory), tokenizer.tokenizer_json().encode(), name="tokenizer.json"),
        put_bytes(str(directory), tokenizer.vocab_txt().encode(), name="vocab.txt"),
    ]
    for (split, bucket), content in buckets.items():
        path = os.path.join(directory, "unfinished.arrow")
        with pa.OSFile(path, "wb") as sink, pa.ipc.new_file(sink, content.schema) as writer:
            writer.write_table(content)
        name = tokens_name(split, bucket)
        entries.append(put_local_file(str(directory), path, name=name, rows=content.num_rows))
    return commit(table, entries)


def examples_table(
    tokens: Artifact, output: Path, *, config: dict, machine: dict | None = None, seed: int = 1
) -> StageTable:
    """The stage table of an examples stage over `tokens`."""
    return StageTable(
        stage="examples",
        format_version=1,
        config={"seed": seed, "examples": config},
        inputs={"tokens": InputRef(digest=tokens.digest, path=tokens.directory)},
        output=str(output),
        machine={"worker_mode": "inline", **(machine or {})},
    )
