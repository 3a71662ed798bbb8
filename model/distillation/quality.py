"""What a student keeps of its teacher, and what it gains.

In:  teacher and student; pairs of neighbouring texts, or rows of a task, that were held out.
Out: the scores of both, and of the student in int8; milliseconds and megabytes of all three.
"""

import copy
import time
from collections.abc import Mapping
from dataclasses import replace
from statistics import median

import numpy as np
import torch
from pydantic import JsonValue
from torch import Tensor

from cloze.artifacts.store import Artifact
from cloze.model.data.batch import Example, pack_sequences
from cloze.model.distillation.tasks import Teacher, answers_of, rows_as_problem
from cloze.model.encoder.models import Encoder
from cloze.model.encoder.packed_layers import packable
from cloze.model.hugging_face.model_files import EncoderFiles
from cloze.model.inference.load import model_of
from cloze.model.inference.task_file import SPLIT
from cloze.model.retrieval.candidates import QuestionSet, search_quality
from cloze.model.retrieval.ranking_metrics import HEADLINE, interval
from cloze.model.tasks.files.table_files import read_table
from cloze.model.tasks.files.task_table import TaskTable, Wanted
from cloze.model.tasks.problems import load_problem
from cloze.model.tasks.ranking import RankingTexts

BATCHES = ((1, 16), (32, 64))
"""Texts, and tokens of each: a question somebody types, and passages that are indexed."""

ROUNDS = 9
"""Of each model in turn, so that what else the machine does slows down both."""


def neighbours_found(
    teacher: EncoderFiles, student: EncoderFiles, pairs: Artifact
) -> tuple[dict[str, JsonValue], float | None]:
    """How well each finds the second of two neighbouring texts by the first, among all held out.

    And the student's score in int8; None where there are no kernels for that.
    """
    wanted = Wanted(required=("query", "passage"))
    texts = RankingTexts(read_table(pairs.path("retrieval/test.jsonl"), wanted))
    relevant = tuple(dict(sorted(grades.items())) for grades in texts.relevant)
    asked = QuestionSet("held-out pairs", tuple(texts.queries), tuple(texts.passages), relevant)
    old_Q, new_Q = (
        search_quality(model_of(files, precision="fp32"), asked) for files in (teacher, student)
    )
    difference = interval(new_Q - old_Q)
    int8 = None
    if packable(student.config, next(iter(student.parameters.values())), int8=True):
        int8 = float(
            search_quality(model_of(student, device="cpu", precision="int8"), asked).mean()
        )
    found: dict[str, JsonValue] = {
        "texts": len(old_Q),
        "metric": HEADLINE,
        "teacher": float(old_Q.mean()),
        "student": float(new_Q.mean()),
        "kept": float(new_Q.mean() / max(old_Q.mean(), 1e-9)),
        "low": difference.low,
        "high": difference.high,
    }
    return found, int8


def answers_kept(
    teacher: Teacher, student: Teacher, held_out: TaskTable, *, variance: float
) -> tuple[dict[str, JsonValue], float | None]:
    """How often both predict the same for rows that were not learnt; scores if these are labelled.

    For numbers, which are never the same, one minus the error in units of `variance`, that of the
    teacher's answers to the rows that were learnt: few held-out ones may all have the same answer.
    And the student's score in int8; None where there are no kernels for that, or no labels.
    """
    asked = {"teacher": teacher, "student": student}
    quantised = copy.deepcopy(student.model).cpu().eval()
    if quantised.encoder.pack(int8=True):
        asked["int8"] = replace(student, model=quantised)
    logits, predicted = {}, {}
    for name, one in asked.items():
        # Each in its own tokens: the student's vocabulary may be a part of the teacher's.
        problem = rows_as_problem(one, held_out)
        every = np.arange(len(problem.sequences[SPLIT]))
        answers, _ = answers_of(one.model.cpu(), problem, every)
        logits[name] = answers
        predicted[name] = problem.predictions(SPLIT, answers)
    if problem.predicts in ("number", "ranking"):
        old, new = logits["teacher"], logits["student"]
        kept = 1.0 - float(np.mean((new - old) ** 2)) / variance
    else:
        both = zip(predicted["teacher"], predicted["student"], strict=True)
        kept = float(np.mean([ours == theirs for theirs, ours in both]))
    found: dict[str, JsonValue] = {"texts": len(held_out), "kept": kept}
    labelled = load_problem(teacher.saved.task, None, {SPLIT: held_out})
    scores: dict[str, float] = {}
    if labelled.labelled(SPLIT):
        found["metric"] = labelled.headline
        for name, answered in predicted.items():
            scores[name] = labelled.score(SPLIT, answered)[labelled.headline]
    int8 = scores.pop("int8", None)
    return {**found, **scores}, int8


def int8_megabytes(parameters: Mapping[str, Tensor]) -> float:
    """Of a model's weights with its layers' matrices in int8, and everything else in fp32."""
    small = sum(
        values.numel()
        for name, values in parameters.items()
        if ".layers." in name and values.dim() == 2
    )
    return (4 * sum(values.numel() for values in parameters.values()) - 3 * small) / 1e6


@torch.inference_mode()
def milliseconds(encoders: Mapping[str, Encoder]) -> dict[str, JsonValue]:
    """By batch, the median time of each encoder in fp32 on this machine's processor.

    Where there are kernels for it, also that of the student in `int8`. With one thread it is
    processor time, which other programs hardly change.
    """
    clock = time.process_time if torch.get_num_threads() == 1 else time.perf_counter
    for encoder in encoders.values():
        encoder.cpu().eval().pack()
    quantised = copy.deepcopy(encoders["student"])
    if quantised.pack(int8=True):
        encoders = {**encoders, "int8": quantised}
    positions = min(encoder.config.max_position_embeddings for encoder in encoders.values())
    found: dict[str, JsonValue] = {}
    for texts, tokens in BATCHES:
        # Any id: the time of a text does not depend on its words.
        batch = pack_sequences([Example([1] * min(tokens, positions))] * texts)
        times: dict[str, list[float]] = {name: [] for name in encoders}
        for _ in range(ROUNDS):
            for name, encoder in encoders.items():
                began = clock()
                encoder(batch)
                times[name].append(1000 * (clock() - began))
        medians = {name: round(median(each), 3) for name, each in times.items()}
        found[f"{texts} × {tokens}"] = {**medians}
    return found
