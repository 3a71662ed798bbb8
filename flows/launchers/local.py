"""Programs on this machine, started or, for those that prepare a corpus, forked.

In:  an argv and a job directory.
Out: DIRECTORY/log, and the exit code in DIRECTORY/exit.

Each program has a supervisor (flows/launchers/supervisor.py), so that none outlives the flow.

For a small corpus, most of the CPU time of preparation is spent on imports. A warm process, which
is this module as a program, imports `MODULES` once and forks the supervisors of these programs. A
forked program looks like any other: the same parents, sessions, signals, environment, command line
in `ps`, log and exit code. Linux only.
"""

import gc
import importlib
import json
import os
import runpy
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO

from cloze.artifacts.runtime.processes import (
    Child,
    Fork,
    ProcessId,
    adopting_orphans,
    die_with_parent,
    fork,
)
from cloze.flows.launchers.launcher import LOST, Job, child_environment, supervisor_argv
from cloze.flows.launchers.supervisor import supervise

MODULES = ("cloze.pipeline.vocabulary", "cloze.pipeline.tokens", "cloze.pipeline.examples")
"""The programs that are forked."""

PYTHON = (sys.executable, "-P", "-m")
"""Start of each program's argv; its module and arguments follow."""

MESSAGE_BYTES = 1 << 17
"""Maximum length of an argv as JSON, which fits into a socket's buffer."""


class WarmProcess:
    """Handle of a warm process, which is started on first use and ended by `close`."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._socket: socket.socket | None = None
        self._surroundings: tuple[dict[str, str], str] | None = None

    def fork(self, supervisor: Sequence[str], environment: Mapping[str, str]) -> Child | None:
        """Fork the supervisor with the argv `supervisor`; None if it has to be started instead."""
        program = tuple(supervisor[supervisor.index("--") + 1 :])
        if sys.platform != "linux" or program[:3] != PYTHON or program[3] not in MODULES:
            return None
        message = json.dumps(supervisor).encode()
        if len(message) > MESSAGE_BYTES:
            return None
        surroundings = (dict(environment), os.getcwd())
        if self._surroundings != surroundings:
            self.close()
        self._surroundings = surroundings
        answer = b""
        try:
            if self._socket is None:
                self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
                with theirs:
                    self._process = subprocess.Popen(
                        [*PYTHON, "cloze.flows.launchers.local", str(theirs.fileno())],
                        stdin=subprocess.DEVNULL,
                        stdout=subprocess.DEVNULL,
                        start_new_session=True,
                        env=environment,
                        pass_fds=[theirs.fileno()],
                    )
            with adopting_orphans():
                self._socket.send(message)
                answer = self._socket.recv(MESSAGE_BYTES)
        except ConnectionError:  # it was killed
            pass
        finally:
            if not answer:
                self.close()
        return Fork(int(answer)) if answer else None

    def close(self) -> None:
        """Kill the warm process; its forks keep running."""
        if self._socket:
            self._socket.close()
        if self._process:
            self._process.kill()
            self._process.wait()
        self._process = self._socket = None


class LocalJob(Job):
    """A job on this machine."""

    argv: tuple[str, ...]
    """The program's command."""

    supervisor: ProcessId
    """The process of its supervisor."""


class LocalLauncher:
    """Starts programs on this machine, each with a supervisor, so that none outlives us."""

    def __init__(
        self,
        *,
        grace: float,
        environment: Mapping[str, str] | None = None,
        warm: WarmProcess | None = None,
    ) -> None:
        self.grace = grace
        self.environment = environment or {}
        self.warm = warm
        self._supervisors: dict[Path, Child] = {}

    def start(self, argv: Sequence[str], *, job: Path) -> None:
        """Start `argv` under a supervisor in a session of its own."""
        job.mkdir(parents=True, exist_ok=True)
        (job / "exit").unlink(missing_ok=True)
        environment = {**child_environment(), **self.environment}
        owner = ("--owner", str(os.getpid()))
        supervising = [*supervisor_argv(job, grace=self.grace), *owner, "--", *argv]
        forked = self.warm and self.warm.fork(supervising, environment)
        supervisor: Child = forked or subprocess.Popen(
            supervising,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            start_new_session=True,
            env=environment,
        )
        self._supervisors[job] = supervisor
        started = LocalJob(argv=tuple(argv), supervisor=ProcessId.of(supervisor.pid))
        started.write(job)

    def poll(self, job: Path) -> int | None:
        """The exit code once the supervisor has written it."""
        code = None
        if job in self._supervisors:
            code = self._supervisors[job].poll()
            if code is None:
                return None
            del self._supervisors[job]
        try:
            return int((job / "exit").read_text())
        except (FileNotFoundError, ValueError):  # the supervisor was killed, or the disk is full
            if code is not None and code >= 0:
                return code
            running = LocalJob.read(job)
            return None if running and running.supervisor.alive else LOST

    def queued(self, job: Path) -> bool:
        """Always False: local programs start immediately."""
        return False

    def cancel(self, job: Path) -> None:
        """Terminate the supervisor, which ends the program, and wait for it."""
        if job in self._supervisors:  # even if another program has overwritten job.json since
            supervisor = self._supervisors.pop(job)
            ProcessId.of(supervisor.pid).end(grace=self.grace + 10.0)
            supervisor.wait()
        elif found := LocalJob.read(job):
            found.supervisor.end(grace=self.grace + 10.0)


def main() -> int:
    """Fork a supervisor for each message on the socket given on the command line."""
    launcher = socket.socket(fileno=int(sys.argv[1]))
    try:
        for module in ("setproctitle", *MODULES):
            importlib.import_module(module)
    except ImportError:
        return 1  # the program is then started normally, and reports the missing module
    gc.collect()
    gc.freeze()  # so that garbage collection in forks does not touch, and thus copy, shared pages
    while message := launcher.recv(MESSAGE_BYTES):
        if child := fork():
            child.wait()
            continue
        # in the fork: leave the warm process, so that the launcher adopts us, and supervise
        parent = os.getpid()
        if fork():
            os._exit(0)
        while os.getppid() == parent:
            time.sleep(0.001)
        os.setsid()
        supervisor: list[str] = json.loads(message)
        _set_title(supervisor)
        with launcher:
            launcher.send(str(os.getpid()).encode())
        return supervise(supervisor[len(PYTHON) + 1 :], _fork_program)
    return 0


def _fork_program(argv: Sequence[str], log: IO[bytes]) -> Child:
    """Like `processes.start`, but by forking; does not return in the child."""
    supervisor = os.getpid()
    if child := fork():
        return child
    os.setsid()
    die_with_parent(supervisor, signal.SIGTERM)
    for stream in (1, 2):  # standard output and error
        os.dup2(log.fileno(), stream)
    log.close()
    _set_title(argv)
    sys.argv = list(argv[len(PYTHON) :])
    module = sys.argv[0]
    sys.modules.pop(module, None)  # it becomes __main__, as with `python -m`
    runpy.run_module(module, run_name="__main__", alter_sys=True)
    sys.exit()


def _set_title(argv: Sequence[str]) -> None:
    """Set the command line that `ps` shows."""
    from setproctitle import setproctitle  # optional: without it, programs are not forked

    setproctitle(" ".join(argv))


if __name__ == "__main__":
    sys.exit(main())
