"""What is kept after training a sentence encoder further."""

import dataclasses

import numpy as np
import pytest
import torch

from cloze.model.hugging_face.model_files import read_encoder_files
from cloze.model.hugging_face.sentence_modules import NORMALIZE, SentenceModules
from cloze.model.inference.load import model_of
from cloze.model.retrieval import candidates
from cloze.model.retrieval.candidates import (
    ORIGINAL,
    SHARES,
    Candidate,
    QuestionSet,
    Verdict,
    between,
    choose,
    search_quality,
    verdict,
    without_their_passages,
)
from cloze.model.retrieval.ranking_metrics import Floats, Interval
from cloze.model.retrieval.term_fit import fitted_terms, no_terms
from cloze.model.tasks.features import encode
from tests.cloze.tiny_model import write_model


def noisy(draw: np.random.Generator, gain: float) -> tuple[dict[Candidate, np.ndarray], dict]:
    """nDCG of 500 questions by candidate, on both sets: noise by question, and a gain for all."""
    sets = []
    for _ in range(2):
        before = draw.beta(2, 1, 500)
        values = {ORIGINAL: before}
        for share in SHARES:
            change = draw.normal(gain, 0.15, 500)
            values[Candidate(share)] = np.clip(before + change, 0, 1)
        sets.append(values)
    return sets[0], sets[1]


def test_of_twenty_adaptations_that_change_nothing_none_replaces_the_original() -> None:
    draw = np.random.default_rng(0)
    for _ in range(20):
        choosing, reporting = noisy(draw, gain=0.0)
        assert verdict(choosing, reporting.__getitem__).kept == ORIGINAL


def test_of_twenty_gains_of_five_points_at_least_eighteen_are_found() -> None:
    draw = np.random.default_rng(0)
    kept = [
        verdict(a, b.__getitem__).kept != ORIGINAL for a, b in (noisy(draw, 0.05) for _ in "x" * 20)
    ]
    assert sum(kept) >= 18


def test_the_best_candidate_is_chosen_by_one_set_and_reported_by_the_other() -> None:
    before, better, lucky = np.full(50, 0.5), np.full(50, 0.6), np.full(50, 0.9)
    half, whole = Candidate(0.5), Candidate(1.0)
    choosing = {ORIGINAL: before, half: better, whole: lucky}
    found = verdict(choosing, {ORIGINAL: before, half: better, whole: before - 0.1}.__getitem__)
    assert (found.best, found.kept) == (whole, ORIGINAL)
    assert found.difference.mean == pytest.approx(-0.1)
    found = verdict(choosing, {ORIGINAL: before, whole: before + 0.1}.__getitem__)
    assert (found.best, found.kept, found.before) == (whole, whole, 0.5)


def test_a_gain_below_the_margin_keeps_the_original() -> None:
    found = Verdict(Candidate(1.0), Interval(0.01, 0.004, 0.016), 0.5, margin=0.005)
    assert found.kept == ORIGINAL
    assert dataclasses.replace(found, margin=0.003).kept == Candidate(1.0)


def test_of_equal_candidates_the_original_is_the_best() -> None:
    same = np.full(9, 0.5)
    candidates = map(Candidate, (0.0, *SHARES))
    found = verdict(dict.fromkeys([*candidates, Candidate(0.0, 0.5)], same), lambda _: same)
    assert found.best == found.kept == ORIGINAL


def test_weights_between_two_encoders_are_on_the_line_between_them(tmp_path) -> None:
    for seed, name in enumerate(("old", "new")):
        write_model(tmp_path / name, seed=seed)
    old, new = (read_encoder_files(tmp_path / name) for name in ("old", "new"))
    name = next(iter(old.parameters))
    mixed = between(old, new, 0.25).parameters[name]
    torch.testing.assert_close(mixed, 0.75 * old.parameters[name] + 0.25 * new.parameters[name])
    assert between(old, new, 0) is old
    assert torch.equal(between(old, new, 1).parameters[name], new.parameters[name])


def test_an_encoder_that_was_not_changed_is_kept_as_it_was(tmp_path) -> None:
    write_model(tmp_path / "old")
    old = read_encoder_files(tmp_path / "old")
    asked = QuestionSet(
        "questions", ("a list", "names"), ("the names", "a list of b"), ({1: 1.0}, {0: 1.0})
    )
    said: list[str] = []
    found = choose(old, dataclasses.replace(old), choosing=asked, reporting=asked, say=said.append)
    assert found.best == found.kept == ORIGINAL
    assert found.encoder(old, old) is old
    assert len(said) == 1 + len(SHARES)
    assert [one.share for one, _ in found.candidates] == [0.0, *SHARES]
    values = search_quality(model_of(old, precision="fp32"), asked)
    assert {score for _, score in found.candidates} == {values.mean()}
    assert values.shape == (2,)
    assert set(values.round(4)) <= {1.0, 0.6309}  # first or second of two


def test_texts_that_all_candidates_truncate_are_counted_once(tmp_path) -> None:
    for seed, name in enumerate(("old", "new")):
        write_model(tmp_path / name, seed=seed)
    old, new = (read_encoder_files(tmp_path / name) for name in ("old", "new"))
    longest = old.config.max_position_embeddings
    passages = ("the names", "a list of b " * longest)
    asked = QuestionSet("questions", ("a list", "names"), passages, ({1: 1.0}, {0: 1.0}))
    said: list[str] = []
    choose(old, new, choosing=asked, reporting=asked, say=said.append)
    assert [line for line in said if "truncated" in line] == [
        f"1 texts of more than {longest} tokens were truncated"
    ]


def test_the_encoder_that_is_kept_searches_with_term_vectors_as_the_verdict_says(tmp_path) -> None:
    write_model(tmp_path / "old")
    old = read_encoder_files(tmp_path / "old")
    old = dataclasses.replace(old, modules=SentenceModules(("mean",), (NORMALIZE,), 8))
    passages = ("the names", "a list of b", "of of a a b", "list list", "b names the the b b names")
    asked = QuestionSet(
        "questions", ("a list", "names the", "of b"), passages, ({1: 1.0}, {0: 1.0}, {2: 1.0})
    )
    found = choose(old, old, choosing=asked, reporting=asked, say=str, term_weights=(0.5, 2.0))
    assert [one for one, _ in found.candidates][-2:] == [Candidate(0.0, 0.5), Candidate(0.0, 2.0)]
    for candidate, score in found.candidates[-2:]:
        terms = fitted_terms(
            encode(old.tokenizer, passages, max_seq_length=8).input_ids,
            model_of(old, precision="fp32").embed(list(passages)),
            special=no_terms(old.tokenizer),
            weight=candidate.terms,
        )
        certain = Interval(0.1, 0.1, 0.1)
        kept = dataclasses.replace(found, best=candidate, difference=certain, terms=terms)
        model = model_of(kept.encoder(old, old), precision="fp32")
        assert search_quality(model, asked).mean() == pytest.approx(score)


def test_no_question_is_asked_later_of_a_passage_that_terms_were_fitted_to() -> None:
    relevant = tuple({number % 7: 1.0, 7 + number % 3: 2.0} for number in range(40))
    passages = tuple(f"passage {number}" for number in range(30))
    asked = QuestionSet("questions", ("a question",) * 40, passages, relevant)
    halves = [*without_their_passages(asked)]
    assert sorted(one for questions, _ in halves for one in questions) == [*range(40)]
    for questions, fitted in halves:
        assert not {row for one in questions for row in relevant[one]} & {*fitted}
        # and half of those that nobody asks about are new, too
        assert len([row for row in fitted if row >= 10]) == 10


def test_terms_that_lose_on_later_passages_are_not_the_best(
    tmp_path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_model(tmp_path / "old")
    old = read_encoder_files(tmp_path / "old")
    old = dataclasses.replace(old, modules=SentenceModules(("mean",), (NORMALIZE,), 8))
    passages = ("the names", "a list of b", "of of a a b", "list list")
    asked = QuestionSet("questions", ("a list", "names"), passages, ({1: 1.0}, {0: 1.0}))

    def qualities(compared: object, candidate: Candidate, asked: QuestionSet) -> Floats:
        return np.full(2, 0.5 + candidate.terms / 4)

    later = {0.5: 0.5, 1.0: 0.49}
    monkeypatch.setattr(candidates._Compared, "quality", qualities)
    monkeypatch.setattr(
        candidates._Compared,
        "quality_later",
        lambda compared, candidate, asked: np.full(2, later[candidate.terms]),
    )
    found = choose(old, old, choosing=asked, reporting=asked, say=str, term_weights=(0.5, 1.0))
    assert found.best == Candidate(0.0, 0.5)
    assert found.later == Interval(0.0, 0.0, 0.0)
    assert [one.terms for one, _ in found.later_candidates] == [0.5, 1.0]
