"""A supervisor process: it runs programs one after another, and ends them when its owner dies.

    python -P -m cloze.flows.launchers.supervisor --job DIRECTORY -- ARGV
    python -P -m cloze.flows.launchers.supervisor --owner PID [--preload MODULE …]

In:  one program and its job directory; or, from an owner on this machine, the directories of jobs
     on standard input, each on a line as JSON, with the argv in DIRECTORY/job.json.
Out: DIRECTORY/log (everything the program prints) and DIRECTORY/exit (its exit code, written last).

If the owner, a flow, dies in any way, the supervisor is given another parent process; it notices
this and ends the program with SIGTERM, a grace period, and SIGKILL. It adopts the processes that
the program leaves behind (artifacts/runtime/children.py) and ends them too. It ends with the
program's exit code after a program that has failed, and when told to stop.

Most of the processor time of preparing a small corpus is spent on imports. A supervisor that has
imported a program's module (`--preload`) forks the program instead of starting it. From outside, a
forked program looks like any other: the same parents, session, signals, environment, command line
in `ps`, log and exit code.
"""

import argparse
import gc
import importlib
import json
import os
import runpy
import select
import signal
import sys
from collections.abc import Collection, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO

from cloze.artifacts.runtime.children import INTERVAL, Child, Supervisor, fork, shell_code, start

PYTHON = (sys.executable, "-P", "-m")
"""Start of the argv of a program that can be forked; its module and arguments follow."""


def main(words: Sequence[str]) -> int:
    """Run the program or the jobs of the command line `words`; returns the last exit code."""
    parser = argparse.ArgumentParser(description="Run programs, and end them with their owner.")
    parser.add_argument("--job", type=Path, help="directory of the only job")
    parser.add_argument("--grace", type=float, default=30.0, help="seconds from SIGTERM to SIGKILL")
    parser.add_argument("--owner", type=int, help="parent process whose death ends the program")
    parser.add_argument("--exit-name", default="exit", help="name of the file for the exit code")
    parser.add_argument("--config", help="stage table whose environment we have been started in")
    parser.add_argument("--preload", nargs="+", default=(), help="modules to fork programs from")
    parser.add_argument("argv", nargs="*", help="the program and its arguments, after --")
    arguments = parser.parse_args(words)
    preloaded = preload(arguments.preload)
    with Supervisor(grace=arguments.grace, owner=arguments.owner) as supervisor:
        jobs = [(arguments.job, arguments.argv)] if arguments.job else requests(supervisor)
        for job, argv in jobs:
            with open(job / "log", "ab") as log:
                child = begin(argv, log, preloaded)
            code = supervisor.watch(child)
            # Under another name first, so that whoever sees the file sees all of it.
            written = job / ".exit"
            try:
                written.write_text(f"{code}\n")
                written.rename(job / arguments.exit_name)
            except OSError:  # the disk is full: the launcher uses our own exit code
                return shell_code(code)
            if code:
                return shell_code(code)
    return 0


def requests(supervisor: Supervisor) -> Iterator[tuple[Path, list[str]]]:
    """The jobs on standard input, until it ends or the supervisor has to stop."""
    while not supervisor.stopping:
        # The owner waits for a job's end before it asks for another, so none is in the buffer.
        if select.select([sys.stdin], [], [], INTERVAL)[0]:
            line = sys.stdin.readline()
            if not line:
                return
            job = Path(json.loads(line))
            yield job, json.loads((job / "job.json").read_bytes())["argv"]


def module_of(argv: Sequence[str]) -> str:
    """The module that a program's argv runs as `PYTHON` does, "" for any other argv."""
    return argv[len(PYTHON)] if tuple(argv[: len(PYTHON)]) == PYTHON else ""


def preload(modules: Sequence[str]) -> Collection[str]:
    """Import `modules`; returns those whose programs can be forked, none where this must not be."""
    if sys.platform != "linux":  # elsewhere, frameworks do not survive a fork
        return ()
    try:
        for module in (*modules, *(["setproctitle"] if modules else [])):
            importlib.import_module(module)
    except ImportError:
        return ()  # the program, which is then started, reports the missing module
    gc.collect()
    gc.freeze()  # so that garbage collection in forks does not touch, and thus copy, shared pages
    return modules


def begin(argv: Sequence[str], log: IO[bytes], preloaded: Collection[str]) -> Child:
    """Start the program, or fork it, in a session of its own; in a fork, this does not return."""
    module = module_of(argv)
    if module not in preloaded:
        return start(argv, output=log, own_session=True)
    if child := fork(death=signal.SIGTERM):
        return child
    # From here on in the fork: become what a started program would be.
    os.setsid()
    # `fork` has left SIGINT with its default effect; in Python's programs it raises
    # KeyboardInterrupt.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    with open(os.devnull, "rb") as nothing:
        os.dup2(nothing.fileno(), 0)
    for stream in (1, 2):  # standard output and error
        os.dup2(log.fileno(), stream)
    log.close()
    with suppress(ImportError):
        from setproctitle import setproctitle

        setproctitle(" ".join(argv))
    sys.argv = list(argv[len(PYTHON) :])
    sys.modules.pop(module, None)  # it becomes __main__, as with `python -m`
    runpy.run_module(module, run_name="__main__", alter_sys=True)
    sys.exit()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
