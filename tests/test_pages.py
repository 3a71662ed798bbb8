"""Pages that people open in a browser."""

import json

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


CONTRASTS = """(() => {
  const parts = colour => colour.match(/[0-9.]+/g).map(Number);
  const linear = value => value <= 10 ? value / 3294.6 : ((value / 255 + 0.055) / 1.055) ** 2.4;
  const light = ([r, g, b]) => 0.2126 * linear(r) + 0.7152 * linear(g) + 0.0722 * linear(b);
  const paper = element => {
    const found = element && parts(getComputedStyle(element).backgroundColor);
    return !element ? [255, 255, 255] : found[3] === 0 ? paper(element.parentElement) : found;
  };
  document.querySelectorAll("details").forEach(details => details.open = true);
  const low = {}, texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (texts.nextNode()) {
    const text = texts.currentNode.data.trim(), element = texts.currentNode.parentElement;
    if (!text || element.closest("[aria-hidden]") || !element.getClientRects().length) continue;
    const style = getComputedStyle(element);
    const ink = light(parts(element.closest("svg") ? style.fill : style.color));
    const behind = light(paper(element));
    const ratio = (Math.max(ink, behind) + 0.05) / (Math.min(ink, behind) + 0.05);
    if (ratio < 4.5) low[text] = ratio;
  }
  return JSON.stringify(low);
})()"""


@pytest.mark.parametrize("mode", ["light", "dark"])
def test_every_text_of_the_report_has_a_contrast_of_4_5_and_its_heads_stay(
    golden: GoldenRun, mode: str
) -> None:
    with browser() as page:
        page.open((golden.workspace / "smoke" / "report.html").as_uri(), width=400, mode=mode)
        page.text("Masked sentences", "Cost")
        assert json.loads(page.evaluate(CONTRASTS)) == {}
        last = "document.querySelector('.sentences li:last-child').scrollIntoView()"
        page.evaluate(f"document.documentElement.style.scrollBehavior = 'auto'; {last}")
        assert page.evaluate("document.querySelector('.heads').getBoundingClientRect().top") == 0
