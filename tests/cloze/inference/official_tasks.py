"""The paper's eleven tasks as tiny files in their official layout, with all their files.

GLUE: gluebenchmark.com's TSV files (CoLA without header, MRPC with a byte order mark, a broken row
in QQP, five raters in MNLI's dev); SQuAD: the JSON of versions 1.1 and 2.0, whose test files have
no answers; SWAG: the CSV of github.com/rowanz/swagaf.
"""

import json
from collections.abc import Sequence
from pathlib import Path

A, B = "the list of names", "a b"
PAIRS = ((A, B), (B, A), (A, A), (B, B))
GLUE_NAMES = ("CoLA", "SST-2", "MRPC", "STS-B", "QQP", "MNLI", "QNLI", "RTE", "WNLI")
RECIPE = "max_seq_length = 16\nbatch_size = 4\nepochs = 1\n"
HEAD = """
name = "official"

[finetune]
encoder = "encoder"
seeds = [0]
precision = "fp32"
"""
OTHERS = """
[[finetune.tasks]]
name = "squad1"
kind = "span"
train = "squad/train-v1.1.json"
dev = "squad/dev-v1.1.json"
test = "squad/test-v1.1.json"
{recipe}
[[finetune.tasks]]
name = "squad2"
kind = "span"
train = "squad/train-v2.0.json"
dev = "squad/dev-v2.0.json"
test = "squad/test-v2.0.json"
{recipe}
[[finetune.tasks]]
name = "swag"
kind = "multiple_choice"
train = "swag/train.csv"
dev = "swag/val.csv"
test = "swag/test.csv"
columns = {{ context = "sent1", prefix = "sent2" }}
{recipe}"""


def write_official_tasks(folder: Path) -> None:
    """Write glue/, squad/, swag/ and official.toml."""
    glue = "".join(
        f'\n[[finetune.tasks]]\nname = "{name}"\nglue = "{name}"\nfolder = "glue/{name}"\n{RECIPE}'
        for name in GLUE_NAMES
    )
    (folder / "official.toml").write_text(HEAD + glue + OTHERS.format(recipe=RECIPE))
    write_glue(folder / "glue")
    for version in ("1.1", "2.0"):
        for split in ("train", "dev", "test"):
            write_squad(folder / "squad" / f"{split}-v{version}.json", version, split)
    write_swag(folder / "swag")


def write_glue(folder: Path) -> None:
    """Write all nine folders."""
    labels = {"QNLI": ("entailment", "not_entailment"), "RTE": ("not_entailment", "entailment")}
    columns = {"QNLI": ("question", "sentence")}
    for task in ("QNLI", "RTE", "WNLI"):
        header = ("index", *columns.get(task, ("sentence1", "sentence2")))
        rows = [(str(row), *pair) for row, pair in enumerate(PAIRS)]
        named = [(*row, labels.get(task, "01")[number % 2]) for number, row in enumerate(rows)]
        for split in ("train", "dev"):
            write_tsv(folder / task / f"{split}.tsv", [(*header, "label"), *named])
        write_tsv(folder / task / "test.tsv", [header, *rows])
    for split in ("train", "dev"):
        cola = [("gj04", str(row % 2), "*", pair[0]) for row, pair in enumerate(PAIRS)]
        write_tsv(folder / "CoLA" / f"{split}.tsv", cola)
        sst = [(pair[0], str(row % 2)) for row, pair in enumerate(PAIRS)]
        write_tsv(folder / "SST-2" / f"{split}.tsv", [("sentence", "label"), *sst])
        mrpc = [(str(row % 2), "1", "2", *pair) for row, pair in enumerate(PAIRS)]
        named = ("\ufeffQuality", "#1 ID", "#2 ID", "#1 String", "#2 String")
        write_tsv(folder / "MRPC" / f"{split}.tsv", [named, *mrpc])
        qqp = [("1", "2", "3", *pair, str(row % 2)) for row, pair in enumerate(PAIRS)]
        named = ("id", "qid1", "qid2", "question1", "question2", "is_duplicate")
        write_tsv(folder / "QQP" / f"{split}.tsv", [named, *qqp, ("7", "8", "9", "broken")])
    for task in ("CoLA", "SST-2"):
        texts = [(str(row), pair[0]) for row, pair in enumerate(PAIRS)]
        write_tsv(folder / task / "test.tsv", [("index", "sentence"), *texts])
    rows = [(str(row), "1", "2", *pair) for row, pair in enumerate(PAIRS)]
    named = ("\ufeffindex", "#1 ID", "#2 ID", "#1 String", "#2 String")
    write_tsv(folder / "MRPC" / "test.tsv", [named, *rows])
    rows = [(str(row), *pair) for row, pair in enumerate(PAIRS)]
    write_tsv(folder / "QQP" / "test.tsv", [("id", "question1", "question2"), *rows])
    write_sts_b(folder / "STS-B")
    write_mnli(folder / "MNLI")


def write_sts_b(folder: Path) -> None:
    """Ten columns, the last being the score, which the test files lack."""
    before = ("index", "genre", "filename", "year", "old_index", "source1", "source2")
    header = (*before, "sentence1", "sentence2")
    rows = [(str(row), *("x",) * 6, *pair) for row, pair in enumerate(PAIRS)]
    scored = [(*row, f"{number}.200") for number, row in enumerate(rows)]
    for split in ("train", "dev"):
        write_tsv(folder / f"{split}.tsv", [(*header, "score"), *scored])
    write_tsv(folder / "test.tsv", [header, *rows])


def write_mnli(folder: Path) -> None:
    """Parses precede the sentences, the raters' labels follow them."""
    parses = [f"sentence{side}_{kind}" for kind in ("binary_parse", "parse") for side in (1, 2)]
    header = ("index", "promptID", "pairID", "genre", *parses, "sentence1", "sentence2")
    rows = [(str(row), *("x",) * 7, *pair) for row, pair in enumerate(PAIRS)]
    gold = ("contradiction", "entailment", "neutral", "neutral")
    raters = {"train": 1, "dev_matched": 5, "dev_mismatched": 5}
    for split, count in raters.items():
        labels = tuple(f"label{number + 1}" for number in range(count))
        labelled = [(*row, *(one,) * count, one) for row, one in zip(rows, gold, strict=True)]
        write_tsv(folder / f"{split}.tsv", [(*header, *labels, "gold_label"), *labelled])
    for split in ("test_matched", "test_mismatched"):
        write_tsv(folder / f"{split}.tsv", [header, *rows])
    short = [(str(row), *pair) for row, pair in enumerate(PAIRS)]
    write_tsv(folder / "diagnostic.tsv", [("index", "sentence1", "sentence2"), *short])


def write_squad(path: Path, version: str, split: str) -> None:
    """Four questions; in 2.0 two of them have no answer; test files have no answers."""
    asked: list[dict[str, object]] = []
    for number in range(4):
        question: dict[str, object] = {"id": f"{split}{number}", "question": "a b"}
        impossible = version == "2.0" and number > 1
        if split != "test":
            answers = [] if impossible else [{"text": "list", "answer_start": 4}]
            question["answers"] = answers
            if version == "2.0":
                question["is_impossible"] = impossible
        asked.append(question)
    data = [{"title": "x", "paragraphs": [{"context": A, "qas": asked}]}]
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps({"version": version, "data": data}))


def write_swag(folder: Path) -> None:
    """The regular files, whose first column is an unnamed row number."""
    fields = ("", "video-id", "fold-ind", "startphrase", "sent1", "sent2", "gold-source")
    header = (*fields, "ending0", "ending1", "ending2", "ending3")
    rows = [
        (str(row), "v", "1", f"{A} {B}", A, B, "gold", "the", "list", "of", "names")
        for row in range(4)
    ]
    folder.mkdir()
    for name, labelled in (("train", True), ("val", True), ("test", False)):
        table = (
            [(*header, "label"), *((*row, row[0]) for row in rows)] if labelled else [header, *rows]
        )
        (folder / f"{name}.csv").write_text("".join(",".join(row) + "\n" for row in table))


def write_tsv(path: Path, rows: Sequence[Sequence[str]]) -> None:
    """A TSV file without quoting."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join("\t".join(row) + "\n" for row in rows), "utf-8")
