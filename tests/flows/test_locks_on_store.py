"""Only one of several machines makes an artifact, whichever of them is killed at any time."""

import random
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from fsspec.implementations.memory import MemoryFileSystem

from cloze.artifacts import filesystem
from cloze.flows import locks
from cloze.flows.locks import LEASES, Holder, Lease, leased_on_store
from tests.waiting import wait_for

ARTIFACT = "tokens-k"
THEIRS = Holder(run="theirs", pid=7, host="elsewhere", since="2026-11-24 12:00:00")


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> str:
    """An empty object store, where leases time out after a third of a second."""
    for name in ("BEAT_SECONDS", "LOOK_SECONDS", "SETTLE_SECONDS"):
        monkeypatch.setattr(locks, name, 0.02)
    monkeypatch.setattr(locks, "SILENT_SECONDS", 0.3)
    return f"memory://{uuid.uuid4().hex}"


def place(folder: Path, name: str = "ours") -> Path:
    """The local workspace folder of the machine called `name`."""
    (folder / name / LEASES).mkdir(parents=True, exist_ok=True)
    return folder / name


def put(store: str, lease: Lease, number: int = 1) -> None:
    path = f"{store}/{LEASES}/{ARTIFACT}/{number:06}"
    filesystem.write_bytes(path, lease.model_dump_json().encode())


def test_another_machines_lease_is_waited_for_and_says_for_whom(store: str, tmp_path: Path) -> None:
    told: list[Holder] = []
    have = threading.Event()

    def second() -> None:
        with leased_on_store(
            store, ARTIFACT, run="second", local=place(tmp_path, "b"), waiting=told.append
        ) as silent:
            assert silent is None, "it has ended"
            have.set()

    thread = threading.Thread(target=second)
    with leased_on_store(store, ARTIFACT, run="first", local=place(tmp_path), waiting=told.append):
        thread.start()
        wait_for(lambda: told, what="a word about the holder")
        assert not have.wait(3 * locks.SILENT_SECONDS), "its heart has beaten"
    thread.join()
    assert have.is_set()
    assert [one.run for one in told] == ["first"]


def test_who_has_fallen_silent_is_succeeded_and_named(store: str, tmp_path: Path) -> None:
    put(store, Lease(holder=THEIRS, place="there", attempt="x"))
    with leased_on_store(
        store, ARTIFACT, run="ours", local=place(tmp_path), waiting=print
    ) as silent:
        assert silent == THEIRS


def test_a_killed_run_of_this_disk_is_not_waited_for(
    store: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(locks, "SILENT_SECONDS", 1e9)
    with leased_on_store(store, ARTIFACT, run="ours", local=place(tmp_path), waiting=print):
        own = (place(tmp_path) / LEASES / "place").read_text()
    put(store, Lease(holder=THEIRS, place=own, attempt="x"), number=2)
    with leased_on_store(
        store, ARTIFACT, run="ours", local=place(tmp_path), waiting=print
    ) as silent:
        assert silent is None, "the lock on this disk has said so already"


def test_who_stood_still_and_was_succeeded_says_so_and_works_on(
    store: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with leased_on_store(store, ARTIFACT, run="ours", local=place(tmp_path), waiting=print):
        put(store, Lease(holder=THEIRS, place="there", attempt="x"), number=2)
        said = wait_for(lambda: capsys.readouterr().err, what="a warning")
    assert f"taken over by {THEIRS}" in said
    assert "both make the same bytes" in said


def test_a_lease_whose_answer_was_lost_is_ours(
    store: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    create = filesystem.create

    def lost(path: str, content: bytes) -> bool:
        create(path, content)
        return create(path, content)  # as if the call were repeated

    monkeypatch.setattr(filesystem, "create", lost)
    monkeypatch.setattr(locks, "SILENT_SECONDS", 1e9)
    with leased_on_store(store, ARTIFACT, run="ours", local=place(tmp_path), waiting=print):
        assert filesystem.list_names(f"{store}/{LEASES}/{ARTIFACT}") == ["000001"]


class Killed(BaseException):
    """Ends a thread like kill -9 ends a process, without any further writes."""


class World:
    """Machines whose threads run in random order; a killed one never runs again.

    Time only passes while all of them sleep. Each call of the store is a separate turn.
    """

    def __init__(self, seed: int) -> None:
        self.dice = random.Random(seed)
        self.now = 0.0
        self.killed: set[str] = set()
        self._sleeping: list[tuple[float, float, threading.Thread]] = []
        self._runs: threading.Thread | None = None
        self._turns = threading.Condition()

    def begin(self, machine: str, work: Callable[[], object]) -> threading.Thread:
        """Start a thread of the machine, which waits for its turn."""

        def lives() -> None:
            try:
                self._wait_for_turn()
                work()
            except Killed:
                pass
            finally:
                with self._turns:
                    self._hand_over()

        thread = threading.Thread(target=lives, name=machine, daemon=True)
        self._sleeping.append((self.now, self.dice.random(), thread))
        thread.start()
        return thread

    def run(self) -> None:
        """Run all machines until they finish."""
        with self._turns:
            self._hand_over()
            assert self._turns.wait_for(lambda: self._runs is None, timeout=60), "it hangs"

    def sleep(self, seconds: float) -> None:
        """Give others their turns, for at least this long."""
        with self._turns:
            wakes = self.now + seconds
            self._sleeping.append((wakes, self.dice.random(), threading.current_thread()))
            self._hand_over()
        self._wait_for_turn()

    def _wait_for_turn(self) -> None:
        me = threading.current_thread()
        with self._turns:
            self._turns.wait_for(lambda: self._runs is me)
        if me.name in self.killed:
            raise Killed

    def _hand_over(self) -> None:
        self._runs = None
        if self._sleeping:
            first = min(self._sleeping, key=lambda one: one[:2])
            self._sleeping.remove(first)
            self.now, self._runs = max(self.now, first[0]), first[2]
        self._turns.notify_all()


def threads_of(world: World) -> SimpleNamespace:
    """A replacement for the module `threading` in this world."""

    class Event:
        def __init__(self) -> None:
            self.is_set = False

        def set(self) -> None:
            self.is_set = True

        def wait(self, seconds: float) -> bool:
            for _ in range(4):
                world.sleep(seconds / 4)
                if self.is_set:
                    break
            return self.is_set

    class Thread:
        def __init__(self, target: Callable[..., object], args: tuple[Any, ...], **_: Any) -> None:
            self._work = lambda: target(*args)

        def start(self) -> None:
            self._thread = world.begin(threading.current_thread().name, self._work)

        def join(self) -> None:
            while self._thread.is_alive():
                world.sleep(0.1)

    return SimpleNamespace(Event=Event, Thread=Thread)


@pytest.fixture(params=[True, False], ids=["conditional writes", "none"])
def conditional(request: pytest.FixtureRequest) -> bool:
    """Whether the store supports conditional writes."""
    return bool(request.param)


def take_turns(world: World, conditional: bool) -> Iterator[tuple[str, Callable[..., object]]]:
    """The store's calls, each of which takes some of the world's time."""
    for name in ("ls", "cat_file", "pipe_file", "info", "rm"):
        call = getattr(MemoryFileSystem, name)

        def slow(*arguments: Any, _call: Any = call, **options: Any) -> object:
            world.sleep(world.dice.uniform(0.0, 0.3))
            if not conditional:
                options.pop("mode", None)
            return _call(*arguments, **options)

        yield name, slow


@pytest.mark.parametrize("seed", range(100))
def test_whatever_the_dice_kill_and_the_clocks_say_one_at_a_time_makes_it_and_somebody_does(
    seed: int, conditional: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world, store = World(seed), f"memory://{uuid.uuid4().hex}"
    dice = random.Random(seed)
    making: set[str] = set()
    finished: list[str] = []
    begun: list[str] = []

    def machine(name: str) -> None:
        local = place(tmp_path, name)
        with leased_on_store(store, ARTIFACT, run=name, local=local, waiting=lambda _: None):
            if finished:
                return
            assert not making - world.killed, "two at once"
            begun.append(name)
            making.add(name)
            world.sleep(dice.choice([1.0, 20.0, 100.0]))
            finished.append(name)
            making.remove(name)

    def kill(name: str) -> None:
        world.sleep(dice.uniform(0, 150))
        world.killed.add(name)

    for name, call in take_turns(world, conditional):
        monkeypatch.setattr(MemoryFileSystem, name, call)
    monkeypatch.setattr(locks, "threading", threads_of(world))
    skew = {f"machine-{number}": dice.uniform(-1e9, 1e9) for number in range(5)}

    def clock() -> float:
        return world.now + skew[threading.current_thread().name]

    def date(form: str) -> str:
        return time.strftime(form, time.gmtime(1e9 + clock()))

    passing = {"sleep": world.sleep, "monotonic": clock, "strftime": date}
    monkeypatch.setattr(locks, "time", SimpleNamespace(**passing))
    names = [f"machine-{number}" for number in range(dice.randint(2, 5))]
    failures: list[BaseException] = []

    def watched(name: str) -> None:
        try:
            machine(name)
        except Exception as error:
            failures.append(error)

    for name in names:
        world.begin(name, lambda name=name: watched(name))
        if name != names[-1] and dice.random() < 0.6:
            world.begin("fate", lambda name=name: kill(name))
    world.run()
    assert not failures, failures
    assert len(finished) == 1
    assert set(begun) - world.killed <= set(finished), "somebody made it in vain"
