"""Marks on the page: scales, labels, and what each chart draws."""

from xml.etree import ElementTree

import pytest
from markupsafe import Markup

from flows.report.charts.columns import Columns, columns, shades
from flows.report.charts.curves import Band, Chart, Mark, Reference, Series, curves, log_log, small
from flows.report.charts.rows import Row, bars
from flows.report.charts.spread import Scores, Spread, spread
from flows.report.charts.svg import (
    Linear,
    Logarithmic,
    apart,
    dot,
    element,
    powers_of_ten,
    text,
    ticks,
)


def words(picture: Markup) -> list[str]:
    """The text a person reads."""
    return [node.text or "" for node in parsed(picture).iter("text")]


def parsed(picture: Markup) -> ElementTree.Element:
    return ElementTree.fromstring(picture)  # well-formed, or this fails


def chart(**parts: object) -> Chart:
    base = {
        "series": [Series([(0.0, 9.0), (1.0, 6.0), (2.0, 3.0)], "ours", "held-out 3.00")],
        "x_label": "minutes",
        "y_label": "loss",
        "x_text": "{:g}".format,
        "y_text": "{:g}".format,
    }
    return Chart(**{**base, **parts})  # type: ignore[arg-type]


def test_scales_map_ends_to_ends() -> None:
    linear = Linear(2, 4, 100, 200)
    assert [linear(2), linear(3), linear(4)] == [100, 150, 200]
    logarithmic = Logarithmic(1, 100, 0, 10)
    assert [logarithmic(1), logarithmic(10), logarithmic(100)] == pytest.approx([0, 5, 10])
    assert Linear(3, 3, 0, 10)(3) == 0


def test_ticks_are_round_and_inside() -> None:
    assert ticks(0, 8, about=8) == [0, 1, 2, 3, 4, 5, 6, 7, 8]
    assert ticks(2.7, 7.1, about=5) == [3, 4, 5, 6, 7]
    assert ticks(41.1, 64.7, about=6) == [45, 50, 55, 60]
    assert ticks(0, 8, about=3) == [0, 2, 4, 6, 8]
    assert ticks(5, 5) == [5]
    assert powers_of_ten(3, 20000) == [10, 100, 1000, 10000]


def test_labels_are_kept_apart_in_their_order() -> None:
    places = apart([50, 51, 10, 52], gap=15, low=0, high=60)
    assert places == [30, 45, 10, 60]
    assert apart([20.0], gap=15, low=0, high=60) == [20.0]


def test_everything_from_outside_is_escaped() -> None:
    assert text("<b>&", 0, 0) == '<text x="0" y="0">&lt;b&gt;&amp;</text>'
    assert "<title>a &lt; b</title>" in dot(0, 0, tip="a < b")
    assert element("g", class_='"x"') == '<g class="&quot;x&quot;"/>'


def test_bars_begin_at_zero_and_are_as_long_as_their_values() -> None:
    drawn = bars([Row("a", 1.0, "1"), Row("b", 2.0, "2", kind="ours")], width=300, label="two")
    rectangles = list(parsed(drawn).iter("rect"))
    widths = [float(rectangle.get("width", 0)) for rectangle in rectangles]
    assert widths[1] == pytest.approx(2 * widths[0], rel=0.01)
    assert rectangles[1].get("class") == "ours-fill"
    assert words(drawn) == ["1", "a", "2", "b"]


def test_bars_of_nothing_but_zeros_are_drawn() -> None:
    assert words(bars([Row("a", 0.0, "–")], width=300, label="none")) == ["–", "a"]


def test_the_line_chart_names_lines_where_they_end() -> None:
    drawn = curves(
        chart(
            references=[Reference(6.06, "word frequencies 6.06")],
            marks=[Mark(1.5, 4.5, "passes neighbour counts")],
            bands=[Band(0.5, 1.0, "plateau")],
            divisions=[(1.8, "128 → 512 tokens")],
            second_x_text="{:g} M".format,
            second_x_label="word-pieces",
        ),
        width=700,
        height=400,
        label="loss",
    )
    said = words(drawn)
    for expected in ("held-out 3.00", "word frequencies 6.06", "passes neighbour counts"):
        assert expected in said
    assert {"plateau", "128 → 512 tokens", "2 M", "word-pieces", "minutes"} <= set(said)


def test_what_lies_above_the_picture_is_cut_off() -> None:
    line = Series([(0.0, 9.0), (1.0, 6.0), (2.0, 3.0)], "ours", "", ("nine", "six", "three"))
    drawn = curves(chart(series=[line], y_top=7.0), width=700, height=400, label="loss")
    tips = [node.text for node in parsed(drawn).iter("title")]
    assert tips == ["six", "three"]
    assert "9" not in words(drawn)


def test_small_multiples_tick_their_extremes_alone() -> None:
    assert words(small(chart(), label="loss")) == ["loss", "3", "9", "0", "2"]


def test_ranks_and_frequencies_have_powers_of_ten() -> None:
    drawn = log_log([(1, 20000), (10, 2000), (100, 3)], width=336, height=200, label="ranks")
    assert words(drawn) == ["10", "100", "1\u202fk", "10\u202fk", "1", "10", "100", "rank"]


def test_every_seed_is_a_dot_and_a_baseline_is_none() -> None:
    rows = [
        Scores("look-up table", "quiet", [52.0], 52.0, 0.0, "52.0"),
        Scores("random", "other", [57.0, 58.0], 57.5, 0.5, "57.5 ± 0.5"),
        Scores("pre-trained", "ours", [62.0, 63.0], 62.5, 0.5, "62.5 ± 0.5"),
    ]
    drawn = spread(
        Spread(rows, compared=(1, 2), published=(64.0, "BERT-tiny 64.0")), width=700, label="f1"
    )
    tips = [node.text for node in parsed(drawn).iter("title")]
    assert tips == [
        "random: 57.0 %",
        "random: 58.0 %",
        "pre-trained: 62.0 %",
        "pre-trained: 63.0 %",
    ]
    assert "BERT-tiny 64.0" in words(drawn)
    assert sum(node.get("class") == "gain" for node in parsed(drawn).iter()) == 2


def test_an_arrow_too_short_to_see_is_not_drawn() -> None:
    rows = [
        Scores("random", "other", [50.0, 60.0], 55.0, 5.0, "55.0 ± 5.0"),
        Scores("pre-trained", "ours", [50.1, 60.0], 55.05, 5.0, "55.1 ± 5.0"),
    ]
    drawn = spread(Spread(rows, compared=(0, 1)), width=700, label="f1")
    assert not any(node.get("class") == "gain" for node in parsed(drawn).iter())


def test_columns_are_as_high_as_their_counts() -> None:
    drawn = columns(
        Columns([1, 4, 2], ["1", "2", "4", "8"], "documents"),
        width=336,
        height=170,
        label="lengths",
    )
    heights = [float(node.get("height", 0)) for node in parsed(drawn).iter("rect")]
    assert heights[1] == pytest.approx(4 * heights[0], rel=0.02)
    tips = [node.text for node in parsed(drawn).iter("title")]
    assert tips[1].replace("\u202f", " ") == "2 to 4: 4 documents, 57.1 %"  # type: ignore[union-attr]


def test_the_diagonal_of_a_confusion_is_ours() -> None:
    drawn = shades([[9, 1], [0, 5]], ["yes", "no"], width=336, label="confusion")
    kinds = [node.get("class") for node in parsed(drawn).iter("rect")]
    assert kinds == ["ours-fill", "other-fill", "other-fill", "ours-fill"]
    tips = [node.text for node in parsed(drawn).iter("title")]
    assert tips[1] == "yes taken for no: 1 of 10"
