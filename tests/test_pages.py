"""Pages that people open in a browser."""

import pytest

from tests.browser import browser
from tests.conftest import GoldenRun


@pytest.mark.parametrize("width", [1200, 500])
def test_the_report_fits_the_window_and_shows_every_section(golden: GoldenRun, width: int) -> None:
    with browser() as page:
        page.open((golden.workspace / "smoke" / "report.html").as_uri(), width=width)
        sections = ["Pre-training", "Masked sentences", "Fine-tuning", "Cost"]
        page.text(*sections)
        headings = page.evaluate("[...document.querySelectorAll('h2')].map(h => h.textContent)")
        assert set(sections) <= set(headings)
        root = "document.documentElement"
        assert page.evaluate(f"{root}.scrollWidth - {root}.clientWidth") == 0
