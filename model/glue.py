"""The GLUE tasks: columns in the classic TSV layout, and metrics.

In:  a task's name and its folder.
Out: the fields of a `TaskConfig`. No framework is imported here, since the configuration uses this.

Columns are header names, or numbers from 0 for files without a header (CoLA). Metrics are those of
Wang et al. 2019 and the paper's Table 1, the headline metric first.
"""

from dataclasses import dataclass, field


@dataclass(frozen=True)
class GlueTask:
    """One GLUE task."""

    kind: str
    text_a: str
    text_b: str = ""
    label: str = "label"
    metrics: tuple[str, ...] = ("accuracy",)
    labels: tuple[str, ...] = ("0", "1")
    submission: str = ""
    """File name for the official evaluation server."""

    test_columns: dict[str, str] = field(default_factory=dict)
    """Columns that differ in the test file."""

    more: dict[str, str] = field(default_factory=dict)
    """Further files to evaluate or predict."""

    skip_short_rows: bool = False


_PAIR = "pair_classification"
_MNLI_LABELS = ("contradiction", "entailment", "neutral")
_ENTAILMENT = ("entailment", "not_entailment")

GLUE: dict[str, GlueTask] = {
    "CoLA": GlueTask(
        "classification",
        "3",
        label="1",
        metrics=("matthews", "accuracy"),
        submission="CoLA",
        test_columns={"text_a": "sentence"},
    ),
    "SST-2": GlueTask("classification", "sentence", submission="SST-2"),
    "MRPC": GlueTask(
        _PAIR,
        "#1 String",
        "#2 String",
        label="Quality",
        metrics=("f1", "accuracy"),
        submission="MRPC",
    ),
    "STS-B": GlueTask(
        "regression",
        "sentence1",
        "sentence2",
        label="score",
        metrics=("spearman", "pearson"),
        labels=(),
        submission="STS-B",
    ),
    "QQP": GlueTask(
        _PAIR,
        "question1",
        "question2",
        label="is_duplicate",
        metrics=("f1", "accuracy"),
        submission="QQP",
        skip_short_rows=True,  # some rows of the official file are malformed
    ),
    "MNLI": GlueTask(
        _PAIR,
        "sentence1",
        "sentence2",
        label="gold_label",
        labels=_MNLI_LABELS,
        submission="MNLI-m",
        more={
            "dev_mismatched": "dev_mismatched.tsv",
            "test_mismatched": "test_mismatched.tsv",
            "diagnostic": "diagnostic.tsv",
        },
    ),
    "QNLI": GlueTask(_PAIR, "question", "sentence", labels=_ENTAILMENT, submission="QNLI"),
    "RTE": GlueTask(_PAIR, "sentence1", "sentence2", labels=_ENTAILMENT, submission="RTE"),
    "WNLI": GlueTask(_PAIR, "sentence1", "sentence2", submission="WNLI"),
}

IN_AVERAGE = tuple(name for name in GLUE if name != "WNLI")
"""The paper's average leaves WNLI out (Table 1)."""

_FILES = {"MNLI": {"dev": "dev_matched.tsv", "test": "test_matched.tsv"}}
_SUBMISSIONS = {"test_mismatched": "MNLI-mm", "diagnostic": "AX"}


def task_fields(name: str, folder: str) -> dict[str, object]:
    """The `TaskConfig` fields of GLUE task `name`, with its files in `folder`."""
    task = GLUE[name]
    named = {"text_a": task.text_a, "text_b": task.text_b, "label": task.label}
    files = {split: f"{split}.tsv" for split in ("train", "dev", "test")} | _FILES.get(name, {})
    return {
        "kind": task.kind,
        "metrics": task.metrics,
        "labels": task.labels,
        "columns": {ours: theirs for ours, theirs in named.items() if theirs and theirs != ours},
        "test_columns": task.test_columns,
        "skip_short_rows": task.skip_short_rows,
        **{split: f"{folder}/{file}" for split, file in files.items()},
        "more": {split: f"{folder}/{file}" for split, file in task.more.items()},
    }


def submission_name(task: str, split: str) -> str:
    """File name, without `.tsv`, that the official server expects for a split."""
    return _SUBMISSIONS.get(split, GLUE[task].submission)
