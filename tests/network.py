"""Two machines on one: network namespaces joined by a cable.

In:  the rights of root, and `ip`.
Out: names of namespaces whose `eth0` have the addresses 10.77.0.1 and 10.77.0.2.
"""

import os
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from tests.waiting import PATIENCE

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


@contextmanager
def ssh_between(machines: Sequence[str], folder: Path) -> Iterator[Path]:
    """A server on each machine, and the configuration with which root may log in from the other."""
    host_key, key, allowed = folder / "host_key", folder / "key", folder / "allowed"
    for path in (host_key, key):
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(path)], check=True)
    shutil.copy(f"{key}.pub", allowed)
    Path("/run/sshd").mkdir(exist_ok=True)  # where sshd puts itself in chains
    options = {
        "AuthorizedKeysFile": allowed,
        "StrictModes": "no",
        "PasswordAuthentication": "no",
        "PermitRootLogin": "prohibit-password",
        "UsePAM": "no",
        "PidFile": "none",
    }
    flags = [f"-o{name}={value}" for name, value in options.items()]
    config = folder / "ssh_config"
    config.write_text(
        f"Host 10.77.0.*\nIdentityFile {key}\nStrictHostKeyChecking no\n"
        "UserKnownHostsFile /dev/null\nLogLevel ERROR\n"
    )
    server = [shutil.which("sshd") or "sshd", "-D", "-f", "/dev/null", f"-h{host_key}", *flags]
    servers = [
        subprocess.Popen(["ip", "netns", "exec", machine, *server, f"-oListenAddress={address}:22"])
        for machine, address in zip(machines, ADDRESSES, strict=True)
    ]
    try:
        yield config
    finally:
        for running in servers:
            running.terminate()
            running.wait(PATIENCE)
