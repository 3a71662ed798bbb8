"""What the report says of retrieval first, and of what `cloze adapt` kept."""

import re

import pytest

from cloze.artifacts.results import (
    UNTOUCHED,
    Comparison,
    Outcome,
    Role,
    SeedScores,
    SystemScore,
    TaskScore,
)
from cloze.flows.report.figures import terminal_lines
from cloze.flows.report.page import render
from cloze.flows.report.summary import KeptEncoder, Summary
from cloze.flows.report.wording import (
    deciding_comparison,
    finding,
    kept_words,
    lede,
    many_tasks,
    search_found,
)

MADE_UP = {"pairs": {"kind": "spans"}, "finetune": {"tasks": [{"name": "retrieval"}]}}
OF_PEOPLE = {**MADE_UP, "finetune": {"tasks": [{"name": "retrieval", "test": "asked.csv"}]}}

KEPT = KeptEncoder(
    share=1.0,
    kept_share=1.0,
    before=0.667,
    difference=0.048,
    low=0.013,
    high=0.081,
    margin=0.005,
    candidates=((0.0, 0.66), (0.25, 0.67), (0.5, 0.68), (0.75, 0.69), (1.0, 0.71)),
    chosen_by="998 made-up queries (dev)",
    reported_by="996 made-up queries (test)",
    passages=1500,
)


def retrieval(after: float, *, outcome: Outcome = "undecided") -> TaskScore:
    """BM25 at 98.9, the encoder before training at 76.4, and after it."""
    scores = {"bm25": 0.989, UNTOUCHED: 0.764, "pretrained": after}

    def system(name: str) -> SystemScore:
        role: Role = "pretrained" if name == "pretrained" else "baseline"
        return SystemScore(name=name, role=role, test={"ndcg@10": SeedScores.of([scores[name]])})

    def against(name: str) -> Comparison:
        return Comparison(
            system="pretrained",
            against=name,
            metric="ndcg@10",
            split="test",
            difference=after - scores[name],
            standard_error=0.0,
            paired=False,
            seeds=1,
            outcome=outcome,
        )

    return TaskScore(
        name="retrieval",
        kind="retrieval",
        metric="ndcg@10",
        metrics=("ndcg@10",),
        examples={"train": 500, "dev": 998, "test": 996},
        seeds=(0,),
        systems=tuple(map(system, scores)),
        comparisons=(against("bm25"), against(UNTOUCHED)),
    )


def summary(task: TaskScore, **more: object) -> Summary:
    facts = {"name": "docs", "title": "docs", "tasks": (task,), "configuration": MADE_UP}
    return Summary.model_validate({**facts, **more})


def test_retrieval_is_compared_with_the_encoder_before_training_first() -> None:
    task = retrieval(0.785)
    found = deciding_comparison(task)
    assert found
    assert found.against == UNTOUCHED
    page = render(summary(task))
    assert "+2.1 points against the encoder before training with 1 seed" in page
    assert "−20.4" not in page
    # from its row to ours, to the right
    start, end = re.findall(r"encoder before training|adapted<", page)[-2:]
    assert (start, end) == ("encoder before training", "adapted<")


def test_by_made_up_queries_bm25_is_shown_and_not_called_better() -> None:
    every = summary(retrieval(0.785))
    page = render(every)
    assert ">BM25<" in page
    assert ">98.9<" in page
    assert "Made-up queries are words of their own passages" in page
    many = summary(retrieval(0.785), tasks=(retrieval(0.785),) * 3)
    told = [page, *lede(every), *terminal_lines(every), *terminal_lines(many)]
    for words in ("does better", "A baseline does", "better without an encoder"):
        assert not any(words in text for text in told)


def test_by_questions_of_people_bm25_is_called_better() -> None:
    every = summary(retrieval(0.785), configuration=OF_PEOPLE)
    assert "A baseline does better: on Retrieval BM25 (98.9)." in lede(every)
    assert terminal_lines(every)[2].endswith("set finetune.seeds. BM25 (98.9) does better.")
    found = (
        "no verdict, few or equal seeds: retrieval; better without an encoder: "
        "BM25 (98.9) on retrieval"
    )
    assert ("verdicts", found) in many_tasks(every)
    assert "Made-up queries are" not in render(every)


def test_the_encoder_before_training_is_no_baseline_without_an_encoder() -> None:
    """That it does better is the verdict already."""
    every = summary(retrieval(0.7, outcome="loss"), configuration={})
    found = finding(every, every.tasks[0])
    assert found
    assert found.sentence == (
        "Adapting loses: 6.4 points below the encoder before training. BM25 (98.9) does better."
    )


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        (
            {},
            "the trained encoder, chosen on 998 made-up queries (dev): nDCG@10 66.7 → 71.5, +4.8 "
            "[+1.3, +8.1] (99 %) on 996 made-up queries (test)",
        ),
        (
            {"share": 0.5, "kept_share": 0.5, "words": 300},
            "50% of the change with 300 words added, chosen on 998 made-up queries (dev): nDCG@10 "
            "66.7 → 71.5, +4.8 [+1.3, +8.1] (99 %) on 996 made-up queries (test)",
        ),
        (
            {"kept_share": 0.0, "low": -0.001},
            "the original encoder; the trained encoder is not better by 0.5 for certain: nDCG@10 "
            "66.7 → 71.5, +4.8 [−0.1, +8.1] (99 %) on 996 made-up queries (test)",
        ),
        (
            {"share": 0.0, "kept_share": 0.0},
            "the original encoder, the best on 998 made-up queries (dev)",
        ),
    ],
)
def test_what_was_kept_is_told_with_what_it_is_worth(changed: dict[str, float], words: str) -> None:
    assert kept_words(KEPT.model_copy(update=changed)) == words


def test_a_kept_encoder_with_term_vectors_is_named_so() -> None:
    more = {"terms": 0.5, "kept_terms": 0.5, "term_candidates": ((0.5, 0.75), (1.0, 0.72))}
    decided = KEPT.model_copy(update={"share": 0.0, "kept_share": 0.0, **more})
    assert kept_words(decided).startswith("the original encoder with term vectors × 0.5, chosen on")
    page = render(summary(retrieval(0.785), kept=decided))
    assert "<b>the original encoder with term vectors × 0.5</b>, kept" in page
    assert "the original encoder with term vectors × 1<" in page
    assert '<div class="verdict win">' in page
    lost = decided.model_copy(update={"kept_terms": 0.0, "low": -0.01})
    assert kept_words(lost).startswith("the original encoder; the original encoder with term")
    assert '<div class="verdict none">' in render(summary(retrieval(0.785), kept=lost))


def test_an_encoder_that_adapt_has_not_judged_is_said_to_be_unjudged() -> None:
    every = summary(retrieval(0.785))
    (line,) = (one for one in terminal_lines(every) if one.startswith("  not evaluated"))
    assert "repeat `cloze adapt`" in line
    assert any(sentence.startswith("Not evaluated: ") for sentence in lede(every))
    for judged in (
        summary(retrieval(0.785), kept=KEPT),
        summary(retrieval(0.785), configuration={}),
    ):
        assert not any(
            "not evaluated" in one.lower() for one in [*terminal_lines(judged), *lede(judged)]
        )


@pytest.mark.parametrize("after", [0.785, 0.7])
@pytest.mark.parametrize("outcome", ["undecided", "loss", "win"])
@pytest.mark.parametrize("kept_share", [0.0, 1.0])
def test_nothing_contradicts_what_adapt_decided(
    after: float, outcome: Outcome, kept_share: float
) -> None:
    """Whatever the ranking among other passages says, on the page and in the terminal."""
    decided = KEPT.model_copy(update={"kept_share": kept_share})
    every = summary(retrieval(after, outcome=outcome), kept=decided)
    words = kept_words(decided)
    assert terminal_lines(every) == ["docs", f"  kept            {words}"]
    assert f"Kept: {words}." in lede(every)
    assert search_found(every, every.tasks[0]) == ""
    page = render(every)
    # at the top, and in the section
    assert page.count(f"Kept: {words}.") == 2
    assert "Not evaluated" not in page
    assert '<div class="verdict win">' in page or not kept_share
    for verdict in ("no better", "does better", "wins", "loses", "no verdict", "keep using"):
        assert verdict not in page
    # One level of nDCG, that of the ranking that decides.
    assert "Vectors alone, among 1,500 passages" in page
    assert ">98.9<" not in page
    assert "<h3>All scores</h3>" not in page
    name = "the trained encoder" if kept_share else "the original encoder"
    assert f"<b>{name}</b>, kept" in page
    assert "cloze search docs FOLDER" in page
