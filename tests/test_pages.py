"""Pages that people open in a browser."""

from pathlib import Path

import pytest

from tests.browser import rendered
from tests.conftest import GoldenRun

PROBE = """<script>
const page = document.documentElement;
page.dataset.overflow = page.scrollWidth - page.clientWidth;
</script></body>"""


@pytest.mark.parametrize("width", [1200, 500])
def test_the_report_fits_the_window_and_shows_every_section(
    golden: GoldenRun, width: int, tmp_path: Path
) -> None:
    page = tmp_path / "report.html"
    report = (golden.workspace / "smoke" / "report.html").read_text()
    page.write_text(report.replace("</body>", PROBE))
    seen = rendered(page.as_uri(), width=width)
    assert 'data-overflow="0"' in seen
    for section in ("How it learnt", "Fill the gap", "What it is good for", "What it cost"):
        assert f"{section}</h2>" in seen
