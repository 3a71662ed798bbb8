"""What a page looks like to a browser: Debian's Chromium, without a window."""

import shutil
import subprocess
import tempfile

import pytest


def rendered(url: str, *, width: int = 1200, seconds: float = 5.0) -> str:
    """The document of the page at `url` after so long a time of its own clock."""
    chromium = shutil.which("chromium")
    if not chromium:
        pytest.skip("chromium is not installed")
    with tempfile.TemporaryDirectory(prefix="browser-") as profile:
        done = subprocess.run(
            [
                *(chromium, "--headless", "--no-sandbox", "--disable-gpu", "--dump-dom"),
                *(f"--user-data-dir={profile}", f"--window-size={width},900"),
                *(f"--virtual-time-budget={int(seconds * 1000)}", url),
            ],
            capture_output=True,
            text=True,
            check=True,
            timeout=120,
        )
    return done.stdout
