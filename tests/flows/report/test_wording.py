"""Numbers, names and verdicts in the text of the report."""

import tomllib

import pytest

from cloze.artifacts.results import (
    Calibration,
    Candidate,
    Choice,
    Comparison,
    ErrorExample,
    LabelErrorCounts,
    LanguageModelScore,
    Measured,
    ProbabilityQuality,
    SeedScores,
    SystemScore,
    TaskScore,
)
from cloze.flows.report.charts import falling_part
from cloze.flows.report.page import to_toml
from cloze.flows.report.plots import crossing, plateau, task_spread
from cloze.flows.report.summary import Pretraining, Summary
from cloze.flows.report.units import (
    THIN,
    duration,
    integer,
    memory,
    nats,
    percent,
    plural,
    points,
    scientific,
    short,
    size,
    three_digits,
)
from cloze.flows.report.wording import (
    candidate_rows,
    label_error_sentence,
    lede,
    search_found,
    spread_words,
    system_name,
    task_name,
    task_sizes,
    task_words,
    temperature_sentence,
    verdict_sentence,
    verdict_words,
    wrong_tags,
)

CURVE = [(0.0, 9.0), (1.0, 6.0), (2.0, 5.9), (3.0, 4.0), (4.0, 3.0)]


def comparison(
    difference: float,
    standard_error: float,
    outcome: str,
    *,
    seeds: int = 5,
    p_value: float | None = None,
) -> Comparison:
    return Comparison(
        system="pretrained",
        against="random",
        metric="f1",
        split="test",
        difference=difference,
        standard_error=standard_error,
        paired=True,
        seeds=seeds,
        outcome=outcome,
        corrected=p_value,
    )


EMPTY = Summary(name="x", title="x")


def tagging(**parts: object) -> TaskScore:
    task = {"name": "x", "kind": "tagging", "metric": "f1", "metrics": ("f1",), "examples": {}}
    empty = {"seeds": (0,), "systems": (), "comparisons": ()}
    return TaskScore.model_validate({**task, **empty, **parts})


def test_without_an_untrained_encoder_the_strongest_baseline_decides() -> None:
    found = (("majority", 0.41), ("word_overlap", 0.02), ("lookup", 0.13))
    task = tagging(
        comparisons=[
            comparison(ahead, 0.001, "gain").model_copy(update={"against": name})
            for name, ahead in found
        ]
    )
    assert verdict_sentence(EMPTY, task) == (
        "A gain of 2.0 ± 0.1 points over word overlap, below the 3-point margin set in advance."
    )


@pytest.mark.parametrize(("gain", "advice"), [(0.027, ""), (-0.004, "; no better: keep using")])
def test_search_before_and_after_is_one_line_and_warns_where_it_is_no_better(
    gain: float, advice: str
) -> None:
    before = {"ndcg@10": SeedScores.of([0.234]), "recall@1": SeedScores.of([0.133])}
    after = {"ndcg@10": SeedScores.of([0.234 + gain] * 2), "recall@1": SeedScores.of([0.15] * 2)}
    ahead = {"against": "untouched_encoder", "metric": "ndcg@10"}
    task = tagging(
        kind="retrieval",
        metric="ndcg@10",
        examples={"test": 1000},
        systems=(
            SystemScore(name="untouched_encoder", role="baseline", trials=1, test=before),
            SystemScore(name="pretrained", role="pretrained", trials=2, test=after),
        ),
        comparisons=(comparison(gain, 0.001, "undecided").model_copy(update=ahead),),
    )
    found = search_found(EMPTY, task)
    assert found.startswith(
        "before nDCG@10 23.4, recall@1 13.3; after nDCG@10 "
        f"{23.4 + 100 * gain:.1f}, recall@1 15.0; 1,000 held-out queries"
    )
    assert found.partition("queries")[2].startswith(advice)
    assert ("no better" in found) == (gain < 0)
    assert search_found(EMPTY, tagging()) == ""
    shown = task_spread(task, split="test")
    assert ">adapted<" in shown
    assert "pre-trained" not in shown
    assert "Adapting" in verdict_words(task.comparisons[0].model_copy(update={"outcome": "loss"}))
    assert system_name("pretrained", tagging()) == "pre-trained"


@pytest.mark.parametrize(
    ("shown", "expected"),
    [
        (percent(0.4731), "47.3 %"),
        (percent(-0.0001), "0.0 %"),
        (points(0.053), "+5.3"),
        (points(-0.021), "−2.1"),
        (points(0.0001), "0.0"),
        (nats(3.0214), "3.02 nats"),
        (integer(1234567), "1,234,567"),
        (short(9999), "9,999"),
        (short(16_300_000), "16.3 M"),
        (short(34_000), "34.0 k"),
        (short(3.3e10), "33.0 G"),
        (scientific(0.0002), "2e-4"),
        (scientific(0.0), "0"),
        (three_digits(0.01234), "0.0123"),
        (three_digits(862.9), "863"),
        (size(37_100_000), "37.1 MB"),
        (size(12), "12 B"),
        (memory(4_200_000_000), "3.91 GiB"),
        (duration(8.06), "8.1 s"),
        (duration(21), "21 s"),
        (duration(480), "8 min"),
        (duration(581), "9 min 41 s"),
        (duration(110_000), "30 h 33 min"),
        (plural(1, "document"), "1 document"),
        (plural(1200, "copy", many="copies"), "1,200 copies"),
    ],
)
def test_numbers_have_units_and_few_digits(shown: str, expected: str) -> None:
    assert shown.replace(THIN, " ") == expected


@pytest.mark.parametrize(
    ("found", "kind", "words"),
    [
        (
            comparison(0.053, 0.006, "win", p_value=0.0009),
            "win",
            "Pre-training wins: 5.3 ± 0.6 points over random initialisation (p = 0.0009).",
        ),
        (
            comparison(0.02, 0.005, "gain", p_value=0.016),
            "gain",
            "A gain of 2.0 ± 0.5 points over random initialisation (p = 0.016), below the 3-point "
            "margin set in advance.",
        ),
        (
            comparison(0.15, 0.06, "none", p_value=0.13),
            "none",
            "No clear difference from random initialisation: +15.0 ± 6.0 points (p = 0.13).",
        ),
        (
            comparison(0.15, 0.0, "undecided", seeds=1),
            "undecided",
            "+15.0 points against random initialisation with 1 seed: no verdict with fewer than "
            "3; set finetune.seeds.",
        ),
        (
            comparison(-0.15, 0.01, "undecided", seeds=2, p_value=0.04),
            "undecided",
            "−15.0 ± 1.0 points against random initialisation with 2 seeds: no verdict with "
            "fewer than 3; set finetune.seeds.",
        ),
        (
            comparison(0.1, 0.0, "undecided"),
            "undecided",
            "+10.0 points against random initialisation with 5 seeds: no verdict with equal "
            "differences for all of them; set finetune.seeds.",
        ),
        (
            comparison(-0.021, 0.005, "loss", p_value=0.014),
            "loss",
            "Pre-training loses: 2.1 ± 0.5 points below random initialisation (p = 0.014).",
        ),
    ],
)
def test_a_verdict_claims_no_more_than_was_measured(
    found: Comparison, kind: str, words: str
) -> None:
    assert found.outcome == kind
    assert verdict_words(found) == words


def test_a_loss_above_the_entropy_is_called_so() -> None:
    model = LanguageModelScore(
        split="heldout",
        max_seq_length=64,
        examples=10,
        masked_tokens=90,
        mlm_loss=6.76,
        mlm_accuracy=0.04,
        mlm_perplexity=862.6,
        random_mlm_loss=7.6,
        unigram_entropy=5.96,
        unigram_loss=6.0,
        unigram_accuracy=0.04,
        count_model_loss=4.5,
        count_model_accuracy=0.2,
    )
    sentence, ahead = lede(Summary(name="x", title="x", language_model=(model,)))
    assert "0.80 nats above the unigram entropy" in sentence.replace(THIN, " ")
    assert ahead.startswith("A baseline does better: in MLM loss the n-gram baseline")


def test_without_held_out_text_the_report_says_what_it_cannot_know() -> None:
    training = Pretraining(steps=10, batch_size=2, seconds=90.0, device="cpu")
    sentences = lede(Summary(name="x", title="x", pretraining=training))
    assert " on the CPU. No text was held out" in sentences[-1]
    assert "corpus.heldout_share" in sentences[-1]


def test_one_value_has_no_error() -> None:
    assert spread_words(SeedScores.of([0.52])) == "52.0"
    assert spread_words(SeedScores.of([0.5, 0.6])) == "55.0 ± 5.0"
    assert spread_words(SeedScores.of([0.84, 0.84, 0.84])) == "84.0"
    assert spread_words(SeedScores.of([0.1 + 0.2, 0.3])) == "30.0"  # differ by rounding


@pytest.mark.parametrize(
    ("values", "shown"),
    [
        ((0.5, 0.502), "50.1 ± 0.1"),
        ((0.5, 0.501), "50.0 ± 0.05"),
        ((0.5, 0.5006), "50.0 ± 0.03"),
        ((0.5, 0.50001), "50.0 ± 0.0005"),
    ],
)
def test_an_error_below_a_tenth_of_a_point_is_not_shown_as_none(
    values: tuple[float, ...], shown: str
) -> None:
    assert spread_words(SeedScores.of(values)) == shown


def test_a_baseline_that_does_better_is_named() -> None:
    def systems(lookup: float) -> tuple[SystemScore, ...]:
        means = {"lookup": ("baseline", lookup), "pretrained": ("pretrained", 0.62)}
        return tuple(
            SystemScore.model_validate(
                {"name": name, "role": role, "test": {"f1": SeedScores.of([mean])}}
            )
            for name, (role, mean) in means.items()
        )

    won = comparison(0.053, 0.006, "win")
    task = tagging(systems=systems(0.7), comparisons=(won,))
    assert verdict_sentence(EMPTY, task).endswith("Look-up table (70.0) does better.")
    assert verdict_sentence(EMPTY, task.model_copy(update={"systems": systems(0.5)})).endswith(
        "initialisation."
    )


def test_tagging_mistakes_are_told_word_by_word() -> None:
    error = ErrorExample(text="See numpy .", gold="O B-MOD O", predicted="O O O")
    assert wrong_tags(error) == [("See", "", ""), ("numpy", "B-MOD", "O"), (".", "", "")]
    assert wrong_tags(ErrorExample(text="two words", gold="match", predicted="other")) == []


def test_sizes_are_told_in_the_order_of_their_use() -> None:
    task = tagging(examples={"dev": 2, "test": 3, "train": 1})
    assert task_sizes(task) == "1 train, 2 dev, 3 test"


def test_acronyms_of_tasks_keep_their_form() -> None:
    assert task_name("docstring_roles") == "Docstring roles"
    assert task_name("MNLI") == "MNLI"
    assert task_name("SST-2") == "SST-2"
    assert (task_words("docstring_roles"), task_words("STS-B")) == ("docstring roles", "STS-B")


def test_a_crossing_is_where_the_curve_stays_below() -> None:
    assert crossing(CURVE, 5.0) == pytest.approx((2.4736842, 5.0))
    assert crossing([(0, 9.0), (1, 4.0), (2, 6.0), (3, 3.0)], 5.0) == pytest.approx(
        (2.3333333, 5.0)
    )
    assert crossing(CURVE, 2.0) is None


def test_the_plateau_lies_around_the_unigram_entropy() -> None:
    start, end = plateau(CURVE, 6.0) or (0.0, 0.0)
    assert 0.9 < start < 1.0
    assert 2.0 < end < 2.5
    assert plateau([(0.0, 9.0), (10.0, 3.0), (100.0, 2.0)], 6.0) is None


def test_a_run_that_ends_on_the_plateau_has_one_to_its_end() -> None:
    assert plateau([(0.0, 9.0), (1.0, 6.0), (5.0, 5.9)], 6.0) == pytest.approx((0.95, 5.0))


def test_a_curve_is_cut_where_it_comes_into_the_picture() -> None:
    assert falling_part(CURVE, 7.5) == [(0.5, 7.5), *CURVE[1:]]
    assert falling_part(CURVE, 9.0) == CURVE
    assert falling_part(CURVE, 1.0) == []


def test_a_configuration_reads_back_as_it_was() -> None:
    table = {
        "name": "demo",
        "corpus": {
            "heldout_share": 0.02,
            "sources": [
                {"reader": "text", "path": 'a "quoted" \\ path'},
                {"reader": "docstrings", "packages": [f"package-{n}" for n in range(20)]},
            ],
        },
        "pretrain": {"optimizer": {"learning_rate": 2e-3}, "phases": []},
        "finetune": {"tasks": [{"name": "tagging", "columns": {"a b": "c"}}]},
        "report": {"note": "two\nlines 🤖", "show_text": False},
    }
    assert tomllib.loads(to_toml(table)) == table


def test_what_is_none_is_left_out_of_a_configuration() -> None:
    assert to_toml({"labels": None, "seed": 1}) == "seed = 1\n"


def test_the_chosen_approach_is_named_with_the_names_that_it_trains_on() -> None:
    figures = {"rows": 8, "folds": (0.5,), "mean": 0.5, "standard_error": 0.1}
    tried = tuple(
        Candidate(approach=one, interval=(0.3, 0.7), **figures) for one in ("linear", "contrastive")
    )
    choice = Choice(chosen="contrastive", best="linear", candidates=tried, label_names=True)
    assert [row[0] for row in candidate_rows(choice, {})] == [
        "linear head on vectors",
        "contrastive tuning, linear head, with the labels' names as texts",
    ]


def test_a_right_table_is_told_that_no_label_is_probably_wrong() -> None:
    figures = {"split": "train", "rows": 1000, "contradictions": 0, "doubtful": 150}
    right = LabelErrorCounts(unlikely=0, by_chance=0.0, **figures)
    assert label_error_sentence(right).startswith(
        "Of 1,000 rows of train, 0 labels are probably wrong; 150 more are doubtful: "
    )
    wrong = LabelErrorCounts(unlikely=40, by_chance=4.2, **(figures | {"contradictions": 2}))
    assert (
        "40 labels are probably wrong (so improbable by chance: 4.2); 2 of equal texts with "
        "different labels, 150 more" in label_error_sentence(wrong)
    )


def test_a_temperature_that_the_rows_do_not_speak_for_is_said_to_be_none() -> None:
    figure = Measured(value=0.1, low=0.0, high=0.2)
    quality = ProbabilityQuality(
        rows=128, log_loss=figure, brier=figure, calibration_error=figure, expected_error=0.1,
        reliability=(),
    )  # fmt: skip
    figures = {"rows": 128, "split": "dev", "before": quality, "after": quality}
    kept = temperature_sentence(Calibration(temperatures=(1.0,), **figures))
    assert kept.startswith("Temperature 1: 128 rows of dev do not speak for another.")
    assert "Temperature 0.4, fitted" in temperature_sentence(
        Calibration(temperatures=(0.4,), **figures)
    )
