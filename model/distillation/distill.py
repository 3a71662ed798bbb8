"""The stage teacher + lessons → student, as a program.

In:  the lessons of a teacher, the teacher itself, and pairs of texts that were held out.
Out: `distill`, an encoder in Hugging Face's layout; `quality.json`, how well teacher and student
     find a held-out text by its neighbour; in the manifest, parameters and milliseconds of both. Or
     a checkpoint from which the same command goes on.

Two losses, on the teacher's vectors: one minus the cosine, and the divergence between the softmax
over the cosines with the other texts of the batch, the student's from the teacher's. The first
makes vectors that can be compared with the teacher's, the second is about what they are used for. A
narrower student learns the first on the directions in which the teacher's vectors vary most.
"""

import shutil
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import torch
from pydantic import JsonValue
from torch import Tensor
from torch.nn import functional

from cloze.artifacts.config import parse
from cloze.artifacts.errors import ClozeError
from cloze.artifacts.progress import Progress
from cloze.artifacts.rng import address, permutation
from cloze.artifacts.runtime.program import Terminated, run_program
from cloze.artifacts.stage import StageTable
from cloze.artifacts.store import Artifact, commit, open_artifact, put_bytes, put_json
from cloze.model.config import DistillConfig, DistillStage, TrainingMachine
from cloze.model.data.batch import on
from cloze.model.distillation.lessons import read_lessons
from cloze.model.distillation.quality import milliseconds, neighbours_found
from cloze.model.distillation.students import student_shape, student_weights
from cloze.model.distillation.vectors import VectorModel, refuse_fixed_width, vector_modules
from cloze.model.encoder.precision import computed_in
from cloze.model.hugging_face.model_files import EncoderFiles
from cloze.model.inference.export import contents
from cloze.model.inference.load import read_sentence_encoder
from cloze.model.tasks.features import Places, Sequences
from cloze.model.training.checkpoints import (
    Checkpoints,
    FaultHook,
    Identity,
    RunState,
    no_fault,
    resume,
)
from cloze.model.training.distributed import World, start_world
from cloze.model.training.engine import Replicated
from cloze.model.training.health import Stop
from cloze.model.training.optimizer import Schedule
from cloze.model.training.pretrain import checkpoint_folder
from cloze.model.training.start import restart_prepared, threads_per_rank
from cloze.model.training.waiting import patient_threads

CURVE_POINTS = 100

PRETRAINING_HEADS = ("masked_lm.", "next_sentence.")
"""Parameters that vectors do not teach."""

# B texts of a batch, N of all lessons, H width of the teacher's vectors, W of the student's


def make_student(table: StageTable, options: list[str], *, fault: FaultHook = no_fault) -> Artifact:
    """Train, or go on training, and commit the student. `fault` is for tests."""
    stage = parse(DistillStage, table.config, source="stage table")
    machine = parse(TrainingMachine, table.machine, source="stage table, machine")
    teacher = read_sentence_encoder(table.input_path("teacher"))
    sequences, vectors_NH = read_lessons(open_artifact(table.input_path("lessons")))
    threads = threads_per_rank(machine)
    world = start_world(machine, threads=threads)
    checkpoints = Checkpoints(checkpoint_folder(table, machine), machine.keep_checkpoints, fault)
    with patient_threads(threads):
        files, model = start_student(teacher, stage.distill)
        model.to(world.device)
        course = Course(
            stage=stage,
            sequences=sequences,
            targets=targets_of(vectors_NH, width=files.config.hidden_size, teacher=teacher),
            model=model,
            world=world,
        )
        identity: Identity = {
            "config": table.keyed_config,
            "inputs": {role: given.digest for role, given in table.inputs.items()},
        }
        with Stop().listening() as stop:
            course.train(checkpoints, identity, stop, every=machine.checkpoint_every)
        trained = {name: value.detach().cpu().clone() for name, value in model.named_parameters()}
        student = replace(files, parameters={**files.parameters, **trained})
        pairs = open_artifact(table.input_path("texts"))
        quality = neighbours_found(teacher, student, pairs)
        times = milliseconds({"teacher": teacher, "student": student})
    entries = [
        *(put_bytes(table.output, one, name=name) for name, one in contents(student).items()),
        put_json(table.output, quality, name="quality.json"),
        put_json(table.output, course.curve, name="curve.json"),
    ]
    made = commit(
        table,
        entries,
        statistics={
            "tokenizer_digest": student.tokenizer.digest,
            "vocabulary_size": student.tokenizer.size,
            "parameters": sum(one.numel() for one in student.parameters.values()),
            "teacher": facts_of(teacher),
            "student": facts_of(student),
            "steps": course.steps,
            "quality": quality,
        },
        execution={"device": world.device.type, "milliseconds": times},
    )
    # Only now: until the artifact exists they are the only copy.
    shutil.rmtree(checkpoints.directory, ignore_errors=True)
    return made


def facts_of(files: EncoderFiles) -> dict[str, JsonValue]:
    """Shape and size of an encoder, for the report."""
    return {
        "layers": files.config.num_hidden_layers,
        "hidden_size": files.config.hidden_size,
        "vocabulary_size": files.tokenizer.size,
        "parameters": sum(one.numel() for one in files.parameters.values()),
    }


def start_student(teacher: EncoderFiles, config: DistillConfig) -> tuple[EncoderFiles, VectorModel]:
    """The student before its training: as files, and as a module to train."""
    shape = student_shape(teacher.config, layers=config.layers, width=config.width)
    modules = vector_modules(teacher)
    if shape.hidden_size != teacher.config.hidden_size:
        refuse_fixed_width(modules)
    initial = {
        name: value
        for name, value in student_weights(teacher.parameters, teacher.config, shape).items()
        if not name.startswith(PRETRAINING_HEADS)
    }
    heads = tuple(teacher.layout.name(name) for name in _head_names(teacher))
    files = replace(
        teacher,
        config=shape,
        parameters=initial,
        missing=tuple(sorted({*teacher.missing, *heads})),
        ignored=(),
        card=None,
        manifest=None,
    )
    # Without dropout: the targets are exact, and the student is too small to learn them by heart.
    exact = shape.model_copy(
        update={"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    )
    encoder = replace(files, config=exact).encoder(pretrained=True, seed=0)
    return files, VectorModel(encoder, modules)


def _head_names(files: EncoderFiles) -> Iterator[str]:
    return (name for name in files.parameters if name.startswith(PRETRAINING_HEADS))


def targets_of(vectors_NH: Tensor, *, width: int, teacher: EncoderFiles) -> Tensor:
    """[N, W] the vectors that the student learns, of length 1.

    For a narrower student, the teacher's in the directions in which they vary most.
    """
    if width == teacher.config.hidden_size:
        return vectors_NH
    exact_NH = vectors_NH.float()
    _, basis_HH = torch.linalg.eigh((exact_NH.T @ exact_NH).double())
    narrow_NW = exact_NH @ basis_HH[:, -width:].float()
    return functional.normalize(narrow_NW, dim=-1).half()


@dataclass
class Course:
    """One training of a student."""

    stage: DistillStage
    sequences: Sequences
    targets: Tensor
    """[N, W] float16."""
    model: VectorModel
    world: World

    def __post_init__(self) -> None:
        config = self.stage.distill
        self.batches = max(len(self.sequences) // config.batch_size, 1)
        self.steps = config.epochs * self.batches
        warmup = round(self.steps * config.warmup_share)
        optimizer = config.optimizer.model_copy(update={"warmup_steps": warmup})
        self.computed = computed_in(config.precision, self.model)
        self.engine = Replicated(
            self.computed,
            world=self.world,
            schedule=Schedule(optimizer, self.steps),
        )
        self.curve: list[dict[str, float]] = []
        self._sums, self._count = [0.0, 0.0], 0

    def train(
        self, checkpoints: Checkpoints, identity: Identity, stop: Stop, *, every: int
    ) -> None:
        """Make all steps, from the latest checkpoint on; `Terminated` after one if asked to."""
        saved, first = resume(checkpoints, world=self.world, identity=identity), 0
        if saved is not None:
            shapes = {name: value.shape for name, value in self.model.named_parameters()}
            state = dict(saved.parameters(shapes, world=self.world))
            self.engine.restore(state, updates=saved.state["updates"])
            first, curve = saved.state["step"], saved.state["curve"]
            self.curve, self._sums = curve["points"], curve["sums"]
            self._count = curve["count"]
        progress = Progress("distill", self.steps, unit="steps", done=first)
        self.model.train()
        try:
            for number in range(first, self.steps):
                cosine, ranking = self._step(number)
                progress.advance(1, f"cosine={1 - cosine:.4f} ranking={ranking:.4f}")
                if stop.wanted or (number + 1) % every == 0:
                    checkpoints.save(
                        self.engine.state(), self._state(identity, number + 1), writes=True
                    )
                if stop.wanted:
                    checkpoints.wait()
                    raise Terminated
                checkpoints.wait(only_if_done=True)
        finally:
            checkpoints.close()
        self.model.eval()

    def _step(self, number: int) -> tuple[float, float]:
        """One update; the two losses before it."""
        config = self.stage.distill
        rows = self._rows(number)
        batch = self.sequences.batch(rows).to(self.world.device)
        targets_BW = on(self.world.device, self.targets[torch.from_numpy(rows)]).float()
        vectors_BW = self.computed(batch, number)
        cosine, ranking = losses(vectors_BW, targets_BW, temperature=config.temperature)
        self.engine.backward(cosine + config.ranking * ranking, last=True)
        found = torch.stack([cosine, ranking]).detach()
        outcome = self.engine.step(number, found)
        if not outcome.applied:
            raise ClozeError(
                f"distill, step {number + 1}: its gradient is not finite; lower "
                f"distill.optimizer.learning_rate (now {config.optimizer.learning_rate:g})"
            )
        losses_now = outcome.sums.tolist()
        self._note(number + 1, losses_now)
        return losses_now[0], losses_now[1]

    def _rows(self, number: int) -> Places:
        """The texts of one step, each of an epoch in one batch."""
        epoch, place = divmod(number, self.batches)
        order = permutation(address(self.stage.seed, "distill", epoch), len(self.sequences))
        size = self.stage.distill.batch_size
        rows: Places = np.asarray(order[place * size : (place + 1) * size], np.int64)
        return rows

    def _note(self, step: int, found: list[float]) -> None:
        self._sums = [total + one for total, one in zip(self._sums, found, strict=True)]
        self._count += 1
        if step * CURVE_POINTS // self.steps > (step - 1) * CURVE_POINTS // self.steps:
            cosine, ranking = (total / self._count for total in self._sums)
            self.curve.append({"step": step, "cosine": cosine, "ranking": ranking})
            self._sums, self._count = [0.0, 0.0], 0

    def _state(self, identity: Identity, step: int) -> RunState:
        return {
            **identity,
            "step": step,
            "updates": self.engine.updates,
            "seconds": 0.0,
            "skipped_in_row": 0,
            "heldout_loss": None,
            "heldout": None,
            "curve": {"points": [*self.curve], "sums": self._sums, "count": self._count},
            "elapsed": 0.0,
            "shortened": (),
        }


def losses(vectors_BW: Tensor, targets_BW: Tensor, *, temperature: float) -> tuple[Tensor, Tensor]:
    """The cosine loss and the ranking loss of a batch; both have length 1."""
    cosine = (1 - (vectors_BW * targets_BW).sum(-1)).mean()
    # A text is not compared with itself, which would be first in every ranking.
    itself_BB = torch.eye(len(vectors_BW), dtype=torch.bool, device=vectors_BW.device)

    def ranked(one_BW: Tensor) -> Tensor:
        scores_BB = one_BW @ one_BW.T / temperature
        return scores_BB.masked_fill(itself_BB, -1e9).log_softmax(-1)

    ranking = functional.kl_div(
        ranked(vectors_BW), ranked(targets_BW), log_target=True, reduction="batchmean"
    )
    return cosine, ranking


if __name__ == "__main__":
    restart_prepared()
    run_program(make_student)
