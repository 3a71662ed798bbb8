"""Students of every task family."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from cloze.artifacts.errors import UsageError
from cloze.artifacts.store import Artifact, commit
from cloze.flows.config import MachineConfig, RunConfig
from cloze.flows.plan import Plan
from cloze.model.config import EncoderConfig, TaskConfig
from cloze.model.distillation.distill import make_student
from cloze.model.distillation.lessons import make_lessons
from cloze.model.distillation.tasks import read_rows, read_teacher
from cloze.model.encoder.models import Encoder, TaskModel
from cloze.model.encoder.operations.native_kernels import kernels
from cloze.model.hugging_face.model_files import EncoderFiles, TrainedModel, save_model
from cloze.model.inference.export import export_task
from cloze.model.inference.predict import load_predictor
from cloze.model.tasks.problems import load_problem, load_tables
from cloze.model.training.checkpoints import FaultHook, no_fault
from tests.model.finetune.test_families_on_cuda import ROWS
from tests.model.task_builders import LETTERS, TINY, TOKENIZER, stage_table, write_lines

DEEP = TINY.model_copy(update={"num_hidden_layers": 3})
FAMILIES = [kind for kind in ROWS if kind != "retrieval"]
FAST = {"learning_rate": 3e-3}


def write_teacher(
    folder: Path, kind: str, *, shape: EncoderConfig = DEEP, zero: float = 0.0, unit: float = 1.0
) -> Artifact:
    """A model of the task with random weights, large enough to answer differently.

    Its outputs are multiples of `unit` around `zero`.
    """
    # Rows of one query would be one list to rank; each needs other passages beside its own.
    own = {"negatives": ["int", "value of name"]} if kind == "reranking" else {}
    copies = [
        row | ({"query": f"{row['query']} {letter}"} if own else {}) | own
        for letter in LETTERS
        for row in ROWS[kind]
    ]
    rows = write_lines(folder / "rows.jsonl", copies[:40])
    task = TaskConfig(name="mine", kind=kind, train=rows, dev=rows, max_seq_length=32)
    problem = load_problem(task, TOKENIZER, load_tables(task))
    torch.manual_seed(1)
    model = TaskModel(
        Encoder(shape, TOKENIZER.size), outputs=problem.outputs, head_dropout=problem.head_dropout
    )
    for parameter in model.parameters():
        if parameter.dim() > 1:
            parameter.data *= 8
    model.head.weight.data *= unit
    model.head.bias.data += zero
    files = EncoderFiles(config=shape, tokenizer=TOKENIZER, parameters={}, card="")
    output = folder / "teacher"
    trained = TrainedModel(problem, problem.calibrated(None), model.state_dict())
    entries = save_model(str(output), trained, files)
    return commit(stage_table("finetune", output), entries)


def student_of(folder: Path, *, fault: FaultHook = no_fault, **own: Any) -> Artifact:
    """The student of the teacher in `folder`, made in this process."""
    settings = {"layers": 1, "epochs": 10, "batch_size": 8, "precision": "fp32", "optimizer": FAST}
    teacher = {"teacher": str(folder / "teacher"), "task": "mine"}
    table = {**settings, **teacher, "texts": str(folder / "rows.jsonl"), **own}
    run = RunConfig.model_validate({"name": "student", "distill": table})
    training = {"checkpoint_every": 2, "threads": 1, "device": "cpu"}
    machine = MachineConfig.model_validate(
        {"workspace": str(folder / "runs"), "training": training}
    )
    plan = Plan(run, machine)
    if "lessons" not in plan.finished:
        plan.finish("lessons", make_lessons(plan.table(plan.stages["lessons"]), []))
    return make_student(plan.table(plan.stages["distill"]), [], fault=fault)


@pytest.mark.parametrize("kind", FAMILIES)
def test_a_student_of_every_family_learns_its_teachers_logits_and_states(
    tmp_path: Path, kind: str
) -> None:
    write_teacher(tmp_path, kind)
    student = student_of(tmp_path)
    first, *_, last = json.loads(student.read_bytes("curve.json"))
    assert last["logits"] < first["logits"] / 2 and last["hidden"] < first["hidden"]
    statistics = student.manifest.statistics
    assert (statistics["teacher"]["layers"], statistics["student"]["layers"]) == (3, 1)
    assert statistics["quality"]["texts"] == 4
    assert "student" in statistics["quality"]  # the rows are labelled, so both are scored
    if kind not in ("reranking",):
        rows = [
            {k: v for k, v in row.items() if k not in ("label", "tags", "answers")}
            for row in ROWS[kind]
        ]
        assert len(load_predictor(student.directory).predict(rows)) == 2
    export_task(student.directory, tmp_path / "out", task="mine")
    assert "distilled from a larger model" in (tmp_path / "out" / "README.md").read_text()


@pytest.mark.parametrize(("zero", "unit"), [(1960.0, 30.0), (0.0, 1e-5), (-2e6, 1e5)])
@pytest.mark.parametrize("own", [{}, {"width": 8}])
def test_numbers_on_any_scale_are_taken_over_from_the_teacher(
    tmp_path: Path, zero: float, unit: float, own: dict[str, int]
) -> None:
    write_teacher(tmp_path, "regression", zero=zero, unit=unit)
    student = student_of(tmp_path, epochs=40, **own)
    rows = [
        {name: value for name, value in row.items() if name != "label"}
        for row in ROWS["regression"]
    ]
    both = (load_predictor(one) for one in (tmp_path / "teacher", student.directory))
    theirs, ours = (torch.tensor([one["prediction"] for one in o.predict(rows)]) for o in both)
    assert float((ours - theirs).abs().max()) < 0.5 * unit
    # as many equal rows are held out as learnt, so the figure is a share
    assert 0.5 < student.manifest.statistics["quality"]["kept"] <= 1


def test_a_narrower_student_learns_the_logits_alone(tmp_path: Path) -> None:
    write_teacher(tmp_path, "classification")
    student = student_of(tmp_path, width=8)
    assert student.manifest.statistics["student"]["hidden_size"] == 8
    *_, last = json.loads(student.read_bytes("curve.json"))
    assert last["hidden"] == 0.0


@pytest.mark.skipif(kernels() is None, reason="no gcc here")
def test_a_task_student_is_also_judged_in_int8(tmp_path: Path) -> None:
    shape = DEEP.model_copy(update={"hidden_size": 32, "intermediate_size": 64})
    write_teacher(tmp_path, "classification", shape=shape)
    found = student_of(tmp_path).manifest.execution
    student = load_predictor(tmp_path / "teacher").model  # of the same shape but for the layers
    matrices = 4 * 32 * 32 + 2 * 32 * 64
    parameters = sum(each.numel() for each in student.parameters())
    parameters -= 2 * (matrices + 4 * 32 + 32 + 64 + 4 * 32)  # two of three layers
    assert found["int8"]["megabytes"] == (4 * parameters - 3 * matrices) / 1e6
    assert 0 <= found["int8"]["score"] <= 1
    assert {"teacher", "student", "int8"} == found["milliseconds"]["1 × 16"].keys()


def test_a_task_student_is_saved_with_the_vocabulary_it_was_pruned_to(tmp_path: Path) -> None:
    write_teacher(tmp_path, "classification")
    whole, pruned = student_of(tmp_path), student_of(tmp_path, prune_vocabulary=True)
    sizes = [one.manifest.statistics["student"]["vocabulary_size"] for one in (whole, pruned)]
    assert sizes[1] < sizes[0] == TOKENIZER.size
    assert pruned.manifest.statistics["quality"] == whole.manifest.statistics["quality"]
    answers = [load_predictor(one.directory).predict(["shape of names"]) for one in (whole, pruned)]
    assert answers[0] == answers[1]


class Stopped(Exception):
    """As if the process had been killed."""


def test_an_interrupted_task_student_goes_on_exactly(tmp_path: Path) -> None:
    def stop(site: str, step: int) -> None:
        if site == "checkpoint.after_commit" and step == 4:
            raise Stopped

    write_teacher(tmp_path, "classification")
    with pytest.raises(Stopped):
        student_of(tmp_path, epochs=2, fault=stop)
    again = student_of(tmp_path, epochs=2)
    (tmp_path / "runs").rename(tmp_path / "interrupted")
    assert student_of(tmp_path, epochs=2).digest == again.digest


def test_what_is_no_teacher_of_the_task_or_no_file_of_its_rows_is_refused(tmp_path: Path) -> None:
    artifact = write_teacher(tmp_path, "classification")
    teacher = read_teacher(artifact.directory, "mine")
    other = write_lines(tmp_path / "other.jsonl", [{"words": ["a"]}] * 40)
    with pytest.raises(UsageError, match="text_a"):
        read_rows(teacher, other)
    few = write_lines(tmp_path / "few.jsonl", [{"text_a": "the list"}] * 3)
    with pytest.raises(UsageError, match="3 rows; expected 32 or more"):
        read_rows(teacher, few)
    with pytest.raises(UsageError, match="no model of task 'another', it has mine"):
        read_teacher(artifact.directory, "another")
