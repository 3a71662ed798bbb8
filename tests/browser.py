"""What people see in a browser: Debian's Chromium without a window, spoken to by its DevTools.

In:  a page's address.
Out: the text that stands there once the page has made it, what JavaScript says, pictures.
"""

import base64
import json
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any
from urllib.parse import urlsplit
from urllib.request import urlopen

import pytest
from websockets.sync.client import ClientConnection, connect


class Page:
    """One tab."""

    def __init__(self, connection: ClientConnection) -> None:
        self._connection = connection
        self._asked = 0
        self._events: list[dict[str, Any]] = []

    def open(self, url: str, *, width: int = 1200, height: int = 900, mode: str = "light") -> None:
        """Go to `url` in a window of this size, in light or dark mode."""
        scheme = {"name": "prefers-color-scheme", "value": mode}
        self._ask("Emulation.setEmulatedMedia", features=[scheme])
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        self._ask("Emulation.setDeviceMetricsOverride", **size)
        self._ask("Page.navigate", url=url)

    def evaluate(self, script: str) -> Any:
        """The value of a JavaScript expression."""
        return self._ask("Runtime.evaluate", expression=script, returnByValue=True)["result"].get(
            "value"
        )

    def text(self, *expected: str, seconds: float = 30.0) -> str:
        """What can be read, once the page is whole and has all that is expected in it."""
        # A page is shown while it is still parsed: words of a paragraph stand there before the
        # heading that has them too.
        whole = "document.readyState == 'complete' ? document.body.innerText : ''"
        deadline = time.monotonic() + seconds
        while True:
            seen = str(self.evaluate(whole))
            missing = [words for words in expected if words not in seen]
            if not missing:
                return seen
            assert time.monotonic() < deadline, f"{missing} not among:\n{seen}"
            time.sleep(0.2)

    def picture(self, path: Path) -> None:
        """A PNG of the window."""
        path.write_bytes(base64.b64decode(self._ask("Page.captureScreenshot")["data"]))

    def watch(self) -> None:
        """Remember from now on what pages ask for."""
        self._ask("Network.enable")

    def asked(self) -> dict[str, str]:
        """Addresses that pages asked for since `watch`, with why the browser blocked each."""
        found = [(event["method"], event["params"]) for event in self._events]
        addresses = {
            params["requestId"]: str(params["request"]["url"])
            for method, params in found
            if method == "Network.requestWillBeSent"
        }
        blocked = {
            params["requestId"]: str(params.get("blockedReason", ""))
            for method, params in found
            if method == "Network.loadingFailed"
        }
        return {address: blocked.get(key, "") for key, address in addresses.items()}

    def _ask(self, method: str, **parameters: Any) -> dict[str, Any]:
        self._asked += 1
        self._connection.send(
            json.dumps({"id": self._asked, "method": method, "params": parameters})
        )
        while True:
            answer = json.loads(self._connection.recv(timeout=30))
            if "id" not in answer:
                self._events.append(answer)
            elif answer["id"] == self._asked:
                assert "error" not in answer, answer
                return dict(answer["result"])


@contextmanager
def browser() -> Iterator[Page]:
    """An empty page; the browser ends with it."""
    chromium = shutil.which("chromium")
    if not chromium:
        pytest.skip("chromium is not installed")
    with tempfile.TemporaryDirectory(prefix="browser-", ignore_cleanup_errors=True) as profile:
        command = [
            *(chromium, "--headless", "--no-sandbox", "--disable-gpu"),
            *(f"--user-data-dir={profile}", "--remote-debugging-port=0", "about:blank"),
        ]
        environment = {**os.environ, "TMPDIR": profile}  # where it leaves what it makes
        with subprocess.Popen(
            command, stderr=subprocess.PIPE, text=True, env=environment
        ) as running:
            try:
                assert running.stderr
                devtools = _address_of_a_tab(running.stderr)
                with connect(devtools, max_size=None) as connection:
                    yield Page(connection)
            finally:
                running.terminate()
                running.communicate(timeout=30)


def _address_of_a_tab(said: IO[str]) -> str:
    """Where the tab that is open listens, from where the browser says that it does."""
    for line in said:
        if line.startswith("DevTools listening on "):
            place = urlsplit(line.split()[-1]).netloc
            with urlopen(f"http://{place}/json/list", timeout=10) as answer:
                tabs = json.load(answer)
            return str(next(tab for tab in tabs if tab["type"] == "page")["webSocketDebuggerUrl"])
    pytest.fail("chromium ended before it listened")
