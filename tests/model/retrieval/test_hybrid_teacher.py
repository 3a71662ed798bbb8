"""The hybrid ranking as a teacher: its shares, and the losses of vectors."""

import numpy as np
import pytest
import torch
from torch.nn import functional

from cloze.model.retrieval.hybrid_teacher import BEST, HybridTeacher

PASSAGES = [f"passage {number} of names" for number in range(BEST)] + ["a red door"]


@pytest.fixture(scope="module")
def teacher() -> HybridTeacher:
    draw = np.random.default_rng(0)
    vectors = (draw.standard_normal((count, 8)).astype(np.float32) for count in (2, len(PASSAGES)))
    queries_QH, passages_PH = (one / np.linalg.norm(one, axis=1, keepdims=True) for one in vectors)
    queries = ["the red doors", "nothing in common"]
    return HybridTeacher.of(queries, PASSAGES, (queries_QH, passages_PH), language="english")


def test_a_rare_word_in_common_gives_a_passage_the_largest_share(teacher: HybridTeacher) -> None:
    assert teacher.best_QK[0, 0] == BEST
    assert teacher.shares_QK[0, 0] > 0.5
    assert torch.allclose(teacher.shares_QK.sum(1), torch.ones(2))
    assert torch.equal(teacher.shares_QK, teacher.shares_QK.sort(1, descending=True).values)


def test_a_vector_near_what_the_teacher_finds_has_a_smaller_loss(teacher: HybridTeacher) -> None:
    there = teacher.passages_PH[BEST][None]
    away = teacher.passages_PH[:1]
    near, far = (
        float(teacher.ranking_loss(one, torch.tensor([0]), temperature=0.05))
        for one in (there, away)
    )
    assert near < far / 2


def test_only_passages_that_move_cost_something(teacher: HybridTeacher) -> None:
    some = torch.tensor([3, 1])
    stayed = teacher.passages_PH[some]
    assert float(teacher.keeping_loss(stayed, some)) == pytest.approx(0.0, abs=1e-4)
    moved = functional.normalize(stayed + 1.0, dim=-1)
    assert float(teacher.keeping_loss(moved, some)) > 0.1 * teacher.keeping


def test_vectors_without_weight_teach_what_words_find() -> None:
    draw = np.random.default_rng(0)
    passages_PH = draw.standard_normal((len(PASSAGES), 8)).astype(np.float32)
    words = HybridTeacher.of(
        ["the red doors"], PASSAGES, (-passages_PH[-1:], passages_PH), language="english", weight=0
    )
    assert words.best_QK[0, 0] == BEST
    assert words.shares_QK[0, 0] > 0.9
