"""Collections with questions, in the layout that `cloze search --evaluate` reads.

In:  a file in SQuAD's format: paragraphs, and questions whose answers they have.
Out: a folder in BEIR's layout.
"""

import json
from pathlib import Path

import numpy as np


def write_beir(
    source: Path, folder: Path, *, questions: int, beside: int = 0, spared: int = 0
) -> None:
    """The paragraphs of a file in SQuAD's format as documents, and a sample of its questions.

    `beside`: so many of the questions that are not in that sample, instead of it. `spared`: so many
    are left for that.
    """
    documents: dict[str, str] = {}
    asked: list[tuple[str, str]] = []
    for article in json.loads(source.read_text("utf-8"))["data"]:
        for paragraph in article["paragraphs"]:
            name = documents.setdefault(paragraph["context"], f"d{len(documents)}")
            # SQuAD 2.0 has questions that its paragraph does not answer.
            asked += [(one["question"], name) for one in paragraph["qas"] if one["answers"]]
    questions = min(questions, len(asked) - max(beside, spared))
    if len(asked) > questions:
        draw = np.random.default_rng(0)
        drawn = draw.choice(len(asked), questions, replace=False)
        if beside:
            drawn = draw.choice(np.setdiff1d(np.arange(len(asked)), drawn), beside, replace=False)
        asked = [asked[number] for number in sorted(drawn)]
    (folder / "qrels").mkdir(parents=True)
    rows = [{"_id": name, "text": text} for text, name in documents.items()]
    queries = [{"_id": f"q{number}", "text": text} for number, (text, _) in enumerate(asked)]
    for file, lines in (("corpus", rows), ("queries", queries)):
        text = "".join(json.dumps(line) + "\n" for line in lines)
        (folder / f"{file}.jsonl").write_text(text, "utf-8")
    grades = (f"q{number}\t{name}\t1\n" for number, (_, name) in enumerate(asked))
    (folder / "qrels" / "test.tsv").write_text("query-id\tcorpus-id\tscore\n" + "".join(grades))
