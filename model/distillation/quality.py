"""What a student keeps of its teacher, and what it gains.

In:  teacher and student; pairs of neighbouring texts that were held out.
Out: nDCG@10 of both, with the interval of the difference; milliseconds of both.
"""

import time
from collections.abc import Mapping
from statistics import median

import torch
from pydantic import JsonValue

from cloze.artifacts.store import Artifact
from cloze.model.data.batch import Example, pack_sequences
from cloze.model.hugging_face.model_files import EncoderFiles
from cloze.model.inference.load import model_of
from cloze.model.retrieval.candidates import QuestionSet, search_quality
from cloze.model.retrieval.ranking_metrics import interval
from cloze.model.tasks.files.table_files import read_table
from cloze.model.tasks.files.task_table import Wanted
from cloze.model.tasks.ranking import RankingTexts

BATCHES = ((1, 16), (32, 64))
"""Texts, and tokens of each: a question somebody types, and passages that are indexed."""

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
        "pairs": len(old_Q),
        "teacher": float(old_Q.mean()),
        "student": float(new_Q.mean()),
        "kept": float(new_Q.mean() / max(old_Q.mean(), 1e-9)),
        "low": difference.low,
        "high": difference.high,
    }


@torch.inference_mode()
def milliseconds(models: Mapping[str, EncoderFiles]) -> dict[str, JsonValue]:
    """By batch, the median time of each encoder in fp32 on this machine's processor."""
    loaded = {
        name: model_of(files, device="cpu", precision="fp32").module.encoder
        for name, files in models.items()
    }
    positions = min(files.config.max_position_embeddings for files in models.values())
    found: dict[str, JsonValue] = {}
    for texts, tokens in BATCHES:
        # Any id: the time of a text does not depend on its words.
        batch = pack_sequences([Example([1] * min(tokens, positions))] * texts)
        times: dict[str, list[float]] = {name: [] for name in loaded}
        for _ in range(ROUNDS):
            for name, encoder in loaded.items():
                began = time.perf_counter()
                encoder(batch)
                times[name].append(1000 * (time.perf_counter() - began))
        medians = {name: round(median(each), 3) for name, each in times.items()}
        found[f"{texts} × {tokens}"] = {**medians}
    return found
