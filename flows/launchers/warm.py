"""A warm process: it imports what preparing a corpus needs, and then forks the programs.

In:  the argv of a supervisor (flows/launchers/supervisor.py) whose program is one of `MODULES`.
Out: that supervisor, a child of whoever asked for it, and the program, the supervisor's child.

Three programs' imports are most of the processor time of preparing a small corpus; here they are
done once. A forked program looks like a started one: the same parents, sessions, signals,
environment, command line in `ps`, log and exit code. Linux only.
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
from typing import IO

from artifacts.runtime.processes import Child, Fork, adopting_orphans, die_with_parent, fork
from flows.launchers.supervisor import supervise

MODULES = ("pipeline.vocabulary", "pipeline.tokens", "pipeline.examples")
"""The programs that are forked."""

PYTHON = (sys.executable, "-P", "-m")
"""What every program's argv begins with; then come its module and its arguments."""

MESSAGE_BYTES = 1 << 17
"""The longest argv, as JSON; a socket's buffer takes as much."""


class WarmProcess:
    """Handle of a warm process, which starts on first use; `close` ends it."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._socket: socket.socket | None = None
        self._surroundings: tuple[dict[str, str], str] | None = None

    def fork(self, supervisor: Sequence[str], environment: Mapping[str, str]) -> Child | None:
        """Fork what the argv `supervisor` would start; None where it must be started instead."""
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
                        [*PYTHON, "flows.launchers.warm", str(theirs.fileno())],
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
        """End the warm process, which has nothing to finish; its forks go on."""
        if self._socket:
            self._socket.close()
        if self._process:
            self._process.kill()
            self._process.wait()
        self._process = self._socket = None


def main() -> int:
    """Fork a supervisor for every message on the socket named on the command line."""
    launcher = socket.socket(fileno=int(sys.argv[1]))
    try:
        for module in ("setproctitle", *MODULES):
            importlib.import_module(module)
    except ImportError:
        return 1  # the program, started plainly, will say what is missing
    gc.collect()
    gc.freeze()  # collections in forks look at, and so copy, only what they have made themselves
    while message := launcher.recv(MESSAGE_BYTES):
        if child := fork():
            child.wait()
            continue
        # in the fork: leave the warm process, for the launcher takes orphans, and supervise
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
    """`processes.start` by forking; does not return in the child."""
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
    """Appear as `argv` in `ps`."""
    from setproctitle import setproctitle  # a launcher works without it

    setproctitle(" ".join(argv))


if __name__ == "__main__":
    sys.exit(main())
