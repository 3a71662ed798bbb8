"""Charts: SVG by matplotlib, made to fit into the page."""

import re
from xml.etree import ElementTree

import pytest
from markupsafe import Markup

from cloze.artifacts.results import SeedScores
from cloze.flows.report.charts import (
    COLOURS,
    Bar,
    BarChart,
    ChartLine,
    LineChart,
    SystemRow,
    apart,
    bars,
    column_chart,
    line_chart,
    log_log,
    seed_dots,
    shades,
    small_chart,
)


def words(picture: Markup) -> list[str]:
    """The visible text."""
    return ["".join(node.itertext()) for node in parsed(picture).iter("text")]


def parsed(picture: Markup) -> ElementTree.Element:
    return ElementTree.fromstring(picture)  # fails unless well-formed


def chart(**parts: object) -> LineChart:
    base = {
        "lines": [ChartLine([(0.0, 9.0), (1.0, 6.0), (2.0, 3.0)], "ours", "held-out 3.00")],
        "x_label": "minutes",
        "y_label": "loss",
        "x_text": "{:g}".format,
        "y_text": "{:g}".format,
    }
    return LineChart(**{**base, **parts})  # type: ignore[arg-type]


DRAWN = {
    "bars": bars(
        BarChart([Bar("a", 1.0, "1"), Bar("b", 2.0, "2", colour="ours")], labels=60),
        width=300,
        label="x",
    ),
    "zeros": bars(BarChart([Bar("a", 0.0, "–")], labels=60), width=300, label="x"),
    "lines": line_chart(
        chart(
            references=[(6.06, "word frequencies 6.06")],
            mark=(1.5, 4.5, "passes the n-gram baseline"),
            band=(0.5, 1.0, "plateau"),
            divisions=[(1.8, "128 → 512 tokens")],
            second_x_text="{:g} M".format,
        ),
        width=700,
        height=400,
        label="x",
    ),
    "small": small_chart(chart(), label="x"),
    "log": log_log([(1.0, 900.0), (10.0, 90.0), (100.0, 9.0)], width=336, height=230, label="x"),
    "columns": column_chart([1, 8, 3], ["1", "2", "4", "8"], width=336, height=170, label="x"),
    "shades": shades([[90, 10], [5, 45]], ["O", "type"], width=336, label="x"),
    "spread": seed_dots(
        [
            SystemRow("random", "other", SeedScores.of([0.56, 0.58]), "57.0 ± 1.0"),
            SystemRow("pre-trained", "ours", SeedScores.of([0.62, 0.63]), "62.5 ± 0.5"),
        ],
        width=700,
        label="x",
        compared=(0, 1),
        reference=(66.0, "BERT-base 66.0"),
    ),
}


@pytest.mark.parametrize("name", DRAWN)
def test_a_chart_has_the_pages_colours_and_font_and_loads_nothing(name: str) -> None:
    drawn = DRAWN[name]
    assert parsed(drawn).get("aria-label") == "x"
    assert "var(--" in drawn
    assert not any(stand_in in drawn for stand_in in COLOURS.values())
    assert not re.search(r"#(?!p|m|[0-9a-f]*\b\))[0-9a-f]{6}\b", drawn)
    assert "font-family" not in drawn
    assert "//" not in drawn


def test_a_chart_is_drawn_the_same_every_time() -> None:
    again = small_chart(chart(), label="x")
    assert again == DRAWN["small"]


def test_bars_carry_their_names_and_values() -> None:
    assert sorted(words(DRAWN["bars"])) == ["1", "2", "a", "b"]


def test_the_line_chart_names_lines_where_they_end_and_what_they_pass() -> None:
    shown = words(DRAWN["lines"])
    for expected in (
        *("held-out 3.00", "word frequencies 6.06", "passes the n-gram baseline", "plateau"),
        *("128 → 512 tokens", "minutes", "loss"),
    ):
        assert expected in shown


def places(picture: Markup) -> dict[str, tuple[str, float, float]]:
    """Of each text that is not centred, its anchor and its place in pixels."""
    found = {}
    for node in parsed(picture).iter("text"):
        style, where = node.attrib["style"], node.attrib.get("transform", "")
        moved = re.search(r"translate\(([\d.]+) ([\d.]+)\)", where)
        x, y = moved.groups() if moved else (node.attrib["x"], node.attrib["y"])
        anchor = re.search(r"text-anchor: (\w+)", style)
        found["".join(node.itertext())] = (anchor[1] if anchor else "start", float(x), float(y))
    return found


def test_what_a_late_curve_passes_is_not_written_over_the_labels_of_the_lines() -> None:
    note = "passes the n-gram baseline: 25.1 min"
    for late, anchor in ((0.2, "start"), (1.9, "end")):
        drawn = line_chart(
            chart(
                lines=[ChartLine([(0.0, 9.0), (2.0, 3.0)], "ours", "held-out 3.57")],
                references=[(3.77, "n-gram baseline 3.77")],
                mark=(late, 3.77, note),
            ),
            width=700,
            height=400,
            label="losses",
        )
        found = places(drawn)
        assert found[note][0] == anchor
        assert found[note][1] < found["n-gram baseline 3.77"][1]


def test_what_lies_above_the_picture_is_cut_off() -> None:
    shown = words(line_chart(chart(y_top=7.0), width=700, height=400, label="x"))
    assert "9" not in shown
    assert "6" in shown


def test_the_highest_column_is_labelled_with_its_share() -> None:
    assert "67\u202f%" in words(DRAWN["columns"])


def test_every_system_has_its_scores_and_the_paper_its_own() -> None:
    shown = words(DRAWN["spread"])
    assert {"random", "pre-trained", "57.0 ± 1.0", "62.5 ± 0.5", "BERT-base 66.0"} <= set(shown)


def test_text_of_the_run_is_escaped() -> None:
    drawn = bars(BarChart([Bar("<b>&$x$", 1.0, "1")], labels=60), width=300, label='"<')
    assert "<b>&$x$" in words(drawn)
    assert parsed(drawn).get("aria-label") == '"<'


def test_labels_are_kept_apart_in_their_order() -> None:
    places = apart([50, 51, 10, 52], gap=15, low=0, high=60)
    assert places == [30, 45, 10, 60]
    assert apart([20.0], gap=15, low=0, high=60) == [20.0]


def test_the_readers_fonts_draw_what_ours_lack() -> None:
    names = ["的", "है", "אל", "ไทย", "한국"]
    chart = BarChart([Bar(name, 1.0, "1") for name in names], labels=60)
    picture = bars(chart, width=300, label="x")
    assert {*names} <= {*words(picture)}
