"""What somebody gets from a served Prefect server who does not know its secret."""

import base64
import json
import os
import stat
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest

from tests.browser import browser
from tests.deployed import Deployment
from tests.flows.standin_chain import make_chain
from tests.running import RunFolder
from tests.waiting import PATIENCE, free_port


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    """`cloze serve` on a workspace in which everything is finished."""
    chain, port = make_chain(tmp_path_factory.mktemp("served")), free_port()
    running = chain.begin("undisturbed", "--port", str(port), verb="serve")
    try:
        assert running.stderr
        lines = [running.stderr.readline() for _ in range(3)]
        assert "prefect deployment run end-to-end/try" in lines[2], lines
        file = chain.workspace("undisturbed") / "prefect" / "secret"
        assert f'PREFECT_API_AUTH_STRING="$(cat {file})"' in lines[2]
        environment = {**os.environ, "PREFECT_API_AUTH_STRING": file.read_text().strip()}
        folder = RunFolder(chain.workspace("undisturbed"))
        yield Deployment("try", f"http://127.0.0.1:{port}/api", environment, folder)
    finally:
        running.terminate()
        running.communicate(timeout=PATIENCE)


def answered(served: Deployment, method: str, path: str, **headers: str) -> tuple[int, Any]:
    """Status and headers of the server's answer to a request without the secret."""
    body = None if method in ("GET", "OPTIONS") else b"{}"
    request = Request(f"{served.url}{path}", data=body, headers=headers, method=method)
    request.add_header("Content-Type", "application/json")
    try:
        with urlopen(request, timeout=10) as answer:
            return answer.status, answer.headers
    except HTTPError as error:
        return error.code, error.headers


def test_without_the_secret_nobody_patches_a_deployment_to_run_commands(
    served: Deployment, tmp_path: Path
) -> None:
    canary = tmp_path / "canary"
    with served.client() as client:
        before = client.read_deployment_by_name("end-to-end/try")
    step = {"prefect.deployments.steps.run_shell_script": {"script": f"touch {canary}"}}
    attack = json.dumps({"pull_steps": [step]}).encode()
    wrong = "Basic " + base64.b64encode(b"cloze:wrong").decode()
    other = "Basic " + base64.b64encode("cloze:Schlüssel".encode()).decode()
    given = [{"Authorization": value} for value in (wrong, other, "Bearer x", "Basic x", "")]
    for headers in ({}, *given):
        request = Request(f"{served.url}/deployments/{before.id}", attack, headers, method="PATCH")
        request.add_header("Content-Type", "application/json")
        with pytest.raises(HTTPError, match="401"):
            urlopen(request, timeout=10)
    with served.client() as client:
        assert client.read_deployment_by_name("end-to-end/try").pull_steps == before.pull_steps
    assert served.ended(served.trigger()) == "Completed"
    assert not canary.exists()


def test_a_report_is_shown_in_a_sandbox_to_who_knows_the_secret(served: Deployment) -> None:
    if not (
        served.run.workspace / "try" / "report.html"
    ).exists():  # the test before has had it made
        assert served.ended(served.trigger()) == "Completed"
    secret = served.environment["PREFECT_API_AUTH_STRING"].encode()
    known = {"Authorization": "Basic " + base64.b64encode(secret).decode()}
    wrong = {"Authorization": "Basic " + base64.b64encode(b"cloze:wrong").decode()}
    pages = Deployment(served.name, served.url.removesuffix("/api"), {}, served.run)
    for headers in ({}, wrong):
        status, answer = answered(pages, "GET", "/reports/try", **headers)
        assert status == 401
        assert answer["WWW-Authenticate"].startswith("Basic"), "a browser asks for the secret"
    status, answer = answered(pages, "GET", "/reports/try", **known)
    assert status == 200
    assert answer["Content-Security-Policy"].startswith("sandbox")
    for name in ("other", "..", "%2e%2e", "..%2ftry", "prefect"):
        assert answered(pages, "GET", f"/reports/{name}", **known)[0] != 200, name


def test_no_page_of_another_site_is_answered(served: Deployment) -> None:
    assert answered(served, "GET", "/health")[0] == 200
    for headers in ({"Host": "evil.example"}, {"Host": "127.0.0.1.evil.example:4200"}):
        assert answered(served, "GET", "/health", **headers)[0] == 400
    for method in ("GET", "OPTIONS"):
        ask = {"Access-Control-Request-Method": "POST"} if method == "OPTIONS" else {}
        _, headers = answered(served, method, "/health", Origin="http://evil.example", **ask)
        assert "Access-Control-Allow-Origin" not in headers
    assert answered(served, "POST", "/flow_runs/filter")[0] == 401


def test_the_secret_is_its_users_alone(served: Deployment) -> None:
    file = served.run.workspace / "prefect" / "secret"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert served.environment["PREFECT_API_AUTH_STRING"] not in " ".join(served.run.processes())


@pytest.mark.slow
def test_prefects_page_in_a_browser_calls_nobody_else(served: Deployment, tmp_path: Path) -> None:
    """Prefect's page has a client of an analytics service, which its settings do not turn off."""
    address = served.url.removesuffix("/api")
    secret = served.environment["PREFECT_API_AUTH_STRING"].encode()
    key = base64.b64encode(secret).decode()
    with browser() as page:
        page.watch()
        page.open(f"{address}/dashboard")
        page.text("Login")
        page.evaluate(f"localStorage.setItem('prefect-password', '{key}')")
        for place, expected in (("deployments", "end-to-end"), ("dashboard", "Dashboard")):
            page.open(f"{address}/{place}")
            page.text(expected)
            time.sleep(1)  # what is asked for after the page stands
            page.picture(tmp_path / f"{place}.png")
        for width, mode in ((400, "light"), (1200, "dark")):
            page.open(f"{address}/dashboard", width=width, mode=mode)
            page.text("Dashboard")
            time.sleep(1)
            page.picture(tmp_path / f"{mode}-{width}.png")
        # Without its theme, for which our policy must leave room, the page is black on black.
        body = "getComputedStyle(document.body)"
        dark, light = (page.evaluate(f"{body}.{name}") for name in ("backgroundColor", "color"))
        assert (dark, light) == ("rgb(38, 39, 43)", "rgb(255, 255, 255)")
        asked = page.asked()
    ours = [one for one in asked if one.startswith(address)]
    others = {
        one: why
        for one, why in asked.items()
        if not one.startswith((address, "data:", "blob:", "about:", "chrome"))
    }
    assert len(ours) > 20
    assert not [one for one in ours if asked[one]], "blocked by our own policy"
    assert set(others.values()) <= {"csp"}, others
