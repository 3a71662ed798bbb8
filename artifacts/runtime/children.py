"""Child processes: what if one dies, hangs, is told to stop, or outlives its parent.

In:  programs to start, functions to run in forks.
Out: their exit codes, once nothing of them is left.

*It dies*: `Child.poll` and `Child.wait` return its exit code; of `Workers`, which do one job
together, one that fails ends the others, and a killed one is a `WorkerKilled`, worth another try.

*It hangs*: whoever decides that it does leaves the `with` block of the child, or of its workers;
both are then killed with everything below them.

*It is told to stop*: a `Supervisor` is told in its place. SIGTERM goes to the child and everything
below it, and after a grace period SIGKILL, which also ends stopped and deaf processes.

*Its parent dies*: a killed parent cannot clean up, so the kernel signals its children (Linux), or
they watch for it. A supervisor notices that its owner is gone, and adopts whatever its child leaves
behind. So whichever single process is killed, the others end.
"""

import ctypes
import math
import os
import select
import signal
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from types import FrameType
from typing import IO, NoReturn, Self

from cloze.artifacts.errors import ClozeError
from cloze.artifacts.progress import say
from cloze.artifacts.runtime.processes import LEFTOVER_GRACE, POLL_SECONDS, end, family

INTERVAL = 0.1
"""Seconds between a supervisor's checks; a child's exit is noticed immediately."""

PEER_GRACE = 30.0
"""Maximum seconds from SIGTERM to SIGKILL for children whose peer has failed."""

TERMINATED = (128 + signal.SIGTERM, 128 + signal.SIGINT)
"""Exit codes of a program that was asked to stop, as a shell reports them."""

STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36


class WorkerFailed(ClozeError):
    """A process that does part of a job has failed; its own output says why."""


class WorkerKilled(WorkerFailed):
    """A process that does part of a job was killed from outside; its output does not say why."""

    exit_code = 128 + signal.SIGKILL
    """As if the program itself had been killed: a retry may succeed."""


class Child:
    """A child of this process; as a context, it is killed with all its descendants on exit."""

    def __init__(self, pid: int, poll: Callable[[], int | None] | None = None) -> None:
        self.pid = pid  # not reused before the child has been waited for
        self._poll = poll or self._reap
        self._code: int | None = None

    def _reap(self) -> int | None:
        ended, status = os.waitpid(self.pid, os.WNOHANG)
        return os.waitstatus_to_exitcode(status) if ended else None

    def poll(self) -> int | None:
        """The exit code, negative for a signal; None while the child runs."""
        if self._code is None:
            self._code = self._poll()
        return self._code

    def wait(self, seconds: float = math.inf) -> int | None:
        """The exit code, as soon as the child has ended; None if it still runs after `seconds`."""
        # Linux reports the end of a process through a file descriptor; elsewhere it is polled.
        if sys.platform == "linux" and self.poll() is None:
            handle = os.pidfd_open(self.pid)
            try:
                ended = select.poll()
                ended.register(handle, select.POLLIN)
                ended.poll(None if math.isinf(seconds) else seconds * 1000)
            finally:
                os.close(handle)
        # After that wait, one last look is enough.
        deadline = time.monotonic() + (0.0 if sys.platform == "linux" else seconds)
        while self.poll() is None and time.monotonic() < deadline:
            time.sleep(POLL_SECONDS)
        return self.poll()

    def end(self, *, grace: float) -> int:
        """End the child and its descendants, by SIGTERM, then SIGKILL; returns its exit code."""
        if self.poll() is None:
            end(family(self.pid), grace=grace)
        code = self.wait()
        assert code is not None
        return code

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.end(grace=0.0)


def start(
    argv: Sequence[str],
    *,
    output: IO[bytes] | None = None,
    environment: Mapping[str, str] | None = None,
    own_session: bool = False,
    cores: Collection[int] = (),
    inherited: Collection[int] = (),
) -> Child:
    """Start a program that receives SIGTERM when this process dies; its standard input is empty.

    `output` receives standard output and error. If `cores` are given, it runs on these. It keeps
    the file descriptors `inherited`, by their numbers. Call this from a thread that outlives the
    program: Linux sends the signal when the *thread* that started the child ends.
    """
    parent = os.getpid()

    def prepare() -> None:
        die_with_parent(parent, signal.SIGTERM)
        if cores:
            os.sched_setaffinity(0, cores)

    program = subprocess.Popen(
        argv,
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=output,
        env=environment,
        start_new_session=own_session,
        preexec_fn=prepare,  # noqa: PLW1509 - no locks in it
        pass_fds=inherited,
    )
    return Child(program.pid, program.poll)


def fork(*, death: signal.Signals = signal.SIGKILL) -> Child | None:
    """Fork; returns the child in the parent, and None in the child.

    The child receives the signal `death` when this process dies. As after an exec, signals that
    this process handles have their default effect in it.
    """
    parent = os.getpid()
    _flush()  # otherwise both processes would write what is buffered
    if pid := os.fork():
        return Child(pid)
    for signum in signal.valid_signals():
        if callable(signal.getsignal(signum)):
            signal.signal(signum, signal.SIG_DFL)
    die_with_parent(parent, death)
    return None


def run_forked(work: Callable[[], object]) -> Child:
    """Fork a child that runs `work` and exits with 0, or logs its error and exits with 1.

    It is killed when this process dies, and skips the exit handlers inherited from it.
    """
    return fork() or _run_and_exit(work)


def _run_and_exit(work: Callable[[], object]) -> NoReturn:
    code = 1
    try:
        work()
        code = 0
    except ClozeError as error:
        say(f"error: {error}")
    except BaseException:
        traceback.print_exc()
    finally:
        # Then leave at once: exit handlers are the parent's.
        _flush()
        os._exit(code)


def _flush() -> None:
    """Write what is buffered, unless nobody reads it."""
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):
            stream.flush()


class Workers:
    """Forks that do one job together; as a context, those that still run are killed on exit."""

    def __init__(self, shares: Iterable[Callable[[], object]]) -> None:
        self._running: list[Child] = []
        for share in shares:
            self._running.append(run_forked(share))

    def running(self) -> bool:
        """Whether any of them still runs; raises `WorkerKilled` or `WorkerFailed` if one failed."""
        for child in tuple(self._running):
            code = child.poll()
            if code is not None:
                self._running.remove(child)
            if code:
                raise worker_error(f"worker {child.pid}", code)
        return bool(self._running)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for child in self._running:
            child.end(grace=0.0)


def worker_error(name: str, code: int) -> WorkerFailed:
    """The error for the worker `name`, which ended with `code` before its work was done."""
    cause = signal.Signals(-code).name if code < 0 else f"exit code {code}"
    kept = "finished parts are kept, run the same command to resume"
    if code == -signal.SIGKILL:
        return WorkerKilled(f"{name} was ended by {cause}, possibly out of memory; {kept}")
    if code == -signal.SIGTERM:
        return WorkerKilled(f"{name} was ended by {cause}; {kept}")
    return WorkerFailed(f"{name} was ended by {cause}; its messages are above; {kept}")


class Supervisor:
    """This process as a supervisor, which runs children one after another and leaves nothing.

    In the context, SIGTERM, SIGINT, SIGHUP and the end of `owner`, this process's parent, end the
    child, which has `grace` seconds from SIGTERM to SIGKILL.
    """

    def __init__(self, *, grace: float, owner: int | None = None) -> None:
        self.received: int | None = None
        """The last signal that asked this process to stop."""
        self._grace = grace
        self._owner = owner
        self._handlers: dict[int, object] = {}

    def __enter__(self) -> Self:
        adopt_orphans()

        def note(signum: int, frame: FrameType | None) -> None:
            self.received = signum

        self._handlers = {signum: signal.signal(signum, note) for signum in STOP_SIGNALS}
        return self

    def __exit__(self, *_: object) -> None:
        adopt_orphans(False)
        for signum, handler in self._handlers.items():
            signal.signal(signum, handler)  # type: ignore[arg-type]  # as signal.signal returned it

    @property
    def stopping(self) -> bool:
        """Whether this process was asked to stop, or its owner is gone."""
        gone = self._owner is not None and os.getppid() != self._owner
        return gone or self.received is not None

    def watch(self, *children: Child) -> int:
        """An exit code, negative for a signal, once nothing below this process runs.

        Several children do one job: the code is that of the first that failed, and the others then
        have `PEER_GRACE` seconds, unless that one was terminated, as it has then told them.
        """
        # Until all have ended, one has failed on its own, or this process has to stop.
        code, running = 0, list(children)
        while running and not self.stopping and code in (0, *TERMINATED):
            running[0].wait(INTERVAL)
            for child in tuple(running):
                if (found := child.poll()) is not None:
                    running.remove(child)
                    code = code or found
        grace = self._grace if self.stopping else min(self._grace, PEER_GRACE)
        # Then end what is left: the children with all below them, and after these whatever they
        # have left to this process as orphans.
        end([member for child in running for member in family(child.pid)], grace=grace)
        for child in running:
            found = child.end(grace=0.0)
            code = code or found
        end(family(os.getpid())[1:], grace=min(self._grace, LEFTOVER_GRACE))
        with suppress(ChildProcessError):  # until no adopted zombie is left
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        return code

    def pause(self, seconds: float) -> None:
        """Sleep, but not after having been asked to stop."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline and not self.stopping:
            time.sleep(INTERVAL)


def shell_code(code: int) -> int:
    """An exit code as a shell reports it: 128 and its number for a signal, given as -number."""
    return code if code >= 0 else 128 - code


def die_with_parent(parent: int, signum: signal.Signals = signal.SIGKILL) -> None:
    """Right after a fork, in the child: arrange to receive `signum` when `parent` dies."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signum, 0, 0, 0)
    else:  # the thread does not survive an exec; the supervisor then ends the program

        def watch() -> None:
            while os.getppid() == parent:
                time.sleep(POLL_SECONDS)
            os.kill(os.getpid(), signum)

        threading.Thread(target=watch, name="die with parent", daemon=True).start()
    if os.getppid() != parent:  # the parent died before the request
        os.kill(os.getpid(), signum)


def adopt_orphans(adopted: bool = True) -> None:
    """From now on, adopt descendants of this process whose parent ends, or no more (Linux)."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, int(adopted), 0, 0, 0)
