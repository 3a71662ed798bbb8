"""A task's lessons: what a fine-tuned teacher answers to rows without labels.

In:  the teacher's model of a task; rows in the format of its training files, labels ignored.
Out: `TaskLessons`: the rows as the encoder's inputs, the teacher's logits, and the states that its
     head reads. A student learns both with squared errors (Ba and Caruana 2014; Jiao et al. 2020),
     which is the same for every family: a row of logits belongs to a text, a word or a place.
"""

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from cloze.artifacts.arrays import offsets_of
from cloze.artifacts.errors import UsageError
from cloze.artifacts.rng import address, permutation
from cloze.artifacts.tokenizer import SubwordTokenizer
from cloze.model.data.batch import PackedBatch, on, ragged_indices
from cloze.model.encoder.models import SentenceModel, TaskModel
from cloze.model.hugging_face.model_files import SavedTask, read_model, saved_source
from cloze.model.hugging_face.source import Source, open_source
from cloze.model.inference.task_file import ANSWERS, SPLIT
from cloze.model.tasks.base import Logits, Problem
from cloze.model.tasks.features import Places, batches_by_length, tokens_at_once
from cloze.model.tasks.files.task_table import TaskTable
from cloze.model.tasks.problems import load_problem, read_split

HELD_OUT = 10
"""One row of so many is not learnt, to compare student and teacher on."""

MOST_HELD_OUT = 2000

FEWEST_ROWS = 32

# R rows of logits: a text's, or those of its words or places; O outputs, H width of the encoder


@dataclass(frozen=True)
class Teacher:
    """A fine-tuned model and its task."""

    model: TaskModel
    saved: SavedTask
    tokenizer: SubwordTokenizer
    licence: str = ""

    @property
    def name(self) -> str:
        """The task's name."""
        return self.saved.task.name


def read_teacher(location: str, task: str) -> Teacher:
    """The teacher's model of `task`, in an artifact or a folder."""
    source: Source = open_source(location)
    # An artifact may hold models of several tasks, a folder is one.
    if source.manifest is not None:
        source = saved_source(source, task)
    model, saved, tokenizer = read_model(source)
    if task and saved.task.name != task:
        raise UsageError(f"{location}: its task is {saved.task.name}, not {task}; name that one")
    if isinstance(model, SentenceModel):
        raise UsageError(
            f"{location}: the model of task {saved.task.name} computes vectors; leave out --task"
        )
    if model.bilstm is not None:
        raise UsageError(f"{location}: has a BiLSTM before its head, which no student has")
    return Teacher(model, saved, tokenizer, saved.licence)


def read_rows(teacher: Teacher, path: str) -> TaskTable:
    """The rows at `path`; one line says which column is missing."""
    table = read_split(teacher.saved.task, SPLIT, path)
    if len(table) < FEWEST_ROWS:
        raise UsageError(f"{path}: {len(table)} rows; expected {FEWEST_ROWS} or more to learn on")
    return table


def rows_as_problem(teacher: Teacher, table: TaskTable) -> Problem:
    """The rows as the encoder's inputs, without their answers."""
    kept = [name for name in ANSWERS if table.has(name)]
    return load_problem(teacher.saved.task, teacher.tokenizer, {SPLIT: table.without(kept)})


def parts_of(table: TaskTable, seed: int) -> tuple[TaskTable, TaskTable]:
    """Rows to learn, and rows that are held out, each in order."""
    # By seed and number of rows alone, so that both stages, lessons and training, hold out the
    # same.
    order = permutation(address(seed, "held out"), len(table))
    count = min(-(-len(table) // HELD_OUT), MOST_HELD_OUT)
    learnt, held_out = (
        table.take(np.sort(part).tolist()) for part in (order[count:], order[:count])
    )
    return learnt, held_out


@torch.inference_mode()
def answers_of(
    model: TaskModel, problem: Problem, sequences: Places
) -> tuple[Logits, NDArray[np.float16]]:
    """[R, O] logits of these sequences and [R, H] what the head reads, in their order."""
    device = next(model.parameters()).device
    lengths, counts = problem.sequences[SPLIT].lengths, problem.reads_of(SPLIT)[sequences]
    offsets = offsets_of(counts)
    logits = np.empty((offsets[-1], model.head.out_features), np.float32)
    # Batches come by length, rows are wanted in order: each batch is put where its rows belong.
    reads = np.empty((offsets[-1], model.head.in_features), np.float16)
    budget = tokens_at_once(device)
    for places in batches_by_length(lengths[sequences], token_budget=budget):
        batch, positions = inputs_of(problem, sequences[places], device)
        read = model.read(batch, positions)
        where = ragged_indices(offsets[places], counts[places])
        logits[where] = model.head(read).float().cpu().numpy()
        reads[where] = read.half().cpu().numpy()
    return logits, reads


def inputs_of(
    problem: Problem, sequences: Places, device: torch.device
) -> tuple[PackedBatch, Tensor | None]:
    """The batch of some sequences, and the places among its tokens that the head reads."""
    positions = None
    if problem.reads == "tokens":
        positions = on(device, torch.from_numpy(problem.positions(SPLIT, sequences)))
    return problem.sequences[SPLIT].batch(sequences).to(device), positions


class Answering(nn.Module):
    """A task's model whose output is the logits and what the head reads."""

    def __init__(self, model: TaskModel) -> None:
        super().__init__()
        self.model = model

    def forward(
        self, batch: PackedBatch, positions: Tensor | None, dropout: int
    ) -> tuple[Tensor, Tensor]:
        """[R, O] and [R, H], both fp32; without dropout before the head."""
        read = self.model.read(batch, positions, dropout)
        return self.model.head(read).float(), read.float()


class TaskLessons:
    """What a student learns of a task, by sequence."""

    names = ("logits", "hidden")

    def __init__(
        self,
        problem: Problem,
        *,
        logits: Tensor,
        reads: Tensor | None,
        weight: float,
    ) -> None:
        """`logits` [R, O] and `reads` [R, H] are those of all sequences, in their order.

        reads: None for a student of another width, which learns the logits alone.
        weight: of the second loss.
        """
        self.problem = problem
        self.logits = logits
        self.reads = reads
        self.weights = (1.0, weight if reads is not None else 0.0)
        self._counts = problem.reads_of(SPLIT)
        self._starts = offsets_of(self._counts)[:-1]
        # In units of the variance, a student that answers the mean has an error of 1, whatever the
        # scale of logits and states: so one weight between them suits every task.
        self._scales = [1.0 if one is None else variance_of(one) for one in (logits, reads)]

    def __len__(self) -> int:
        return len(self._counts)

    def losses(self, computed: nn.Module, chosen: Places, *, step: int) -> tuple[Tensor, Tensor]:
        """The two errors of a batch, in units of the teacher's variances."""
        device = self._device(computed)
        batch, positions = inputs_of(self.problem, chosen, device)
        logits_RO, read_RH = computed(batch, positions, step)
        rows = torch.from_numpy(ragged_indices(self._starts[chosen], self._counts[chosen]))
        wanted_RO = on(device, self.logits[rows])
        first = (logits_RO - wanted_RO).square().mean() / self._scales[0]
        if self.reads is None:
            return first, torch.zeros((), device=device)
        wanted_RH = on(device, self.reads[rows]).float()
        return first, (read_RH - wanted_RH).square().mean() / self._scales[1]

    def _device(self, computed: nn.Module) -> torch.device:
        return next(computed.parameters()).device


def variance_of(values: Tensor) -> float:
    """Above 0, also where all values are alike, or differ by their rounding alone."""
    values = values.double()
    return max(float(values.var()), 1e-12 * float(values.square().mean())) or 1.0
