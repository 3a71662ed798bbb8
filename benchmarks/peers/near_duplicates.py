"""Near-duplicates as other tools find them, on given documents.

    python near_duplicates.py TOOL DOCUMENTS FOLDER

Needs an environment of its own with the TOOL: `datatrove` 0.10 (with spacy), `rensa`, `text_dedup`
or `data_juicer` (py-data-juicer). DOCUMENTS is JSON lines with `id`, a number as text, and `text`;
FOLDER is for working files. All have 5-word shingles, 21 bands of 6 values and the threshold 0.8,
where they have one. Prints which ids are kept, seconds of processor time without imports, and the
version.
"""

import glob
import gzip
import importlib.metadata
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable

WORDS, BANDS, WIDTH, THRESHOLD = 5, 21, 6, 0.8
VALUES = BANDS * WIDTH


def datatrove(documents: str, folder: str) -> Callable[[], list[int]]:
    """Its four steps, one after the other."""
    from datatrove.executor import LocalPipelineExecutor
    from datatrove.pipeline.dedup import (
        MinhashConfig,
        MinhashDedupBuckets,
        MinhashDedupCluster,
        MinhashDedupFilter,
        MinhashDedupSignature,
    )
    from datatrove.pipeline.readers import JsonlReader
    from datatrove.pipeline.writers import JsonlWriter

    config = MinhashConfig(n_grams=WORDS, num_buckets=BANDS, hashes_per_bucket=WIDTH)
    parent, name = documents.rsplit("/", 1)
    names = ("signatures", "buckets", "removed", "kept")
    signatures, buckets, removed, kept = (f"{folder}/{one}" for one in names)

    def find() -> list[int]:
        steps = (
            [JsonlReader(parent, glob_pattern=name), MinhashDedupSignature(signatures, config)],
            [MinhashDedupBuckets(signatures, buckets, config=config)],
            [MinhashDedupCluster(buckets, removed, config=config)],
            [
                JsonlReader(parent, glob_pattern=name),
                MinhashDedupFilter(removed),
                JsonlWriter(kept),
            ],
        )
        for number, step in enumerate(steps):
            tasks = BANDS if number == 1 else 1
            logs = f"{folder}/logs{number}"
            LocalPipelineExecutor(step, tasks=tasks, workers=1, logging_dir=logs).run()
        found = []
        for path in glob.glob(f"{kept}/*"):
            with gzip.open(path, "rt") as file:
                found += [int(json.loads(line)["id"]) for line in file]
        return found

    return find


def rensa(documents: str, folder: str) -> Callable[[], list[int]]:
    """Its deduplicator; the shingles are the caller's."""
    from rensa import RMinHash, RMinHashDeduplicator

    word = re.compile(r"\w+")

    def find() -> list[int]:
        keeper = RMinHashDeduplicator(
            threshold=THRESHOLD, num_perm=VALUES, use_lsh=True, num_bands=BANDS
        )
        found = []
        with open(documents, encoding="utf-8") as file:
            for row in map(json.loads, file):
                words = word.findall(row["text"].lower())
                shingles = map(" ".join, zip(*(words[at:] for at in range(WORDS)), strict=False))
                values = RMinHash(num_perm=VALUES, seed=42)
                values.update(list(set(shingles)))
                if len(words) < WORDS or keeper.add(row["id"], values):
                    found.append(int(row["id"]))
        return found

    return find


def text_dedup(documents: str, folder: str) -> Callable[[], list[int]]:
    """Its program, in a process of its own."""
    import datasets

    options = {
        **{"path": "json", "data_files": documents, "split": "train", "cache_dir": f"{folder}/c"},
        **{"output": f"{folder}/kept", "column": "text", "idx_column": "id", "num_proc": 1},
        **{"batch_size": 10_000, "ngram": WORDS, "num_perm": VALUES, "b": BANDS, "r": WIDTH},
        **{"threshold": THRESHOLD, "min_length": 0},
    }
    command = [f"--{name}={value}" for name, value in options.items() if name != "idx_column"]

    def find() -> list[int]:
        subprocess.run(
            [sys.executable, "-m", "text_dedup.minhash", *command], check=True, stdout=sys.stderr
        )
        return [int(one) for one in datasets.load_from_disk(f"{folder}/kept")["id"]]

    return find


def data_juicer(documents: str, folder: str) -> Callable[[], list[int]]:
    """Its operator over a data set in memory."""
    from data_juicer.core.data import NestedDataset
    from data_juicer.ops.deduplicator.document_minhash_deduplicator import (
        DocumentMinhashDeduplicator,
    )

    def find() -> list[int]:
        operator = DocumentMinhashDeduplicator(
            window_size=WORDS,
            num_permutations=VALUES,
            jaccard_threshold=THRESHOLD,
            num_bands=BANDS,
            num_rows_per_band=WIDTH,
        )
        with open(documents, encoding="utf-8") as file:
            rows = NestedDataset.from_list([json.loads(line) for line in file])
        kept, _ = operator.process(rows.map(operator.compute_hash, num_proc=1))
        return [int(one) for one in kept["id"]]

    return find


PACKAGES = {"text_dedup": "text-dedup", "data_juicer": "py-data-juicer"}

if __name__ == "__main__":
    tool, *paths = sys.argv[1:]
    find = {one.__name__: one for one in (datatrove, rensa, text_dedup, data_juicer)}[tool](*paths)
    before = sum(os.times()[:4])  # of this process and of those that it starts
    kept = sorted(find())
    seconds = sum(os.times()[:4]) - before
    version = importlib.metadata.version(PACKAGES.get(tool, tool))
    print(json.dumps({"kept": kept, "seconds": seconds, "version": version}))
