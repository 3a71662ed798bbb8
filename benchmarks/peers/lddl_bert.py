"""NVIDIA LDDL's BERT preprocessing with one Dask worker per core, timed by its own clock.

    PYTHON lddl_bert.py CHECKOUT WORKERS CORPUS VOCABULARY OUTPUT given|segmented

LDDL reads one document per line and splits it into sentences with NLTK, whose parameters it
downloads at run time. Here the sentences are given (joined by tabs), or NLTK splits them with its
built-in parameters: the same code at the same speed, without a download.
"""

from __future__ import annotations  # LDDL's packages end at Python 3.8

import argparse
import contextlib
import io
import json
import os
import re
import sys

import nltk

nltk.download = lambda *_, **__: True
_punkt = nltk.tokenize.punkt.PunktSentenceTokenizer()

SEGMENTED = sys.argv[-1] == "segmented"


def sentences(text: str) -> list[str]:
    """The sentences of a document: as segmented by NLTK, or as given."""
    return _punkt.tokenize(text.replace("\t", " ")) if SEGMENTED else text.split("\t")


def write_source(corpus: str, directory: str, parts: int) -> None:
    """Write one document per line, after its name, in `parts` files."""
    os.makedirs(directory)
    with open(corpus, encoding="utf-8") as file:
        documents = [part.strip().replace("\n", "\t") for part in file.read().split("\n\n")]
    documents = [document for document in documents if document]
    for part in range(parts):
        with open(f"{directory}/{part}.txt", "w", encoding="utf-8") as file:
            for number, document in enumerate(documents[part::parts]):
                file.write(f"{part}-{number} {document}\n")


def main() -> None:
    """Run LDDL; print its own timing and the size of its output."""
    checkout, workers, corpus, vocabulary, output = sys.argv[1:6]
    sys.path.insert(0, checkout)
    # By this, Dask's workers find LDDL and this file.
    os.environ["PYTHONPATH"] = os.pathsep.join([checkout, os.path.dirname(__file__)])
    from lddl.dask.bert import pretrain

    write_source(corpus, f"{output}/source/en", parts=8)
    arguments = pretrain.attach_args(argparse.ArgumentParser()).parse_args(
        [
            "--schedule=local",
            f"--local-n-workers={workers}",
            f"--wikipedia={output}/source",
            f"--sink={output}/sink",
            f"--vocab-file={vocabulary}",
            "--num-blocks=8",
            "--sample-ratio=1.0",
            "--duplicate-factor=1",
            "--masking",
        ]
    )
    aside = sum(os.times()[:4])
    said = io.StringIO()
    with contextlib.redirect_stdout(said):
        pretrain.main(arguments)
    seconds = float(re.search(r"took ([0-9.]+) s", said.getvalue()).group(1))
    import pyarrow.parquet as pq

    files = [os.path.join(root, f) for root, _, fs in os.walk(f"{output}/sink") for f in fs]
    rows = sum(pq.ParquetFile(f).metadata.num_rows for f in files if "parquet" in f)
    size = sum(os.path.getsize(f) for f in files)
    print(json.dumps({"seconds": seconds, "examples": rows, "bytes": size, "cpu_aside": aside}))


# Dask's workers import this file too, and so use the same segmentation.
nltk.tokenize.sent_tokenize = sentences

if __name__ == "__main__":
    main()
