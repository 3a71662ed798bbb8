"""What a student keeps of its teacher, and what it gains.

In:  teacher and student; pairs of neighbouring texts that were held out.
Out: nDCG@10 of both, with the interval of the difference; milliseconds of both.
"""

import time
from collections.abc import Mapping
from statistics import median

import numpy as np
import torch
from pydantic import JsonValue

from cloze.artifacts.store import Artifact
from cloze.model.data.batch import Example, pack_sequences
from cloze.model.distillation.tasks import Teacher, answers_of, rows_as_problem
from cloze.model.encoder.models import Encoder
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

NUMBERS = ("regression", "reranking")
"""Families whose predictions are numbers."""

ROUNDS = 9
"""Of each model in turn, so that what else the machine does slows down both."""


def neighbours_found(
    teacher: EncoderFiles, student: EncoderFiles, pairs: Artifact
) -> dict[str, JsonValue]:
    """How well each finds the second of two neighbouring texts by the first, among all held out."""
    wanted = Wanted(required=("query", "passage"))
    texts = RankingTexts(read_table(pairs.path("retrieval/test.jsonl"), wanted))
    relevant = tuple(dict(sorted(grades.items())) for grades in texts.relevant)
    asked = QuestionSet("held-out pairs", tuple(texts.queries), tuple(texts.passages), relevant)
    old_Q, new_Q = (
        search_quality(model_of(files, precision="fp32"), asked) for files in (teacher, student)
    )
    difference = interval(new_Q - old_Q)
    return {
        "texts": len(old_Q),
        "metric": HEADLINE,
        "teacher": float(old_Q.mean()),
        "student": float(new_Q.mean()),
        "kept": float(new_Q.mean() / max(old_Q.mean(), 1e-9)),
        "low": difference.low,
        "high": difference.high,
    }


def answers_kept(teacher: Teacher, student: Teacher, held_out: TaskTable) -> dict[str, JsonValue]:
    """How often both predict the same for rows that were not learnt; scores if these are labelled.

    For numbers, which are never the same, one minus the error in units of the teacher's variance.
    """
    logits, predicted = [], []
    for one in (teacher, student):
        # Each in its own tokens: the student's vocabulary may be a part of the teacher's.
        problem = rows_as_problem(one, held_out)
        every = np.arange(len(problem.sequences[SPLIT]))
        answers, _ = answers_of(one.model.cpu(), problem, every)
        logits.append(answers)
        predicted.append(problem.predictions(SPLIT, answers))
    if teacher.saved.task.kind in NUMBERS:
        old, new = logits
        kept = 1.0 - float(np.mean((new - old) ** 2) / max(float(old.var()), 1e-9))
    else:
        kept = float(np.mean([ours == theirs for theirs, ours in zip(*predicted, strict=True)]))
    found: dict[str, JsonValue] = {"texts": len(held_out), "kept": kept}
    labelled = load_problem(teacher.saved.task, None, {SPLIT: held_out})
    if labelled.labelled(SPLIT):
        found["metric"] = labelled.headline
        for name, answered in zip(("teacher", "student"), predicted, strict=True):
            found[name] = labelled.score(SPLIT, answered)[labelled.headline]
    return found


@torch.inference_mode()
def milliseconds(encoders: Mapping[str, Encoder]) -> dict[str, JsonValue]:
    """By batch, the median time of each encoder in fp32 on this machine's processor."""
    for encoder in encoders.values():
        encoder.cpu().eval().pack()
    positions = min(encoder.config.max_position_embeddings for encoder in encoders.values())
    found: dict[str, JsonValue] = {}
    for texts, tokens in BATCHES:
        # Any id: the time of a text does not depend on its words.
        batch = pack_sequences([Example([1] * min(tokens, positions))] * texts)
        times: dict[str, list[float]] = {name: [] for name in encoders}
        for _ in range(ROUNDS):
            for name, encoder in encoders.items():
                began = time.perf_counter()
                encoder(batch)
                times[name].append(1000 * (time.perf_counter() - began))
        medians = {name: round(median(each), 3) for name, each in times.items()}
        found[f"{texts} × {tokens}"] = {**medians}
    return found
