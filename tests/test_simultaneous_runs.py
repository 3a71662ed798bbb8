"""Runs that start in one workspace at once; Prefect servers that are killed or silent at the start.

By the command, with a stand-in for every stage's program: what is looked at lies around them.
"""

import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager
from urllib.error import HTTPError
from urllib.request import urlopen

import psutil
import pytest

from cloze.flows.launchers.local import LocalJob
from tests.flows.standin_chain import Chain, ends, make_chain
from tests.running import RunFolder
from tests.waiting import wait_for

pytestmark = pytest.mark.slow

BEFORE = {"vocabulary", "tokens", "examples"}
"""The stages before training."""


@pytest.fixture(scope="module")
def chain(tmp_path_factory: pytest.TempPathFactory) -> Chain:
    return make_chain(tmp_path_factory.mktemp("chain"))


@pytest.mark.parametrize(
    "pauses",
    [
        pytest.param((0, 0, 0, 0), id="four at once"),
        pytest.param((0, 0), id="at once", marks=pytest.mark.long),
        pytest.param((0, 1), id="1 s apart", marks=pytest.mark.long),
        pytest.param((0, 4), id="4 s apart", marks=pytest.mark.long),
    ],
)
def test_of_runs_of_a_name_started_together_one_works_and_the_others_are_told_who(
    pauses: tuple[int, ...], chain: Chain, request: pytest.FixtureRequest
) -> None:
    name = request.node.callspec.id
    runs = []
    for pause in pauses:
        time.sleep(pause)
        runs.append(chain.begin(name))
    found = ends(runs)
    (worked,) = [run for run, (code, _) in zip(runs, found, strict=True) if code == 0]
    for code, said in found:
        if code:
            assert code == 2, said
            assert f"in use by run try (pid {worked.pid} on {socket.gethostname()}" in said
            assert len(said.splitlines()) == 1
    assert chain.digests(name) == chain.expected
    assert not RunFolder(chain.workspace(name)).processes()


def test_runs_of_other_names_make_each_stage_once_and_wait_for_one_another(chain: Chain) -> None:
    # the report is each run's own: its name stands in it
    names = ("one", "two", "three", "four")
    found = ends([chain.begin("side by side", run=name) for name in names])
    assert [code for code, _ in found] == [0, 0, 0, 0], found
    stages = [chain.stages("side by side", run=name) for name in names]
    for stage, digest in chain.expected.items():
        if stage != "report":
            assert {of_run[stage]["digest"] for of_run in stages} == {digest}
            assert sorted(of_run[stage]["state"] for of_run in stages) == ["made", *3 * ["reused"]]
    assert not RunFolder(chain.workspace("side by side")).processes()


def test_machines_that_share_an_object_store_make_each_stage_once(chain: Chain) -> None:
    runs = [chain.begin("store", "--without-prefect", run=one, machine=one) for one in ("a", "b")]
    found = ends(runs)
    assert [code for code, _ in found] == [0, 0], found
    stages = [chain.stages("store", run=one) for one in ("a", "b")]
    for stage, digest in chain.expected.items():
        if stage != "report":
            assert {of_run[stage]["digest"] for of_run in stages} == {digest}
            assert sorted(of_run[stage]["state"] for of_run in stages) == ["made", "reused"]


def test_a_run_that_is_waited_for_is_named_and_when_killed_it_is_taken_over(
    chain: Chain, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STANDIN", '{"pretrain": {"sleep": 300}}')
    first = chain.begin("taken over", "--without-prefect", run="first")
    job = chain.workspace("taken over") / "first" / "jobs" / "pretrain"
    wait_for(lambda: LocalJob.read(job), what="the first run's training")
    monkeypatch.delenv("STANDIN")
    second = chain.begin("taken over", "--without-prefect", run="second")
    said = said_until(second, "pretrain: waiting for")
    assert f"waiting for run first (pid {first.pid} on {socket.gethostname()}" in said
    first.kill()
    (_, (code, rest)) = ends([first, second])
    assert code == 0, rest
    assert f"taking over from run first (pid {first.pid}" in rest
    stages = chain.stages("taken over", run="second")
    assert {stage for stage, found in stages.items() if found["state"] == "reused"} == BEFORE
    for stage, digest in chain.expected.items():
        assert stage == "report" or stages[stage]["digest"] == digest
    assert not RunFolder(chain.workspace("taken over")).processes()


def said_until(run: "subprocess.Popen[str]", words: str) -> str:
    """What the run has said on standard error when it says `words`."""
    assert run.stderr
    said = ""
    while words not in said:
        new = os.read(run.stderr.fileno(), 1 << 16).decode()  # past the buffer that `ends` reads
        assert new, f"it ended without saying {words!r}: {said}"
        said += new
    return said


def test_a_server_killed_while_it_starts_is_started_again_and_asks_for_the_secret(
    chain: Chain,
) -> None:
    run = chain.begin("killed server")
    job = chain.workspace("killed server") / "prefect" / "run-try"
    started = wait_for(lambda: LocalJob.read(job), what="the server")
    (first, *_) = wait_for(
        lambda: psutil.Process(started.supervisor.pid).children(), what="its program"
    )
    first.send_signal(signal.SIGKILL)
    again = wait_for(
        lambda: (found := LocalJob.read(job)) and found != started and found, what="another"
    )
    url = f"http://127.0.0.1:{again.argv[-1]}/api"
    refused = wait_for(lambda: status(f"{url}/admin/version"), what="an answer")
    ((code, said),) = ends([run])
    assert refused == 401
    assert code == 0, said
    assert "warning: the Prefect server was killed while it started" in said
    assert chain.digests("killed server") == chain.expected


def status(url: str) -> int:
    try:
        with urlopen(url, timeout=5) as answer:
            return int(answer.status)
    except HTTPError as error:
        return error.code
    except OSError:
        return 0


@contextmanager
def silent() -> Iterator[str]:
    """The address of a server that takes every connection and says nothing."""
    with closing(socket.create_server(("127.0.0.1", 0))) as server:
        yield f"http://127.0.0.1:{server.getsockname()[1]}/api"


@contextmanager
def dead() -> Iterator[str]:
    """An address at which nobody listens."""
    with silent() as address:
        pass
    yield address


@pytest.mark.parametrize("server", [silent, dead])
def test_a_run_whose_server_does_not_answer_goes_on_without_it(
    server: Callable[[], AbstractContextManager[str]], chain: Chain
) -> None:
    with server() as api:
        began = time.monotonic()
        run = chain.begin(server.__name__, api=api)
        ((code, said),) = ends([run])
        seconds = time.monotonic() - began
    assert code == 0, said
    assert f"warning: PREFECT_API_URL {api}: no answer" in said
    assert "continuing without it" in said
    assert seconds < 120
    assert chain.digests(server.__name__) == chain.expected
