"""Where the processes of a run listen, and whom they call, as the kernel tells it.

In:  a process that has started, with all below it.
Out: every TCP address on which one of them was seen to listen, and every one that it was connected
     to, by the stage whose program it was.
"""

import ipaddress
import re
import threading
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

import psutil

TABLE = re.compile(r"/stages/(\w+)\.json")
"""In the command line of a stage's supervisor and program."""

PERIOD_SECONDS = 0.1

Addresses = dict[str, set[str]]
"""By stage, "" for what belongs to none; empty for a stage that was seen to be quiet."""


@dataclass(frozen=True)
class Sockets:
    """What a run had to do with the network."""

    listened: Addresses = field(default_factory=lambda: defaultdict(set))
    called: Addresses = field(default_factory=lambda: defaultdict(set))


@contextmanager
def watched(pid: int) -> Iterator[Sockets]:
    """Looks at `pid` and all below it ten times a second while the body runs."""
    found = Sockets()
    finished = threading.Event()

    def watch() -> None:
        while not finished.wait(PERIOD_SECONDS):
            with suppress(psutil.NoSuchProcess):  # it has just ended
                for stage, sockets in sockets_of(psutil.Process(pid)):
                    listened, called = found.listened[stage], found.called[stage]
                    listened |= {one.laddr.ip for one in sockets if not one.raddr}
                    called |= {one.raddr.ip for one in sockets if one.raddr}

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield found
    finally:
        finished.set()
        thread.join()


def sockets_of(process: psutil.Process, stage: str = "") -> Iterator[tuple[str, list[Any]]]:
    """Stage and sockets of `process`, which listen or are connected; then of all below it."""
    try:
        named = TABLE.search(" ".join(process.cmdline()))
        stage = named[1] if named else stage
        sockets = process.net_connections("tcp")
        yield stage, [one for one in sockets if one.raddr or one.status == psutil.CONN_LISTEN]
        for child in process.children():
            yield from sockets_of(child, stage)
    except (psutil.NoSuchProcess, psutil.AccessDenied):
        return


def outside(addresses: set[str]) -> set[str]:
    """Those of `addresses` that another machine can reach."""
    return {address for address in addresses if not ipaddress.ip_address(address).is_loopback}
