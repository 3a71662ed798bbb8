"""The stage teacher + lessons → student, as a program.

In:  the lessons of a teacher, the teacher itself; pairs of texts, some of them held out, or the
     rows of a task.
Out: `distill`, an encoder in Hugging Face's layout, or `models/TASK/`, the model of a task;
     `quality.json`, what the student keeps of the teacher on held-out texts; in the manifest, sizes
     and milliseconds of both. Or a checkpoint from which the same command goes on.
"""

import shutil
from collections.abc import Callable, Mapping
from dataclasses import replace

from pydantic import JsonValue
from torch import Tensor, nn

from cloze.artifacts.config import parse
from cloze.artifacts.manifest import FileEntry
from cloze.artifacts.runtime.program import run_program
from cloze.artifacts.stage import StageTable
from cloze.artifacts.store import Artifact, commit, open_artifact, put_bytes, put_json
from cloze.artifacts.tokenizer import SubwordTokenizer
from cloze.model.config import DistillConfig, DistillStage, EncoderConfig, TrainingMachine
from cloze.model.distillation.course import Course, Lessons
from cloze.model.distillation.lessons import read_answers, read_lessons
from cloze.model.distillation.pruning import (
    kept_pieces,
    pruned_modules,
    pruned_parameters,
    pruned_tokenizer,
)
from cloze.model.distillation.quality import (
    answers_kept,
    int8_megabytes,
    milliseconds,
    neighbours_found,
)
from cloze.model.distillation.students import student_shape, student_weights
from cloze.model.distillation.tasks import (
    Answering,
    TaskLessons,
    Teacher,
    parts_of,
    read_rows,
    read_teacher,
    rows_as_problem,
    variance_of,
)
from cloze.model.distillation.vectors import (
    VectorLessons,
    VectorModel,
    read_vector_teacher,
    refuse_fixed_width,
    targets_of,
    vector_modules,
)
from cloze.model.encoder.models import Encoder, TaskModel
from cloze.model.encoder.scaled_linear import unit_of
from cloze.model.hugging_face.model_files import (
    ENCODER_PREFIX,
    EncoderFiles,
    TrainedModel,
    save_model,
)
from cloze.model.inference.export import contents
from cloze.model.inference.task_file import SPLIT
from cloze.model.training.checkpoints import Checkpoints, FaultHook, Identity, no_fault
from cloze.model.training.distributed import start_world
from cloze.model.training.health import Stop
from cloze.model.training.pretrain import checkpoint_folder
from cloze.model.training.start import restart_prepared, threads_per_rank
from cloze.model.training.waiting import patient_threads

PARTS = 10
"""Checkpoints of a course, unless `checkpoint_every` asks for more."""

PRETRAINING_HEADS = ("masked_lm.", "next_sentence.")
"""Parameters that lessons do not teach."""

WITHOUT_DROPOUT = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
"""The targets are exact, and a small student does not learn them by heart."""


def make_student(table: StageTable, options: list[str], *, fault: FaultHook = no_fault) -> Artifact:
    """Train, or go on training, and commit the student. `fault` is for tests."""
    stage = parse(DistillStage, table.config, source="stage table")
    machine = parse(TrainingMachine, table.machine, source="stage table, machine")
    threads = threads_per_rank(machine)
    world = start_world(machine, threads=threads)
    checkpoints = Checkpoints(checkpoint_folder(table, machine), machine.keep_checkpoints, fault)

    def trained(lessons: Lessons, model: nn.Module) -> Course:
        identity: Identity = {
            "config": table.keyed_config,
            "inputs": {role: given.digest for role, given in table.inputs.items()},
        }
        course = Course(stage, lessons, model.to(world.device), world)
        # A course is short, and its steps are long: a kill should not cost more than a part of it.
        every = min(machine.checkpoint_every, max(course.steps // PARTS, 1))
        with Stop().listening() as stop:
            course.train(checkpoints, identity, stop, every=every)
        model.cpu()
        return course

    with patient_threads(threads):
        make = _task_student if stage.distill.texts else _vector_student
        course, entries, statistics, encoders, int8 = make(table, stage, trained)
        # Of both on this machine and in turns, since only their ratio says anything.
        times = milliseconds(encoders)
    entries.append(put_json(table.output, course.curve, name="curve.json"))
    entries.append(put_json(table.output, statistics["quality"], name="quality.json"))
    made = commit(
        table,
        entries,
        statistics={"steps": course.steps, **statistics},
        # int8 beside the times: whether there are kernels for it is a matter of the machine, too
        execution={"device": world.device.type, "milliseconds": times, "int8": int8},
    )
    # Only now: until the artifact exists they are the only copy.
    shutil.rmtree(checkpoints.directory, ignore_errors=True)
    return made


Trained = Callable[[Lessons, nn.Module], Course]
Made = tuple[
    Course, list[FileEntry], dict[str, JsonValue], dict[str, Encoder], dict[str, JsonValue]
]
"""The finished course; the student's files; figures of both; both encoders; the student's score and
megabytes in int8."""


def _vector_student(table: StageTable, stage: DistillStage, trained: Trained) -> Made:
    """A student of the teacher's vectors."""
    config = stage.distill
    teacher = read_vector_teacher(table.input_path("teacher"))
    sequences, vectors_NH = read_lessons(open_artifact(table.input_path("lessons")))
    files = start_student(teacher, config)
    # Only while it learns. The artifact keeps the configuration with the dropout, which whoever
    # fine-tunes the student wants.
    exact = replace(files, config=files.config.model_copy(update=WITHOUT_DROPOUT))
    model = VectorModel(exact.encoder(pretrained=True, seed=0), vector_modules(teacher))
    lessons = VectorLessons(
        sequences,
        targets_of(vectors_NH, width=files.config.hidden_size),
        weight=config.ranking,
        temperature=config.temperature,
    )
    course = trained(lessons, model)
    student = replace(files, parameters={**files.parameters, **_values(model)})
    # After the training, so that the lessons keep the teacher's ids: pieces that no text has were
    # never looked up, and their rows can go without changing any vector.
    if config.prune_vocabulary:
        kept = kept_pieces(teacher.tokenizer, sequences.input_ids.values)
        student = replace(
            student,
            tokenizer=pruned_tokenizer(teacher.tokenizer, kept),
            parameters=pruned_parameters(student.parameters, kept),
            modules=pruned_modules(student.modules, kept),
        )
    # On texts that were held out: on those it has learnt, a student looks better than it is.
    quality, score = neighbours_found(teacher, student, open_artifact(table.input_path("texts")))
    int8: dict[str, JsonValue] = {
        "score": score,
        "megabytes": int8_megabytes(student.parameters),
    }
    written = contents(student, made="distilled from a larger encoder with")
    entries = [put_bytes(table.output, one, name=name) for name, one in written.items()]
    both = {"teacher": teacher, "student": student}
    encoders = {name: one.encoder(pretrained=True, seed=0) for name, one in both.items()}
    statistics: dict[str, JsonValue] = {
        "tokenizer_digest": student.tokenizer.digest,
        "vocabulary_size": student.tokenizer.size,
        "parameters": sum(one.numel() for one in student.parameters.values()),
        "quality": quality,
        **{name: facts_of(one.config, one.parameters) for name, one in both.items()},
    }
    return course, entries, statistics, encoders, int8


def _task_student(table: StageTable, stage: DistillStage, trained: Trained) -> Made:
    """A student of a task."""
    config = stage.distill
    teacher = read_teacher(table.input_path("teacher"), config.task)
    rows, held_out = parts_of(read_rows(teacher, config.texts), stage.seed)
    problem = rows_as_problem(teacher, rows)
    model = start_task_student(teacher, config)
    # States of another width cannot be compared with the teacher's; such a student learns the
    # answers alone.
    logits, reads = read_answers(open_artifact(table.input_path("lessons")))
    is_as_wide = model.head.in_features == teacher.model.head.in_features
    lessons = TaskLessons(
        problem,
        logits=logits,
        reads=reads if is_as_wide else None,
        weight=config.hidden,
    )
    if problem.predicts == "number":
        model.head.standardise(*unit_of(logits.numpy()))
    course = trained(lessons, Answering(model))
    model.head.fold()
    tokenizer, weights = teacher.tokenizer, _values(model)
    if config.prune_vocabulary:
        kept = kept_pieces(tokenizer, problem.sequences[SPLIT].input_ids.values)
        tokenizer = pruned_tokenizer(tokenizer, kept)
        weights = pruned_parameters(weights, kept)
    shape = student_shape(teacher.model.encoder.config, layers=config.layers, width=config.width)
    student = replace(
        teacher, model=task_model(weights, shape, tokenizer, teacher), tokenizer=tokenizer
    )
    quality, score = answers_kept(teacher, student, held_out, variance=variance_of(logits))
    int8: dict[str, JsonValue] = {"score": score, "megabytes": int8_megabytes(weights)}
    # No weights: `save_model` takes those of encoder and head from the trained model, and shape,
    # tokenizer and licence from here.
    card = f"---\n{teacher.licence}---\n"
    files = EncoderFiles(config=shape, tokenizer=tokenizer, parameters={}, card=card)
    task = teacher.saved.task
    model_of_task = TrainedModel(problem, task, weights, teacher.saved.pooling)
    entries = save_model(table.output, model_of_task, files)
    both = {"teacher": teacher.model, "student": student.model}
    statistics: dict[str, JsonValue] = {
        "task": task.name,
        "quality": quality,
        **{
            name: facts_of(one.encoder.config, dict(one.named_parameters()))
            for name, one in both.items()
        },
    }
    encoders = {name: one.encoder for name, one in both.items()}
    return course, entries, statistics, encoders, int8


def _values(model: nn.Module) -> dict[str, Tensor]:
    return {name: value.detach().clone() for name, value in model.named_parameters()}


def facts_of(shape: EncoderConfig, parameters: Mapping[str, Tensor]) -> dict[str, JsonValue]:
    """Shape and size of a model, for the report."""
    words = parameters[f"{ENCODER_PREFIX}embeddings.word_embeddings.weight"]
    return {
        "layers": shape.num_hidden_layers,
        "hidden_size": shape.hidden_size,
        "vocabulary_size": len(words),
        "parameters": sum(one.numel() for one in parameters.values()),
    }


def start_student(teacher: EncoderFiles, config: DistillConfig) -> EncoderFiles:
    """The student of a teacher's vectors before its training."""
    shape = student_shape(teacher.config, layers=config.layers, width=config.width)
    if shape.hidden_size != teacher.config.hidden_size:
        refuse_fixed_width(vector_modules(teacher))
    weights = student_weights(teacher.parameters, teacher.config, shape)
    # Lessons do not teach them: beside an encoder that has changed they would fill masks badly.
    heads = [name for name in weights if name.startswith(PRETRAINING_HEADS)]
    return replace(
        teacher,
        config=shape,
        parameters={name: value for name, value in weights.items() if name not in heads},
        missing=tuple(sorted({*teacher.missing, *map(teacher.layout.name, heads)})),
        ignored=(),
        manifest=None,
    )


def start_task_student(teacher: Teacher, config: DistillConfig) -> TaskModel:
    """The student of a task before its training, without dropout."""
    whole = teacher.model.encoder.config
    shape = student_shape(whole, layers=config.layers, width=config.width)
    weights = student_weights(_values(teacher.model), whole, shape)
    exact = shape.model_copy(update=WITHOUT_DROPOUT)
    return task_model(weights, exact, teacher.tokenizer, teacher)


def task_model(
    weights: Mapping[str, Tensor],
    shape: EncoderConfig,
    tokenizer: SubwordTokenizer,
    teacher: Teacher,
) -> TaskModel:
    """A model of the teacher's task with these weights, for evaluation until it is trained."""
    model = TaskModel(
        Encoder(shape, tokenizer.size),
        outputs=teacher.saved.outputs,
        head_dropout=False,
        pooling=teacher.model.pooling,
    )
    model.load_state_dict(weights)
    return model.eval()


if __name__ == "__main__":
    restart_prepared()
    run_program(make_student)
