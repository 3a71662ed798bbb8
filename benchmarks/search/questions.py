"""Collections with questions, in the layout that `cloze search --evaluate` reads.

In:  a file in SQuAD's format: paragraphs, and questions whose answers they have.
Out: a folder in BEIR's layout.
"""

import json
from pathlib import Path

import numpy as np


def write_beir(source: Path, folder: Path, *, questions: int) -> None:
    """The paragraphs of a file in SQuAD's format as documents, and a sample of its questions."""
    documents: dict[str, str] = {}
    asked: list[tuple[str, str]] = []
    for article in json.loads(source.read_text("utf-8"))["data"]:
        for paragraph in article["paragraphs"]:
            name = documents.setdefault(paragraph["context"], f"d{len(documents)}")
            asked += [(one["question"], name) for one in paragraph["qas"]]
    if len(asked) > questions:
        drawn = np.random.default_rng(0).choice(len(asked), questions, replace=False)
        asked = [asked[number] for number in sorted(drawn)]
    (folder / "qrels").mkdir(parents=True)
    rows = [{"_id": name, "text": text} for text, name in documents.items()]
    queries = [{"_id": f"q{number}", "text": text} for number, (text, _) in enumerate(asked)]
    for file, lines in (("corpus", rows), ("queries", queries)):
        text = "".join(json.dumps(line) + "\n" for line in lines)
        (folder / f"{file}.jsonl").write_text(text, "utf-8")
    grades = (f"q{number}\t{name}\t1\n" for number, (_, name) in enumerate(asked))
    (folder / "qrels" / "test.tsv").write_text("query-id\tcorpus-id\tscore\n" + "".join(grades))
