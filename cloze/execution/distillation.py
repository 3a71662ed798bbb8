"""`cloze distill`: a smaller encoder that computes nearly what a larger one does.

In:  the encoder to learn from, and a folder of texts, which need no labels.
Out: NAME.toml, the run's configuration; the run's record, artifacts and report: how much of the
     teacher's quality the student keeps, how much faster it is, and how large.

The run's name then stands for the student wherever a model is asked for. Repeat an interrupted
command to resume it; a finished one is not made again.
"""

import shlex
import tomllib
from dataclasses import dataclass
from pathlib import Path

import tomli_w
from cyclopts import Parameter

from cloze.answer import Answer
from cloze.artifacts.config import parse
from cloze.artifacts.errors import UsageError
from cloze.artifacts.filesystem import located, write_bytes
from cloze.artifacts.progress import say
from cloze.execution.run import WithoutPrefect, run
from cloze.execution.written_configuration import is_written_by
from cloze.flows.config import RunConfig
from cloze.flows.workspace import RunRecord, run_artifact
from cloze.inference.input_texts import ModelName
from cloze.init.configuration import Name, comment, run_name, sources_tables
from cloze.init.corpus_files import left_out
from cloze.init.corpus_samples import look
from cloze.model.config import EncoderConfig
from cloze.named import DISTILLED, model_directory, vectors_directory
from cloze.options import TARGET, Target

TASK = """\
# Rows without labels, of which one in ten is held out, to compare student and teacher on.
[distill]
{distill}"""

CONFIGURATION = """\
# Two passages make a pair; a part of the text is held out, to compare student and teacher on.
[pairs]
kind = "neighbours"
train_pairs = {pairs}

{sources}[distill]
{distill}"""


TASK_EPOCHS = 3
"""Rows of a task are fewer than passages."""


@Parameter(name="*")
@dataclass(frozen=True)
class Student:
    """What to make, and on how much text."""

    layers: int = 3
    """Layers of the student; it begins with as many of the teacher's, evenly spaced."""

    width: int = 0
    """Width of the student, a multiple of that of the teacher's heads; by default the teacher's."""

    prune: bool = False
    """Keep only the word-pieces of the texts, and single characters, with which any other word is
    spelt."""

    passages: int = 40_000
    """Most passages to learn on; of a larger folder, so many are drawn."""

    epochs: int = 0
    """Passes over the texts; by default 1, for a task 3."""

    def options(self) -> list[str]:
        """The same options as command-line arguments."""
        given = {
            "--layers": self.layers,
            "--width": self.width,
            "--passages": self.passages,
            "--epochs": self.epochs,
        }
        words = [word for name, value in given.items() for word in (name, f"{value}") if value]
        return [*words, *(["--prune"] if self.prune else [])]


STUDENT = Student()


def distill(
    teacher: ModelName,
    texts: str,
    /,
    *,
    task: str = "",
    student: Student = STUDENT,
    name: Name = "",
    target: Target = TARGET,
    without_prefect: WithoutPrefect = False,
) -> Answer:
    """Make a smaller encoder of a larger one.

    :param texts: File, folder, glob or URL of texts like those that the student is for; for a task
        a file of rows in the format of its training files, whose labels are ignored.
    :param task: Make a smaller model of this task, for which the teacher was fine-tuned.
    """
    if student.passages < 16:
        raise UsageError(f"--passages {student.passages}: expected 16 or more")
    name = name or f"{run_name(texts)}-student"
    config = _configuration(Distillation(teacher, texts, name, task, student), target)
    answer = run(config, target=target, without_prefect=without_prefect)
    record = RunRecord.model_validate(answer.data)
    made = run_artifact(target.space(), record.name, stage=DISTILLED).manifest
    data = {**record.model_dump(mode="json"), "distilled": made.statistics}
    export = f"cloze export {name} …" + (f" --task {task}" if task else "")
    return Answer(data, f"{answer.text}\n`{export}` writes the student", target.json)


@dataclass(frozen=True)
class Distillation:
    """What the command is asked for."""

    teacher: str
    texts: str
    name: str
    """Of the run."""
    task: str
    """Empty for an encoder that makes vectors."""
    student: Student


def _configuration(asked: Distillation, target: Target) -> Path:
    """The run's configuration file: the one that this command wrote before, or a new one."""
    teacher, texts, task, student = asked.teacher, asked.texts, asked.task, asked.student
    named = ["--task", task] if task else []
    words = ["cloze", "distill", teacher, texts, *named, *student.options()]
    first_line, config = comment(shlex.join(words)), Path(f"{asked.name}.toml")
    if is_written_by(config, first_line):
        return config
    settings: dict[str, object] = {
        "layers": student.layers,
        "width": student.width,
        "prune_vocabulary": student.prune,
    }
    if task:
        directory = model_directory(teacher, target.space(), stage="finetune")
        _check_task(directory, task, texts, student)
        # Absolute paths: the configuration lies where the command is run, and may be moved.
        settings |= {"teacher": located(directory), "task": task, "texts": located(texts)}
        settings["epochs"] = student.epochs or TASK_EPOCHS
        tables = TASK.format(distill=tomli_w.dumps(settings))
    else:
        directory = vectors_directory(teacher, target.space())
        _check_shapes(directory, student)
        found = look(texts, left_out(texts, target.space(), str(config)))
        for file in found.odd:
            say(f"beside the text: {file}")
        settings |= {"teacher": located(directory), "epochs": student.epochs or 1}
        tables = CONFIGURATION.format(
            # Each pair has two passages.
            pairs=student.passages // 2,
            sources=sources_tables(found, "pairs"),
            distill=tomli_w.dumps(settings),
        )
    text = f"{first_line}\n{tomli_w.dumps({'name': asked.name})}\n{tables}"
    parse(RunConfig, tomllib.loads(text), source="the new configuration")
    write_bytes(str(config), text.encode())
    say(f"{config}: written; for further changes edit it and use `cloze run {config}`")
    return config


def _check_shapes(directory: str, student: Student) -> None:
    """Refuse a student that cannot be made of this teacher, before anything is written."""
    from cloze.model.distillation.students import student_shape  # imports torch
    from cloze.model.distillation.vectors import (
        read_vector_teacher,
        refuse_fixed_width,
        vector_modules,
    )

    files = read_vector_teacher(directory)
    shape = student_shape(files.config, layers=student.layers, width=student.width)
    if shape.hidden_size != files.config.hidden_size:
        refuse_fixed_width(vector_modules(files))
    _say_shapes(files.config, shape)


def _check_task(directory: str, task: str, texts: str, student: Student) -> None:
    """The same for a task, with its rows."""
    from cloze.model.distillation.students import student_shape  # imports torch
    from cloze.model.distillation.tasks import read_rows, read_teacher

    teacher = read_teacher(directory, task)
    read_rows(teacher, texts)
    config = teacher.model.encoder.config
    _say_shapes(config, student_shape(config, layers=student.layers, width=student.width))


def _say_shapes(teacher: EncoderConfig, student: EncoderConfig) -> None:
    old, new = (f"{one.num_hidden_layers} layers × {one.hidden_size}" for one in (teacher, student))
    say(f"teacher: {old}; student: {new}")
