"""Two machines on one: network namespaces joined by a cable.

In:  the rights of root, and `ip`.
Out: names of namespaces whose `eth0` have the addresses 10.77.0.1 and 10.77.0.2.
"""

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

ADDRESSES = ("10.77.0.1", "10.77.0.2")


def _ip(*arguments: str) -> bool:
    done = subprocess.run(["ip", *arguments], check=False, capture_output=True, timeout=30)
    return done.returncode == 0


def can_make_networks() -> bool:
    """Whether namespaces and cables may be made here."""
    if not shutil.which("ip") or os.geteuid() != 0:
        return False
    name = f"probe{os.getpid()}"
    made = _ip("netns", "add", name) and _ip("netns", "exec", name, "true")
    _ip("netns", "del", name)
    return made


@contextmanager
def two_machines() -> Iterator[tuple[str, str]]:
    """Names of both; whatever happens, they are gone afterwards."""
    names = (f"cloze{os.getpid()}a", f"cloze{os.getpid()}b")
    ends = (f"v{os.getpid()}a", f"v{os.getpid()}b")
    try:
        for name in names:
            assert _ip("netns", "add", name)
        assert _ip("link", "add", ends[0], "type", "veth", "peer", "name", ends[1])
        for name, end, address in zip(names, ends, ADDRESSES, strict=True):
            assert _ip("link", "set", end, "netns", name)
            assert _ip("-n", name, "link", "set", end, "name", "eth0")
            assert _ip("-n", name, "addr", "add", f"{address}/24", "dev", "eth0")
            assert _ip("-n", name, "link", "set", "lo", "up")
            assert _ip("-n", name, "link", "set", "eth0", "up")
        yield names
    finally:
        for name in names:
            _ip("netns", "del", name)
        _ip("link", "del", ends[0])
