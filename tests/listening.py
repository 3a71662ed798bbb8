"""Where the processes of a run listen, as the kernel tells it.

In:  a process that has started, with all below it.
Out: every TCP address on which one of them ever listened, by the stage whose program it was.
"""

import ipaddress
import re
import threading
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import psutil

TABLE = re.compile(r"/stages/(\w+)\.json")
"""In the command line of a stage's supervisor and program."""

PERIOD_SECONDS = 0.1

Listening = dict[str, set[str]]
"""By stage, "" for what belongs to none: addresses; empty for a stage that was seen to be quiet."""


@contextmanager
def listening(pid: int) -> Iterator[Listening]:
    """Looks at `pid` and all below it ten times a second while the body runs."""
    found: Listening = defaultdict(set)
    finished = threading.Event()

    def watch() -> None:
        while not finished.wait(PERIOD_SECONDS):
            with suppress(psutil.NoSuchProcess):  # it has just ended
                for stage, address in listeners(psutil.Process(pid)):
                    found[stage].update(address)

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield found
    finally:
        finished.set()
        thread.join()


def listeners(process: psutil.Process, stage: str = "") -> Iterator[tuple[str, list[str]]]:
    """Stage and addresses of `process`, then of all below it."""
    try:
        named = TABLE.search(" ".join(process.cmdline()))
        stage = named[1] if named else stage
        yield (
            stage,
            [
                socket.laddr.ip
                for socket in process.net_connections("tcp")
                if socket.status == psutil.CONN_LISTEN
            ],
        )
        for child in process.children():
            yield from listeners(child, stage)
    except (psutil.NoSuchProcess, psutil.AccessDenied):
        return


def outside(addresses: set[str]) -> set[str]:
    """Those of `addresses` that another machine can reach."""
    return {address for address in addresses if not ipaddress.ip_address(address).is_loopback}
